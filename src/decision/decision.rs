//! [`Decision`]: the verdict on a request, why it is rejected, and the tiers that it rests
//! on.
//!
//! Each thread reuses the memory of its decisions. The invariant: a record that is taken
//! from a thread's pool describes no request.

use std::{cell::RefCell, fmt, time::Duration};

use http::StatusCode;
use smallvec::SmallVec;

use super::tier_status::TierStatus;
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
/// assert_eq!((first.limit(), first.remaining()), (Some(2), Some(1)));
///
/// limiter.check(&caller).await;
/// let third = limiter.check(&caller).await;
/// assert_eq!(third.verdict(), Verdict::Reject);
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
        self.record.get_or_insert_with(take_record)
    }

    fn rare(&mut self) -> &mut Rare {
        self.record().rare.get_or_insert_default()
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
        self.record().tiers.push(tier);
    }

    /// What the request costs, and the most that a tier of it ever holds.
    pub(crate) fn set_excess(&mut self, cost: u64, capacity: u64) {
        self.rare().excess = Some((cost, capacity));
    }

    /// The status of the response to the rejection, where a rule sets one.
    pub(crate) fn set_status(&mut self, status: StatusCode) {
        self.rare().status = Some(status);
    }

    pub(super) fn status(&self) -> Option<StatusCode> {
        self.record.as_ref()?.rare.as_ref()?.status
    }

    pub(crate) fn excess(&self) -> Option<(u64, u64)> {
        self.record.as_ref()?.rare.as_ref()?.excess
    }

    /// Forgets what was decided, to decide again. Shadow rules are asked once.
    pub(crate) fn clear(&mut self) {
        let rare = self.record.as_mut().and_then(|record| record.rare.take());
        *self = Self::unlimited();
        if let Some(rare) = rare.filter(|rare| !rare.shadows.is_empty()) {
            self.rare().shadows = rare.shadows;
        }
    }

    pub(crate) fn add_shadow(&mut self, decision: Self) {
        self.rare().shadows.push(decision);
    }

    pub(crate) fn set_error(&mut self, error: BackendError) {
        self.rare().error = Some(error);
    }

    pub(super) fn error(&self) -> Option<&BackendError> {
        self.record.as_ref()?.rare.as_ref()?.error.as_ref()
    }

    /// Nanoseconds until the request is admitted, or could be.
    fn time(&self) -> u64 {
        self.record.as_ref().map_or(0, |record| record.time)
    }

    /// What happens to the request.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        match (self.rejection(), self.time()) {
            (Some(_), _) => Verdict::Reject,
            (None, 0) => Verdict::Allow,
            (None, wait) => Verdict::Delay(Duration::from_nanos(wait)),
        }
    }

    /// Whether the request is admitted, now or after [`Decision::wait`].
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.rejection().is_none()
    }

    /// Why the request was rejected; `None` if it is admitted.
    #[must_use]
    pub fn rejection(&self) -> Option<RateLimitedKind> {
        self.record.as_ref()?.rejection
    }

    /// The binding tier's limit; `None` if no rule applied.
    #[must_use]
    pub fn limit(&self) -> Option<u64> {
        self.binding().map(TierStatus::limit)
    }

    /// Units that the binding tier would admit at once; `None` if no rule applied.
    #[must_use]
    pub fn remaining(&self) -> Option<u64> {
        self.binding().map(TierStatus::remaining)
    }

    /// The time until the binding tier is full again, or its window ends.
    #[must_use]
    pub fn reset(&self) -> Duration {
        self.binding().map_or(Duration::ZERO, TierStatus::reset)
    }

    /// The time after which the same cost could be admitted by all tiers
    /// together; `None` if it was allowed, or never will be.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_nanos().map(Duration::from_nanos)
    }

    pub(crate) fn retry_nanos(&self) -> Option<u64> {
        (self.rejection().is_some() && self.time() != NEVER).then(|| self.time())
    }

    /// How long the request has to wait before it is admitted.
    #[must_use]
    pub fn wait(&self) -> Duration {
        if self.is_allowed() { Duration::from_nanos(self.time()) } else { Duration::ZERO }
    }

    /// When it was decided, on the limiter's clock.
    pub(crate) fn decided_at(&self) -> Timestamp {
        self.record.as_ref().map_or(Timestamp::UNIX_EPOCH, |record| record.decided_at)
    }

    /// Every tier of every rule that applied, in the policy's order.
    #[must_use]
    pub fn tiers(&self) -> &[TierStatus] {
        self.record.as_ref().map_or(&[], |record| &record.tiers)
    }

    /// What the rules in [shadow mode](crate::Rule::shadow) would have decided, one decision
    /// for each that was asked. They are asked where the others admit the request, and by
    /// every [peek](crate::RateLimiter::peek). Nothing else of this decision speaks of them.
    ///
    /// ```
    /// use tower_ratelimit::{Descriptor, Policy, Quota, RateLimiter, Rule};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_ratelimit::ConfigError> {
    /// let trial = Rule::new("trial").shadow(true).tier(Quota::per_minute(1));
    /// let limiter = RateLimiter::new(Policy::new().rule(trial))?;
    /// limiter.check_key("acme").await;
    /// let second = limiter.check_key("acme").await;
    /// assert!(second.is_allowed());
    /// let [trial] = second.shadows() else { panic!("one shadow rule") };
    /// assert!(!trial.is_allowed());
    /// assert_eq!((trial.tiers()[0].rule(), trial.limit()), ("trial", Some(1)));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn shadows(&self) -> &[Self] {
        self.record.as_ref().and_then(|record| record.rare.as_ref()).map_or(&[], |rare| &rare.shadows)
    }

    /// The tier that the scalar accessors describe.
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
        let copy = |record: &Record| {
            let mut copy = take_record();
            *copy = record.clone();
            copy
        };
        Self { record: self.record.as_deref().map(copy) }
    }
}

impl Drop for Decision {
    #[inline]
    fn drop(&mut self) {
        if let Some(record) = self.record.take() {
            recycle(record);
        }
    }
}

impl fmt::Debug for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decision")
            .field("verdict", &self.verdict())
            .field("tiers", &self.tiers())
            .field("shadows", &self.shadows())
            .finish_non_exhaustive()
    }
}

/// What happens to a request.
///
/// ```
/// use tower_ratelimit::{Descriptor, Quota, RateLimiter, Verdict};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let limiter = RateLimiter::new(Quota::per_hour(1)).unwrap();
/// let caller = Descriptor::new("/export").tenant("acme");
/// assert_eq!(limiter.check(&caller).await.verdict(), Verdict::Allow);
/// assert_eq!(limiter.check(&caller).await.verdict(), Verdict::Reject);
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Verdict {
    /// It is admitted now.
    Allow,
    /// It is admitted after this time, for which a slot is reserved.
    Delay(Duration),
    /// It is rejected; nothing was charged.
    Reject,
}

/// Why a request was rejected.
///
/// | kind | HTTP | gRPC |
/// |---|---|---|
/// | `QuotaExceeded`, `Concurrency`, `Cooldown`, `QueueFull`, `NeverFits`, `Blocked` | 429 | `RESOURCE_EXHAUSTED` |
/// | `BackendUnavailable`, `BackingOff`, `Overloaded` | 503 | `UNAVAILABLE` |
/// | `MissingTenant` | 401 | `UNAUTHENTICATED` |
/// | `AmbiguousTenant` | 400 | `INVALID_ARGUMENT` |
/// | `InvalidTiers`, `NoRuntime`, `Misconfigured` | 500 | `INTERNAL` |
///
/// ```
/// use tower_ratelimit::{Descriptor, Quota, RateLimitedKind, RateLimiter};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let limiter = RateLimiter::new(Quota::per_hour(10)).unwrap();
/// let rejected = limiter.check(&Descriptor::new("/export").tenant("acme").cost(11)).await;
/// assert_eq!(rejected.rejection(), Some(RateLimitedKind::NeverFits));
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RateLimitedKind {
    /// A quota is used up; see
    /// [`RateLimited::retry_after`](super::RateLimited::retry_after).
    QuotaExceeded,
    /// A concurrency limit is full: as many requests as it allows are in flight.
    Concurrency,
    /// An upstream asked for a pause that is not over.
    Cooldown,
    /// The request could have waited, but the waiter limit is reached: see
    /// [`RateLimiterBuilder::max_waiters`](crate::limiter::RateLimiterBuilder::max_waiters).
    QueueFull,
    /// The request's target failed recently and is backed off from: see
    /// [`Backoff`](crate::Backoff).
    BackingOff,
    /// The process is overloaded, and sheds requests of this priority: see
    /// [`overload`](crate::overload). Or an
    /// [adaptive concurrency limit](crate::Quota::adaptive_concurrency) is full.
    Overloaded,
    /// The request can never be admitted: its cost is above a quota's capacity,
    /// or the limit is 0.
    NeverFits,
    /// An operator has blocked the tenant for a while: see
    /// [`RateLimiter::block`](crate::RateLimiter::block).
    Blocked,
    /// No tenant was found, and the policy requires one.
    MissingTenant,
    /// The request names more than one tenant, such as by a header that is sent
    /// twice.
    AmbiguousTenant,
    /// The tiers that the tenant brings are invalid: see
    /// [`Tenant::tiers`](crate::Tenant::tiers). Over HTTP 500, since the server has
    /// set them. The log says what is wrong.
    InvalidTiers,
    /// The backend failed, and the rule fails closed.
    BackendUnavailable,
    /// The request would have to wait, but there is no Tokio runtime whose timer
    /// could wake it. It was charged nothing.
    NoRuntime,
    /// The layer is set up wrongly, and is strict: see
    /// [`RateLimitLayer::strict`](crate::RateLimitLayer::strict). Or a
    /// [peek](crate::RateLimiter::peek) names a rule that the policy does not have.
    Misconfigured,
}

impl RateLimitedKind {
    /// The status of the response.
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Self::QuotaExceeded
            | Self::Concurrency
            | Self::Cooldown
            | Self::QueueFull
            | Self::NeverFits
            | Self::Blocked => StatusCode::TOO_MANY_REQUESTS,
            Self::BackendUnavailable | Self::BackingOff | Self::Overloaded => StatusCode::SERVICE_UNAVAILABLE,
            Self::MissingTenant => StatusCode::UNAUTHORIZED,
            Self::AmbiguousTenant => StatusCode::BAD_REQUEST,
            Self::InvalidTiers | Self::NoRuntime | Self::Misconfigured => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// Whether a limit is the reason.
    pub(crate) fn is_limit(self) -> bool {
        self.status() == StatusCode::TOO_MANY_REQUESTS
    }
}

/// The content of a decision.
#[derive(Clone)]
struct Record {
    rejection: Option<RateLimitedKind>,
    /// Nanoseconds until the request is admitted, or until the same one could
    /// be; the end of time if it never could.
    time: u64,
    decided_at: Timestamp,
    tiers: SmallVec<[TierStatus; 4]>,
    rare: Option<Box<Rare>>,
}

/// What few decisions have.
#[derive(Clone, Default)]
struct Rare {
    error: Option<BackendError>,
    /// See [`Decision::set_excess`].
    excess: Option<(u64, u64)>,
    /// See [`Decision::set_status`].
    status: Option<StatusCode>,
    shadows: Vec<Decision>,
}

impl Record {
    const EMPTY: Self =
        Self { rejection: None, time: 0, decided_at: Timestamp::UNIX_EPOCH, tiers: SmallVec::new_const(), rare: None };
}

/// How many records a thread keeps: in most servers as many as it has requests
/// in progress.
const MAX_POOLED: usize = 256;

thread_local! {
    #[allow(clippy::vec_box, reason = "a record is moved by its pointer")]
    static POOL: RefCell<Vec<Box<Record>>> = const { RefCell::new(Vec::new()) };
}

/// An empty record. While the thread ends, its pool is gone.
fn take_record() -> Box<Record> {
    let pooled = POOL.try_with(|pool| pool.borrow_mut().pop());
    pooled.ok().flatten().unwrap_or_else(|| Box::new(Record::EMPTY))
}

/// Returns a record to the pool.
fn recycle(mut record: Box<Record>) {
    record.tiers.clear();
    record.rejection = None;
    if let Some(rare) = &mut record.rare {
        rare.shadows.clear();
        (rare.error, rare.excess, rare.status) = (None, None, None);
    }
    let _ = POOL.try_with(|pool| {
        let mut records = pool.borrow_mut();
        if records.len() < MAX_POOLED {
            records.push(record);
        }
    });
}

#[cfg(test)]
mod tests;
