//! The full answer to a request: [`Decision`], and [`RateLimited`], the error
//! of a rejection.
//!
//! It decides nothing and renders nothing: the limiter fills a decision, and
//! `headers` writes it into a response. The invariant: a decision is one
//! pointer, and in steady state creating one allocates nothing.

mod tier_status;

use std::{cell::RefCell, error::Error, fmt, iter, time::Duration};

use http::StatusCode;
use smallvec::SmallVec;

pub use self::tier_status::TierStatus;
pub(crate) use self::tier_status::{RuleName, TierNameStyle};
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

    fn rare_mut(&mut self) -> &mut Rare {
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
        self.rare_mut().excess = Some((cost, capacity));
    }

    /// The status of the response to the rejection, where a rule sets one.
    pub(crate) fn set_status(&mut self, status: StatusCode) {
        self.rare_mut().status = Some(status);
    }

    pub(crate) fn excess(&self) -> Option<(u64, u64)> {
        self.rare()?.excess
    }

    /// Forgets what was decided, to decide again. Shadow rules are asked once.
    pub(crate) fn clear(&mut self) {
        let rare = self.record.as_mut().and_then(|record| record.rare.take());
        *self = Self::unlimited();
        if let Some(rare) = rare.filter(|rare| !rare.shadows.is_empty()) {
            self.rare_mut().shadows = rare.shadows;
        }
    }

    pub(crate) fn add_shadow(&mut self, decision: Self) {
        self.rare_mut().shadows.push(decision);
    }

    pub(crate) fn set_error(&mut self, error: BackendError) {
        self.rare_mut().error = Some(error);
    }

    fn rare(&self) -> Option<&Rare> {
        self.record.as_ref()?.rare.as_deref()
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
        self.rare().map_or(&[], |rare| &rare.shadows)
    }

    /// The tier that the scalar accessors describe.
    #[must_use]
    pub fn binding(&self) -> Option<&TierStatus> {
        if let [only] = self.tiers() {
            return Some(only);
        }
        self.tiers().iter().min_by_key(|tier| (!tier.violated, tier.remaining, u64::MAX - tier.reset))
    }

    /// The decision if the request is admitted, else the rejection as an error.
    ///
    /// # Errors
    ///
    /// The rejection.
    ///
    /// ```
    /// use tower_ratelimit::{Descriptor, RateLimited, RateLimiter};
    ///
    /// async fn search(limiter: &RateLimiter) -> Result<&'static str, RateLimited> {
    ///     limiter.check(&Descriptor::new("/search")).await.into_result()?;
    ///     Ok("found")
    /// }
    /// ```
    pub fn into_result(self) -> Result<Self, RateLimited> {
        if self.is_allowed() { Ok(self) } else { Err(RateLimited::new(self)) }
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

/// The error of a rejected request. It is cheap to clone; a response carries it
/// in its extensions too.
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
    decision: Decision,
    /// The limiter whose layer has rejected the request, if a layer did.
    limiter: Option<u64>,
}

impl RateLimited {
    pub(crate) fn new(decision: Decision) -> Self {
        Self { decision, limiter: None }
    }

    /// A layer of the limiter with this id has rejected the request.
    pub(crate) fn by_layer(self, limiter: u64) -> Self {
        Self { limiter: Some(limiter), ..self }
    }

    /// Whether a layer of the limiter with this id has rejected the request.
    pub(crate) fn is_by_layer(&self, limiter: u64) -> bool {
        self.limiter == Some(limiter)
    }

    /// The rejection that caused an error. An error may be its own source.
    pub(crate) fn find<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e Self> {
        const DEEPEST: usize = 64;
        let mut chain = iter::successors(Some(error), |&error| error.source()).take(DEEPEST);
        chain.find_map(|error| error.downcast_ref())
    }

    /// Why the request was rejected.
    #[must_use]
    pub fn kind(&self) -> RateLimitedKind {
        self.decision.rejection().unwrap_or(RateLimitedKind::QuotaExceeded)
    }

    /// The status of the HTTP response: that of the [rule](crate::Rule::status), or else of
    /// the [kind](RateLimitedKind).
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.decision.rare().and_then(|rare| rare.status).unwrap_or_else(|| self.kind().status())
    }

    /// The time after which the same request could be admitted; `None` if it
    /// never will be, or if that cannot be known.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.decision.retry_after()
    }

    pub(crate) fn retry_nanos(&self) -> Option<u64> {
        self.decision.retry_nanos()
    }

    /// For a request that can never pass ([`NeverFits`](RateLimitedKind::NeverFits)): what
    /// it costs, and the most that its tier ever holds, in units.
    ///
    /// ```
    /// use tower_ratelimit::{Descriptor, Quota, RateLimiter};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let limiter = RateLimiter::new(Quota::per_minute(10)).unwrap();
    /// let rejected = limiter.check(&Descriptor::new("/export").cost(50)).await.into_result().unwrap_err();
    /// assert_eq!(rejected.excess(), Some((50, 10)));
    /// # }
    /// ```
    #[must_use]
    pub fn excess(&self) -> Option<(u64, u64)> {
        self.decision.excess()
    }

    /// The decision, if any rule was evaluated.
    #[must_use]
    pub fn decision(&self) -> Option<&Decision> {
        (!self.decision.tiers().is_empty()).then_some(&self.decision)
    }
}

impl fmt::Display for RateLimited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind() {
            RateLimitedKind::QuotaExceeded => "rate limit exceeded",
            RateLimitedKind::Concurrency => "too many requests in flight",
            RateLimitedKind::Cooldown => "the upstream asked for a pause",
            RateLimitedKind::QueueFull => "too many requests wait for the rate limit",
            RateLimitedKind::BackingOff => "backing off after a failure",
            RateLimitedKind::Overloaded => "the server is overloaded",
            RateLimitedKind::NeverFits => "the request can never pass the rate limit",
            RateLimitedKind::MissingTenant => "no tenant to limit the request by",
            RateLimitedKind::AmbiguousTenant => "more than one tenant to limit the request by",
            RateLimitedKind::Blocked => "the tenant is blocked",
            RateLimitedKind::InvalidTiers => "the tenant's own limits are invalid",
            RateLimitedKind::BackendUnavailable => "the rate limit could not be decided",
            RateLimitedKind::Misconfigured => "the rate limit is set up wrongly: the log says how",
            RateLimitedKind::NoRuntime => "waiting for the rate limit needs a Tokio runtime, and there is none",
        })?;
        for (index, tier) in self.decision.tiers().iter().filter(|tier| tier.violated).enumerate() {
            write!(f, "{}{}", if index == 0 { ": " } else { ", " }, tier.name())?;
        }
        if let Some((cost, capacity)) = self.excess() {
            write!(f, "; it costs {cost}, and at most {capacity} ever fit")?;
        }
        match self.retry_after() {
            Some(after) => {
                // Rounded up, so that it is not too early.
                let seconds = after > Duration::from_secs(10);
                let unit = if seconds { Duration::from_secs(1) } else { Duration::from_millis(1) };
                let units = u32::try_from(after.as_nanos().div_ceil(unit.as_nanos())).unwrap_or(u32::MAX);
                write!(f, "; retry after {:?}", unit.saturating_mul(units))
            }
            None => Ok(()),
        }
    }
}

impl Error for RateLimited {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.decision.rare()?.error.as_ref().map(|error| error as &(dyn Error + 'static))
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

// Each thread reuses the memory of its decisions. A record that is taken from its pool describes
// no request.
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
