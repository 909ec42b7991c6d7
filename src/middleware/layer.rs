use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use http::Response;
use http_body_util::Full;
use tower_layer::Layer;

use super::{Fail, Keyed, RateLimit, Respond, UpstreamFeedback, service::Shared};
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
/// The inner service is called only after it was polled ready. Nothing is
/// taken in `poll_ready`: an idle connection holds no quota. Where a rule lets
/// requests wait, the wait needs a Tokio runtime.
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
#[derive(Clone)]
pub struct RateLimitLayer<D = Http, A = Respond> {
    limiter: RateLimiter,
    describe: D,
    answer: A,
    max_wait: Duration,
}

impl RateLimitLayer {
    /// For servers: HTTP requests in, a rejection is a response.
    ///
    /// The tenant is a [`Tenant`](crate::Tenant) in the request's extensions,
    /// else the peer's address, else the anonymous tenant.
    #[must_use]
    pub fn new(limiter: RateLimiter) -> Self {
        Self::with(limiter, Http::server(), Respond::default())
    }

    /// For clients: HTTP requests in, a rejection is an error.
    ///
    /// The tenant is a [`Tenant`](crate::Tenant) in the request's extensions,
    /// else the host that is called.
    ///
    /// It does what the provider says: see [`UpstreamFeedback`].
    #[must_use]
    pub fn client(limiter: RateLimiter) -> RateLimitLayer<Http, UpstreamFeedback> {
        limiter.subscribe_cooldowns();
        RateLimitLayer::with(limiter, Http::client(), UpstreamFeedback::new())
    }

    /// For requests of any type, described by a function; a rejection is an
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
    #[must_use]
    pub fn keyed<Req, F>(limiter: RateLimiter, describe: F) -> RateLimitLayer<Keyed<F>, Fail>
    where
        F: for<'r> Fn(&'r Req) -> Descriptor<'r>,
    {
        RateLimitLayer::with(limiter, Keyed(describe), Fail)
    }
}

impl<D, A> RateLimitLayer<D, A> {
    /// A layer with seams of its own: how requests are described, and how
    /// decisions are answered.
    #[must_use]
    pub fn with(limiter: RateLimiter, describe: D, answer: A) -> Self {
        Self { limiter, describe, answer, max_wait: Duration::MAX }
    }

    fn answering<B>(self, answer: B) -> RateLimitLayer<D, B> {
        RateLimitLayer { limiter: self.limiter, describe: self.describe, answer, max_wait: self.max_wait }
    }

    /// Caps the wait that rules allow.
    #[must_use]
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = max_wait;
        self
    }
}

impl<A> RateLimitLayer<Http, A> {
    /// Who pays for a request.
    #[must_use]
    pub fn tenant(mut self, extractor: impl TenantExtractor) -> Self {
        self.describe = self.describe.tenant(extractor);
        self
    }

    /// What happens to requests whose tenant is not found; by default they
    /// share the anonymous tenant.
    #[must_use]
    pub fn on_missing_tenant(mut self, choice: MissingTenant) -> Self {
        self.describe = self.describe.on_missing_tenant(choice);
        self
    }

    /// How many units a request takes: a number, the value of a
    /// [header](crate::http::cost::header), or what a
    /// [function](crate::http::cost::from_fn) says. 1 unless set.
    #[must_use]
    pub fn cost(mut self, extractor: impl CostExtractor) -> Self {
        self.describe = self.describe.cost(extractor);
        self
    }

    /// Whether CORS preflights pass uncounted: `OPTIONS` with
    /// `Access-Control-Request-Method`, and without content. Unless this is
    /// set they do on a server; but not on tonic's own (with the feature
    /// `tonic`), which does the work of a call whatever its HTTP method is:
    /// anybody could call its methods as preflights, and free of any limit.
    ///
    /// `true` is for where a CORS layer inside of this one answers all
    /// `OPTIONS`. `false` is for where handlers answer them, and where tonic's
    /// services are part of another server, such as axum's.
    #[must_use]
    pub fn exempt_preflight(mut self, exempt: bool) -> Self {
        self.describe = self.describe.exempt_preflight(exempt);
        self
    }
}

impl<D> RateLimitLayer<D, Fail> {
    /// Does what the provider says in its responses, which are HTTP: for
    /// clients whose requests are [`keyed`](RateLimitLayer::keyed) by a
    /// function.
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
    #[must_use]
    pub fn feedback(self, feedback: UpstreamFeedback) -> RateLimitLayer<D, UpstreamFeedback> {
        self.limiter.subscribe_cooldowns();
        self.answering(feedback)
    }
}

impl<D> RateLimitLayer<D, UpstreamFeedback> {
    /// How what the provider says is read, and what is done about it.
    #[must_use]
    pub fn feedback(self, feedback: UpstreamFeedback) -> Self {
        self.answering(feedback)
    }

    /// A rejection is a response, as it would be from the provider, rather than
    /// an error: 429 with `Retry-After`, or 503 where a rule fails closed. The
    /// [`RateLimited`] stands in its extensions. What the provider answers
    /// passes as it is.
    ///
    /// ```
    /// use tower_ratelimit::{Quota, RateLimitLayer, RateLimiter};
    ///
    /// let limiter = RateLimiter::new(Quota::per_second(5))?;
    /// let layer = RateLimitLayer::client(limiter).reject_with_response();
    /// # let _ = layer;
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    #[must_use]
    pub fn reject_with_response(self) -> RateLimitLayer<D, Respond> {
        let feedback = Some(self.answer);
        self.answering(Respond { headers: Headers::NONE, feedback, ..Respond::default() })
    }
}

impl<D> RateLimitLayer<D, Respond> {
    /// Which headers are stamped on responses.
    #[must_use]
    pub fn headers(mut self, headers: Headers) -> Self {
        self.answer.headers = headers;
        self
    }

    /// Replaces the whole response to a rejection. The [`RateLimited`] is put
    /// into its extensions. A gRPC call is answered as ever: its client would
    /// make nothing of another response.
    #[must_use]
    pub fn on_rejected<F, R>(mut self, respond: F) -> Self
    where
        F: Fn(&RateLimited) -> Response<R> + Send + Sync + 'static,
        R: Into<Full<Bytes>>,
    {
        self.answer.hook = Some(Arc::new(move |rejection| respond(rejection).map(Into::into)));
        self
    }

    /// Whether rejected gRPC calls carry `grpc-retry-pushback-ms` ([gRFC A6]):
    /// clients with a retry policy then wait for as long as it says, and do
    /// not retry a call that can never pass. Off by default, for it also makes
    /// clients retry that would back off by more on their own.
    ///
    /// [gRFC A6]: https://github.com/grpc/proposal/blob/master/A6-client-retries.md
    #[must_use]
    pub fn grpc_pushback(mut self, pushback: bool) -> Self {
        self.answer.pushback = pushback;
        self
    }
}

impl<S, D: Clone, A: Clone> Layer<S> for RateLimitLayer<D, A> {
    type Service = RateLimit<S, D, A>;

    fn layer(&self, inner: S) -> Self::Service {
        let shared = Shared {
            limiter: self.limiter.clone(),
            describe: self.describe.clone(),
            answer: self.answer.clone(),
            max_wait: self.max_wait,
        };
        RateLimit::new(inner, shared)
    }
}

impl<D, A> fmt::Debug for RateLimitLayer<D, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer").field("limiter", &self.limiter).finish_non_exhaustive()
    }
}
