//! Waiting for an adaptive rate. Slots are reserved only shortly before they
//! come, and requests wait in a queue until then: slots that were reserved at a
//! slow rate would be used at that rate long after it has risen.
//!
//! A request that another of its limits delays longer waits in a queue of that
//! limit, so that other requests go on using the rate.

use std::{slice, time::Duration};

use super::super::{
    attempt::{Attempt, longest_wait},
    state::{Backing, RateLimiter},
};
use crate::{
    backend::{Charge, Outcome, OutcomeKind, Receipt},
    fingerprint::Fingerprint,
};

/// How long before it comes a slot is reserved: long enough for a late timer,
/// short enough for a change of the rate to take effect.
const AHEAD: Duration = Duration::from_millis(50);

/// The keys of the queue for a charge's adaptive rate: its own, and that of the
/// rule's overflow counter.
pub(in crate::limiter) fn adaptive_queue(charge: &Charge<'_>) -> Option<[Fingerprint; 2]> {
    let tier = charge.tiers().last().filter(|_| charge.rule.ladder.is_some() && charge.cost > 0)?;
    Some(charge.counters(tier))
}

fn adapts(charge: &Charge<'_>) -> bool {
    adaptive_queue(charge).is_some()
}

/// The queue for any charge of a request that has an adaptive rate: of another
/// limit, it is that limit's own.
pub(in crate::limiter) fn rate_queue(charge: &Charge<'_>) -> Option<[Fingerprint; 2]> {
    let other = || charge.tiers().iter().rfind(|tier| charge.cost > 0 && !tier.is_in_flight());
    let of_tier = || other().map(|tier| charge.counters(tier));
    adaptive_queue(charge).or_else(of_tier)
}

/// The queues in which a request may have to wait for a rate.
pub(in crate::limiter) fn rate_queues<'c>(charges: &'c [Charge<'_>]) -> impl Iterator<Item = [Fingerprint; 2]> + 'c {
    let adapts = charges.iter().any(adapts);
    charges.iter().filter(move |_| adapts).filter_map(rate_queue)
}

impl RateLimiter {
    /// How far ahead a request may reserve a slot.
    pub(in crate::limiter) fn reserved_ahead(&self, attempt: &Attempt<'_>) -> Duration {
        let max_wait = attempt.options.max_wait;
        let is_bounded = attempt.snapshot.policy.adapts && attempt.enforced.iter().any(adapts);
        if is_bounded { max_wait.min(AHEAD) } else { max_wait }
    }

    /// Units were given back: the waiters for them may be admitted sooner.
    pub(in crate::limiter) fn gave_back(&self, receipt: &Receipt) {
        let queues = &self.inner.queues;
        if !queues.are_empty() {
            receipt.charges().filter_map(|charge| rate_queue(&charge)).for_each(|[key, _]| queues.call(key));
        }
    }

    /// Replaces a rejection by the answer that the request has to queue, if it may
    /// wait and its slot is too far ahead to be reserved. Returns how long the
    /// first of the queue need not be decided again.
    pub(in crate::limiter) fn queue_for_rate(&self, attempt: &Attempt<'_>, outcome: &mut Outcome) -> Option<Duration> {
        let OutcomeKind::Rejected { retry_after: Some(after) } = outcome.answer else { return None };
        let charges = attempt.enforced;
        if !attempt.snapshot.policy.adapts || !charges.iter().any(adapts) {
            return None;
        }
        let wait = Duration::from_nanos(after);
        if wait <= AHEAD || after > longest_wait(charges, attempt.options.max_wait) {
            return None;
        }
        let key = self.slowest(attempt, after, outcome)?;
        outcome.answer = OutcomeKind::Busy { key };
        Some((wait - AHEAD).max(Duration::from_millis(1)))
    }

    /// The queue of the limit that delays the request most; `None` where a rule
    /// rejects for longer than it allows to wait.
    fn slowest(&self, attempt: &Attempt<'_>, after: u64, outcome: &Outcome) -> Option<Fingerprint> {
        let mut states = outcome.tiers.iter();
        let mut slowest = None;
        // A tier delays at most until its reset, unless others have reserved
        // what comes after that.
        let resets = outcome.tiers.iter().any(|state| state.violated && state.reset >= after);
        for charge in attempt.enforced {
            let (mut at_most, mut shared) = (None, false);
            for state in states.by_ref().take(charge.tiers().len()) {
                let wait = if resets { state.reset.min(after) } else { after };
                at_most = at_most.max(state.violated.then_some(wait));
                shared |= state.shared;
            }
            let (wait, guessed) = match (&self.inner.backend, at_most) {
                // A look does not see the overflow counter.
                (Backing::InProcess(engine), _) if !shared => {
                    let alone = engine.look(&self.request(slice::from_ref(charge), attempt.now, Duration::ZERO));
                    let OutcomeKind::Rejected { retry_after } = alone.answer else { continue };
                    (retry_after?, false)
                }
                // Other backends only say which tiers reject.
                (_, Some(wait)) => (wait, true),
                (_, None) => continue,
            };
            if wait > charge.max_wait {
                return None;
            }
            // Among equals the rate comes first, as other requests wait for it
            // too. Where the wait is a guess it comes last: a request in the
            // wrong queue is decided again, and delays fewer others meanwhile.
            let rank = (wait, adapts(charge) != guessed);
            if let Some([key, _]) = rate_queue(charge)
                && slowest.is_none_or(|(slower, _)| rank > slower)
            {
                slowest = Some((rank, key));
            }
        }
        let rate = || attempt.enforced.iter().find_map(adaptive_queue).map(|[key, _]| key);
        slowest.map(|(_, key)| key).or_else(rate)
    }
}
