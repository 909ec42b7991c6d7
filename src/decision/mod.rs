//! The full answer to a request: [`Decision`], and [`RateLimited`], the error
//! that a rejection becomes.

mod record;

use std::{borrow::Cow, error::Error, fmt, sync::Arc, time::Duration};

use self::record::Record;
use crate::{
    error::BackendError,
    quota::{Algorithm, Quota},
    time::{Timestamp, nanos},
};

/// What to do with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Verdict {
    /// Let it go now.
    Allow,
    /// Its place is reserved: let it go after this time.
    Delay(Duration),
    /// Reject it; nothing was charged.
    Deny,
}

/// Why a request was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RateLimitedKind {
    /// A quota is used up; see [`RateLimited::retry_after`].
    QuotaExceeded,
    /// It could have waited for its turn, but as many wait already as may; see
    /// [`RateLimiterBuilder::max_waiters`](crate::RateLimiterBuilder::max_waiters).
    QueueFull,
    /// What it is for has failed of late, and is left alone for a while: see
    /// [`Backoff`](crate::Backoff).
    BackingOff,
    /// It will never pass: the cost is above what a quota can hold, or the
    /// limit is 0.
    NeverFits,
    /// No tenant was found, and the policy wants one.
    MissingTenant,
    /// The backend gave no answer and the rule fails closed.
    BackendUnavailable,
}

/// Where one tier stands after a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierStatus {
    pub(crate) rule: RuleName,
    pub(crate) quota: Quota,
    pub(crate) remaining: u64,
    /// Nanoseconds.
    pub(crate) reset: u64,
    pub(crate) naming: Naming,
    pub(crate) violated: bool,
}

/// A rule's id, kept for as long as the process lives; thin, so that a tier's
/// status fits a cache line.
pub(crate) type RuleName = &'static &'static str;

/// How a tier is told from its siblings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Naming {
    /// The only tier of its rule.
    Alone,
    /// The only one with its window.
    ByWindow,
    /// The n-th with its window.
    Nth(u8),
}

impl TierStatus {
    /// The id of the tier's rule.
    #[inline]
    #[must_use]
    pub fn rule(&self) -> &str {
        self.rule
    }

    /// `RULE` where the rule has one tier, `RULE-WINDOW` (`get-product-10s`,
    /// `get-product-concurrent`) where it has several.
    #[must_use]
    pub fn name(&self) -> Cow<'static, str> {
        let window = || match self.quota.counted_by() {
            Algorithm::InFlight => WindowName::InFlight,
            _ => WindowName::Of(nanos(self.quota.window())),
        };
        match self.naming {
            Naming::Alone => Cow::Borrowed(self.rule),
            Naming::ByWindow => Cow::Owned(format!("{}-{}", self.rule, window())),
            Naming::Nth(n) => Cow::Owned(format!("{}-{}-{n}", self.rule, window())),
        }
    }

    /// Units per window, or at once.
    #[inline]
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.quota.limit()
    }

    /// The window's length; zero for a limit on what is in flight.
    #[inline]
    #[must_use]
    pub fn window(&self) -> Duration {
        self.quota.window()
    }

    /// The quota that was decided on.
    #[inline]
    #[must_use]
    pub fn quota(&self) -> &Quota {
        &self.quota
    }

    /// Units that would pass at once.
    #[inline]
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.remaining
    }

    /// Until the quota is full again; for windows, until the window's end.
    /// Zero for a limit on what is in flight: nobody knows.
    #[inline]
    #[must_use]
    pub fn reset(&self) -> Duration {
        Duration::from_nanos(self.reset)
    }

    /// Whether this tier is why the request was rejected or delayed.
    #[inline]
    #[must_use]
    pub fn is_violated(&self) -> bool {
        self.violated
    }

    /// Until at least one more unit passes than does now; zero where the
    /// quota is full.
    pub(crate) fn next_unit(&self) -> Duration {
        let missing = self.quota.capacity().saturating_sub(self.remaining);
        if self.quota.counted_by() != Algorithm::TokenBucket || missing <= 1 || self.quota.limit() == 0 {
            return self.reset();
        }
        let later = u128::from(missing - 1) * self.quota.window().as_nanos() / u128::from(self.quota.limit());
        let later = u64::try_from(later).unwrap_or(u64::MAX);
        Duration::from_nanos(self.reset.saturating_sub(later))
    }
}

/// A window's length in its largest whole unit: `250ms`, `10s`, `1m`, `1d`.
enum WindowName {
    Of(u64),
    InFlight,
}

impl fmt::Display for WindowName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 6] = [
            (86_400_000_000_000, "d"),
            (3_600_000_000_000, "h"),
            (60_000_000_000, "m"),
            (1_000_000_000, "s"),
            (1_000_000, "ms"),
            (1_000, "us"),
        ];
        let Self::Of(window) = *self else { return f.write_str("concurrent") };
        let unit = UNITS.iter().find(|(length, _)| window > 0 && window.is_multiple_of(*length));
        let (length, name) = unit.unwrap_or(&(1, "ns"));
        write!(f, "{}{name}", window / length)
    }
}

/// A time after which nothing could pass.
const NEVER: u64 = u64::MAX;

/// The full answer to a request.
///
/// The scalar accessors speak of the *binding* tier: the one that rejected, or
/// else the one with the least remaining. Where no rule applied there is none:
/// the request is allowed and nothing is limited.
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
#[derive(Clone)]
pub struct Decision {
    /// `None` where nothing is limited. On the heap, since moving it about
    /// would cost more than making it.
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

    #[inline]
    pub(crate) fn add_tier(&mut self, tier: TierStatus) {
        self.record().add_tier(tier);
    }

    pub(crate) fn set_error(&mut self, error: BackendError) {
        self.record().error = Some(Box::new(error));
    }

    /// Until it goes, or could, in nanoseconds.
    #[inline]
    fn time(&self) -> u64 {
        self.record.as_ref().map_or(0, |record| record.time)
    }

    /// What to do with the request.
    #[inline]
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        match (self.rejection(), self.time()) {
            (Some(_), _) => Verdict::Deny,
            (None, 0) => Verdict::Allow,
            (None, wait) => Verdict::Delay(Duration::from_nanos(wait)),
        }
    }

    /// Whether the request may go, now or after [`Decision::wait`].
    #[inline]
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.rejection().is_none()
    }

    /// Why the request was rejected; `None` where it may go.
    #[inline]
    #[must_use]
    pub fn rejection(&self) -> Option<RateLimitedKind> {
        self.record.as_ref()?.rejection
    }

    /// The binding tier's limit; `u64::MAX` where no rule applied.
    #[inline]
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.binding().map_or(u64::MAX, TierStatus::limit)
    }

    /// Units that the binding tier would let pass at once; `u64::MAX` where no
    /// rule applied.
    #[inline]
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.binding().map_or(u64::MAX, TierStatus::remaining)
    }

    /// Until the binding tier is full again, or its window ends.
    #[inline]
    #[must_use]
    pub fn reset(&self) -> Duration {
        self.binding().map_or(Duration::ZERO, TierStatus::reset)
    }

    /// After what time this same cost could pass, all tiers together; `None`
    /// where it was allowed, or never will pass.
    #[inline]
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        (self.rejection().is_some() && self.time() != NEVER).then(|| Duration::from_nanos(self.time()))
    }

    /// How long the request has to wait before it goes.
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
        self.record.as_ref().map_or(&[], |record| record.tiers())
    }

    /// The tier that the scalar accessors speak of.
    #[inline]
    #[must_use]
    pub fn binding(&self) -> Option<&TierStatus> {
        if let [only] = self.tiers() {
            return Some(only);
        }
        self.tiers().iter().min_by_key(|tier| (!tier.violated, tier.remaining, u64::MAX - tier.reset))
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

/// A request was rejected. Cheap to clone: it stands in a response's extensions
/// too.
///
/// ```
/// use tower_ratelimit::{RateLimited, RateLimitedKind};
///
/// fn pause(error: &RateLimited) -> Option<std::time::Duration> {
///     match error.kind() {
///         RateLimitedKind::QuotaExceeded => error.retry_after(),
///         _ => None,
///     }
/// }
/// ```
#[derive(Clone, Debug)]
pub struct RateLimited {
    decision: Arc<Decision>,
}

impl RateLimited {
    pub(crate) fn new(decision: Decision) -> Self {
        Self { decision: Arc::new(decision) }
    }

    /// Why the request was rejected.
    #[inline]
    #[must_use]
    pub fn kind(&self) -> RateLimitedKind {
        self.decision.rejection().unwrap_or(RateLimitedKind::QuotaExceeded)
    }

    /// After what time the same request could pass; `None` where it never
    /// will, or nobody knows.
    #[inline]
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.decision.retry_after()
    }

    /// The decision, where rules were decided on.
    #[inline]
    #[must_use]
    pub fn decision(&self) -> Option<&Decision> {
        (!self.decision.tiers().is_empty()).then_some(&*self.decision)
    }
}

impl fmt::Display for RateLimited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind() {
            RateLimitedKind::QuotaExceeded => f.write_str("rate limit exceeded")?,
            RateLimitedKind::QueueFull => f.write_str("too many requests wait for the rate limit")?,
            RateLimitedKind::BackingOff => f.write_str("left alone for a while after it failed")?,
            RateLimitedKind::NeverFits => f.write_str("the request can never pass the rate limit")?,
            RateLimitedKind::MissingTenant => f.write_str("no tenant to limit the request by")?,
            RateLimitedKind::BackendUnavailable => f.write_str("the rate limit could not be decided")?,
        }
        for (index, tier) in self.decision.tiers().iter().filter(|tier| tier.violated).enumerate() {
            write!(f, "{}{}", if index == 0 { ": " } else { ", " }, tier.name())?;
        }
        match self.retry_after() {
            Some(after) => write!(f, "; retry after {after:?}"),
            None => Ok(()),
        }
    }
}

impl Error for RateLimited {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.decision.record.as_ref()?.error.as_deref().map(|error| error as &(dyn Error + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_named_in_its_largest_whole_unit() {
        for (window, name) in [
            (Duration::from_millis(250), "250ms"),
            (Duration::from_secs(10), "10s"),
            (Duration::from_secs(60), "1m"),
            (Duration::from_secs(90), "90s"),
            (Duration::from_secs(86_400), "1d"),
            (Duration::from_nanos(1_500), "1500ns"),
        ] {
            assert_eq!(WindowName::Of(nanos(window)).to_string(), name);
        }
    }

    #[test]
    fn a_decision_is_moved_in_registers() {
        assert_eq!(size_of::<Decision>(), size_of::<usize>());
    }

    #[test]
    fn several_tiers_are_kept_in_order_and_their_place_is_reused() {
        for _ in 0..100 {
            let mut decision = Decision::unlimited();
            for limit in 1..=5 {
                decision.add_tier(tier(Quota::per_second(limit), 0, Duration::ZERO));
            }
            let copy = decision.clone();
            drop(decision);
            assert!(copy.tiers().iter().map(TierStatus::limit).eq(1..=5));
        }
    }

    fn tier(quota: Quota, remaining: u64, reset: Duration) -> TierStatus {
        TierStatus { rule: &"r", quota, remaining, reset: nanos(reset), naming: Naming::Alone, violated: false }
    }

    #[test]
    fn the_next_unit_of_a_bucket_comes_before_it_is_full() {
        let quota = Quota::per_second(10);
        let empty = tier(quota, 0, Duration::from_millis(950));
        assert_eq!(empty.next_unit(), Duration::from_millis(50));
        let half = tier(quota, 5, Duration::from_millis(450));
        assert_eq!(half.next_unit(), Duration::from_millis(50));
    }

    #[test]
    fn the_tier_that_rejected_is_binding() {
        let mut decision = Decision::unlimited();
        decision.add_tier(tier(Quota::per_second(10), 0, Duration::from_secs(1)));
        decision.add_tier(TierStatus { violated: true, ..tier(Quota::per_hour(50), 3, Duration::from_secs(9)) });
        decision.reject(RateLimitedKind::QuotaExceeded, Timestamp::UNIX_EPOCH, Some(1));
        assert_eq!(decision.limit(), 50);
    }
}
