//! The public face, [`RateLimitLayer`] with its settings; and the one [`Service`]
//! implementation of the crate, [`RateLimit`].
//!
//! It decides nothing and writes no response: settings are stored as they are. A request that is
//! admitted at once is sent to the inner service that was polled ready. A delayed request is
//! decided in the response's future, and sent to a clone that is polled ready after its wait.
//!
//! The invariant: once a request is called, this service is not ready. A service
//! that was polled ready may occupy capacity, such as a place under a
//! concurrency limit. So a request that waits or is rejected replaces it by a
//! fresh clone, which frees that capacity.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::{Response, request::Parts};
use tower_layer::Layer;
use tower_service::Service;

use super::{
    Answer, Describe, ErrorAnswer, HttpAnswer, Keyed, Rejection, RejectionContext, ResponseFuture, UpstreamFeedback,
    answer::ShadowHook,
    body::{BoxError, hook_body},
    future::CallContext,
};
use crate::{
    decision::{Decision, RateLimitedKind},
    descriptor::{Descriptor, MissingTenant, TenantRef},
    headers::Headers,
    http::{Http, RequestHead, TenantExtractor, cost::CostExtractor, priority::PriorityExtractor},
    limiter::{CallerNeeds, Next, RateLimiter},
};

/// Limits any tower service.
///
/// | constructor | requests | a rejection is |
/// |---|---|---|
/// | [`new`](Self::new) | HTTP, on a server | a response |
/// | [`client`](Self::client) | HTTP, on a client | an error |
/// | [`keyed`](Self::keyed) | of any type | an error |
///
/// The inner service is called only after it was polled ready. `poll_ready`
/// charges nothing, so an idle connection uses no quota. A request that waits
/// or is rejected occupies no capacity of the inner service: its readied clone
/// is dropped, and after a wait another one is polled ready. A rule that lets
/// requests wait needs a Tokio runtime.
///
/// ```
/// use axum::{Router, routing::get};
/// use tower_ratelimit::{Quota, RateLimitLayer, RateLimiter, tenant};
///
/// let limiter = RateLimiter::new(Quota::per_second(100))?;
/// let app: Router = Router::new()
///     .route("/", get(|| async { "hello" }))
///     .layer(RateLimitLayer::new(limiter).tenant(tenant::header("x-api-key")));
/// # Ok::<_, tower_ratelimit::ConfigError>(())
/// ```
///
/// The layer wraps the response's body. Where both a limited and an unlimited
/// service have to be of one type, as for tower's `option_layer`, map it back:
///
/// ```
/// use axum::{Router, body::Body, http::Response, routing::get};
/// use tower::{ServiceBuilder, util::option_layer};
/// use tower_ratelimit::{Quota, RateLimitLayer, RateLimiter, middleware};
///
/// fn app(is_limited: bool) -> Result<Router, tower_ratelimit::ConfigError> {
///     let limiter = RateLimiter::new(Quota::per_second(100))?;
///     let limits = ServiceBuilder::new()
///         .map_response(|response: Response<middleware::Body<Body>>| response.map(Body::new))
///         .layer(RateLimitLayer::new(limiter));
///     let app = Router::new().route("/", get(|| async { "hello" }));
///     Ok(app.layer(option_layer(is_limited.then_some(limits))))
/// }
/// # app(true)?;
/// # Ok::<_, tower_ratelimit::ConfigError>(())
/// ```
#[derive(Clone)]
#[must_use]
pub struct RateLimitLayer<D = Http, A = HttpAnswer> {
    limiter: RateLimiter,
    describe: D,
    answer: A,
    max_wait: Duration,
    expose: bool,
    /// The only rule that the layer applies.
    rule: Option<Arc<str>>,
    on_shadow_rejected: Option<Arc<ShadowHook>>,
}

impl RateLimitLayer {
    /// For servers: the layer takes HTTP requests and answers a rejection with
    /// a response.
    ///
    /// The tenant is the peer's address, else the anonymous tenant, unless
    /// [`tenant`](Self::tenant) says otherwise.
    pub fn new(limiter: RateLimiter) -> Self {
        Self::with(limiter, Http::server(), HttpAnswer::default())
    }

    /// For clients: the layer takes HTTP requests and answers a rejection with
    /// an error.
    ///
    /// The tenant is the host that is called, unless [`tenant`](Self::tenant) says
    /// otherwise.
    ///
    /// It follows the upstream's rate limit headers: see [`UpstreamFeedback`].
    pub fn client(limiter: RateLimiter) -> RateLimitLayer<Http, UpstreamFeedback> {
        limiter.subscribe_cooldowns();
        RateLimitLayer::with(limiter, Http::client(), UpstreamFeedback::new())
    }

    /// For requests of any type, described by a function. A rejection is an
    /// error.
    ///
    /// ```
    /// use tower_ratelimit::{Descriptor, Quota, RateLimitLayer, RateLimiter};
    ///
    /// struct Job { queue: String, owner: String }
    ///
    /// let limiter = RateLimiter::new(Quota::per_second(5))?;
    /// let layer = RateLimitLayer::keyed(limiter, |job: &Job| {
    ///     Descriptor::new(&job.queue).tenant(job.owner.as_str())
    /// });
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    pub fn keyed<Req, F>(limiter: RateLimiter, describe: F) -> RateLimitLayer<Keyed<F>, ErrorAnswer>
    where
        F: for<'r> Fn(&'r Req) -> Descriptor<'r>,
    {
        RateLimitLayer::with(limiter, Keyed(describe), ErrorAnswer)
    }
}

impl<A> RateLimitLayer<Http, A> {
    /// How the layer describes a request to the limiter: for endpoints of operators that
    /// [`peek`](RateLimiter::peek) at a caller's counters, or
    /// [`reset`](RateLimiter::reset) them, by the layer's own tenant and keys.
    ///
    /// ```
    /// use http::Request;
    /// use tower_ratelimit::{Quota, RateLimitLayer, RateLimiter, tenant};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = RateLimiter::new(Quota::per_hour(1))?;
    /// let layer = RateLimitLayer::new(limiter.clone()).tenant(tenant::header("x-api-key"));
    /// let (parts, ()) = Request::get("/export").header("x-api-key", "acme").body(())?.into_parts();
    ///
    /// let acme = layer.describe(&parts);
    /// assert!(limiter.check(&acme).await.is_allowed());
    /// limiter.reset(&acme).await?;
    /// assert!(limiter.check_key("acme").await.is_allowed());
    /// # Ok(())
    /// # }
    /// ```
    pub fn describe<'r>(&'r self, parts: &'r Parts) -> Descriptor<'r> {
        let descriptor = self.describe.describe_head(&RequestHead::of_parts(parts), || false);
        match &self.rule {
            Some(rule) => descriptor.rule(rule),
            None => descriptor,
        }
    }
}

impl<D, A> RateLimitLayer<D, A> {
    /// A layer with another description of requests, and another answer to
    /// decisions.
    #[doc(hidden)]
    pub fn with(limiter: RateLimiter, describe: D, answer: A) -> Self {
        let (max_wait, expose) = (Duration::MAX, false);
        Self { limiter, describe, answer, max_wait, expose, rule: None, on_shadow_rejected: None }
    }

    fn with_answer<B>(self, answer: B) -> RateLimitLayer<D, B> {
        let Self { limiter, describe, max_wait, expose, rule, on_shadow_rejected, .. } = self;
        RateLimitLayer { limiter, describe, answer, max_wait, expose, rule, on_shadow_rejected }
    }

    /// Applies the rule with this id and no other, whatever it matches: to limit a
    /// route, or a nested router, beside its definition. The rule's tiers, its
    /// counters and all else come from the policy, and a reload changes them. While
    /// the policy has no such rule, the layer limits nothing: a warning says so
    /// when the layer is made.
    ///
    /// The policy's match still decides for other layers of the same limiter. To
    /// apply a rule only where a layer names it, give it a match that no request
    /// has, or use a limiter of its own.
    ///
    /// If a layer rejects a request that an outer layer of the same limiter has
    /// admitted, the outer one gives back what it has charged. It knows the rejection
    /// by the [`RateLimited`](crate::RateLimited) in the response's extensions or in the
    /// error's sources, so what stands between them must keep it. For that, all layers
    /// of the limiter keep a receipt of each request from now on.
    /// [The guide](crate::guide::layers#one-rule-beside-a-route) has the exceptions.
    ///
    /// ```
    /// use axum::{Router, routing::get};
    /// use tower_ratelimit::{Policy, Quota, RateLimitLayer, RateLimiter, Rule};
    ///
    /// let policy = Policy::new().rule(Rule::new("search").tier(Quota::per_second(2)));
    /// let limiter = RateLimiter::new(policy)?;
    /// let app: Router = Router::new()
    ///     .route("/search", get(|| async { "found" }).layer(RateLimitLayer::new(limiter).rule("search")))
    ///     .route("/healthz", get(|| async { "fine" }));
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    pub fn rule(mut self, id: impl Into<Arc<str>>) -> Self {
        let id = id.into();
        self.limiter.share_requests();
        self.rule = Some(id);
        self
    }

    /// Caps the wait that rules allow.
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = max_wait;
        self
    }
}

impl<A> RateLimitLayer<Http, A> {
    /// How to identify the tenant. A [`Tenant`](crate::Tenant) in the request's
    /// extensions is read only where
    /// [`tenant::extension`](crate::tenant::extension) asks for it.
    pub fn tenant(mut self, extractor: impl TenantExtractor) -> Self {
        (self.describe.tenant, self.describe.has_own_tenant) = (Arc::new(extractor), true);
        self
    }

    /// How to find another key that requests are counted by, beside the tenant:
    /// by rules that name it in [`per`](crate::Rule::per). A request is charged by
    /// all rules or by none, whatever they count by: one that exceeds its API
    /// key's limit takes nothing of its address's.
    ///
    /// To a request without the key, the rules that name it do not apply, unless they or
    /// the layer choose otherwise: see [`Rule::on_missing_key`](crate::Rule::on_missing_key).
    ///
    /// ```
    /// use tower_ratelimit::{Dimension, Policy, Quota, RateLimitLayer, RateLimiter, Rule, tenant};
    ///
    /// let policy = Policy::new()
    ///     .rule(Rule::new("per-key").tier(Quota::per_second(100)))
    ///     .rule(Rule::new("per-address").per([Dimension::key("ip")]).tier(Quota::per_minute(300)));
    /// let layer = RateLimitLayer::new(RateLimiter::new(policy)?)
    ///     .tenant(tenant::header("x-api-key"))
    ///     .key("ip", tenant::peer_ip());
    /// # let _ = layer;
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    pub fn key(mut self, name: impl Into<Arc<str>>, extractor: impl TenantExtractor) -> Self {
        self.describe.keys.push((name.into(), Arc::new(extractor)));
        self
    }

    /// What to do with requests without a tenant, or without a key of a rule that does
    /// not [choose itself](crate::Rule::on_missing_key). By default those without a tenant
    /// share the anonymous one, and a rule does not apply to those without a key.
    pub fn on_missing_tenant(mut self, choice: MissingTenant) -> Self {
        self.describe.missing_tenant = Some(choice);
        self
    }

    /// Whether handlers see what the layer knows: the extensions of a request
    /// then have the [`Tenant`](crate::Tenant) that was found, if any, and those
    /// of an admitted request the [`Decision`], with what rules in
    /// [shadow mode](crate::Decision::shadows) would have decided. Off by default, since it
    /// costs an allocation or two.
    ///
    /// A layer further in counts for that tenant too if
    /// [`tenant::extension`](crate::tenant::extension) is its extractor.
    ///
    /// ```
    /// use axum::{Extension, Router, routing::get};
    /// use tower_ratelimit::{Decision, Quota, RateLimitLayer, RateLimiter, Tenant, tenant};
    ///
    /// async fn account(Extension(tenant): Extension<Tenant>, Extension(decision): Extension<Decision>) -> String {
    ///     format!("{}: {:?} of {:?} left", tenant.id(), decision.remaining(), decision.limit())
    /// }
    ///
    /// let limiter = RateLimiter::new(Quota::per_second(100))?;
    /// let layer = RateLimitLayer::new(limiter).tenant(tenant::header("x-api-key")).expose(true);
    /// let app: Router = Router::new().route("/account", get(account)).layer(layer);
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    pub fn expose(mut self, expose: bool) -> Self {
        self.expose = expose;
        self
    }

    /// Calls a function for each rule in [shadow mode](crate::Rule::shadow) that would have
    /// rejected a request which the others admit: to find out whom a new limit would
    /// concern. It is called before the request is sent, so it must be quick.
    ///
    /// The rejection's error has the decision of that rule alone, and its head the tenant
    /// in the extensions: this turns [`expose`](Self::expose) on.
    ///
    /// ```
    /// use tower_ratelimit::{Quota, RateLimitLayer, RateLimiter, Tenant, middleware::Rejection};
    ///
    /// let limiter = RateLimiter::new(Quota::per_minute(60))?;
    /// let layer = RateLimitLayer::new(limiter).on_shadow_rejected(|rejection: &Rejection<'_>| {
    ///     let head = rejection.head();
    ///     let tenant = head.extensions().get::<Tenant>().map(Tenant::id);
    ///     println!("{}: {tenant:?} at {}", rejection.error(), head.uri().path());
    /// });
    /// # let _ = layer;
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    pub fn on_shadow_rejected(mut self, hook: impl Fn(&Rejection<'_>) + Send + Sync + 'static) -> Self {
        self.on_shadow_rejected = Some(Arc::new(hook));
        self.expose(true)
    }

    /// Whether a mistake in the set-up that the first requests show rejects them with
    /// 500 ([`Misconfigured`](crate::RateLimitedKind::Misconfigured)), rather than
    /// being logged only: the peer's address is unknown though tenants are told by
    /// it (`RL003`), a request has passed a layer of the same limiter before
    /// (`RL004`), a rule counts by a key that this layer does not look for (`RL008`), the
    /// policy lacks the layer's own rule (`RL009`), or no request so far had a key by
    /// which a rule counts that does not choose what happens then (`RL012`). Off by
    /// default; for tests and staging. What depends on the client alone is only logged.
    /// `docs/codes.md` lists all mistakes.
    pub fn strict(mut self, strict: bool) -> Self {
        self.describe.is_strict = strict;
        self
    }

    /// The cost of a request in units: a number, the value of a
    /// [header](crate::cost::header), or the result of a
    /// [function](crate::cost::from_fn). 1 by default.
    pub fn cost(mut self, extractor: impl CostExtractor) -> Self {
        self.describe.cost = Some(Arc::new(extractor));
        self
    }

    /// The cost of a request in another [unit](crate::Rule::unit) than requests: an estimate,
    /// where it is settled afterwards, which may also be
    /// [learned](crate::cost::estimated).
    ///
    /// ```
    /// use tower_ratelimit::{Policy, Quota, RateLimitLayer, RateLimiter, Rule, cost};
    ///
    /// let tokens = Rule::new("tokens").unit("tokens").tier(Quota::per_minute(10_000)).settle(true);
    /// let uploads = Rule::new("uploads").unit("content-bytes").tier(Quota::per_second(10_000_000));
    /// let limiter = RateLimiter::new(Policy::new().rule(tokens).rule(uploads))?;
    /// let layer = RateLimitLayer::new(limiter)
    ///     .cost_in("tokens", cost::header("x-estimated-tokens"))
    ///     .cost_in("content-bytes", cost::content_length());
    /// # let _ = layer;
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    pub fn cost_in(mut self, unit: impl Into<Arc<str>>, extractor: impl CostExtractor) -> Self {
        self.describe.costs.push((unit.into(), Arc::new(extractor)));
        self
    }

    /// How much a request matters: the name in a [header](crate::priority::header), an
    /// [extension](crate::priority::extension), or the result of a
    /// [function](crate::priority::from_fn). By default its tenant says, or its plan.
    pub fn priority(mut self, extractor: impl PriorityExtractor) -> Self {
        self.describe.priority = Some(Arc::new(extractor));
        self
    }

    /// Exempts the requests for which `skip` is true: no rule applies to them, and
    /// they are not counted. A caller must not be able to claim it: do not trust
    /// a header that callers can send. The path is as it was sent, so compare all of it,
    /// not a prefix. To exempt paths by the policy instead, see
    /// [`Rule::exempt`](crate::Rule::exempt).
    ///
    /// ```
    /// use tower_ratelimit::{Quota, RateLimitLayer, RateLimiter};
    ///
    /// let limiter = RateLimiter::new(Quota::per_second(5))?;
    /// let layer = RateLimitLayer::new(limiter).skip(|head| head.uri().path() == "/healthz");
    /// # let _ = layer;
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    pub fn skip(mut self, skip: impl Fn(&RequestHead<'_>) -> bool + Send + Sync + 'static) -> Self {
        self.describe.skip = Some(Arc::new(skip));
        self
    }

    /// Whether CORS preflights are exempt: `OPTIONS` with
    /// `Access-Control-Request-Method` and without content. By default they are
    /// exempt on a server, except on tonic's own (with the feature `tonic`).
    /// Tonic serves a call whatever its HTTP method is, so a caller could send
    /// any call as a preflight and evade all limits.
    ///
    /// Set `true` if a CORS layer inside of this one answers all `OPTIONS`
    /// requests. Set `false` if handlers answer them, or if tonic's services
    /// are part of another server, such as axum's.
    pub fn exempt_preflight(mut self, exempt: bool) -> Self {
        self.describe.exempt_preflight = Some(exempt);
        self
    }
}

impl<D> RateLimitLayer<D, ErrorAnswer> {
    /// Follows the upstream's rate limit headers, for HTTP clients whose
    /// requests are [`keyed`](RateLimitLayer::keyed) by a function.
    ///
    /// ```
    /// use http::Request;
    /// use tower_ratelimit::{Descriptor, Quota, RateLimitLayer, RateLimiter, middleware::UpstreamFeedback};
    ///
    /// let limiter = RateLimiter::new(Quota::per_second(5))?;
    /// let layer = RateLimitLayer::keyed(limiter, |request: &Request<String>| {
    ///     let token = request.headers().get("authorization").and_then(|value| value.to_str().ok());
    ///     Descriptor::new("/").tenant(token.unwrap_or_default())
    /// });
    /// let layer = layer.feedback(UpstreamFeedback::new());
    /// # let _ = layer;
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    pub fn feedback(self, feedback: UpstreamFeedback) -> RateLimitLayer<D, UpstreamFeedback> {
        self.limiter.subscribe_cooldowns();
        self.with_answer(feedback)
    }
}

impl<D> RateLimitLayer<D, UpstreamFeedback> {
    /// How to read the upstream's headers, and how to react to them.
    pub fn feedback(self, feedback: UpstreamFeedback) -> Self {
        self.with_answer(feedback)
    }

    /// Answers a rejection with a response, as the upstream would, rather than
    /// with an error: 429 with `Retry-After`, or 503 if a rule fails closed.
    /// The [`RateLimited`](crate::RateLimited) is in its extensions. The
    /// upstream's responses pass unchanged.
    ///
    /// ```
    /// use tower_ratelimit::{Quota, RateLimitLayer, RateLimiter};
    ///
    /// let limiter = RateLimiter::new(Quota::per_second(5))?;
    /// let layer = RateLimitLayer::client(limiter).reject_with_response();
    /// # let _ = layer;
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    pub fn reject_with_response(self) -> RateLimitLayer<D, HttpAnswer> {
        let mut answer = HttpAnswer::default();
        answer.headers = Headers::NONE;
        answer.rare_mut().feedback = Some(self.answer.clone());
        self.with_answer(answer)
    }
}

impl<D> RateLimitLayer<D, HttpAnswer> {
    /// Which rate limit headers to write on responses.
    pub fn headers(mut self, headers: Headers) -> Self {
        self.answer.headers = headers;
        self
    }

    /// Writes the response to a rejection, with a body of any type. The hook sees
    /// the reason and the request's head: see [`Rejection`].
    ///
    /// The layer adds what the hook leaves out: `Retry-After`, the rate limit
    /// headers, `Cache-Control: no-store`, and the
    /// [`RateLimited`](crate::RateLimited) in the extensions. A header that the
    /// hook sets stays as it is. A rejected gRPC call keeps its gRPC status: its
    /// client would not understand another response.
    pub fn on_rejected<F, B>(mut self, respond: F) -> Self
    where
        F: Fn(&Rejection<'_>) -> Response<B> + Send + Sync + 'static,
        B: http_body::Body<Error: Into<BoxError>> + Send + 'static,
    {
        self.answer.rare_mut().on_rejected = Some(Arc::new(move |rejection| respond(rejection).map(hook_body)));
        self
    }

    /// Whether rejected gRPC calls carry `grpc-retry-pushback-ms` ([gRFC A6]).
    /// Clients with a retry policy then wait for that time, and do not retry a
    /// call that can never pass. It has a jitter of up to a tenth, and at most
    /// ten seconds, since those clients add none. Off by default: it also makes
    /// clients retry that would otherwise back off for longer.
    ///
    /// [gRFC A6]: https://github.com/grpc/proposal/blob/master/A6-client-retries.md
    pub fn grpc_pushback(mut self, pushback: bool) -> Self {
        self.answer.rare_mut().grpc_pushback = pushback;
        self
    }
}

impl<D, A> fmt::Debug for RateLimitLayer<D, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer").field("limiter", &self.limiter).finish_non_exhaustive()
    }
}

/// A rate-limited service, made by [`RateLimitLayer`].
pub struct RateLimit<S, D = Http, A = HttpAnswer> {
    inner: S,
    settings: Arc<RateLimitLayer<D, A>>,
}

impl<S, D: Clone, A: Clone> Layer<S> for RateLimitLayer<D, A> {
    type Service = RateLimit<S, D, A>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimit { inner, settings: Arc::new(self.clone()) }
    }
}

impl<S, D, A> RateLimit<S, D, A> {
    /// The inner service.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S, Req, D, A> Service<Req> for RateLimit<S, D, A>
where
    S: Service<Req> + Clone,
    D: Describe<Req>,
    A: Answer<S::Response, S::Error> + Clone,
{
    type Response = A::Response;
    type Error = A::Error;
    type Future = ResponseFuture<S, Req, A>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(|error| self.settings.answer.unready(error))
    }

    fn call(&mut self, mut request: Req) -> Self::Future {
        let RateLimitLayer { limiter, describe, answer, max_wait, expose, rule, on_shadow_rejected } = &*self.settings;
        let mut decision = Decision::unlimited();
        if describe.inspect(&mut request, limiter, rule.as_deref()) {
            decision.reject(RateLimitedKind::Misconfigured, limiter.now(), None);
            return self.reject(decision, &mut request);
        }
        let follows_upstream = answer.needs_guard();
        if follows_upstream {
            limiter.subscribe_cooldowns();
        }
        let needs = CallerNeeds {
            decision: *expose || answer.needs_decision(),
            lease: follows_upstream || limiter.shares_requests(),
        };
        let (mut tenant, mut endpoint) = (None, 0);
        let describe_request = in_place(|descriptor| {
            describe.describe(&request, descriptor);
            if let Some(rule) = rule {
                descriptor.rule = Some(rule);
            }
            if *expose {
                tenant = descriptor.tenant.clone().map(TenantRef::into_owned);
            }
            if follows_upstream {
                endpoint = limiter.endpoint_key(descriptor);
            }
        });
        let (next, settles) = limiter.decide_on(describe_request, *max_wait, needs, &mut decision);
        // A rejected request has it too.
        if let (Some(tenant), Some(request)) = (tenant, D::http(&mut request)) {
            request.extensions_mut().insert(tenant);
        }
        if let Some(passed) = limiter.passed_overload().filter(|_| decision.is_allowed())
            && let Some(request) = D::http(&mut request)
        {
            request.extensions_mut().insert(passed);
        }
        let context = || CallContext {
            http: D::http,
            limiter: limiter.id(),
            max_wait: *max_wait,
            expose: *expose,
            on_shadow_rejected: on_shadow_rejected.clone(),
            settles,
            endpoint,
        };
        let guard = match next {
            Next::Done(_) if !decision.is_allowed() => return self.reject(decision, &mut request),
            Next::Done(None) if !settles && !expose => None,
            Next::Done(lease) => context().prepare(&mut request, lease, &decision),
            Next::Wait(admission) => {
                return match admission.drive_here(decision) {
                    Ok(driving) => {
                        // Frees the capacity that the readied service occupies.
                        self.inner = self.inner.clone();
                        ResponseFuture::delayed(driving, context(), answer.clone(), self.inner.clone(), request)
                    }
                    Err(decision) => self.reject(decision, &mut request),
                };
            }
        };
        ResponseFuture::calling(self.inner.call(request), answer.clone(), decision, guard)
    }
}

impl<S: Clone, D, A: Clone> RateLimit<S, D, A> {
    /// Answers a rejected request, and frees the capacity that the readied service
    /// occupies.
    fn reject<Req>(&mut self, decision: Decision, request: &mut Req) -> ResponseFuture<S, Req, A>
    where
        S: Service<Req>,
        D: Describe<Req>,
        A: Answer<S::Response, S::Error>,
    {
        self.inner = self.inner.clone();
        let RateLimitLayer { limiter, answer, .. } = &*self.settings;
        let rejection = RejectionContext::new(limiter.id(), decision, D::http(request));
        ResponseFuture::rejected(rejection, answer.clone())
    }
}

impl<S: Clone, D, A> Clone for RateLimit<S, D, A> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), settings: Arc::clone(&self.settings) }
    }
}

impl<S: fmt::Debug, D, A> fmt::Debug for RateLimit<S, D, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { inner, settings } = self;
        f.debug_struct("RateLimit").field("inner", inner).field("limiter", &settings.limiter).finish_non_exhaustive()
    }
}

/// Tells the compiler that a closure takes a descriptor of one lifetime.
fn in_place<'d, F: FnOnce(&mut Descriptor<'d>)>(describe: F) -> F {
    describe
}
