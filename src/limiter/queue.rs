//! Which wait queue a request belongs in, and which requests are ahead of it.
//! Decides nothing and charges nothing.
//!
//! Invariant: no request overtakes another that waits in the queue of one of
//! its keys, even if a unit is free. A request in a queue holds no unit of any
//! other key, so requests cannot wait for each other in a circle.

use std::time::Duration;

use super::{
    adaptive::queue::{rate_queue, rate_queues},
    attempt::Attempt,
    state::{Backing, RateLimiter},
    wait::fifo::NOT_QUEUED,
};
use crate::{
    backend::{Charge, Outcome, OutcomeKind},
    fingerprint::Fingerprint,
    time::nanos,
};

/// The keys under which a charge counts in-flight units: its own, and the
/// rule's overflow counter.
pub(super) fn in_flight<'c>(charge: &'c Charge<'_>) -> impl Iterator<Item = [Fingerprint; 2]> + 'c {
    let tiers = charge.tiers().iter().filter(|tier| charge.cost > 0 && tier.is_in_flight());
    tiers.map(|tier| charge.counters(tier))
}

/// Whether a request waits in the queue of `key` because of this charge.
pub(super) fn is_of(key: Fingerprint, charge: &Charge<'_>) -> bool {
    in_flight(charge).chain(rate_queue(charge)).any(|keys| keys.contains(&key))
}

/// How long, in nanoseconds, a request may wait in the queue of `key`: as long
/// as the rule allows whose charge it is.
pub(super) fn longest_in_queue(charges: &[Charge<'_>], key: Fingerprint, max_wait: Duration) -> u64 {
    let of_rule = charges.iter().find(|charge| is_of(key, charge));
    // A custom backend may name a key that is no charge's.
    let rule = of_rule.map(|charge| charge.max_wait);
    rule.or_else(|| charges.iter().map(|charge| charge.max_wait).min()).unwrap_or(0).min(nanos(max_wait))
}

impl RateLimiter {
    /// A key of the request in whose queue another request is ahead.
    pub(super) fn blocked(&self, attempt: &Attempt<'_>) -> Option<Fingerprint> {
        let queues = &self.inner.queues;
        if queues.are_empty() {
            return None;
        }
        let number = attempt.queued.map_or(NOT_QUEUED, |(_, number)| number);
        let is_ahead = |key: &Fingerprint| queues.has_before(*key, number);
        let charges = attempt.enforced;
        let mut keys = charges.iter().flat_map(in_flight).chain(rate_queues(charges)).map(|[own, _]| own);
        keys.find(is_ahead).or_else(|| {
            // Whether a concurrency limit is counted by the overflow counter
            // only the backend knows: asked if a request waits for that.
            let Backing::InProcess(engine) = &self.inner.backend else { return None };
            if !charges.iter().flat_map(in_flight).any(|[_, overflow]| is_ahead(&overflow)) {
                return None;
            }
            let request = self.request(charges, attempt.now, Duration::ZERO);
            engine.overflow_in_flight(&request).into_iter().find(is_ahead)
        })
    }

    /// The outcome for a request that is blocked: it would have to overtake.
    pub(super) fn behind(&self, attempt: &Attempt<'_>, key: Fingerprint) -> Outcome {
        let mut outcome = Outcome::admitted(Duration::ZERO);
        if let Backing::InProcess(engine) = &self.inner.backend {
            outcome = engine.look(&self.request(attempt.enforced, attempt.now, attempt.options.max_wait));
            // A request that will not pass in time need not queue.
            if let OutcomeKind::Rejected { .. } = outcome.answer {
                return outcome;
            }
            let tiers =
                attempt.enforced.iter().flat_map(|charge| charge.tiers().iter().map(move |tier| (charge, tier)));
            for ((charge, tier), state) in tiers.zip(&mut outcome.tiers) {
                state.violated = charge.counters(tier).contains(&key);
            }
        }
        Outcome { answer: OutcomeKind::Busy { key }, ..outcome }
    }
}
