//! [`Decision`]: the verdict on a request, and the tiers that it rests on.

use std::{fmt, time::Duration};

use super::{
    record::{self, Record},
    tier_status::TierStatus,
    verdict::{RateLimitedKind, Verdict},
};
use crate::{error::BackendError, time::Timestamp};

/// The time of a request that can never be admitted.
const NEVER: u64 = u64::MAX;

/// The full answer to a request.
///
/// The scalar accessors describe the *binding* tier: the one that rejected, or
/// else the one with the least remaining. If no rule applied, there is none:
/// the request is allowed and not limited.
///
/// ```
/// use tower_ratelimit::{Descriptor, Quota, RateLimiter, Verdict};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let limiter = RateLimiter::new(Quota::per_minute(2)).unwrap();
/// let caller = Descriptor::new("/").tenant("acme");
///
/// let first = limiter.check(&caller).await;
/// assert_eq!(first.verdict(), Verdict::Allow);
/// assert_eq!((first.limit(), first.remaining()), (2, 1));
///
/// limiter.check(&caller).await;
/// let third = limiter.check(&caller).await;
/// assert_eq!(third.verdict(), Verdict::Deny);
/// assert!(third.retry_after().unwrap().as_secs() <= 30);
/// # }
/// ```
pub struct Decision {
    /// `None` if nothing is limited. On the heap, because moving it would cost
    /// more than creating it.
    record: Option<Box<Record>>,
}

impl Decision {
    /// No rule applied.
    pub(crate) const fn unlimited() -> Self {
        Self { record: None }
    }

    #[inline]
    fn record(&mut self) -> &mut Record {
        self.record.get_or_insert_with(record::take)
    }

    #[inline]
    pub(crate) fn admit(&mut self, decided_at: Timestamp, wait: u64) {
        let record = self.record();
        (record.rejection, record.time, record.decided_at) = (None, wait, decided_at);
    }

    pub(crate) fn reject(&mut self, kind: RateLimitedKind, decided_at: Timestamp, retry_after: Option<u64>) {
        let record = self.record();
        (record.rejection, record.time, record.decided_at) = (Some(kind), retry_after.unwrap_or(NEVER), decided_at);
    }

    pub(crate) fn add_tier(&mut self, tier: TierStatus) {
        self.record().tiers.push(tier);
    }

    pub(crate) fn set_error(&mut self, error: BackendError) {
        self.record().error = Some(Box::new(error));
    }

    pub(super) fn error(&self) -> Option<&BackendError> {
        self.record.as_ref()?.error.as_deref()
    }

    /// Nanoseconds until the request is admitted, or could be.
    #[inline]
    fn time(&self) -> u64 {
        self.record.as_ref().map_or(0, |record| record.time)
    }

    /// What happens to the request.
    #[inline]
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        match (self.rejection(), self.time()) {
            (Some(_), _) => Verdict::Deny,
            (None, 0) => Verdict::Allow,
            (None, wait) => Verdict::Delay(Duration::from_nanos(wait)),
        }
    }

    /// Whether the request is admitted, now or after [`Decision::wait`].
    #[inline]
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.rejection().is_none()
    }

    /// Why the request was rejected; `None` if it is admitted.
    #[inline]
    #[must_use]
    pub fn rejection(&self) -> Option<RateLimitedKind> {
        self.record.as_ref()?.rejection
    }

    /// The binding tier's limit; `u64::MAX` if no rule applied.
    #[inline]
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.binding().map_or(u64::MAX, TierStatus::limit)
    }

    /// Units that the binding tier would admit at once; `u64::MAX` if no rule
    /// applied.
    #[inline]
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.binding().map_or(u64::MAX, TierStatus::remaining)
    }

    /// The time until the binding tier is full again, or its window ends.
    #[inline]
    #[must_use]
    pub fn reset(&self) -> Duration {
        self.binding().map_or(Duration::ZERO, TierStatus::reset)
    }

    /// The time after which the same cost could be admitted by all tiers
    /// together; `None` if it was allowed, or never will be.
    #[inline]
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_nanos().map(Duration::from_nanos)
    }

    #[inline]
    pub(crate) fn retry_nanos(&self) -> Option<u64> {
        (self.rejection().is_some() && self.time() != NEVER).then(|| self.time())
    }

    /// How long the request has to wait before it is admitted.
    #[inline]
    #[must_use]
    pub fn wait(&self) -> Duration {
        if self.is_allowed() { Duration::from_nanos(self.time()) } else { Duration::ZERO }
    }

    /// When it was decided, on the limiter's clock.
    pub(crate) fn decided_at(&self) -> Timestamp {
        self.record.as_ref().map_or(Timestamp::UNIX_EPOCH, |record| record.decided_at)
    }

    /// Every tier of every rule that applied, in the policy's order.
    #[inline]
    #[must_use]
    pub fn tiers(&self) -> &[TierStatus] {
        self.record.as_ref().map_or(&[], |record| &record.tiers)
    }

    /// The tier that the scalar accessors describe.
    #[inline]
    #[must_use]
    pub fn binding(&self) -> Option<&TierStatus> {
        if let [only] = self.tiers() {
            return Some(only);
        }
        self.tiers().iter().min_by_key(|tier| (!tier.violated, tier.remaining, u64::MAX - tier.reset))
    }
}

impl Clone for Decision {
    fn clone(&self) -> Self {
        Self { record: self.record.as_deref().map(record::copy) }
    }
}

impl Drop for Decision {
    #[inline]
    fn drop(&mut self) {
        if let Some(record) = self.record.take() {
            record::recycle(record);
        }
    }
}

impl fmt::Debug for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decision")
            .field("verdict", &self.verdict())
            .field("tiers", &self.tiers())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
