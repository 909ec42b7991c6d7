//! Those who wait for a rate that may be another soon: they reserve their turn
//! shortly before it comes, and stand in line until then.

use std::time::Duration;

use crate::{
    backend::{Answer, Charge, Outcome},
    fingerprint::Fingerprint,
    limiter::{RateLimiter, decide::longest_wait},
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

impl RateLimiter {
    /// How long a request may wait by a reservation.
    pub(in crate::limiter) fn reserved_ahead(&self, charges: &[Charge<'_>], max_wait: Duration) -> Duration {
        let adapts = charges.iter().any(|charge| keys(charge).next().is_some());
        if adapts { max_wait.min(AHEAD) } else { max_wait }
    }

    /// Turns the refusal of one who may wait, but not by a reservation, into
    /// the answer that it has to stand in line; and says for how long the first
    /// there need not ask again.
    pub(in crate::limiter) fn line_up_by_rate(
        &self,
        charges: &[Charge<'_>],
        max_wait: Duration,
        outcome: &mut Outcome,
    ) -> Option<Duration> {
        let Answer::Refused { retry_after: Some(after) } = outcome.answer else { return None };
        let [key, _] = charges.iter().flat_map(keys).next()?;
        let wait = Duration::from_nanos(after);
        if wait <= AHEAD || after > longest_wait(charges, max_wait) {
            return None;
        }
        // Where another rule refuses that lets nobody wait for so long, it is
        // a refusal.
        let owners = charges.iter().flat_map(|charge| charge.tiers().iter().map(move |_| charge));
        if owners.zip(&outcome.tiers).any(|(charge, state)| state.violated && charge.max_wait < after) {
            return None;
        }
        outcome.answer = Answer::Busy { key };
        Some((wait - AHEAD).max(Duration::from_millis(1)))
    }
}
