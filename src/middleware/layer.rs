//! The public face: [`RateLimitLayer`] and its settings.
//!
//! Settings are stored as they are; the limiter decides.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use http::Response;
use http_body_util::Full;

use super::{ErrorAnswer, HttpAnswer, Keyed, UpstreamFeedback};
use crate::{
    decision::RateLimited,
    descriptor::{Descriptor, MissingTenant},
    headers::Headers,
    http::{Http, TenantExtractor, cost::CostExtractor},
    limiter::RateLimiter,
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
/// use tower_ratelimit::{Quota, RateLimitLayer, RateLimiter, http::tenant};
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
    pub(super) limiter: RateLimiter,
    pub(super) describe: D,
    pub(super) answer: A,
    pub(super) max_wait: Duration,
}

impl RateLimitLayer {
    /// For servers: the layer takes HTTP requests and answers a rejection with
    /// a response.
    ///
    /// The tenant is a [`Tenant`](crate::Tenant) in the request's extensions,
    /// else the peer's address, else the anonymous tenant.
    pub fn new(limiter: RateLimiter) -> Self {
        Self::with(limiter, Http::server(), HttpAnswer::default())
    }

    /// For clients: the layer takes HTTP requests and answers a rejection with
    /// an error.
    ///
    /// The tenant is a [`Tenant`](crate::Tenant) in the request's extensions,
    /// else the host that is called.
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

impl<D, A> RateLimitLayer<D, A> {
    /// A layer with another description of requests, and another answer to
    /// decisions.
    pub fn with(limiter: RateLimiter, describe: D, answer: A) -> Self {
        Self { limiter, describe, answer, max_wait: Duration::MAX }
    }

    fn with_answer<B>(self, answer: B) -> RateLimitLayer<D, B> {
        RateLimitLayer { limiter: self.limiter, describe: self.describe, answer, max_wait: self.max_wait }
    }

    /// Caps the wait that rules allow.
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = max_wait;
        self
    }
}

impl<A> RateLimitLayer<Http, A> {
    /// How to identify the tenant.
    pub fn tenant(mut self, extractor: impl TenantExtractor) -> Self {
        self.describe = self.describe.tenant(extractor);
        self
    }

    /// What to do with requests without a tenant. By default they share the
    /// anonymous tenant.
    pub fn on_missing_tenant(mut self, choice: MissingTenant) -> Self {
        self.describe = self.describe.on_missing_tenant(choice);
        self
    }

    /// The cost of a request in units: a number, the value of a
    /// [header](crate::http::cost::header), or the result of a
    /// [function](crate::http::cost::from_fn). 1 by default.
    pub fn cost(mut self, extractor: impl CostExtractor) -> Self {
        self.describe = self.describe.cost(extractor);
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
        self.describe = self.describe.exempt_preflight(exempt);
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
    /// The [`RateLimited`] is in its extensions. The upstream's responses pass
    /// unchanged.
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
        let feedback = Some(Arc::new(self.answer));
        self.with_answer(HttpAnswer { headers: Headers::NONE, feedback, ..HttpAnswer::default() })
    }
}

impl<D> RateLimitLayer<D, HttpAnswer> {
    /// Which rate limit headers to write on responses.
    pub fn headers(mut self, headers: Headers) -> Self {
        self.answer.headers = headers;
        self
    }

    /// Replaces the whole response to a rejection. The layer adds the
    /// [`RateLimited`] to its extensions. A rejected gRPC call keeps its gRPC
    /// status: its client would not understand another response.
    pub fn on_rejected<F, R>(mut self, respond: F) -> Self
    where
        F: Fn(&RateLimited) -> Response<R> + Send + Sync + 'static,
        R: Into<Full<Bytes>>,
    {
        self.answer.on_rejected = Some(Arc::new(move |rejection| respond(rejection).map(Into::into)));
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
        self.answer.grpc_pushback = pushback;
        self
    }
}

impl<D, A> fmt::Debug for RateLimitLayer<D, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer").field("limiter", &self.limiter).finish_non_exhaustive()
    }
}
