use super::{
    Lease, RateLimiter, Reservation, Unfinished,
    current::PolicySnapshot,
    decide::{Terms, longest_wait},
    fair::Newcomer,
    hold::Decider,
    in_line::{holds, longest_in_line},
    later::{DONE, Decided},
    report,
    room::Seat,
};
use crate::{
    backend::{Answer, Charge, Outcome, Receipt},
    decision::{Decision, RateLimitedKind},
    observe::Event,
    policy::CompiledRule,
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
        snapshot: PolicySnapshot<'_>,
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
        let keeps = terms.keeps() && !charges.is_empty() || snapshot.policy.keeps_receipts && charges.iter().any(holds);
        let mirror = match outcome.answer {
            Answer::Admitted { wait } if snapshot.policy.fails_locally && decider == Decider::Backend => {
                self.keep_warm(snapshot, charges, now, keeps || wait > 0)
            }
            _ => None,
        };
        let receipt = || Receipt::new(snapshot.policy, charges, now, outcome);
        let hold = || Lease::new(self, decider, receipt()).mirrored(mirror).on(terms);
        let (event, decided) = match outcome.answer {
            Answer::Admitted { wait: 0 } => {
                decision.admit(now, waited);
                let event = match (decider, waited) {
                    (Decider::Fallback, _) => Event::FailedLocal,
                    (_, 0) => Event::Allowed,
                    _ => Event::Delayed,
                };
                (event, keeps.then(|| Box::new(Unfinished::Held(hold().goes()))))
            }
            Answer::Admitted { wait } => {
                let waiter = if let Seat::Taken(waiter) = seat { Some(waiter) } else { None };
                let hold = hold().for_its_turn(now);
                let (reservation, wait) = match charges {
                    [charge] if charge.applied.rule.fair => {
                        let (place, at) =
                            Reservation::by_turns(hold, keeps, waiter, newcomer(charge, now, terms.max_wait));
                        (place, at.saturating_sub(now.as_nanos()))
                    }
                    _ => (Reservation::new(hold, keeps, waiter), wait),
                };
                decision.admit(now, wait.saturating_add(waited));
                (Event::Delayed, Some(Box::new(Unfinished::Reserved(reservation))))
            }
            Answer::Busy { key } => {
                let kind = match seat {
                    Seat::Full if longest_in_line(charges, key, terms.max_wait) > 0 => RateLimitedKind::QueueFull,
                    _ => RateLimitedKind::QuotaExceeded,
                };
                decision.reject(kind, now, Some(BUSY_RETRY));
                (Event::Rejected, DONE)
            }
            Answer::Rejected { retry_after } => {
                let kind = match (retry_after, seat) {
                    (None, _) => RateLimitedKind::NeverFits,
                    (Some(after), Seat::Full) if after <= longest_wait(charges, terms.max_wait) => {
                        RateLimitedKind::QueueFull
                    }
                    (Some(_), _) => RateLimitedKind::QuotaExceeded,
                };
                decision.reject(kind, now, retry_after);
                (Event::Rejected, DONE)
            }
        };
        let again = terms.counted && matches!(outcome.answer, Answer::Admitted { .. });
        if !charges.is_empty() && !again {
            snapshot.counters.count(event);
            report::decided(rules(charges), event, decision, now);
        }
        decided
    }
}

/// When to try again, in nanoseconds, where nobody knows when a unit of a
/// limit on what is in flight comes back.
const BUSY_RETRY: u64 = 1_000_000_000;

fn newcomer<'a>(charge: &Charge<'a>, now: Timestamp, max_wait: std::time::Duration) -> Newcomer<'a> {
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

pub(super) fn rules<'a>(charges: &[Charge<'a>]) -> impl Iterator<Item = &'a CompiledRule> + Clone {
    charges.iter().map(|charge| charge.applied.rule)
}
