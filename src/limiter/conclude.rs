//! The tail of every decision by a backend's outcome: fill in the decision,
//! keep what was charged, count and report.
//!
//! It does not choose when a request is admitted: the backend has. But it may give a
//! request that the backend rejects a slot that another waiter has left.

use std::sync::Arc;

use super::{
    adaptive_limit::limits::FoundLimits,
    admission::Step,
    attempt::{Attempt, longest_wait, rules},
    lease::Lease,
    observe,
    queue::{is_adaptive, longest_in_queue, rate_queues},
    reservation::Reservation,
    state::{Decider, Grant},
};
use crate::{
    backend::{Charge, Outcome, OutcomeKind, Receipt, TierState},
    decision::{Decision, RateLimitedKind},
    jitter::draw,
    observe::RequestResult,
    policy::{CompiledRule, FailureMode, charge::Charges},
    time::nanos,
};

/// When to retry, in nanoseconds, while a concurrency limit is full: a guess,
/// since it is unknown when a request in flight will end.
pub(super) const BUSY_RETRY: u64 = 1_000_000_000;

impl Attempt<'_> {
    /// Makes a decision of the outcome for these charges of the attempt.
    pub(super) fn conclude(
        &self,
        charges: &[Charge<'_>],
        outcome: &Outcome,
        decider: Decider,
        decision: &mut Decision,
    ) -> Step {
        let options = &self.options;
        let is_admitted_now = outcome.answer == OutcomeKind::Admitted { wait: 0 };
        if options.reads_decision || !is_admitted_now {
            add_tiers(decision, charges, &outcome.tiers);
        }
        if options.peeks() {
            self.answer_peek(charges, outcome.answer, decision);
            return Step::Done(None);
        }
        let step = match outcome.answer {
            OutcomeKind::Admitted { .. } => Some(self.admitted(charges, outcome, decider)),
            OutcomeKind::Rejected { .. } if decider == Decider::Backend => {
                Reservation::free(self, charges).map(|reservation| Step::Sleep(Box::new(reservation)))
            }
            _ => None,
        };
        let Some(step) = step else {
            self.reject(charges, outcome.answer, decision);
            self.record_rejection(charges, decision);
            return Step::Done(None);
        };
        let wait = step.departs().map_or(0, |at| nanos(at.saturating_since(self.now)));
        let is_delayed = step.waits() || options.waited > 0;
        if options.reads_decision || is_delayed {
            decision.admit(self.now, wait.saturating_add(options.waited));
        }
        let result = match decider {
            Decider::Fallback => RequestResult::FailedLocal,
            _ if is_delayed => RequestResult::Delayed,
            _ => RequestResult::Allowed,
        };
        if !charges.is_empty() && !options.counted {
            self.record(rules(charges), result, decision);
            let top = self.limiter.inner.top.as_deref();
            observe::count_units(top, self.snapshot.counters, charges, decision, self.now);
        }
        step
    }

    /// The decision that a request would get now, without a wait.
    #[cold]
    fn answer_peek(&self, charges: &[Charge<'_>], answer: OutcomeKind, decision: &mut Decision) {
        let answer = match answer {
            OutcomeKind::Admitted { wait: 0 } => return decision.admit(self.now, 0),
            OutcomeKind::Admitted { wait } => OutcomeKind::Rejected { retry_after: Some(wait) },
            answer => answer,
        };
        self.reject(charges, answer, decision);
    }

    /// The request is admitted: it keeps what it was charged, if anything is to be done with that.
    fn admitted(&self, charges: &[Charge<'_>], outcome: &Outcome, decider: Decider) -> Step {
        let Attempt { limiter, snapshot, now, .. } = *self;
        let limits = match snapshot.policy.adapts {
            true => limiter.found_in_flight(charges, &outcome.tiers, FoundLimits::new(), now),
            false => FoundLimits::new(),
        };
        let keeps_lease = self.keeps_lease(charges);
        let waits = outcome.answer != OutcomeKind::Admitted { wait: 0 };
        let may_be_put_off = !waits && decider == Decider::Backend;
        let put_off = if may_be_put_off { limiter.inner.cooldowns.claim(charges, None, now) } else { None };
        let is_kept = keeps_lease || waits || put_off.is_some();
        // A backend in this process does not fail.
        let may_fail = decider == Decider::Backend && limiter.inner.engine.is_none();
        let mirrors = snapshot.policy.fails_locally && may_fail;
        let mirror = if mirrors { self.keep_warm(charges, is_kept) } else { None };
        if !is_kept {
            return Step::Done(None);
        }
        let receipt = Receipt::new(snapshot.policy, charges, now, outcome);
        let grant = Grant { mirror, limits, ..Grant::new(decider, receipt) };
        if waits {
            return Step::Sleep(Box::new(Reservation::later(self, charges, grant, keeps_lease)));
        }
        let mut lease = Lease::new(limiter, grant);
        (lease.is_kept, lease.put_off) = (keeps_lease, put_off);
        let lease = Arc::new(lease);
        if put_off.is_some() { Step::PutOff(lease) } else { Step::Done(Some(lease)) }
    }

    /// Keeps the fallback limiter warm: it counts what the backend admits for rules
    /// with `FailureMode::Local`, so that no key gets a whole quota again when the
    /// backend fails. Returns what was counted, if it `is_kept`.
    #[cold]
    fn keep_warm(&self, charges: &[Charge<'_>], is_kept: bool) -> Option<Box<Receipt>> {
        let Attempt { limiter, snapshot, now, .. } = *self;
        let local = at_local_share(charges, |rule| {
            rule.limits.is_none() && rule.options.on_backend_failure == Some(FailureMode::Local)
        });
        if local.is_empty() {
            return None;
        }
        limiter.follow_instances(snapshot.policy);
        let counted = limiter.fallback().count(&local, now);
        is_kept.then(|| Box::new(Receipt::counted(snapshot.policy, &local, now, counted)))
    }

    /// Says why these charges are rejected, when to retry, and by how much a request can never fit.
    fn reject(&self, charges: &[Charge<'_>], answer: OutcomeKind, decision: &mut Decision) {
        let (kind, retry_after) = self.rejection(charges, answer);
        decision.reject(kind, self.now, retry_after);
        state_status(charges.iter().map(|charge| charge.rule), decision);
        if kind == RateLimitedKind::NeverFits
            && let Some((cost, capacity)) = charges.iter().find_map(excess)
        {
            decision.set_excess(cost, capacity);
        }
    }

    /// Why these charges are rejected, and when to retry.
    fn rejection(&self, charges: &[Charge<'_>], answer: OutcomeKind) -> (RateLimitedKind, Option<u64>) {
        let is_full = self.is_shut_out();
        let max_wait = self.options.max_wait;
        let (lacks_place, kind, retry_after) = match answer {
            OutcomeKind::Busy { key } => {
                if is_adaptive(charges, key) {
                    return overloaded();
                }
                let is_rate = rate_queues(charges).any(|keys| keys.contains(&key));
                let kind = if is_rate { RateLimitedKind::QuotaExceeded } else { RateLimitedKind::Concurrency };
                (is_full && longest_in_queue(charges, key, max_wait) > 0, kind, BUSY_RETRY)
            }
            OutcomeKind::Rejected { retry_after: Some(after) } => {
                let until = self.limiter.inner.cooldowns.until(charges, self.now);
                let is_cooldown = until.is_some_and(|until| nanos(until.saturating_since(self.now)) >= after);
                let kind = if is_cooldown { RateLimitedKind::Cooldown } else { RateLimitedKind::QuotaExceeded };
                (is_full && after <= longest_wait(charges, max_wait), kind, after)
            }
            // The limit may grow.
            _ if charges.iter().any(|charge| charge.is_adaptive() && excess(charge).is_some()) => return overloaded(),
            _ => return (RateLimitedKind::NeverFits, None),
        };
        (if lacks_place { RateLimitedKind::QueueFull } else { kind }, Some(retry_after))
    }
}

/// The status of each tier, as the backend left it.
pub(super) fn add_tiers(decision: &mut Decision, charges: &[Charge<'_>], states: &[TierState]) {
    let mut states = states.iter();
    for charge in charges {
        for (tier, state) in charge.tiers().iter().zip(&mut states) {
            decision.add_tier(tier.status(state.remaining, state.resets_in(), state.violated));
        }
    }
}

/// The status of the first rule that rejects and sets one.
pub(super) fn state_status<'r>(mut rules: impl Iterator<Item = &'r CompiledRule>, decision: &mut Decision) {
    let stated = |rule: &CompiledRule| rule.options.status.filter(|_| observe::violates(decision, rule));
    if let Some(status) = rules.find_map(stated) {
        decision.set_status(status);
    }
}

/// An adaptive concurrency limit is full. Callers must not all come back at the same time.
fn overloaded() -> (RateLimitedKind, Option<u64>) {
    (RateLimitedKind::Overloaded, Some(BUSY_RETRY + draw(BUSY_RETRY)))
}

/// The cost of a charge, and the capacity of the first tier that never holds so much.
fn excess(charge: &Charge<'_>) -> Option<(u64, u64)> {
    let mut capacities = charge.tiers().iter().map(|tier| tier.quota().capacity());
    Some((charge.cost, capacities.find(|capacity| charge.cost > *capacity)?))
}

/// The charges of rules that fail local, at their local share of the limits.
pub(super) fn at_local_share<'a>(charges: &[Charge<'a>], fails_local: impl Fn(&CompiledRule) -> bool) -> Charges<'a> {
    let local = charges.iter().filter(|charge| fails_local(charge.rule));
    local.map(|charge| charge.for_fallback()).collect()
}
