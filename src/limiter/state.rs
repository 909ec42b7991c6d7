//! What all clones of a limiter share: the policy in force, the backend, the
//! clock, and the queues of those that wait. It decides nothing itself.
//!
//! The types in here know nothing of [`RateLimiter`], so that each can be read
//! and tested without it.

use std::{
    collections::HashSet,
    sync::{
        Arc, Once, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use super::{
    adaptive_limit::limits::AdaptiveLimits,
    current::Current,
    first_requests::FirstRequests,
    grant::Grant,
    observe::{self, BackendMetrics},
    upstream::keys::UpstreamKeys,
    wait::{WaiterLimit, fifo::WaitQueues, slots::SlotQueues},
};
use crate::{
    backend::{
        Backend, Engine, Extension, FullQuota, InProcess,
        local::{LocalEngine, engine},
    },
    descriptor::Descriptor,
    observe::{Gauge, TopTenants, log_ignored_level},
    overload::Shedder,
    policy::{CompiledPolicy, CompiledRule, Consistency, Rule},
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
    /// The [engine](engine_of) in this process that decides, if the backend is one.
    pub(super) engine: Option<InProcess>,
    /// Whether the backend leases units ahead, and no decorator stands before it.
    pub(super) leases: bool,
    pub(super) clock: Timepiece,
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

/// The engine in this process that decides, if the backend is one and no decorator
/// stands before it.
pub(super) fn engine_of(backend: &dyn Backend) -> Option<InProcess> {
    undecorated(backend)?.engine()
}

/// What a backend can tell that no decorator stands before.
pub(super) fn undecorated(backend: &dyn Backend) -> Option<&dyn Extension> {
    backend.extension().filter(|_| backend.inner().is_none())
}

/// The clock. The default one is called without dynamic dispatch.
#[derive(Debug)]
pub(super) enum Timepiece {
    System(SystemClock),
    Other(Box<dyn Clock>),
}

impl Timepiece {
    #[inline]
    pub(super) fn now(&self) -> Timestamp {
        match self {
            Self::System(clock) => clock.now(),
            Self::Other(clock) => clock.now(),
        }
    }
}

impl RateLimiter {
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

    /// Reports what can never act in the policy that is now in force. Logs once if it
    /// asks for a consistency level that the backend ignores.
    pub(super) fn check_policy(&self) {
        let policy = self.policy();
        observe::without_effect(&policy);
        let is_leveled = |rule: &&Rule| rule.enabled && rule.consistency != Consistency::Exact;
        if let Some(rule) = policy.rules.iter().find(is_leveled)
            && !self.inner.backend.extension().is_some_and(Extension::honors_consistency)
        {
            self.inner.ignored_levels.call_once(|| log_ignored_level(&rule.id, rule.consistency.as_str()));
        }
    }

    /// Divides the limits of the fallback limiter among the instances that the backend
    /// sees now: from the next request on.
    pub(super) fn follow_instances(&self, policy: &Arc<CompiledPolicy>) {
        let Some(divided_by) = policy.divided_by else { return };
        let instances = self.inner.backend.extension().map_or(1, Extension::instances).max(1);
        if instances != divided_by
            && let Ok(divided) = policy.divided_by(instances)
        {
            self.inner.current.replace(policy, divided);
        }
    }

    /// The limiter that decides in place of a backend that fails.
    pub(super) fn fallback(&self) -> &Engine<FullQuota> {
        engine(&self.inner.fallback)
    }
}
