//! Decisions by an engine in this process, whose clock is the limiter's.
//!
//! [`ImmediateAllow`] charges a request whose counters all exist and admit it
//! now; it rejects nothing. [`reject_at_once`] rejects what is used up, and charges
//! nothing. [`decide_local`] decides any request. Invariant: all charge all of a
//! request, or nothing.

use std::time::Duration;

use super::{charged::Keep, current::PolicySnapshot, observe, state::RateLimiter};
use crate::{
    backend::{AtOnce, Charge, InProcess, LONGEST_RACE, Outcome, OutcomeKind, QuotaStatuses},
    decision::{Decision, RateLimitedKind},
    observe::RequestResult,
    policy::{
        CompiledRule, Target,
        charge::{AsTarget, LocalCharge},
    },
    time::Timestamp,
};

/// How often in a row a thread may be overtaken between reading the clock and
/// taking the lock.
const MOST_RACES: usize = 16;

/// How a request is admitted if all its counters exist and admit it now.
#[derive(Clone, Copy)]
pub(super) struct ImmediateAllow<'s> {
    pub(super) snapshot: PolicySnapshot<'s>,
    pub(super) now: Timestamp,
    /// Nanoseconds that the request has waited so far.
    pub(super) waited: u64,
    pub(super) result: RequestResult,
    /// Whether the decision is read.
    pub(super) writes_decision: bool,
}

impl<'s> ImmediateAllow<'s> {
    /// Of a request that has not waited.
    #[inline]
    pub(super) fn on_arrival(snapshot: PolicySnapshot<'s>, now: Timestamp, writes_decision: bool) -> Self {
        Self { snapshot, now, waited: 0, result: RequestResult::Allowed, writes_decision }
    }

    /// Charges all targets and admits the request; or changes nothing.
    #[inline]
    pub(super) fn attempt<'t>(
        self,
        (limiter, engine): (&RateLimiter, &InProcess),
        targets: &[impl AsTarget<'t>],
        rules: impl IntoIterator<Item = &'t CompiledRule> + Clone,
        keep: &mut impl Keep,
        decision: &mut Decision,
    ) -> bool {
        let is_charged = match targets {
            [only] if only.target().tiers.len() == 1 => self.charge_tier(engine, only.target(), keep, decision),
            _ => self.charge_tiers(engine, targets, keep, decision),
        };
        if is_charged {
            self.admit(rules, decision);
            keep.finish(limiter, self.snapshot.policy, targets);
        }
        is_charged
    }

    #[inline]
    fn charge_tier(
        self,
        engine: &InProcess,
        target: Target<'_>,
        keep: &mut impl Keep,
        decision: &mut Decision,
    ) -> bool {
        let Some(tier) = target.tiers.first() else { return false };
        let Some((status, version)) = engine.try_charge_tier(&target, tier, self.now.as_nanos()) else { return false };
        if self.writes_decision {
            let status = status.status();
            decision.add_tier_with(|| tier.status(status.remaining, status.reset, false));
        }
        keep.add_version(version);
        true
    }

    /// Kept out of line: inlining the multi-tier path makes the single-tier path slower.
    #[inline(never)]
    fn charge_tiers<'t>(
        self,
        engine: &InProcess,
        targets: &[impl AsTarget<'t>],
        keep: &mut impl Keep,
        decision: &mut Decision,
    ) -> bool {
        engine.try_charge(targets, self.now.as_nanos(), |tier, status, version| {
            if self.writes_decision {
                decision.add_tier_with(|| tier.status(status.remaining, status.reset, false));
            }
            keep.add_version(version);
        })
    }

    /// Like [`Self::attempt`], for a charge that a backend with a store makes in this
    /// process.
    #[inline]
    pub(super) fn attempt_at_once(self, at_once: &AtOnce, charge: &LocalCharge<'_>, decision: &mut Decision) -> bool {
        let mut statuses = QuotaStatuses::new();
        if !at_once.try_charge(charge, self.now.as_nanos(), &mut statuses) {
            return false;
        }
        if self.writes_decision {
            for (tier, status) in charge.target.tiers.iter().zip(&statuses) {
                decision.add_tier_with(|| tier.status(status.remaining, status.reset, false));
            }
        }
        self.admit(std::iter::once(charge.rule), decision);
        true
    }

    #[inline]
    fn admit<'t>(self, rules: impl IntoIterator<Item = &'t CompiledRule> + Clone, decision: &mut Decision) {
        if self.writes_decision {
            decision.admit(self.now, self.waited);
        }
        observe::record(self.snapshot.counters, rules, self.result, decision, self.now);
    }
}

/// Rejects a request that may not wait, if its counters exist and are used up; or
/// changes nothing.
pub(super) fn reject_at_once<'t>(
    limiter: &RateLimiter,
    engine: &InProcess,
    (snapshot, now): (PolicySnapshot<'_>, Timestamp),
    target: &Target<'t>,
    decision: &mut Decision,
) -> bool {
    let Some((retry_after, states)) = engine.used_up(target, now.as_nanos()) else { return false };
    if time_after(limiter, now, retry_after).is_some() {
        return false;
    }
    for (tier, state) in target.tiers.iter().zip(states) {
        decision.add_tier(tier.status(state.remaining, state.reset, state.violated));
    }
    decision.reject(RateLimitedKind::QuotaExceeded, now, Some(retry_after));
    observe::record(snapshot.counters, &snapshot.policy.rules, RequestResult::Rejected, decision, now);
    true
}

/// The clock's current time, if a wait from `now` on is over by then: another thread may
/// have been faster between reading the clock and taking the lock.
fn time_after(limiter: &RateLimiter, now: Timestamp, wait: u64) -> Option<Timestamp> {
    if wait > LONGEST_RACE {
        return None;
    }
    let later = limiter.now();
    (later.as_nanos().saturating_sub(now.as_nanos()) >= wait).then_some(later)
}

/// Decides in this process. Another thread may read the clock later and take
/// the lock first. The state is then ahead of this request's time, and the
/// request is rejected for a wait that may already be over. If it is, the
/// request is decided again, at the clock's current time.
pub(super) fn decide_local(
    limiter: &RateLimiter,
    engine: &InProcess,
    charges: &[Charge<'_>],
    now: &mut Timestamp,
    max_wait: Duration,
) -> Outcome {
    let mut outcome = engine.decide(&limiter.request(charges, *now, max_wait));
    for _ in 0..MOST_RACES {
        let OutcomeKind::Rejected { retry_after: Some(retry_after) } = outcome.answer else { break };
        let Some(later) = time_after(limiter, *now, retry_after) else { break };
        *now = later;
        outcome = engine.decide(&limiter.request(charges, later, max_wait));
    }
    outcome
}
