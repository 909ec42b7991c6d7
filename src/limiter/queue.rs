//! Which wait queue a request belongs in, and which requests are ahead of it. The queues
//! are those of `wait/fifo.rs`; a request with a reserved slot is in none of them.
//! Decides nothing and charges nothing.
//!
//! Invariant: no request overtakes another of its priority, or of a higher one, that waits
//! in the queue of one of its keys, even if a unit is free. A request in a queue holds no
//! unit of any other key, so requests cannot wait for each other in a circle.

use std::{slice, time::Duration};

use super::{
    attempt::{Attempt, longest_wait},
    state::RateLimiter,
};
use crate::{
    backend::{Charge, Decide, Outcome, OutcomeKind, Receipt, tiers},
    descriptor::Priority,
    fingerprint::Fingerprint,
    time::nanos,
};

/// The keys under which a charge counts in-flight units: its own, and the
/// rule's overflow counter.
pub(super) fn in_flight<'c>(charge: &'c Charge<'_>) -> impl Iterator<Item = [Fingerprint; 2]> + 'c {
    let tiers = charge.tiers().iter().filter(|tier| charge.cost > 0 && tier.is_in_flight());
    tiers.map(|tier| charge.counters(tier))
}

/// How long before it comes a slot is reserved: long enough for a late timer,
/// short enough for a change of the rate to take effect.
const AHEAD: Duration = Duration::from_millis(50);

fn adapts(charge: &Charge<'_>) -> bool {
    charge.rule.rate_steps.is_some() && charge.cost > 0
}

/// The keys of the queue for a charge's rate, the rule's overflow counter
/// included. An adaptive rate is the last tier.
pub(super) fn rate_queue(charge: &Charge<'_>) -> Option<[Fingerprint; 2]> {
    let tier = charge.tiers().iter().rfind(|tier| charge.cost > 0 && !tier.is_in_flight())?;
    Some(charge.counters(tier))
}

/// The queues in which a request may have to wait for a rate.
pub(super) fn rate_queues<'c>(charges: &'c [Charge<'_>]) -> impl Iterator<Item = [Fingerprint; 2]> + 'c {
    let any_adapts = charges.iter().any(adapts);
    charges.iter().filter(move |_| any_adapts).filter_map(rate_queue)
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

/// How much a request matters in the queue of `key`: as the rule says whose charge it is.
pub(super) fn priority_in(charges: &[Charge<'_>], key: Fingerprint) -> Priority {
    let of_rule = charges.iter().find(|charge| is_of(key, charge)).or(charges.first());
    of_rule.map_or(Priority::default(), |charge| charge.priority)
}

/// Whether the queue of `key` is for an adaptive concurrency limit.
pub(super) fn is_adaptive(charges: &[Charge<'_>], key: Fingerprint) -> bool {
    charges.iter().any(|charge| charge.is_adaptive() && is_of(key, charge))
}

impl Attempt<'_> {
    /// A key of the request in whose queue another request is ahead.
    pub(super) fn blocked(&self) -> Option<Fingerprint> {
        let (inner, charges) = (&self.limiter.inner, self.enforced);
        if inner.queues.are_empty() {
            return None;
        }
        let is_ahead = |key: &Fingerprint| inner.queues.is_behind(*key, priority_in(charges, *key), self.queued);
        let mut keys = charges.iter().flat_map(in_flight).chain(rate_queues(charges)).map(|[own, _]| own);
        keys.find(is_ahead).or_else(|| {
            // Whether a concurrency limit is counted by the overflow counter
            // only the backend knows: asked if a request waits for that.
            let engine = inner.engine.as_ref()?;
            if !charges.iter().flat_map(in_flight).any(|[_, overflow]| is_ahead(&overflow)) {
                return None;
            }
            engine.0.overflow_in_flight(&self.request(charges, Duration::ZERO)).into_iter().find(is_ahead)
        })
    }

    /// The outcome for a request that is blocked: it would have to overtake.
    pub(super) fn behind(&self, key: Fingerprint) -> Outcome {
        let mut outcome = Outcome::admitted(Duration::ZERO);
        let request = self.request(self.enforced, self.options.max_wait);
        if self.limiter.inner.engine.is_some()
            && let Decide::Now(Ok(answer)) = self.limiter.inner.backend.peek(&request)
        {
            outcome = answer;
            // A request that will not pass in time need not queue.
            if let OutcomeKind::Rejected { .. } = outcome.answer {
                return outcome;
            }
            for ((charge, tier), state) in tiers(self.enforced).zip(&mut outcome.tiers) {
                state.violated = charge.counters(tier).contains(&key);
            }
        }
        Outcome { answer: OutcomeKind::Busy { key }, ..outcome }
    }

    /// How far ahead a request may reserve a slot.
    pub(super) fn reserved_ahead(&self) -> Duration {
        let max_wait = self.options.max_wait;
        let adapts = self.snapshot.policy.adapts && self.enforced.iter().any(adapts);
        if adapts { max_wait.min(AHEAD) } else { max_wait }
    }

    /// Replaces a rejection by the answer that the request has to queue, if it may
    /// wait and its slot is too far ahead to be reserved. Returns how long the
    /// first of the queue need not be decided again.
    pub(super) fn queue_for_rate(&self, outcome: &mut Outcome) -> Option<Duration> {
        let OutcomeKind::Rejected { retry_after: Some(after) } = outcome.answer else { return None };
        let charges = self.enforced;
        if !charges.iter().any(adapts) {
            return None;
        }
        let wait = Duration::from_nanos(after);
        if wait <= AHEAD || after > longest_wait(charges, self.options.max_wait) {
            return None;
        }
        let key = self.slowest(after, outcome)?;
        outcome.answer = OutcomeKind::Busy { key };
        Some((wait - AHEAD).max(Duration::from_millis(1)))
    }

    /// The queue of the limit that delays the request most; `None` where a rule
    /// rejects for longer than it allows to wait.
    fn slowest(&self, after: u64, outcome: &Outcome) -> Option<Fingerprint> {
        let mut states = outcome.tiers.iter();
        let mut slowest = None;
        // A tier delays at most until its reset, unless others have reserved
        // what comes after that.
        let resets = outcome.tiers.iter().any(|state| state.violated && state.reset >= after);
        for charge in self.enforced {
            let (mut at_most, mut shared) = (None, false);
            for state in states.by_ref().take(charge.tiers().len()) {
                let wait = if resets { state.reset.min(after) } else { after };
                at_most = at_most.max(state.violated.then_some(wait));
                shared |= state.shared;
            }
            let (wait, guessed) = match (self.limiter.inner.engine.is_some(), at_most) {
                // A look does not see the overflow counter.
                (true, _) if !shared => {
                    let request = self.request(slice::from_ref(charge), Duration::ZERO);
                    let Decide::Now(Ok(alone)) = self.limiter.inner.backend.peek(&request) else { continue };
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
        let rate = || self.enforced.iter().filter(|charge| adapts(charge)).find_map(rate_queue).map(|[key, _]| key);
        slowest.map(|(_, key)| key).or_else(rate)
    }
}

impl RateLimiter {
    /// In-flight units came back: the first waiter of each queue is called.
    #[cold]
    pub(super) fn call_next(&self, receipt: &Receipt) {
        let queues = &self.inner.queues;
        if queues.are_empty() {
            return;
        }
        for charge in receipt.charges() {
            // The unit may have been charged to the overflow counter.
            in_flight(&charge).flatten().for_each(|key| queues.call(key));
        }
    }

    /// Units were given back: the waiters for them may be admitted sooner.
    pub(super) fn gave_back(&self, receipt: &Receipt) {
        let queues = &self.inner.queues;
        if !queues.are_empty() {
            receipt.charges().filter_map(|charge| rate_queue(&charge)).for_each(|[key, _]| queues.call(key));
        }
    }
}
