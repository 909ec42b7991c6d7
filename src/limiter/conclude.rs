use std::time::Duration;

use super::{
    Hold, RateLimiter, Reservation, Unfinished,
    current::Scene,
    decide::{Charges, Terms, longest_wait},
    fair::Newcomer,
    hold::Decider,
    in_line::{holds, longest_in_line},
    later::{DONE, Decided},
    report,
    room::Seat,
};
use crate::{
    backend::{AcquireRequest, Answer, Charge, Outcome, Receipt},
    decision::{Decision, RateLimitedKind},
    error::BackendError,
    observe::Event,
    policy::{CompiledRule, FailureMode},
    time::{Timestamp, nanos},
};

/// A backend's answer, and what it was asked.
pub(super) struct Answered<'o> {
    pub(super) now: Timestamp,
    /// Nanoseconds for which it has waited already.
    pub(super) waited: u64,
    pub(super) outcome: &'o Outcome,
    pub(super) terms: Terms,
    pub(super) seat: Seat,
    pub(super) decider: Decider,
}

impl RateLimiter {
    /// Turns a backend's answer into a decision, and counts it.
    pub(super) fn conclude(
        &self,
        scene: Scene<'_>,
        charges: &[Charge<'_>],
        answered: Answered<'_>,
        decision: &mut Decision,
    ) -> Decided {
        let Answered { now, waited, outcome, terms, seat, decider } = answered;
        let mut states = outcome.tiers.iter();
        for charge in charges {
            for (tier, state) in charge.tiers().iter().zip(&mut states) {
                decision.add_tier(tier.status(state.remaining, state.reset, state.violated));
            }
        }
        let keeps = terms.claims && !charges.is_empty() || scene.policy.keeps_receipts && charges.iter().any(holds);
        let hold = || Hold::new(self, decider, Receipt::new(scene.policy, charges, now, outcome));
        let (event, decided) = match outcome.answer {
            Answer::Admitted { wait: 0 } => {
                decision.admit(now, waited);
                let event = if waited == 0 { Event::Allowed } else { Event::Delayed };
                (event, keeps.then(|| Box::new(Unfinished::Held(hold().goes()))))
            }
            Answer::Admitted { wait } => {
                let waiter = if let Seat::Taken(waiter) = seat { Some(waiter) } else { None };
                let (reservation, wait) = match charges {
                    [charge] if charge.applied.rule.fair => {
                        let (place, at) =
                            Reservation::by_turns(hold(), keeps, waiter, newcomer(charge, now, terms.max_wait));
                        (place, at.saturating_sub(now.as_nanos()))
                    }
                    _ => (Reservation::new(hold(), keeps, waiter), wait),
                };
                decision.admit(now, wait.saturating_add(waited));
                (Event::Delayed, Some(Box::new(Unfinished::Reserved(reservation))))
            }
            Answer::Busy { key } => {
                let kind = match seat {
                    Seat::Full if longest_in_line(charges, key, terms.max_wait) > 0 => RateLimitedKind::QueueFull,
                    _ => RateLimitedKind::QuotaExceeded,
                };
                decision.refuse(kind, now, Some(BUSY_RETRY));
                (Event::Rejected, DONE)
            }
            Answer::Refused { retry_after } => {
                let kind = match (retry_after, seat) {
                    (None, _) => RateLimitedKind::NeverFits,
                    (Some(after), Seat::Full) if after <= longest_wait(charges, terms.max_wait) => {
                        RateLimitedKind::QueueFull
                    }
                    (Some(_), _) => RateLimitedKind::QuotaExceeded,
                };
                decision.refuse(kind, now, retry_after);
                (Event::Rejected, DONE)
            }
        };
        if !charges.is_empty() {
            scene.counters.count(event);
            report::decided(rules(charges), event, decision, now);
        }
        decided
    }

    /// Each rule's failure mode decides: one that fails closed refuses; else
    /// the ones that fail to a local limiter have their say; else it goes.
    #[cold]
    pub(super) fn without_backend(
        &self,
        scene: Scene<'_>,
        charges: &[Charge<'_>],
        now: Timestamp,
        error: BackendError,
        terms: Terms,
        decision: &mut Decision,
    ) -> Decided {
        report::backend_failed(rules(charges), &error, now);
        let fails = |charge: &&Charge<'_>, mode| charge.applied.rule.on_backend_failure == mode;
        if charges.iter().any(|charge| fails(&charge, FailureMode::Closed)) {
            decision.refuse(RateLimitedKind::BackendUnavailable, now, None);
            decision.set_error(error);
            scene.counters.count(Event::FailedClosed);
            report::decided(rules(charges), Event::FailedClosed, decision, now);
            return DONE;
        }
        let local: Charges<'_> = charges.iter().filter(|charge| fails(charge, FailureMode::Local)).copied().collect();
        if local.is_empty() {
            scene.counters.count(Event::FailedOpen);
            report::decided(rules(charges), Event::FailedOpen, decision, now);
            return DONE;
        }
        // Nothing waits on a limiter that stands in for another.
        let request = AcquireRequest::new(&local, now, Duration::ZERO);
        let outcome = self.inner.fallback.get_or_init(Default::default).decide(&request);
        let terms = Terms { max_wait: Duration::ZERO, ..terms };
        let (seat, decider) = (Seat::NotAsked, Decider::Fallback);
        self.conclude(scene, &local, Answered { now, waited: 0, outcome: &outcome, terms, seat, decider }, decision)
    }
}

/// When to try again, in nanoseconds, where nobody knows when a unit of a
/// limit on what is in flight comes back.
const BUSY_RETRY: u64 = 1_000_000_000;

fn newcomer<'a>(charge: &Charge<'a>, now: Timestamp, max_wait: Duration) -> Newcomer<'a> {
    let longest = charge.max_wait.min(nanos(max_wait));
    Newcomer {
        key: charge.applied.key,
        cost: charge.cost,
        tiers: charge.tiers().as_ptr().addr(),
        tenant: charge.applied.tenant,
        now,
        deadline: now.as_nanos().saturating_add(longest),
    }
}

fn rules<'a>(charges: &[Charge<'a>]) -> impl Iterator<Item = &'a CompiledRule> + Clone {
    charges.iter().map(|charge| charge.applied.rule)
}
