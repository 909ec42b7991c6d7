//! The delays that a response reports: `Retry-After`, and the `t` of each tier.
//!
//! They are whole seconds, at least one, and never earlier than the time at
//! which the request could pass.

use std::time::Duration;

use crate::{
    decision::{RateLimitedKind, TierStatus},
    jitter::draw,
    quota::Algorithm,
    time::nanos,
};

/// Rounded up to whole seconds, at least one: a caller that reads 0 returns at
/// once.
pub(super) fn seconds(nanos: u64) -> u64 {
    nanos.div_ceil(1_000_000_000).max(1)
}

/// The delays of one response, all with the same jitter.
#[derive(Debug)]
pub(crate) struct Delays {
    jitter: u64,
    /// Why the request was rejected, if it was.
    rejection: Option<RateLimitedKind>,
    /// Until a rejected request could pass, in nanoseconds.
    retry_after: Option<u64>,
}

impl Delays {
    pub(super) fn new(rejection: Option<RateLimitedKind>, retry_after: Option<u64>, jitter: Duration) -> Self {
        let jitter = if jitter.is_zero() { 0 } else { draw(nanos(jitter)) };
        Self { jitter, rejection, retry_after }
    }

    /// The `t` of a tier.
    pub(super) fn of_tier(&self, tier: &TierStatus) -> u64 {
        let after = match tier.quota.counted_by() {
            // The draft allows two readings of `t`: the time until more is
            // available, and the time for which the remainder lasts. The later
            // one satisfies both. While anything remains, that is the second:
            // one unit lasts at least until the next one arrives.
            Algorithm::TokenBucket if tier.remaining == 0 => nanos(tier.next_unit()),
            Algorithm::TokenBucket => lasts(tier),
            Algorithm::FixedWindow | Algorithm::AnchoredWindow => tier.reset,
            // Such a quota admits again before it is full again.
            _ if tier.violated => self.retry_after.map_or(tier.reset, |after| after.min(tier.reset)),
            _ => tier.reset,
        };
        seconds(after.saturating_add(self.jitter))
    }

    /// Seconds until a rejected request could pass, at least the `t` of every
    /// tier that rejected it. `None` if it can never pass.
    pub(crate) fn retry_after(&self, tiers: &[TierStatus]) -> Option<u64> {
        let after = self.after()?;
        let violated = tiers.iter().filter(|tier| tier.violated);
        let latest = violated.map(|tier| self.of_tier(tier)).max().unwrap_or(0);
        Some(seconds(after).max(latest))
    }

    /// The exact delay, for protocols that can express it. Never 0.
    pub(crate) fn exactly(&self) -> Option<Duration> {
        const SHORTEST: u64 = 1_000_000;
        let after = match (self.rejection, self.retry_after) {
            (Some(RateLimitedKind::BackendUnavailable), None) => self.after()?.max(1_000_000_000),
            _ => self.after()?,
        };
        Some(Duration::from_nanos(after.max(SHORTEST)))
    }

    fn after(&self) -> Option<u64> {
        let after = match (self.rejection?, self.retry_after) {
            (RateLimitedKind::NeverFits, _) => return None,
            (_, Some(after)) => after,
            // The backend's recovery time is unknown, but it is not never.
            (RateLimitedKind::BackendUnavailable, None) => 0,
            (_, None) => return None,
        };
        Some(after.saturating_add(self.jitter))
    }
}

/// How long the remainder lasts at the quota's rate: r·W/L.
fn lasts(tier: &TierStatus) -> u64 {
    let lasts = u128::from(tier.remaining) * u128::from(nanos(tier.window()));
    let limit = u128::from(tier.limit());
    if limit == 0 { 0 } else { u64::try_from(lasts.div_ceil(limit)).unwrap_or(u64::MAX) }
}
