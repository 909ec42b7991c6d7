//! Builds a limiter. Checks the policy and nothing else.

use std::sync::{Arc, Once, OnceLock, atomic::AtomicBool};

use super::{
    adaptive_limit::limits::AdaptiveLimits,
    current::Current,
    first_requests::FirstRequests,
    observe::BackendMetrics,
    state::{Inner, RateLimiter, Timepiece, engine_of, undecorated},
    upstream::keys::UpstreamKeys,
    wait::{Limits, WaiterLimit, slots::SlotQueues},
};
use crate::{
    backend::{
        Backend, Extension, Local,
        local::{LocalEngine, LocalLimits},
    },
    error::ConfigError,
    observe::{Gauge, TopTenants},
    policy::{CompiledPolicy, Policy},
    time::{Clock, SystemClock},
};

/// Builds a [`RateLimiter`].
///
/// ```
/// use tower_ratelimit::{Quota, RateLimiter, backend::Local, time::SystemClock};
///
/// let limiter = RateLimiter::builder()
///     .policy(Quota::per_second(10))
///     .backend(Local::new())
///     .clock(SystemClock::new())
///     .build()?;
/// # Ok::<_, tower_ratelimit::ConfigError>(())
/// ```
#[derive(Debug)]
#[must_use]
pub struct RateLimiterBuilder {
    policy: Policy,
    backend: Box<dyn Backend>,
    clock: Option<Timepiece>,
    waiters: Limits,
    top_tenants: usize,
}

impl RateLimiterBuilder {
    pub(super) fn new() -> Self {
        let (policy, backend, waiters) = (Policy::new(), Box::new(Local::new()), Limits::default());
        Self { policy, backend, clock: None, waiters, top_tenants: 0 }
    }

    /// The policy. Without one, every request is admitted.
    pub fn policy(mut self, policy: impl Into<Policy>) -> Self {
        self.policy = policy.into();
        self
    }

    /// The backend that decides; by default a new [`Local`](crate::backend::Local).
    pub fn backend(mut self, backend: impl Backend) -> Self {
        self.backend = Box::new(backend);
        self
    }

    /// The clock; by default the [`SystemClock`].
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Some(Timepiece::Other(Box::new(clock)));
        self
    }

    /// At most so many requests wait at once; by default 100,000. Others are
    /// rejected at once, with the kind
    /// [`QueueFull`](crate::RateLimitedKind::QueueFull), and charged nothing.
    ///
    /// A waiter takes about a kilobyte, plus what its caller keeps meanwhile.
    pub fn max_waiters(mut self, waiters: usize) -> Self {
        self.waiters.in_all = waiters;
        self
    }

    /// At most so many requests wait at once for one key, so that no tenant uses
    /// up [`max_waiters`](Self::max_waiters); by default 10,000.
    pub fn max_waiters_per_key(mut self, waiters: usize) -> Self {
        self.waiters.per_key = waiters;
        self
    }

    /// Counts the tenants that use most or are rejected most, for
    /// [`RateLimiter::top`]: so many of each rule, such as 256. By default, and with 0, none.
    ///
    /// A tenant with more than one in so many of a rule's rejections is certainly among them.
    /// Memory grows with this number, up to 16 times for each rule, and not with the tenants.
    pub fn top_tenants(mut self, tenants: usize) -> Self {
        self.top_tenants = tenants;
        self
    }

    /// Builds the limiter.
    ///
    /// # Errors
    ///
    /// If the policy is invalid: names the rule, the key and the value.
    pub fn build(self) -> Result<RateLimiter, ConfigError> {
        let policy = CompiledPolicy::new(self.policy)?;
        #[cfg(feature = "metrics")]
        crate::observe::describe_metrics();
        let fallback = LocalEngine::default();
        let leases = undecorated(&*self.backend).is_some_and(Extension::honors_consistency);
        let backend = match self.backend.extension().and_then(Extension::engine) {
            Some(_) => self.backend,
            None => Box::new(LocalLimits::new(self.backend, Arc::clone(&fallback))),
        };
        let inner = Inner {
            first_requests: FirstRequests::new(&policy.policy),
            current: Current::new(policy),
            engine: engine_of(&*backend),
            leases,
            backend,
            clock: self.clock.unwrap_or_else(|| Timepiece::System(SystemClock::new())),
            fallback,
            waiters: Arc::new(WaiterLimit::new(self.waiters)),
            queues: Arc::default(),
            slots: SlotQueues::default(),
            cooldowns: UpstreamKeys::default(),
            adaptive_limits: AdaptiveLimits::default(),
            shedder: OnceLock::new(),
            permits: Gauge::new("rate_limiting.active_permits"),
            backend_metrics: BackendMetrics::default(),
            top: (self.top_tenants > 0).then(|| Box::new(TopTenants::new(self.top_tenants))),
            ignored_levels: Once::new(),
            shares_requests: AtomicBool::new(false),
        };
        let limiter = RateLimiter { inner: Arc::new(inner) };
        limiter.check_policy();
        Ok(limiter)
    }
}
