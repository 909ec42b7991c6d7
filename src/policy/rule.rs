use std::{collections::BTreeMap, time::Duration};

use http::Method;

use crate::quota::Quota;

/// What a counter is kept for each of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Dimension {
    /// Who pays.
    Tenant,
    /// The rule's path pattern, or route, that matched.
    Endpoint,
    /// The request's method. Those that HTTP does not define share a counter.
    Method,
}

/// What a rule does when the backend gives no answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailureMode {
    /// The request goes.
    #[default]
    Open,
    /// The request is refused: 503 over HTTP.
    Closed,
    /// A limiter in this process decides, at the rule's own limits.
    Local,
}

/// What one tenant gets in place of a rule's own tiers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Override {
    Tiers(Vec<Quota>),
    Unlimited,
}

/// A match, the tiers that must all pass, and how to behave.
///
/// A rule without a path or method matches every request. Paths use matchit's
/// syntax (`/v1/organizations/{org}/product/{id}`, `{*rest}`), and `*` as one
/// segment. A counter is kept for each tenant, and for each path pattern and
/// method that the rule names.
///
/// ```
/// use tower_ratelimit::{Quota, Rule};
/// use http::Method;
///
/// let rule = Rule::new("get-product")
///     .methods([Method::GET])
///     .path("/product/{id}")
///     .tier(Quota::per_second(10))
///     .tier(Quota::per_hour(1_000))
///     .plan("pro", [Quota::per_second(100)])
///     .unlimited("internal");
/// # tower_ratelimit::RateLimiter::new(tower_ratelimit::Policy::new().rule(rule)).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    pub(crate) id: String,
    pub(crate) methods: Vec<Method>,
    pub(crate) paths: Vec<String>,
    pub(crate) routes: Vec<String>,
    pub(crate) tiers: Vec<Quota>,
    /// `None`: per tenant, and per path and method that the rule names.
    pub(crate) per: Option<Vec<Dimension>>,
    pub(crate) tenant_param: Option<String>,
    pub(crate) max_wait: Duration,
    pub(crate) cost: u64,
    pub(crate) plans: BTreeMap<String, Vec<Quota>>,
    pub(crate) tenants: BTreeMap<String, Override>,
    pub(crate) fallback: bool,
    pub(crate) shadow: bool,
    pub(crate) enabled: bool,
    pub(crate) on_backend_failure: FailureMode,
}

impl Rule {
    /// A rule that matches everything and has no tier yet.
    #[must_use]
    pub fn new(id: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            methods: Vec::new(),
            paths: Vec::new(),
            routes: Vec::new(),
            tiers: Vec::new(),
            per: None,
            tenant_param: None,
            max_wait: Duration::ZERO,
            cost: 1,
            plans: BTreeMap::new(),
            tenants: BTreeMap::new(),
            fallback: false,
            shadow: false,
            enabled: true,
            on_backend_failure: FailureMode::Open,
        }
    }

    /// Adds methods; none means all. GET includes HEAD, which routers answer
    /// with the same handler, unless HEAD is named as well.
    #[must_use]
    pub fn methods(mut self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.methods.extend(methods);
        self
    }

    /// Adds a path pattern; none (and no route) means every path.
    #[must_use]
    pub fn path(mut self, pattern: impl Into<String>) -> Self {
        self.paths.push(pattern.into());
        self
    }

    /// Adds a route: the router's own pattern, as axum's `MatchedPath` gives
    /// it. No spelling of a path that the router takes escapes it.
    #[must_use]
    pub fn route(mut self, route: impl Into<String>) -> Self {
        self.routes.push(route.into());
        self
    }

    /// Adds a tier; all must pass.
    #[must_use]
    pub fn tier(mut self, quota: Quota) -> Self {
        self.tiers.push(quota);
        self
    }

    /// What a counter is kept for each of; `[]` is one counter for all.
    #[must_use]
    pub fn per(mut self, dimensions: impl IntoIterator<Item = Dimension>) -> Self {
        self.per = Some(dimensions.into_iter().collect());
        self
    }

    /// Takes the tenant from a parameter of the path, such as `org`.
    #[must_use]
    pub fn tenant_param(mut self, name: impl Into<String>) -> Self {
        self.tenant_param = Some(name.into());
        self
    }

    /// How long a request may wait for its turn; not at all by default.
    #[must_use]
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = max_wait;
        self
    }

    /// Units that a request takes of this rule's tiers; multiplied with the
    /// request's own cost. 1 by default.
    #[must_use]
    pub fn cost(mut self, units: u64) -> Self {
        self.cost = units;
        self
    }

    /// The tiers of tenants on `plan`, in place of the rule's own.
    #[must_use]
    pub fn plan(mut self, plan: impl Into<String>, tiers: impl IntoIterator<Item = Quota>) -> Self {
        self.plans.insert(plan.into(), tiers.into_iter().collect());
        self
    }

    /// The tiers of one tenant, in place of its plan's and the rule's own.
    ///
    /// A name that is an address stands for both. The layer cuts an IPv6
    /// address to its network, so that `2001:db8:1:2::` is what to name.
    #[must_use]
    pub fn tenant(mut self, tenant: impl Into<String>, tiers: impl IntoIterator<Item = Quota>) -> Self {
        self.tenants.insert(tenant.into(), Override::Tiers(tiers.into_iter().collect()));
        self
    }

    /// A tenant that this rule lets pass, uncounted.
    #[must_use]
    pub fn unlimited(mut self, tenant: impl Into<String>) -> Self {
        self.tenants.insert(tenant.into(), Override::Unlimited);
        self
    }

    /// Applies only where no other rule does.
    #[must_use]
    pub fn fallback(mut self, fallback: bool) -> Self {
        self.fallback = fallback;
        self
    }

    /// Decides and is counted, but never refuses: to try a rule on live
    /// traffic.
    #[must_use]
    pub fn shadow(mut self, shadow: bool) -> Self {
        self.shadow = shadow;
        self
    }

    /// A rule that is not enabled is as if it were not there.
    #[must_use]
    pub fn enabled(mut self, enabled: bool) -> Self {
        self.enabled = enabled;
        self
    }

    /// What happens when the backend gives no answer; open by default.
    #[must_use]
    pub fn on_backend_failure(mut self, mode: FailureMode) -> Self {
        self.on_backend_failure = mode;
        self
    }

    /// The rule's id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The rule's own tiers.
    #[must_use]
    pub fn tiers(&self) -> &[Quota] {
        &self.tiers
    }
}
