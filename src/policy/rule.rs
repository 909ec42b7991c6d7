use std::{collections::BTreeMap, time::Duration};

use http::Method;

use super::{Adapt, Messages, Statuses};
use crate::{algorithm::MachineOptions, quota::Quota};

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
    /// The request is rejected: 503 over HTTP.
    Closed,
    /// A limiter in this process decides, at the rule's own limits or a share
    /// of them: see [`Rule::local_share`]. It lets nothing wait.
    ///
    /// It is kept warm: what the backend admits while it answers is counted
    /// there as well, up to the limit, and what is given back, added late or
    /// released too; so whoever has just used up its limit does not get it anew when
    /// the backend fails. It knows of what was admitted through this limiter
    /// only, holds no more keys than [`Local`](crate::backend::Local) does by
    /// default, and tells the backend nothing of what it admits meanwhile.
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
    /// One tier more, whose limit is found.
    pub(crate) adapt: Option<Adapt>,
    /// `None`: per tenant, and per path and method that the rule names.
    pub(crate) per: Option<Vec<Dimension>>,
    pub(crate) tenant_param: Option<String>,
    /// `None`: nothing waits in a layer, and who waits by `acquire` says for
    /// how long.
    pub(crate) max_wait: Option<Duration>,
    pub(crate) cost: u64,
    pub(crate) settle: bool,
    /// `None`: every response.
    pub(crate) charge_on: Option<Statuses>,
    pub(crate) refund_on: Option<Statuses>,
    pub(crate) smooth: bool,
    /// `None`: messages are not counted.
    pub(crate) per_message: Option<Messages>,
    pub(crate) plans: BTreeMap<String, Vec<Quota>>,
    pub(crate) tenants: BTreeMap<String, Override>,
    pub(crate) fallback: bool,
    pub(crate) fair: bool,
    pub(crate) shadow: bool,
    pub(crate) upstream_feedback: bool,
    pub(crate) enabled: bool,
    pub(crate) on_backend_failure: FailureMode,
    /// `None`: all of it.
    pub(crate) local_share: Option<f64>,
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
            adapt: None,
            per: None,
            tenant_param: None,
            max_wait: None,
            cost: 1,
            settle: false,
            charge_on: None,
            refund_on: None,
            smooth: false,
            per_message: None,
            plans: BTreeMap::new(),
            tenants: BTreeMap::new(),
            fallback: false,
            fair: false,
            shadow: false,
            upstream_feedback: true,
            enabled: true,
            on_backend_failure: FailureMode::Open,
            local_share: None,
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

    /// Finds a limit that nobody states, for each key: see [`Adapt`]. It is one
    /// tier more, and the only one that the rule needs; plans and tenants that
    /// have tiers of their own have it as well.
    ///
    /// Those who wait for it stand in line, first come, first served, and
    /// reserve their turn 50 ms before it comes, so that nobody waits by a rate
    /// that is over. So it is with the other limits of a request that this one
    /// applies to: each has a line of its own, in which those stand who wait
    /// for it, and nobody else is held up. So tenants that share its counter cannot take turns:
    /// [`fair`](Self::fair) is an error beside it.
    #[must_use]
    pub fn adapt(mut self, adapt: Adapt) -> Self {
        self.adapt = Some(adapt);
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

    /// How long a request may wait for its turn.
    ///
    /// Where it is not set, nothing waits in a layer; and who calls
    /// [`RateLimiter::acquire`](crate::RateLimiter::acquire) waits for as long
    /// as it says. Where it is, it caps both.
    #[must_use]
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = Some(max_wait);
        self
    }

    /// Whether a window lets its units out evenly, by short delays, rather
    /// than all in its first milliseconds.
    ///
    /// Sixty-four workers at a limit of 100 in a second, by how many go in
    /// each 10 ms of it, as the example `smooth` has seen them (`.` is one,
    /// `#` all hundred):
    ///
    /// ```text
    /// without |#                                                                                                   |
    ///  smooth |....................................................................................................|
    ///         0 ms                                                                                            1,000 ms
    /// ```
    ///
    /// Of a limit of L in a window of length W, the unit that comes after k
    /// others does not go before k·W/L of the window has passed, as far as
    /// [`max_wait`](Self::max_wait) and the caller let it wait. A request that
    /// could go now and may not wait for its pace goes now; one that has to
    /// wait for a later window anyway goes as near to its pace as it may. So
    /// nobody is rejected for its pace, and no throughput is lost: in every
    /// window as many go as without, and those that come late in it catch up.
    /// While those who ask can wait for their pace, no more than L/10, rounded
    /// up, go in any tenth of a window.
    ///
    /// Fixed, anchored and sliding windows are paced; of the other tiers
    /// buckets, which are smooth by themselves, and limits on what is in
    /// flight stay as they are, and are charged for the time at which the
    /// request goes. A sliding log has no window that could be divided: pacing
    /// it would cost throughput, and is an error. So is a rule without any
    /// window, or without a `max_wait`.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{Algorithm, Quota, Rule};
    ///
    /// let quota = Quota::per_second(100).algorithm(Algorithm::FixedWindow);
    /// // One each 10 ms, where 100 would come at once and then none.
    /// let rule = Rule::new("upstream").tier(quota).max_wait(Duration::from_secs(1)).smooth(true);
    /// # tower_ratelimit::RateLimiter::new(tower_ratelimit::Policy::new().rule(rule)).unwrap();
    /// ```
    #[must_use]
    pub fn smooth(mut self, smooth: bool) -> Self {
        self.smooth = smooth;
        self
    }

    /// Units that a request takes of this rule's tiers; multiplied with the
    /// request's own cost. 1 by default.
    #[must_use]
    pub fn cost(mut self, units: u64) -> Self {
        self.cost = units;
        self
    }

    /// Whether what a request costs is known only after it was let go, and
    /// then settled by whoever has handled it: tokens of a language model,
    /// bytes that were sent.
    ///
    /// A request is charged its cost when it is admitted, and the difference
    /// later, whatever the limit says: a key may go into debt, which is paid
    /// back before the next admission. What is given back is never more than
    /// was charged, and never admits more than the limits. For that the bucket
    /// algorithms keep 64 bytes a key instead of 32.
    ///
    /// What a request costs is settled by the limits and the cost under which
    /// it was admitted, even after a reload. So a debt of 1,000 units that is
    /// settled for a request admitted at 5 a second may take 200 s to pay back,
    /// though the limit is 100 a second by now; and the other way round.
    ///
    /// A rule that begins or ceases to be settled late, by this,
    /// [`charge_on`](Self::charge_on) or [`refund_on`](Self::refund_on), has
    /// the keys of its buckets start anew, with a full quota; windows and logs
    /// keep what was used.
    #[must_use]
    pub fn settle(mut self, settle: bool) -> Self {
        self.settle = settle;
        self
    }

    /// The statuses of responses that are charged; by default, all.
    ///
    /// A request is charged when it is admitted, so that many at once do not
    /// slip through, and what it was charged is given back when its response
    /// has another status: for what is to be counted by its outcome, such as
    /// logins that fail. Called again, it adds statuses.
    ///
    /// A request that is let go and gets no response stays charged: who hangs
    /// up before the answer is counted whatever it would have been, so that
    /// nobody guesses for free by not waiting for it.
    ///
    /// ```
    /// use tower_ratelimit::{Algorithm, Quota, Rule};
    ///
    /// // Five failures a day. Who signs in at the first try is not counted.
    /// let daily = Quota::per_day(5).algorithm(Algorithm::SlidingLog);
    /// let rule = Rule::new("login").path("/login").tier(daily).charge_on([401]);
    /// # tower_ratelimit::RateLimiter::new(tower_ratelimit::Policy::new().rule(rule)).unwrap();
    /// ```
    #[must_use]
    pub fn charge_on(mut self, statuses: impl Into<Statuses>) -> Self {
        self.charge_on = Some(self.charge_on.unwrap_or_default().and(statuses));
        self
    }

    /// The statuses of responses that are not charged after all: what was
    /// charged when the request was admitted is given back. Called again, it
    /// adds statuses.
    ///
    /// Beside [`charge_on`](Self::charge_on) it names the exceptions: what it
    /// names is to be among those, and not all of them; else it is an error.
    ///
    /// ```
    /// use tower_ratelimit::{Quota, Rule, policy::Statuses};
    ///
    /// // What we fail to answer is not the caller's to pay.
    /// let rule = Rule::new("api").tier(Quota::per_hour(100)).refund_on(Statuses::SERVER_ERRORS);
    /// # tower_ratelimit::RateLimiter::new(tower_ratelimit::Policy::new().rule(rule)).unwrap();
    /// ```
    #[must_use]
    pub fn refund_on(mut self, statuses: impl Into<Statuses>) -> Self {
        self.refund_on = Some(self.refund_on.unwrap_or_default().and(statuses));
        self
    }

    /// Charges the messages of a gRPC stream one by one, in one direction or
    /// both: each after the first costs what the call has cost. The first has
    /// been charged with the call. An error where the rule limits what is in
    /// flight, which is of calls, or is on trial.
    ///
    /// | what is streamed by | a message that is over the limit | counted by |
    /// |---|---|---|
    /// | the server | waits, as long as the rule's `max_wait`, the layer's and the call's deadline let it; else the stream ends there, with the trailers of a rejection, and the handler's stream is dropped | the layer |
    /// | the client | waits the same, and nothing more is read from the client meanwhile; else the handler sees the rejection as the stream's error | `middleware::metered`, inside of the layer, with the feature `tonic` |
    ///
    /// Messages before it go on as they come. Nothing is buffered, and bodies
    /// of `Bytes`, as tonic's are, are not copied: of a stream, only the five
    /// bytes in front of each message are read. Charged is by the policy in
    /// force, even for calls that were admitted under another. Messages are not
    /// counted of answers that are no plain gRPC, as in gRPC-Web outside of what
    /// translates it, nor of what is sent there in base64; of calls that are made
    /// through a client's layer; and that were let go while the backend gave no
    /// answer.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{Quota, Rule, policy::Messages};
    ///
    /// // Ten products a second, whether in one list or in several.
    /// let rule = Rule::new("list")
    ///     .path("/shop.v1.Products/List")
    ///     .tier(Quota::per_second(10))
    ///     .per_message(Messages::Server)
    ///     .max_wait(Duration::from_secs(5));
    /// # tower_ratelimit::RateLimiter::new(tower_ratelimit::Policy::new().rule(rule)).unwrap();
    /// ```
    #[must_use]
    pub fn per_message(mut self, messages: Messages) -> Self {
        self.per_message = Some(messages);
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

    /// Whether tenants that wait for a counter that they share take turns,
    /// rather than go first come, first served; an error where the rule counts
    /// per tenant.
    ///
    /// Turns decide who gets which of the times that are free, and nothing
    /// else: none is lost, the limit holds as without. Turns are taken by
    /// requests of the same cost to which no other rule applies. Nobody is
    /// made to wait for longer than it may, nor for more than 16 times as long
    /// as it would have first come, first served. For tiers that limit what is
    /// in flight the line stays first come, first served.
    #[must_use]
    pub fn fair(mut self, fair: bool) -> Self {
        self.fair = fair;
        self
    }

    /// Decides and is counted, but never rejects: to try a rule on live
    /// traffic. How requests are answered, and what they turn out to cost, is
    /// counted as it would be.
    #[must_use]
    pub fn shadow(mut self, shadow: bool) -> Self {
        self.shadow = shadow;
        self
    }

    /// On a client: whether this rule's key is held back when the provider
    /// asks to slow down, as every rule's is unless told otherwise. To be
    /// turned off for a rule that counts more than the provider speaks of: a
    /// limit of one's own over several providers, say.
    ///
    /// ```
    /// use tower_ratelimit::{Dimension, Policy, Quota, RateLimiter, Rule};
    ///
    /// let policy = Policy::new()
    ///     .rule(Rule::new("provider").tier(Quota::per_second(100)))
    ///     // One counter for all providers: none of them stops the others.
    ///     .rule(Rule::new("egress").per([]).tier(Quota::per_second(1_000)).upstream_feedback(false));
    /// # RateLimiter::new(policy)?;
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    #[must_use]
    pub fn upstream_feedback(mut self, enabled: bool) -> Self {
        self.upstream_feedback = enabled;
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

    /// The share of its limits at which a rule that fails to a local limiter
    /// ([`FailureMode::Local`]) is decided there: more than 0, and at most 1,
    /// the default. An error where the rule fails otherwise.
    ///
    /// With `1.0 / n` for n instances, a fleet whose backend is gone admits
    /// about what it did before. Limits and bursts of all tiers, those of plans
    /// and tenants too, and limits on what is in flight, are rounded down, but
    /// to no less than 1; a limit of 0 stays 0.
    ///
    /// ```
    /// use tower_ratelimit::{FailureMode, Quota, Rule};
    ///
    /// // 25 a second on each of four instances, while the store is away.
    /// let rule = Rule::new("search").tier(Quota::per_second(100));
    /// let rule = rule.on_backend_failure(FailureMode::Local).local_share(0.25);
    /// # tower_ratelimit::RateLimiter::new(tower_ratelimit::Policy::new().rule(rule)).unwrap();
    /// ```
    #[must_use]
    pub fn local_share(mut self, share: f64) -> Self {
        self.local_share = Some(share);
        self
    }

    pub(crate) fn is_settled_late(&self) -> bool {
        self.settle || self.charge_on.is_some() || self.refund_on.is_some()
    }

    pub(super) fn machine_options(&self) -> MachineOptions {
        MachineOptions { settled_late: self.is_settled_late(), smooth: self.smooth }
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
