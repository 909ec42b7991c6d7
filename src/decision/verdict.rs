//! What happens to a request, and why it is rejected.

use std::time::Duration;

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Verdict {
    /// It is admitted now.
    Allow,
    /// It is admitted after this time, for which a slot is reserved.
    Delay(Duration),
    /// It is rejected; nothing was charged.
    Deny,
}

/// Why a request was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RateLimitedKind {
    /// A quota is used up; see
    /// [`RateLimited::retry_after`](super::RateLimited::retry_after).
    QuotaExceeded,
    /// The request could have waited, but the waiter limit is reached: see
    /// [`RateLimiterBuilder::max_waiters`](crate::limiter::RateLimiterBuilder::max_waiters).
    QueueFull,
    /// The request's target failed recently and is backed off from: see
    /// [`Backoff`](crate::Backoff).
    BackingOff,
    /// The request can never be admitted: its cost is above a quota's capacity,
    /// or the limit is 0.
    NeverFits,
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
    /// [`RateLimitLayer::strict`](crate::RateLimitLayer::strict).
    Misconfigured,
}
