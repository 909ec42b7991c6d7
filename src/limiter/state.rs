//! The limiter: what all its clones share, how it is built, and what its slots hold
//! ([`Grant`]). It decides nothing itself.
//!
//! Invariant: the types of the fields in here know nothing of [`RateLimiter`], so that each
//! can be read and tested without it.

use std::{
    collections::HashSet,
    sync::{
        Arc, Once, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use super::{
    adaptive_limit::limits::{AdaptiveLimits, FoundLimits},
    current::Current,
    first_requests::FirstRequests,
    observe::BackendMetrics,
    upstream::keys::UpstreamKeys,
    wait::{Limits, WaiterLimit, fifo::WaitQueues, slots::SlotQueues},
};
use crate::{
    backend::{
        Backend, Engine, Extension, FullQuota, InProcess, Local, Receipt,
        local::{LocalEngine, LocalLimits, engine},
    },
    descriptor::Descriptor,
    error::ConfigError,
    observe::{Gauge, TopTenants},
    overload::Shedder,
    policy::{CompiledPolicy, CompiledRule, Policy},
    time::{Clock, SystemClock, Timestamp},
};

/// Decides requests by a policy. Cheap to clone; clones share everything.
///
/// ```
/// use tower_ratelimit::{Descriptor, Policy, Quota, RateLimiter, Rule};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_ratelimit::ConfigError> {
/// let limiter = RateLimiter::new(Policy::new().rule(
///     // Both must pass, or neither is charged.
///     Rule::new("search").path("/search").tier(Quota::per_second(2)).tier(Quota::per_hour(500)),
/// ))?;
///
/// let decision = limiter.check(&Descriptor::new("/search").method("GET").tenant("acme")).await;
/// assert!(decision.is_allowed());
/// assert_eq!(decision.remaining(), Some(1));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct RateLimiter {
    pub(super) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) current: Current,
    pub(super) first_requests: FirstRequests,
    pub(super) backend: Box<dyn Backend>,
    /// The engine in this process that decides, if the backend is one and no decorator
    /// stands before it.
    pub(super) engine: Option<InProcess>,
    /// Whether the backend leases units ahead, and no decorator stands before it.
    pub(super) leases: bool,
    pub(super) clock: ClockImpl,
    /// Decides for rules with `FailureMode::Local` while the backend fails.
    pub(super) fallback: LocalEngine,
    pub(super) waiters: Arc<WaiterLimit>,
    /// Of requests that wait for what cannot be reserved: in-flight units, adaptive rates.
    pub(super) queues: Arc<WaitQueues>,
    /// Of requests that have reserved a slot.
    pub(super) slots: SlotQueues<Grant>,
    /// Cooldowns, and what else an upstream has said of a key.
    pub(super) cooldowns: UpstreamKeys,
    pub(super) adaptive_limits: AdaptiveLimits,
    /// What is shed while the process is overloaded, if a policy says when that is.
    pub(super) shedder: OnceLock<Box<Shedder>>,
    /// The requests that keep a lease.
    pub(super) permits: Gauge,
    pub(super) backend_metrics: BackendMetrics,
    /// If the operator asked for them.
    pub(super) top: Option<Box<TopTenants>>,
    /// Done once the backend was found to ignore a consistency level.
    pub(super) ignored_levels: Once,
    /// Whether several layers of it may charge one request.
    pub(super) shares_requests: AtomicBool,
}

/// The clock. The default one is called without dynamic dispatch.
#[derive(Debug)]
pub(super) enum ClockImpl {
    System(SystemClock),
    Other(Box<dyn Clock>),
}

impl ClockImpl {
    #[inline]
    pub(super) fn now(&self) -> Timestamp {
        match self {
            Self::System(clock) => clock.now(),
            Self::Other(clock) => clock.now(),
        }
    }
}

/// What was charged, and by which limiter.
#[derive(Debug)]
pub(super) struct Grant {
    pub(super) decider: Decider,
    pub(super) receipt: Box<Receipt>,
    /// What the fallback limiter has counted of it, to be warm when the
    /// backend fails.
    pub(super) mirror: Option<Box<Receipt>>,
    /// The adaptive concurrency limits that learn how long the request takes.
    pub(super) limits: FoundLimits,
}

/// Which limiter a receipt belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decider {
    Backend,
    /// The fallback limiter, which decides while the backend fails.
    Fallback,
    /// The fallback limiter, which only counts what the backend admits.
    Mirror,
}

impl Grant {
    pub(super) fn new(decider: Decider, receipt: Receipt) -> Self {
        Self { decider, receipt: Box::new(receipt), mirror: None, limits: FoundLimits::new() }
    }
}

impl RateLimiter {
    /// A limiter in this process, on the system's clock.
    ///
    /// # Errors
    ///
    /// If the policy is invalid: names the rule, the key and the value.
    pub fn new(policy: impl Into<Policy>) -> Result<Self, ConfigError> {
        Self::builder().policy(policy).build()
    }

    /// Builds a limiter with another backend, clock or waiter limit.
    pub fn builder() -> RateLimiterBuilder {
        let (policy, backend, waiters) = (Policy::new(), Box::new(Local::new()), Limits::default());
        RateLimiterBuilder { policy, backend, clock: None, waiters, top_tenants: 0 }
    }

    /// Tells it from other limiters.
    pub(crate) fn id(&self) -> u64 {
        self.inner.current.id
    }

    /// A layer applies one of its rules beside other layers, which may share
    /// requests with it: from now on each layer can give its charge back.
    pub(crate) fn share_requests(&self) {
        self.inner.shares_requests.store(true, Ordering::Relaxed);
    }

    /// Whether several of its layers may charge one request.
    #[inline]
    pub(crate) fn shares_requests(&self) -> bool {
        self.inner.shares_requests.load(Ordering::Relaxed)
    }

    /// Whether any rule counts by tenant.
    pub(crate) fn counts_tenants(&self) -> bool {
        self.inner.current.policy().rules.iter().any(|rule| rule.is_per_tenant())
    }

    /// The tenants that the policy names, unless paths name them.
    pub(crate) fn named_tenants(&self) -> HashSet<String> {
        let policy = Arc::clone(&self.inner.current.policy().policy);
        let named = policy.named_tenants().filter(|(rule, _, _)| rule.tenant_param.is_none());
        named.map(|(_, tenant, _)| tenant.to_owned()).collect()
    }

    /// Whether the policy has a rule with this id, enabled or not.
    pub(crate) fn has_rule(&self, id: &str) -> bool {
        let policy = self.inner.current.policy();
        policy.find_rule(id).is_some() || policy.policy.rules.iter().any(|rule| rule.id == id)
    }

    /// The rule that the request names, if the policy does not have it.
    pub(super) fn unknown_rule<'d>(&self, descriptor: &Descriptor<'d>) -> Option<&'d str> {
        descriptor.rule.filter(|id| !self.has_rule(id))
    }

    /// The keys by which the rules count that match a request, each with its rule, and
    /// whether the request has it.
    pub(crate) fn keys_asked(&self, request: &Descriptor<'_>, with: impl FnMut(&CompiledRule, &str, bool)) {
        self.inner.current.policy().keys_asked(request, with);
    }

    /// The time on the limiter's clock.
    pub(crate) fn now(&self) -> Timestamp {
        self.inner.clock.now()
    }

    /// The limiter that decides in place of a backend that fails.
    pub(super) fn fallback(&self) -> &Engine<FullQuota> {
        engine(&self.inner.fallback)
    }
}

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
    clock: Option<ClockImpl>,
    waiters: Limits,
    top_tenants: usize,
}

impl RateLimiterBuilder {
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
        self.clock = Some(ClockImpl::Other(Box::new(clock)));
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
            engine: undecorated(&*backend).and_then(Extension::engine),
            leases,
            backend,
            clock: self.clock.unwrap_or_else(|| ClockImpl::System(SystemClock::new())),
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

/// What a backend can tell that no decorator stands before.
fn undecorated(backend: &dyn Backend) -> Option<&dyn Extension> {
    backend.extension().filter(|_| backend.inner().is_none())
}
