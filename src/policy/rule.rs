//! One rule: which requests it matches, what it limits, and how it behaves.
//!
//! Plain data and its builders. Nothing is checked here: `validate` does that
//! when a policy is read or compiled.

use std::{collections::BTreeMap, time::Duration};

use http::{Method, StatusCode};
#[cfg(feature = "serde")]
use schemars::JsonSchema;
#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

#[cfg(feature = "serde")]
use super::forms;
use super::{
    adaptive::AdaptiveRate,
    settings::{Consistency, Dimension, FailureMode, Limits, Match, Messages, Override, PerByte, Unsettled},
    statuses::Statuses,
};
use crate::{
    descriptor::{MissingTenant, Priority},
    quota::Quota,
    unit::REQUESTS,
};

/// A match, tiers that must all pass, and how to behave.
///
/// A rule without a path, route or method matches every request. Paths use
/// the syntax of axum (`/v1/organizations/{org}/product/{id}`, `{*rest}`), and `*`
/// matches one segment. By default a rule has one counter for each tenant, and
/// for each path pattern and method that it names.
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
///     .tenant_unlimited("internal");
/// # tower_ratelimit::RateLimiter::new(tower_ratelimit::Policy::new().rule(rule)).unwrap();
/// ```
// As many fields as a rule of a policy file has keys. The order is that in which
// they are written.
#[derive(Clone, Debug, PartialEq)]
#[must_use]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize, JsonSchema))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields), schemars(rename = "rule", transform = forms::needs_tiers))]
pub struct Rule {
    #[cfg_attr(feature = "serde", schemars(regex(pattern = "^[ -~]{1,128}$")))]
    pub(crate) id: String,
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "forms::is_default", rename = "match"))]
    pub(crate) matches: Match,
    #[cfg_attr(
        feature = "serde",
        serde(
            default,
            skip_serializing_if = "forms::is_default",
            rename = "tenant_from",
            alias = "tenant",
            with = "forms::parameter"
        )
    )]
    #[cfg_attr(feature = "serde", schemars(with = "String", regex(pattern = r"^\{[^{}*/]+\}$")))]
    pub(crate) tenant_param: Option<String>,
    /// One more tier, whose limit adapts.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "forms::is_default"))]
    pub(crate) adaptive_rate: Option<AdaptiveRate>,
    /// Whether no rule charges the requests that match.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "forms::is_default"))]
    pub(crate) exempt: bool,
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "forms::is_default"))]
    pub(crate) tiers: Vec<Quota>,
    /// `None`: per tenant, and per path and method that the rule names.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "forms::is_default"))]
    #[cfg_attr(feature = "serde", schemars(with = "Vec<String>"))]
    pub(crate) per: Option<Vec<Dimension>>,
    /// `None`: a layer delays nothing, and `acquire` waits as long as its caller
    /// allows.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "forms::is_default", with = "forms::duration"))]
    #[cfg_attr(feature = "serde", schemars(with = "String", regex(pattern = forms::DURATION)))]
    pub(crate) max_wait: Option<Duration>,
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "forms::is_default"))]
    pub(crate) smooth: bool,
    #[cfg_attr(feature = "serde", serde(default = "forms::one", skip_serializing_if = "forms::is_one"))]
    pub(crate) cost: u64,
    /// `None`: requests.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "forms::is_default"))]
    #[cfg_attr(feature = "serde", serde(deserialize_with = "forms::unit"))]
    #[cfg_attr(feature = "serde", schemars(with = "String", regex(pattern = "^[ -~]{1,128}$")))]
    pub(crate) unit: Option<String>,
    /// Whether a handler may settle.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "forms::is_default"))]
    pub(crate) settle: bool,
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "forms::is_default"))]
    pub(crate) unsettled: Unsettled,
    /// Whether the bytes of its response are what a request has cost.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "forms::is_default"))]
    pub(crate) per_byte: Option<PerByte>,
    /// `None`: every response.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "forms::is_default", with = "forms::statuses"))]
    #[cfg_attr(feature = "serde", schemars(with = "Vec<forms::Status>", length(min = 1)))]
    pub(crate) charge_on: Option<Statuses>,
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "forms::is_default", with = "forms::statuses"))]
    #[cfg_attr(feature = "serde", schemars(with = "Vec<forms::Status>", length(min = 1)))]
    pub(crate) refund_on: Option<Statuses>,
    /// `None`: messages are not charged.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "forms::is_default"))]
    pub(crate) per_message: Option<Messages>,
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "forms::is_default"))]
    pub(crate) plans: BTreeMap<String, Override>,
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "forms::is_default"))]
    pub(crate) tenants: BTreeMap<String, Override>,
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "forms::is_default"))]
    pub(crate) fallback: bool,
    /// `None`: as the caller chooses.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "forms::is_default"))]
    pub(crate) on_missing_key: Option<MissingTenant>,
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "forms::is_default", with = "forms::reserve"))]
    #[cfg_attr(feature = "serde", schemars(with = "forms::Reserve"))]
    pub(crate) reserve: BTreeMap<Priority, f64>,
    /// `None`: the usual one.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "forms::is_default", with = "forms::status"))]
    #[cfg_attr(feature = "serde", schemars(with = "u16", range(min = 400, max = 599)))]
    pub(crate) status: Option<StatusCode>,
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "forms::is_default"))]
    pub(crate) fair: bool,
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "forms::is_default"))]
    pub(crate) shadow: bool,
    /// Whether its keys cool down when an upstream asks for it.
    #[cfg_attr(feature = "serde", serde(default = "forms::yes", skip_serializing_if = "forms::is_yes"))]
    pub(crate) upstream_feedback: bool,
    #[cfg_attr(feature = "serde", serde(default = "forms::yes", skip_serializing_if = "forms::is_yes"))]
    pub(crate) enabled: bool,
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "forms::is_default"))]
    pub(crate) consistency: Consistency,
    /// `None`: the default.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "forms::is_default", with = "forms::duration"))]
    #[cfg_attr(feature = "serde", schemars(with = "String", regex(pattern = forms::DURATION)))]
    pub(crate) sync_interval: Option<Duration>,
    /// `None`: the default.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "forms::is_default"))]
    pub(crate) on_backend_failure: Option<FailureMode>,
    /// `None`: the whole limit.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "forms::is_default"))]
    #[cfg_attr(feature = "serde", schemars(range(min = 0, max = 1)))]
    pub(crate) local_share: Option<f64>,
}

impl Rule {
    /// A rule that matches every request and has no tier yet. Its id stands in
    /// response headers, metrics, logs and the keys of a store: at most 128 bytes
    /// of printable ASCII.
    pub fn new(id: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            matches: Match::default(),
            tenant_param: None,
            adaptive_rate: None,
            exempt: false,
            tiers: Vec::new(),
            per: None,
            max_wait: None,
            smooth: false,
            cost: 1,
            unit: None,
            settle: false,
            unsettled: Unsettled::default(),
            per_byte: None,
            charge_on: None,
            refund_on: None,
            per_message: None,
            plans: BTreeMap::new(),
            tenants: BTreeMap::new(),
            fallback: false,
            on_missing_key: None,
            reserve: BTreeMap::new(),
            status: None,
            fair: false,
            shadow: false,
            upstream_feedback: true,
            enabled: true,
            consistency: Consistency::default(),
            sync_interval: None,
            on_backend_failure: None,
            local_share: None,
        }
    }

    /// The rule's id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The rule's own tiers.
    pub fn tiers(&self) -> &[Quota] {
        &self.tiers
    }
}

/// # Which requests the rule matches, and how it counts them
impl Rule {
    /// Adds methods; without any, the rule matches all. GET includes HEAD, which
    /// routers answer with the same handler, unless HEAD is named as well. A word
    /// that is a misspelled method, such as `GTE`, or that means all, such as `*`,
    /// is an error.
    pub fn methods(mut self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.matches.methods.extend(methods);
        self
    }

    /// Adds a path pattern; without any pattern or route, the rule matches every
    /// path.
    pub fn path(mut self, pattern: impl Into<String>) -> Self {
        self.matches.paths.push(pattern.into());
        self
    }

    /// Adds a route: the router's own pattern, as axum's `MatchedPath` has it.
    /// Every spelling of a path that the router accepts matches.
    pub fn route(mut self, route: impl Into<String>) -> Self {
        self.matches.routes.push(route.into());
        self
    }

    /// Limits the rule to requests that have this header with one of these values. With
    /// several headers, a request needs all of them.
    ///
    /// A caller chooses its headers: one that leaves this one out is not limited by the rule.
    /// Let another rule limit all requests, and exempt none by a header that a caller can set.
    ///
    /// ```
    /// use tower_ratelimit::{Policy, Quota, RateLimiter, Rule};
    ///
    /// let calls = Rule::new("tool-calls").path("/mcp").header("mcp-method", ["tools/call"]).tier(Quota::per_minute(30));
    /// let all = Rule::new("mcp").path("/mcp").tier(Quota::per_minute(300));
    /// let limiter = RateLimiter::new(Policy::new().rule(calls).rule(all))?;
    /// # let _ = limiter;
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    pub fn header<V: Into<String>>(mut self, name: impl Into<String>, values: impl IntoIterator<Item = V>) -> Self {
        self.matches.headers.entry(name.into()).or_default().extend(values.into_iter().map(Into::into));
        self
    }

    /// Limits the rule to requests of these priorities; without any, it is for all. See
    /// [`Descriptor::priority`](crate::Descriptor::priority).
    pub fn priorities(mut self, priorities: impl IntoIterator<Item = Priority>) -> Self {
        self.matches.priorities.extend(priorities);
        self
    }

    /// The dimensions that are counted separately; `[]` is one counter for all
    /// requests. [`Dimension::key`] counts by another key than the tenant, alone
    /// or beside it.
    pub fn per(mut self, dimensions: impl IntoIterator<Item = Dimension>) -> Self {
        self.per = Some(dimensions.into_iter().collect());
        self
    }

    /// What happens to a request that lacks a [key](Dimension::key) of [`per`](Self::per).
    /// By default the rule does not apply to it ([`MissingTenant::Allow`]), and then does
    /// not keep a [`fallback`](Self::fallback) rule from applying, unless the layer's
    /// [`on_missing_tenant`](crate::RateLimitLayer::on_missing_tenant) says otherwise.
    ///
    /// Where callers can leave out the key, that is a way around the limit: a login by
    /// address and user has to reject a request without a user, or to count all of them
    /// together.
    ///
    /// ```
    /// use tower_ratelimit::{Dimension, MissingTenant, Quota, Rule};
    ///
    /// let login = Rule::new("login")
    ///     .per([Dimension::key("ip"), Dimension::key("user")])
    ///     .on_missing_key(MissingTenant::Reject)
    ///     .tier(Quota::per_hour(5));
    /// # let _ = login;
    /// ```
    pub fn on_missing_key(mut self, choice: MissingTenant) -> Self {
        self.on_missing_key = Some(choice);
        self
    }

    /// Takes the tenant from a parameter of the path, such as `org`.
    pub fn tenant_from_path(mut self, name: impl Into<String>) -> Self {
        self.tenant_param = Some(name.into());
        self
    }

    /// Applies only if no other rule does: none that matches the path as it was sent.
    pub fn fallback(mut self, fallback: bool) -> Self {
        self.fallback = fallback;
        self
    }

    /// Exempts the requests that match: no rule charges them, this one or another.
    /// Such a rule has no tiers, and nothing but a match. The path has to match as it was
    /// sent: `//healthz` is not exempt here, since a router may run another handler for it.
    ///
    /// ```
    /// use tower_ratelimit::{Policy, Quota, RateLimiter, Rule};
    ///
    /// let policy = Policy::new()
    ///     .rule(Rule::new("health").path("/healthz").exempt(true))
    ///     .rule(Rule::new("everything").tier(Quota::per_minute(100)));
    /// # RateLimiter::new(policy)?;
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    pub fn exempt(mut self, exempt: bool) -> Self {
        self.exempt = exempt;
        self
    }

    /// Whether the rule is in force at all; true by default.
    pub fn enabled(mut self, enabled: bool) -> Self {
        self.enabled = enabled;
        self
    }

    /// Shadow mode (dry run): the rule is evaluated and counted, but never
    /// rejects. It tries a rule on live traffic. Response statuses and settled
    /// costs count as they would. [`Decision::shadows`](crate::Decision::shadows) and
    /// [`RateLimitLayer::on_shadow_rejected`](crate::RateLimitLayer::on_shadow_rejected) say
    /// whom it would have rejected.
    pub fn shadow(mut self, shadow: bool) -> Self {
        self.shadow = shadow;
        self
    }
}

/// # What the rule limits
impl Rule {
    /// Adds a tier; all must pass.
    pub fn tier(mut self, quota: Quota) -> Self {
        self.tiers.push(quota);
        self
    }

    /// Reserves a part of each tier, from 0 to 1, for requests of this priority and higher
    /// ones. A request is allowed while what is used and its cost are within the limit less
    /// the reserves of all priorities above its own. The sum of all reserves must be less
    /// than 1. Limit, remaining and retry times are those of the caller's own priority.
    ///
    /// Requests that wait for a rate are admitted in their order, whatever their priority.
    /// Units in flight that are released go to the highest priority that waits.
    ///
    /// ```
    /// use tower_ratelimit::{Descriptor, Policy, Priority, Quota, RateLimiter, Rule};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_ratelimit::ConfigError> {
    /// let rule = Rule::new("api").tier(Quota::per_minute(10)).reserve(Priority::Critical, 0.2);
    /// let limiter = RateLimiter::new(Policy::new().rule(rule))?;
    /// let browse = Descriptor::new("/browse");
    /// for _ in 0..8 {
    ///     assert!(limiter.check(&browse).await.is_allowed());
    /// }
    /// assert!(!limiter.check(&browse).await.is_allowed());
    /// assert!(limiter.check(&Descriptor::new("/checkout").priority(Priority::Critical)).await.is_allowed());
    /// # Ok(())
    /// # }
    /// ```
    pub fn reserve(mut self, priority: Priority, part: f64) -> Self {
        self.reserve.insert(priority, part);
        self
    }

    /// The status of the HTTP response to a request that a tier of this rule rejects, from
    /// 400 to 599: 429 without it, or 503 for an adaptive concurrency limit. Of several rules
    /// that reject a request, the first that sets one decides. A gRPC status stays as it is.
    ///
    /// Clients know 429 and 503 as rejections. For another status, those of this crate need
    /// [`rejection_statuses`](crate::middleware::UpstreamFeedback::rejection_statuses).
    pub fn status(mut self, status: StatusCode) -> Self {
        self.status = Some(status);
        self
    }

    /// The tiers of tenants on `plan`, instead of the rule's own.
    pub fn plan(mut self, plan: impl Into<String>, tiers: impl IntoIterator<Item = Quota>) -> Self {
        self.plans.entry(plan.into()).or_default().limits = Some(Limits::Tiers(tiers.into_iter().collect()));
        self
    }

    /// A plan whose tenants this rule neither limits nor counts.
    pub fn plan_unlimited(mut self, plan: impl Into<String>) -> Self {
        self.plans.entry(plan.into()).or_default().limits = Some(Limits::Unlimited);
        self
    }

    /// The tiers of one tenant, instead of its plan's and the rule's own.
    ///
    /// An IP address stands for a tenant identified by that address, and a network
    /// (`10.0.0.0/8`) for all tenants identified by an address in it: never for one
    /// identified by a name, which callers might choose. An address comes before
    /// networks, and the smallest network before others. The layer compares the whole
    /// address, though it counts an IPv6 address by its /64.
    ///
    /// If the tenant is a [part of the path](Self::tenant_from_path), addresses and
    /// networks are those of callers. An entry for the tenant itself comes first.
    pub fn tenant(mut self, tenant: impl Into<String>, tiers: impl IntoIterator<Item = Quota>) -> Self {
        self.tenants.entry(tenant.into()).or_default().limits = Some(Limits::Tiers(tiers.into_iter().collect()));
        self
    }

    /// A tenant that this rule neither limits nor counts: a name, an address or a
    /// network, as for [`tenant`](Self::tenant).
    pub fn tenant_unlimited(mut self, tenant: impl Into<String>) -> Self {
        self.tenants.entry(tenant.into()).or_default().limits = Some(Limits::Unlimited);
        self
    }

    /// How much requests of a plan matter under this rule, and what is shed of them, unless
    /// they or their tenant say so. The plan's tiers, if it has any, stay.
    pub fn plan_priority(mut self, plan: impl Into<String>, priority: Priority) -> Self {
        self.plans.entry(plan.into()).or_default().priority = Some(priority);
        self
    }

    /// How much requests of a tenant matter under this rule, unless they or the
    /// [`Tenant`](crate::Tenant) say so. The tenant's tiers, if it has any, stay.
    pub fn tenant_priority(mut self, tenant: impl Into<String>, priority: Priority) -> Self {
        self.tenants.entry(tenant.into()).or_default().priority = Some(priority);
        self
    }

    /// Adds a tier whose rate adapts (AIMD), for each key: see [`AdaptiveRate`]. It is
    /// the only tier that the rule needs. Plans and tenants with their own tiers
    /// have it, too.
    ///
    /// Requests wait for it first come, first served, and reserve only 50 ms
    /// ahead, so that none waits at an outdated rate. The other limits of such a
    /// request have wait queues of their own, and a queue delays only requests
    /// that wait for its limit. Tenants that share the counter cannot be served
    /// round-robin: [`fair`](Self::fair) beside it is an error.
    pub fn adaptive_rate(mut self, rate: AdaptiveRate) -> Self {
        self.adaptive_rate = Some(rate);
        self
    }

    /// Units that a request takes of this rule's tiers, multiplied with the
    /// request's own cost; 1 by default.
    pub fn cost(mut self, units: u64) -> Self {
        self.cost = units;
        self
    }

    /// What the rule's limits count: `requests` by default, `tokens`, `content-bytes`, or
    /// any other name of at most 128 bytes of printable ASCII. A request is charged what it
    /// states [in this unit](crate::Descriptor::cost_in), all units of its rules together or
    /// none. If it states nothing, a rule of another unit than `requests` charges it
    /// nothing, which is reported once as `RL014`.
    ///
    /// A charge of nothing is rejected only while the key is in debt. Of a unit that is
    /// known only afterwards, a request should state an estimate, so that those in flight
    /// count.
    ///
    /// ```
    /// use tower_ratelimit::{Descriptor, Policy, Quota, RateLimiter, Rule};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_ratelimit::ConfigError> {
    /// let policy = Policy::new()
    ///     .rule(Rule::new("requests").tier(Quota::per_minute(10)))
    ///     .rule(Rule::new("tokens").unit("tokens").tier(Quota::per_minute(1_000)));
    /// let limiter = RateLimiter::new(policy)?;
    /// let prompt = Descriptor::new("/v1/chat").tenant("acme").cost_in("tokens", 600);
    /// let decision = limiter.check(&prompt).await;
    /// let left: Vec<_> = decision.tiers().iter().map(|tier| (tier.unit(), tier.remaining())).collect();
    /// assert_eq!(left, [("requests", 9), ("tokens", 400)]);
    /// // The tokens do not suffice, so no request is charged either.
    /// assert!(!limiter.check(&prompt).await.is_allowed());
    /// # Ok(())
    /// # }
    /// ```
    pub fn unit(mut self, name: impl Into<String>) -> Self {
        self.unit = Some(name.into()).filter(|name| name != REQUESTS);
        self
    }

    /// Charges the messages of a gRPC stream one by one, in one direction or
    /// both. Each message after the first costs as much as the call. The call
    /// itself is charged for the first.
    ///
    /// It is an error beside a concurrency limit, which counts calls, and in
    /// shadow mode.
    ///
    /// | messages streamed by | a message over the limit | counted by |
    /// |---|---|---|
    /// | the server | waits as long as the rule's `max_wait`, the layer's and the call's deadline allow; then the stream ends with the trailers of a rejection, and the handler's stream is dropped | the layer |
    /// | the client | waits as long, and nothing more is read from the client meanwhile; then the handler sees the rejection as the stream's error | `middleware::charge_client_messages`, inside of the layer, with the feature `tonic` |
    ///
    /// Earlier messages are passed on as they arrive. Nothing is buffered, and
    /// bodies of `Bytes`, such as tonic's, are not copied: only the five-byte
    /// header of each message is read. The policy in force is charged, even for
    /// calls that were admitted under an earlier one.
    ///
    /// Messages are not counted of responses that are not plain gRPC, such as
    /// gRPC-Web outside of the layer that translates it, or its base64 form; of
    /// calls through a client's layer; and of calls that were admitted while the
    /// backend failed.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{Quota, Rule, policy::Messages};
    ///
    /// // Ten products a second, in one list or in several.
    /// let rule = Rule::new("list")
    ///     .path("/shop.v1.Products/List")
    ///     .tier(Quota::per_second(10))
    ///     .per_message(Messages::Server)
    ///     .max_wait(Duration::from_secs(5));
    /// # tower_ratelimit::RateLimiter::new(tower_ratelimit::Policy::new().rule(rule)).unwrap();
    /// ```
    pub fn per_message(mut self, messages: Messages) -> Self {
        self.per_message = Some(messages);
        self
    }
}

/// # How requests wait
impl Rule {
    /// The longest that a request may be delayed.
    ///
    /// Unset, a layer delays nothing, and
    /// [`RateLimiter::acquire`](crate::RateLimiter::acquire) waits as long as its
    /// caller allows. Set, it bounds both.
    ///
    /// A waiter reserves its slot in all rules that apply to it: see
    /// [the guide](crate::guide::waiting#several-rules) if several tenants share one of them.
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = Some(max_wait);
        self
    }

    /// Spreads the units of a window evenly over it, by short delays, instead of
    /// admitting them all in its first milliseconds.
    ///
    /// Of a limit of L in a window of length W, the unit that comes after k
    /// others is not admitted before k·W/L of the window has passed, as far as
    /// [`max_wait`](Self::max_wait) and the caller allow the delay. A request
    /// that may not wait that long is admitted at once. One that has to wait for
    /// a later window anyway is admitted as near to its pace as it may wait.
    ///
    /// So pacing rejects no request and loses no throughput: a window admits as
    /// many as without it, and requests late in the window catch up.
    ///
    /// Fixed, anchored and sliding windows are paced. Buckets, which are smooth
    /// already, and concurrency limits are not; they are charged for the time at
    /// which the request is admitted. It is an error for a sliding log, whose
    /// pacing would cost throughput, in a rule without a window, and without a
    /// `max_wait`.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{Algorithm, Quota, Rule};
    ///
    /// let quota = Quota::per_second(100).algorithm(Algorithm::FixedWindow);
    /// // One each 10 ms, where 100 would be admitted at once and then none.
    /// let rule = Rule::new("upstream").tier(quota).max_wait(Duration::from_secs(1)).smooth(true);
    /// # tower_ratelimit::RateLimiter::new(tower_ratelimit::Policy::new().rule(rule)).unwrap();
    /// ```
    pub fn smooth(mut self, smooth: bool) -> Self {
        self.smooth = smooth;
        self
    }

    /// Serves tenants that wait for a shared counter round-robin, instead of
    /// first come, first served. It is an error in a rule that counts per tenant.
    ///
    /// Only the order changes: no free unit is lost, and the limit holds as
    /// without. Round-robin applies to requests of equal cost to which no other
    /// rule applies. No request waits longer than it may, nor more than 16 times
    /// as long as first come, first served. Wait queues of concurrency limits
    /// stay first come, first served.
    ///
    /// No tenant can fill the queue, however many requests it sends. If no slot
    /// is left that a newcomer may wait for, or no place for another waiter, the
    /// latest waiter of a tenant that has at least two more waiters than the
    /// newcomer's is rejected, and the newcomer joins the queue. If a tenant has
    /// over eight more waiters than the newcomer's, the newcomer also replaces
    /// one that stands in its way and may not wait any longer. A waiter that is
    /// rejected so has the kind [`QueueFull`](crate::RateLimitedKind::QueueFull).
    /// It is counted as delayed and as rejected.
    ///
    /// A request that joins the queue passes the waiters of later rounds one by
    /// one, some 4 ns each, under a lock that other keys may share. At the default
    /// of 10,000 waiters of a key
    /// ([`max_waiters_per_key`](crate::limiter::RateLimiterBuilder::max_waiters_per_key)),
    /// that takes 40 µs.
    pub fn fair(mut self, fair: bool) -> Self {
        self.fair = fair;
        self
    }
}

/// # What is settled after the response
impl Rule {
    /// Whether the cost of a request is known only after it was admitted, and is
    /// settled by its handler: tokens of a language model, bytes sent.
    ///
    /// A request is charged its cost when it is admitted and the difference
    /// afterwards, whatever the limit: a key may go into debt, which is paid off
    /// before the next admission. A refund is at most what was charged, and never
    /// admits more than the limits. For that, the bucket algorithms take 64 bytes
    /// a key instead of 32.
    ///
    /// A request is settled by the limits and the cost under which it was
    /// admitted, even after a reload. So a debt of 1,000 units of a request that
    /// was admitted at 5 a second may take 200 s to pay off, although the limit
    /// has been raised to 100 a second. A lowered limit does the reverse.
    ///
    /// A reload that turns settlement on or off, by this, [`charge_on`](Self::charge_on)
    /// or [`refund_on`](Self::refund_on), keeps what keys have used.
    pub fn settle(mut self, settle: bool) -> Self {
        self.settle = settle;
        self
    }

    /// What happens to the charge of a request that its handler has never settled, not even
    /// in part: it stays by default. It is decided when the response has ended and the last
    /// [`ChargeHandle`](crate::ChargeHandle) or permit is dropped. Only for rules that
    /// [settle](Self::settle).
    ///
    /// To [refund](Unsettled::Refund) it lets callers who disconnect early have their
    /// requests for free, unless the handler settles what it has used by then.
    /// A request whose caller leaves before a backend over a network has decided stays charged.
    pub fn unsettled(mut self, choice: Unsettled) -> Self {
        self.unsettled = choice;
        self
    }

    /// Whether a request costs the bytes of its response's body: a limit of bandwidth. It is
    /// settled when the response has ended, or is dropped: what was sent by then is a debt,
    /// which is paid back before the next request is admitted. So the limit bounds the
    /// mean, and one response may exceed it.
    ///
    /// Until then a request is charged what it states [in the rule's unit](Self::unit), or 1.
    ///
    /// ```
    /// use tower_ratelimit::{Quota, Rule};
    ///
    /// // 10 MB a second for each caller.
    /// let rule = Rule::new("bandwidth").unit("content-bytes").per_response_byte(true).tier(Quota::per_second(10_000_000));
    /// # tower_ratelimit::RateLimiter::new(tower_ratelimit::Policy::new().rule(rule)).unwrap();
    /// ```
    pub fn per_response_byte(mut self, settle: bool) -> Self {
        self.per_byte = settle.then_some(PerByte::Response);
        self
    }

    /// The response statuses that are charged; by default, all. A second call
    /// adds statuses.
    ///
    /// For requests that count by their outcome, such as failed logins. A request
    /// is charged when it is admitted, so that concurrent requests cannot exceed
    /// the limit. The charge is given back if the response has another status.
    ///
    /// An admitted request without a response stays charged. A client that
    /// disconnects early is counted whatever the response would have been: it
    /// cannot guess passwords for free.
    ///
    /// ```
    /// use tower_ratelimit::{Algorithm, Quota, Rule};
    ///
    /// // Five failures a day. Successful logins are not counted.
    /// let daily = Quota::per_day(5).algorithm(Algorithm::SlidingLog);
    /// let rule = Rule::new("login").path("/login").tier(daily).charge_on([401]);
    /// # tower_ratelimit::RateLimiter::new(tower_ratelimit::Policy::new().rule(rule)).unwrap();
    /// ```
    pub fn charge_on(mut self, statuses: impl Into<Statuses>) -> Self {
        self.charge_on = Some(self.charge_on.unwrap_or_default().and(statuses));
        self
    }

    /// The response statuses that are not charged: the charge is given back. A
    /// second call adds statuses.
    ///
    /// Beside [`charge_on`](Self::charge_on) it names exceptions: some of the
    /// statuses there, but not all; anything else is an error.
    ///
    /// ```
    /// use tower_ratelimit::{Quota, Rule, policy::Statuses};
    ///
    /// // Our own failures are not charged to the caller.
    /// let rule = Rule::new("api").tier(Quota::per_hour(100)).refund_on(Statuses::SERVER_ERRORS);
    /// # tower_ratelimit::RateLimiter::new(tower_ratelimit::Policy::new().rule(rule)).unwrap();
    /// ```
    pub fn refund_on(mut self, statuses: impl Into<Statuses>) -> Self {
        self.refund_on = Some(self.refund_on.unwrap_or_default().and(statuses));
        self
    }
}

/// # Other systems: upstreams and the backend
impl Rule {
    /// The [`sync_interval`](Self::sync_interval) unless set: 100 ms.
    pub const SYNC_INTERVAL: Duration = Duration::from_millis(100);

    /// How exactly the limit holds for a whole fleet: exactly by default, at the
    /// price of a round trip for each decision. See [`Consistency`]. It can be
    /// changed at any time: what a key has used stays.
    ///
    /// Only `backend::Redis` has a choice. Other backends ignore the setting, and
    /// log that once.
    ///
    /// ```
    /// use tower_ratelimit::{Consistency, Quota, Rule};
    ///
    /// // No round trip on the hot path, and within the bound of the level.
    /// let rule = Rule::new("api").tier(Quota::per_second(100_000)).consistency(Consistency::Leased);
    /// # tower_ratelimit::RateLimiter::new(tower_ratelimit::Policy::new().rule(rule)).unwrap();
    /// ```
    pub fn consistency(mut self, consistency: Consistency) -> Self {
        self.consistency = consistency;
        self
    }

    /// How often this instance and the store exchange units: from 10 ms to 10 s,
    /// 100 ms by default. It is an error for a rule whose
    /// [`consistency`](Self::consistency) is exact.
    ///
    /// A leased rule reserves what it uses in this time, or in a second where its limit
    /// is far. A longer interval needs fewer store calls; a shorter one leaves fewer
    /// units unused.
    pub fn sync_interval(mut self, interval: Duration) -> Self {
        self.sync_interval = Some(interval);
        self
    }

    /// On a client: whether upstream feedback cools down this rule's key; true by
    /// default. Turn it off for a rule that counts more than one upstream, such
    /// as your own limit over several.
    ///
    /// ```
    /// use tower_ratelimit::{Dimension, Policy, Quota, RateLimiter, Rule};
    ///
    /// let policy = Policy::new()
    ///     .rule(Rule::new("upstream").tier(Quota::per_second(100)))
    ///     // One counter for all upstreams: none of them stops the others.
    ///     .rule(Rule::new("egress").per([]).tier(Quota::per_second(1_000)).upstream_feedback(false));
    /// # RateLimiter::new(policy)?;
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    pub fn upstream_feedback(mut self, enabled: bool) -> Self {
        self.upstream_feedback = enabled;
        self
    }

    /// What happens to a request when the backend fails. By default it is
    /// admitted; but if the store is out of memory, and each tenant has its own
    /// counter, the fallback limiter decides ([`FailureMode::Local`]): a flood of
    /// invented tenants fills a store, and must not turn the limit off.
    pub fn on_backend_failure(mut self, mode: FailureMode) -> Self {
        self.on_backend_failure = Some(mode);
        self
    }

    /// The share of the limits that the fallback limiter enforces
    /// ([`FailureMode::Local`]): more than 0 and at most 1. It is an error with
    /// another failure mode. The default is 1; for a rule that is
    /// [leased](Self::consistency), 1 / n for the n instances that the store has seen
    /// lately.
    ///
    /// With `1.0 / n` for n instances, a fleet without its backend admits about
    /// as much as with it. Limits and bursts of all tiers, including those of
    /// plans and tenants, and concurrency limits are rounded down, but to at
    /// least 1. A limit of 0 stays 0.
    ///
    /// ```
    /// use tower_ratelimit::{FailureMode, Quota, Rule};
    ///
    /// // 25 a second on each of four instances while the backend fails.
    /// let rule = Rule::new("search").tier(Quota::per_second(100));
    /// let rule = rule.on_backend_failure(FailureMode::Local).local_share(0.25);
    /// # tower_ratelimit::RateLimiter::new(tower_ratelimit::Policy::new().rule(rule)).unwrap();
    /// ```
    pub fn local_share(mut self, share: f64) -> Self {
        self.local_share = Some(share);
        self
    }

    /// Whether the cost of a request may be settled after it was admitted.
    pub(crate) fn is_settled_late(&self) -> bool {
        self.settle || self.per_byte.is_some() || self.charge_on.is_some() || self.refund_on.is_some()
    }

    pub(crate) fn unit_name(&self) -> &str {
        self.unit.as_deref().unwrap_or(REQUESTS)
    }

    /// Whether a handler may settle it, in this unit.
    pub(crate) fn settles_in(&self, unit: &str) -> bool {
        self.settle && self.unit_name() == unit
    }

    /// Whether it needs a tier to limit anything.
    pub(super) fn needs_tiers(&self) -> bool {
        self.adaptive_rate.is_none() && !self.exempt
    }

    /// For each priority, what is reserved for all above it, in billionths. The sum of all is
    /// less than a whole.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "less than a billion")]
    pub(super) fn reserved(&self) -> [u32; Priority::ALL.len()] {
        let of = |above: &Priority| self.reserve.get(above).map_or(0, |part| (part * 1e9).round() as u32);
        std::array::from_fn(|class| Priority::ALL[class + 1..].iter().map(of).sum())
    }
}
