//! What the limiter knows of a request: its [`Descriptor`], and the [`Tenant`]
//! that it is counted for.
//!
//! It reads nothing of a request but its path and route, and these only where a rule asks for
//! them: `http` and other adapters create descriptors. The invariant: a descriptor borrows
//! everything, so describing a request allocates nothing, and what most requests lack costs
//! them nothing.

pub(crate) mod grpc;
mod priority;
mod tenant;

use std::{borrow::Cow, sync::Arc, time::Duration};

use http::{Extensions, HeaderMap, Uri};
use tokio::time::Instant;

pub(crate) use self::tenant::TenantLimits;
pub use self::{
    priority::Priority,
    tenant::{Tenant, TenantId, TenantRef},
};
use crate::unit::REQUESTS;

/// What the limiter knows of a request.
///
/// ```
/// use tower_ratelimit::Descriptor;
///
/// let request = Descriptor::new("/v1/products/7").method("GET").tenant("acme").plan("pro").cost(2);
/// assert_eq!(request.path(), "/v1/products/7");
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Descriptor<'a> {
    target: Target<'a>,
    pub(crate) method: &'a str,
    pub(crate) tenant: Option<TenantRef<'a>>,
    pub(crate) plan: Option<&'a str>,
    /// The only rule that applies, whatever it matches.
    pub(crate) rule: Option<&'a str>,
    /// Most requests have none.
    named: Option<Arc<Named<'a>>>,
    pub(crate) cost: u64,
    pub(crate) priority: Option<Priority>,
    /// What happens if the tenant or a key is missing, where the caller says so.
    pub(crate) on_missing: Option<MissingTenant>,
    /// More than one tenant was given. There is then none.
    pub(crate) ambiguous_tenant: bool,
    pub(crate) exempt: bool,
    max_wait: Duration,
    /// May hold a [`Deadline`], which is looked up only if the request has to
    /// wait.
    pub(crate) extensions: Option<&'a Extensions>,
    /// May hold the timeout of a gRPC call, looked up likewise, and what rules match by.
    pub(crate) headers: Option<&'a HeaderMap>,
}

impl<'a> Descriptor<'a> {
    /// A request of cost 1 for `path`, without a tenant.
    pub fn new(path: impl Into<Cow<'a, str>>) -> Self {
        Self {
            target: Target::Stated { path: path.into(), route: None },
            method: "",
            tenant: None,
            plan: None,
            rule: None,
            named: None,
            cost: 1,
            priority: None,
            on_missing: None,
            ambiguous_tenant: false,
            exempt: false,
            max_wait: Duration::MAX,
            extensions: None,
            headers: None,
        }
    }

    /// The request's method, as sent: `GET`.
    pub fn method(mut self, method: &'a str) -> Self {
        self.method = method;
        self
    }

    /// The request's headers, for rules that [match by them](crate::Rule::header). Of a gRPC
    /// call, its timeout bounds the wait.
    pub fn headers(mut self, headers: &'a HeaderMap) -> Self {
        self.headers = Some(headers);
        self
    }

    /// The pattern of the route, if the router's answer is known.
    pub fn route(mut self, route: &'a str) -> Self {
        let path = match self.target {
            Target::Stated { path, .. } => path,
            Target::Http(target) => target.path().into(),
        };
        self.target = Target::Stated { path, route: Some(route) };
        self
    }

    pub(crate) fn set_http_target(&mut self, target: HttpTarget<'a>) {
        self.target = Target::Http(target);
    }

    /// The tenant: a name, an address, or a [`TenantRef`].
    pub fn tenant(mut self, tenant: impl Into<TenantRef<'a>>) -> Self {
        self.tenant = Some(tenant.into());
        self
    }

    /// The plan, which selects the quotas. It takes precedence over the
    /// tenant's.
    pub fn plan(mut self, plan: &'a str) -> Self {
        self.plan = Some(plan);
        self
    }

    /// Applies the rule with this id and no other, whatever it matches. It is
    /// counted under the pattern that the path matches, else under the rule's
    /// first. If the policy has no such rule, or has it disabled, no rule
    /// applies; to [peek](crate::RateLimiter::peek) at a rule that it does not have, or to
    /// [reset](crate::RateLimiter::reset) it, is an error.
    pub fn rule(mut self, id: &'a str) -> Self {
        self.rule = Some(id);
        self
    }

    /// Another key that the request is counted by, beside its tenant: rules
    /// [count by it](crate::policy::Dimension::key) where they name it in `per`.
    ///
    /// ```
    /// use tower_ratelimit::{Descriptor, Dimension, Policy, Quota, RateLimiter, Rule};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_ratelimit::ConfigError> {
    /// let policy = Policy::new()
    ///     .rule(Rule::new("per-account").tier(Quota::per_hour(10)))
    ///     .rule(Rule::new("per-device").per([Dimension::key("device")]).tier(Quota::per_hour(1)));
    /// let limiter = RateLimiter::new(policy)?;
    /// let login = Descriptor::new("/login").tenant("acme");
    /// assert!(limiter.check(&login.clone().key("device", "phone")).await.is_allowed());
    /// assert!(limiter.check(&login.clone().key("device", "laptop")).await.is_allowed());
    /// assert!(!limiter.check(&login.key("device", "phone")).await.is_allowed());
    /// # Ok(())
    /// # }
    /// ```
    pub fn key(mut self, name: &'a str, key: impl Into<TenantRef<'a>>) -> Self {
        self.insert_key(name, Some(key.into()));
        self
    }

    /// `None` if the request names more than one key of that name.
    pub(crate) fn insert_key(&mut self, name: &'a str, key: Option<TenantRef<'a>>) {
        let keys = &mut Arc::make_mut(self.named.get_or_insert_default()).keys;
        keys.retain(|(own, _)| *own != name);
        keys.push((name, key));
    }

    /// What the request costs in `requests`, multiplied by the cost of each rule. A
    /// cost of 0 charges nothing.
    pub fn cost(mut self, cost: u64) -> Self {
        self.cost = cost;
        self
    }

    /// What the request costs in another unit than requests, for the rules of
    /// [that unit](crate::Rule::unit), each of which multiplies it by its own cost.
    ///
    /// ```
    /// use tower_ratelimit::Descriptor;
    ///
    /// let prompt = Descriptor::new("/v1/chat").cost_in("input-tokens", 300).cost_in("output-tokens", 1_000);
    /// # let _ = prompt;
    /// ```
    pub fn cost_in(mut self, unit: &'a str, cost: u64) -> Self {
        self.insert_cost(unit, StatedCost::Exactly(cost));
        self
    }

    /// The request does not know what it costs in this unit, but the most that it can: rules
    /// of the unit reserve what such requests usually turn out to cost. See
    /// [`cost::estimated`](crate::cost::estimated).
    pub fn cost_at_most(mut self, unit: &'a str, most: u64) -> Self {
        self.insert_cost(unit, StatedCost::AtMost(most));
        self
    }

    pub(crate) fn insert_cost(&mut self, unit: &'a str, cost: StatedCost) {
        if unit == REQUESTS {
            let (StatedCost::Exactly(units) | StatedCost::AtMost(units)) = cost;
            self.cost = units;
            return;
        }
        let costs = &mut Arc::make_mut(self.named.get_or_insert_default()).costs;
        costs.retain(|(own, _)| *own != unit);
        costs.push((unit, cost));
    }

    /// How much the request matters. It takes precedence over the tenant's and the
    /// plan's; [`Priority::Normal`] if none says.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = Some(priority);
        self
    }

    /// What happens if no tenant is given, or not a key by which a rule counts that does
    /// not [choose itself](crate::Rule::on_missing_key).
    pub fn on_missing_tenant(mut self, choice: MissingTenant) -> Self {
        self.on_missing = Some(choice);
        self
    }

    /// The longest time that the request can wait: what is left until its own
    /// deadline. Caps what its rules, the layer and the caller allow.
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = max_wait;
        self
    }

    /// No rule applies to the request.
    pub fn exempt(mut self) -> Self {
        self.exempt = true;
        self
    }

    /// The request's path.
    #[must_use]
    pub fn path(&self) -> &str {
        match &self.target {
            Target::Stated { path, .. } => path,
            Target::Http(target) => target.path(),
        }
    }

    /// The pattern of the route, if the router's answer is known.
    pub(crate) fn matched_route(&self) -> Option<&'a str> {
        match &self.target {
            Target::Stated { route, .. } => *route,
            Target::Http(target) => target.route(),
        }
    }

    /// How long the request can wait at most.
    pub(crate) fn longest_wait(&self) -> Duration {
        let deadline = self.extensions.and_then(Extensions::get::<Deadline>).map(Deadline::remaining);
        let timeout = self.headers.and_then(grpc::timeout);
        deadline.into_iter().chain(timeout).fold(self.max_wait, Duration::min)
    }

    fn keys(&self) -> impl Iterator<Item = &NamedKey<'a>> {
        self.named.iter().flat_map(|named| &named.keys)
    }

    fn find_cost(&self, unit: &str) -> Option<StatedCost> {
        let costs = self.named.iter().flat_map(|named| &named.costs);
        costs.into_iter().find_map(|(own, cost)| (*own == unit).then_some(*cost))
    }

    /// What it costs in a unit other than requests, or the most that it can cost.
    pub(crate) fn stated_cost(&self, unit: &str) -> Option<u64> {
        let (StatedCost::Exactly(units) | StatedCost::AtMost(units)) = self.find_cost(unit)?;
        Some(units)
    }

    /// The most that it can cost in a unit, where it knows no more.
    pub(crate) fn most_in(&self, unit: &str) -> Option<u64> {
        match self.find_cost(unit)? {
            StatedCost::AtMost(most) => Some(most),
            StatedCost::Exactly(_) => None,
        }
    }

    pub(crate) fn find_key(&self, name: &str) -> Key<'_> {
        match self.keys().find(|(own, _)| *own == name) {
            Some((_, Some(key))) => Key::Found(key.id()),
            Some((_, None)) => Key::Ambiguous,
            None => Key::Missing,
        }
    }

    /// A key as exceptions know it: an address is not cut to its network.
    pub(crate) fn whole_key(&self, name: &str) -> Option<TenantId<'_>> {
        let (_, key) = self.keys().find(|(own, _)| *own == name)?;
        key.as_ref().map(TenantRef::whole_id)
    }

    /// The priority that the request or its tenant states.
    pub(crate) fn stated_priority(&self) -> Option<Priority> {
        self.priority.or_else(|| self.tenant.as_ref()?.stated_priority())
    }

    pub(crate) fn plan_name(&self) -> Option<&str> {
        self.plan.or_else(|| self.tenant.as_ref()?.plan_name())
    }
}

/// The path of a request, and the pattern of its route.
#[derive(Clone, Debug)]
enum Target<'a> {
    Stated { path: Cow<'a, str>, route: Option<&'a str> },
    Http(HttpTarget<'a>),
}

/// The target of an HTTP request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HttpTarget<'a> {
    pub(crate) uri: &'a Uri,
    /// Where a router has put what it knows, if one may have.
    pub(crate) router: Option<&'a Extensions>,
}

impl<'a> HttpTarget<'a> {
    /// The path that the client sent: a nested router removes a prefix.
    fn path(self) -> &'a str {
        let Self { uri, router } = self;
        #[cfg(feature = "axum")]
        let uri = router.and_then(Extensions::get).map_or(uri, |axum::extract::OriginalUri(original)| original);
        let _ = router;
        match uri.path() {
            "" => "/",
            path => path,
        }
    }

    fn route(self) -> Option<&'a str> {
        #[cfg(feature = "axum")]
        if let Some(route) = self.router.and_then(Extensions::get::<axum::extract::MatchedPath>) {
            return Some(route.as_str());
        }
        None
    }
}

/// A key's name, and the key: `None` where the request names more than one.
type NamedKey<'a> = (&'a str, Option<TenantRef<'a>>);

/// What a request has by name.
#[derive(Clone, Debug, Default)]
struct Named<'a> {
    /// Such as the caller's address beside its API key.
    keys: Vec<NamedKey<'a>>,
    /// What it costs in other units than requests.
    costs: Vec<(&'a str, StatedCost)>,
}

/// What a request knows of its cost in a unit.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StatedCost {
    Exactly(u64),
    AtMost(u64),
}

/// What a request says about one of its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key<'a> {
    Found(TenantId<'a>),
    Missing,
    /// The request names more than one.
    Ambiguous,
}

impl<'a> Key<'a> {
    /// `None` unless the request names one.
    pub(crate) fn id(self) -> Option<TenantId<'a>> {
        if let Self::Found(id) = self { Some(id) } else { None }
    }
}

/// What happens to a request without a tenant, under rules that count per
/// tenant; or without a [key](crate::Dimension::Key), under rules that count by it. One
/// with an ambiguous tenant or key is always rejected: see
/// [`tenant::header`](crate::tenant::header).
///
/// ```
/// use tower_ratelimit::{MissingTenant, Quota, RateLimitLayer, RateLimiter, tenant};
///
/// let limiter = RateLimiter::new(Quota::per_minute(60))?;
/// // A request without an API key is answered with 401.
/// let layer = RateLimitLayer::new(limiter).tenant(tenant::header("x-api-key")).on_missing_tenant(MissingTenant::Reject);
/// # let _ = layer;
/// # Ok::<_, tower_ratelimit::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
pub enum MissingTenant {
    /// All such requests share one anonymous tenant, or one counter. The default for
    /// tenants.
    #[default]
    Anonymous,
    /// The request is rejected: with 401 over HTTP.
    Reject,
    /// The rules that count by it do not apply. The default for keys.
    Allow,
}

/// When a request becomes useless to its sender. In a request's extensions, it
/// bounds how long a layer lets the request wait: a request that would have to
/// wait longer is rejected at once.
///
/// It does not bound the work itself. A gRPC call needs none, because its
/// `grpc-timeout` acts as one.
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::descriptor::Deadline;
///
/// let mut request = http::Request::new(());
/// request.extensions_mut().insert(Deadline::after(Duration::from_millis(250)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub struct Deadline {
    /// `None`: later than an instant can express.
    at: Option<Instant>,
}

impl Deadline {
    /// A deadline `duration` from now, on Tokio's clock.
    pub fn after(duration: Duration) -> Self {
        Self { at: Instant::now().checked_add(duration) }
    }

    /// A deadline at `instant`.
    pub fn at(instant: Instant) -> Self {
        Self { at: Some(instant) }
    }

    /// The time that is left; zero once it has passed.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.at.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()))
    }
}

#[cfg(test)]
mod tests;
