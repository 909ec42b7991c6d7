//! Those who wait for a rate that may be another soon: they reserve their turn
//! shortly before it comes, and stand in line until then.

use std::{slice, time::Duration};

use crate::{
    backend::{Answer, Charge, Outcome, Receipt},
    fingerprint::Fingerprint,
    limiter::{Backing, RateLimiter, decide::longest_wait},
    time::Timestamp,
};

/// How long before its turn it is reserved: long enough for a timer to be
/// late, and short enough for a rate that has changed to be felt.
const AHEAD: Duration = Duration::from_millis(50);

/// The key under which those stand in line who wait for a charge's rate, and
/// the one that the rule's keys share.
pub(in crate::limiter) fn keys<'c>(charge: &'c Charge<'_>) -> impl Iterator<Item = [Fingerprint; 2]> + 'c {
    let applied = &charge.applied;
    let tier = charge.tiers().last().filter(|_| applied.rule.ladder.is_some() && charge.cost > 0);
    tier.map(|tier| [applied.key.tier(tier.salt), applied.rule.overflow.tier(tier.salt)]).into_iter()
}

fn adapts(charge: &Charge<'_>) -> bool {
    keys(charge).next().is_some()
}

/// The same for any charge of a request that such a rate limits: who waits for
/// another limit stands in a line of that one, and not at the head of those
/// who wait for the rate, which may be free.
pub(in crate::limiter) fn line(charge: &Charge<'_>) -> Option<[Fingerprint; 2]> {
    let applied = &charge.applied;
    let other = || charge.tiers().iter().rfind(|tier| charge.cost > 0 && !tier.is_in_flight());
    let of_tier = || other().map(|tier| [applied.key.tier(tier.salt), applied.rule.overflow.tier(tier.salt)]);
    keys(charge).next().or_else(of_tier)
}

/// The lines that a request may have to stand in for a rate.
pub(in crate::limiter) fn lines<'c>(charges: &'c [Charge<'_>]) -> impl Iterator<Item = [Fingerprint; 2]> + 'c {
    let adapts = charges.iter().any(adapts);
    charges.iter().filter(move |_| adapts).filter_map(line)
}

impl RateLimiter {
    /// How long a request may wait by a reservation.
    pub(in crate::limiter) fn reserved_ahead(&self, charges: &[Charge<'_>], max_wait: Duration) -> Duration {
        if charges.iter().any(adapts) { max_wait.min(AHEAD) } else { max_wait }
    }

    /// Units were given back: who waits for them may go sooner than it knows.
    pub(in crate::limiter) fn gave_back(&self, receipt: &Receipt) {
        let lines = &self.inner.lines;
        if !lines.are_empty() {
            receipt.charges().filter_map(|charge| line(&charge)).for_each(|[key, _]| lines.call(key));
        }
    }

    /// Turns the rejection of one who may wait, but not by a reservation, into
    /// the answer that it has to stand in line; and says for how long the first
    /// there need not ask again.
    pub(in crate::limiter) fn line_up_by_rate(
        &self,
        charges: &[Charge<'_>],
        now: Timestamp,
        max_wait: Duration,
        outcome: &mut Outcome,
    ) -> Option<Duration> {
        let Answer::Rejected { retry_after: Some(after) } = outcome.answer else { return None };
        if !charges.iter().any(adapts) {
            return None;
        }
        let wait = Duration::from_nanos(after);
        if wait <= AHEAD || after > longest_wait(charges, max_wait) {
            return None;
        }
        let key = self.slowest(charges, now, after, outcome)?;
        outcome.answer = Answer::Busy { key };
        Some((wait - AHEAD).max(Duration::from_millis(1)))
    }

    /// The line of the limit that a request has to wait for the longest;
    /// `None` where a rule lets nobody wait for as long as it rejects.
    fn slowest(&self, charges: &[Charge<'_>], now: Timestamp, after: u64, outcome: &Outcome) -> Option<Fingerprint> {
        let mut states = outcome.tiers.iter();
        let mut slowest = None;
        // Nothing waits for a tier for longer than until it is as new, unless
        // others have reserved what comes after that.
        let resets = outcome.tiers.iter().any(|state| state.violated && state.reset >= after);
        for charge in charges {
            let (mut at_most, mut shared) = (None, false);
            for state in states.by_ref().take(charge.tiers().len()) {
                let wait = if resets { state.reset.min(after) } else { after };
                at_most = at_most.max(state.violated.then_some(wait));
                shared |= state.shared;
            }
            let (wait, guessed) = match (&self.inner.backend, at_most) {
                // What is counted with others' is not seen by a look.
                (Backing::Local(local), _) if !shared => {
                    let alone = local.look(&self.request(slice::from_ref(charge), now, Duration::ZERO));
                    let Answer::Rejected { retry_after } = alone.answer else { continue };
                    (retry_after?, false)
                }
                // Other backends only say which tiers reject.
                (_, Some(wait)) => (wait, true),
                (_, None) => continue,
            };
            if wait > charge.max_wait {
                return None;
            }
            // Of equals it is the rate, which others wait for as well. Where
            // that is a guess it is the other one: who was wrong asks again,
            // and has held up fewer meanwhile.
            let rank = (wait, adapts(charge) != guessed);
            if let Some([key, _]) = line(charge)
                && slowest.is_none_or(|(slower, _)| rank > slower)
            {
                slowest = Some((rank, key));
            }
        }
        let rate = || charges.iter().flat_map(keys).next().map(|[key, _]| key);
        slowest.map(|(_, key)| key).or_else(rate)
    }
}
