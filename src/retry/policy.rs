use std::{fmt, sync::Arc, time::Duration};

use http::{Method, Request, Response};
use tower::retry::{Policy, budget::Budget};

use super::{
    CloneRequest, Cloned, RetryBudget, RetryDelay, deadline::Attempt, rejection::Rejection, schedule::Schedule,
};
use crate::{
    headers::{draw, parse::Parser},
    time::{Clock, SystemClock},
};

/// Retries what was rejected, by us or by the provider: a policy for tower's
/// [`RetryLayer`](tower::retry::RetryLayer), around
/// [`RateLimitLayer::client`](crate::RateLimitLayer::client).
///
/// What it does, and why, is said in the [module](super). By default: 3
/// retries, waits of up to 60 s where one is asked for, else of up to 100 ms,
/// 200 ms, 400 ms, and so on to 10 s; idempotent methods; the default
/// [`RetryBudget`].
///
/// Clones share the budget and the settings. A setting that is changed on a
/// clone is changed for that one only.
///
/// Errors of the service inside are boxed, as those of `RateLimitLayer::client`
/// are, or a [`RateLimited`](crate::RateLimited) itself; an error of another
/// type is never retried.
///
/// ```
/// use http::{Request, Response};
/// use tower::{BoxError, ServiceBuilder, ServiceExt, retry::RetryLayer, service_fn};
/// use tower_ratelimit::{Quota, RateLimitLayer, RateLimiter, Retry, retry::RetryAttempt, testing::TokioClock};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<(), BoxError> {
/// // In place of an HTTP client: a provider that is busy at first.
/// let client = service_fn(|request: Request<String>| async move {
///     let busy = request.extensions().get::<RetryAttempt>().is_none();
///     let response = Response::builder().status(if busy { 429 } else { 200 });
///     Ok::<_, BoxError>(response.header("retry-after", "2").body("hello")?)
/// });
/// let limiter = RateLimiter::builder().policy(Quota::per_second(50)).clock(TokioClock::default()).build()?;
/// let client = ServiceBuilder::new()
///     // Outside: each attempt passes the limiter.
///     .layer(RetryLayer::new(Retry::new()))
///     .layer(RateLimitLayer::client(limiter))
///     .service(client);
///
/// let start = tokio::time::Instant::now();
/// let response = client.oneshot(Request::get("https://api.example.com/").body(String::new())?).await?;
/// assert_eq!(response.status(), 200);
/// assert!(start.elapsed().as_secs() >= 2);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Retry<C = Cloned> {
    settings: Arc<Settings>,
    clone: C,
    /// How often this request was retried. A policy that no request has
    /// cloned stays at zero.
    retries: u32,
    /// How many of those were of what we rejected ourselves.
    ours: u32,
    /// `None` until a request is sent.
    attempt: Option<Attempt>,
}

/// Stands in the extensions of a request that is sent again: which retry it is,
/// from 1 on.
///
/// ```
/// use tower_ratelimit::retry::RetryAttempt;
///
/// fn log<B>(request: &http::Request<B>) {
///     if let Some(RetryAttempt(retry)) = request.extensions().get() {
///         println!("{}: retry {retry}", request.uri());
///     }
/// }
/// # log(&http::Request::new(()));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RetryAttempt(pub u32);

#[derive(Clone)]
struct Settings {
    max_retries: u32,
    methods: Vec<Method>,
    schedule: Schedule,
    budget: Arc<dyn Budget + Send + Sync>,
    parser: Parser,
    clock: Arc<dyn Clock>,
}

/// RFC 9110, section 9.2.2, but for CONNECT, whose answer is no response.
const IDEMPOTENT: [Method; 6] =
    [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE, Method::PUT, Method::DELETE];

impl Retry {
    /// With the settings above, for requests whose body is `Clone`.
    #[must_use]
    pub fn new() -> Self {
        let settings = Settings {
            max_retries: 3,
            methods: IDEMPOTENT.to_vec(),
            schedule: Schedule {
                base: Duration::from_millis(100),
                cap: Duration::from_secs(10),
                jitter: None,
                max_wait: Duration::from_secs(60),
            },
            budget: Arc::new(RetryBudget::new()),
            parser: Parser::new().cap(Duration::MAX),
            clock: Arc::new(SystemClock::new()),
        };
        Self { settings: Arc::new(settings), clone: Cloned, retries: 0, ours: 0, attempt: None }
    }
}

impl<C> Retry<C> {
    /// How often it was retried after a rejection of the provider's.
    fn theirs(&self) -> u32 {
        self.retries - self.ours
    }

    /// How often a request is sent again at the most. As often again it is
    /// tried where our own limiter has rejected it, so that it was not sent: what
    /// the provider rejects holds the key back as well, see
    /// [`UpstreamFeedback`](crate::middleware::UpstreamFeedback).
    #[must_use]
    pub fn max_retries(self, retries: u32) -> Self {
        self.with(|settings| settings.max_retries = retries)
    }

    /// Which methods are sent again after a rejection by the provider; by
    /// default GET, HEAD, OPTIONS, TRACE, PUT and DELETE.
    ///
    /// Name POST or PATCH only where the provider is known to reject before it
    /// acts; gRPC calls are all POST. What our own limiter rejects was never
    /// sent, and is retried whatever its method.
    ///
    /// ```
    /// use http::Method;
    /// use tower_ratelimit::Retry;
    ///
    /// let retry = Retry::new().methods([Method::GET, Method::POST]);
    /// ```
    #[must_use]
    pub fn methods(self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.with(|settings| settings.methods = methods.into_iter().collect())
    }

    /// The waits where nothing was asked for: a random time of up to `base`
    /// before the first retry, of up to twice as much before each further one,
    /// and never of more than `cap`. 100 ms and 10 s by default.
    #[must_use]
    pub fn backoff(self, base: Duration, cap: Duration) -> Self {
        self.with(|settings| (settings.schedule.base, settings.schedule.cap) = (base, cap))
    }

    /// What is added at random to a wait that was asked for: up to `most`. By
    /// default a tenth of that wait, or the backoff's base where that is more.
    #[must_use]
    pub fn jitter(self, most: Duration) -> Self {
        self.with(|settings| settings.schedule.jitter = Some(most))
    }

    /// Where more is asked for than this, the answer is given to the caller as
    /// it is, at once. 60 s by default; what is added at random comes on top.
    #[must_use]
    pub fn max_wait(self, max_wait: Duration) -> Self {
        self.with(|settings| settings.schedule.max_wait = max_wait)
    }

    /// How many retries there may be in all; a [`RetryBudget`] unless set.
    #[must_use]
    pub fn budget(self, budget: impl Budget + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.budget = Arc::new(budget))
    }

    /// How the provider's answers are read; in every dialect by default. Its
    /// cap is not used: what is cut would be too early, so what is longer than
    /// [`max_wait`](Self::max_wait) is not retried.
    #[must_use]
    pub fn parser(self, parser: Parser) -> Self {
        self.with(|settings| settings.parser = parser.cap(Duration::MAX))
    }

    /// Where the time is read, for answers that name a date; the
    /// [`SystemClock`] by default. Waits follow Tokio's.
    #[must_use]
    pub fn clock(self, clock: impl Clock) -> Self {
        self.with(|settings| settings.clock = Arc::new(clock))
    }

    /// How a request is kept for another attempt: a function that gives a copy
    /// of it, or `None` where it is to be sent once only, as one whose body is
    /// a stream.
    ///
    /// ```
    /// use axum::body::{Body, HttpBody};
    /// use http::Request;
    /// use tower_ratelimit::{Retry, retry::clone_head};
    ///
    /// // Bodies that are streams pass unretried; requests without one do not.
    /// let retry = Retry::new().clone_with(|request: &Request<Body>| {
    ///     request.body().is_end_stream().then(|| clone_head(request).map(|()| Body::empty()))
    /// });
    /// ```
    #[must_use]
    pub fn clone_with<B, F>(self, clone: F) -> Retry<F>
    where
        F: Fn(&Request<B>) -> Option<Request<B>>,
    {
        Retry { settings: self.settings, clone, retries: self.retries, ours: self.ours, attempt: self.attempt }
    }

    fn with(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(Arc::make_mut(&mut self.settings));
        self
    }
}

impl<B, R, E, C> Policy<Request<B>, Response<R>, E> for Retry<C>
where
    C: CloneRequest<Request<B>>,
    E: 'static,
{
    type Future = RetryDelay;

    fn retry(&mut self, request: &mut Request<B>, result: &mut Result<Response<R>, E>) -> Option<RetryDelay> {
        let Settings { max_retries, methods, schedule, budget, parser, clock } = &*self.settings;
        let rejection = Rejection::of(result, parser, &**clock)?;
        let retries = if rejection.sent { self.theirs() } else { self.ours };
        if retries >= *max_retries {
            return None;
        }
        if rejection.sent && !methods.contains(request.method()) {
            return None;
        }
        let delay = schedule.delay(rejection.asked, retries, draw)?;
        if self.attempt.is_some_and(|attempt| !attempt.outlasts(delay, request)) {
            return None;
        }
        // Last, so that nothing is taken for what is not retried.
        if rejection.sent && !budget.withdraw() {
            return None;
        }
        self.retries += 1;
        self.ours += u32::from(!rejection.sent);
        request.extensions_mut().insert(RetryAttempt(self.retries));
        Some(RetryDelay::new(delay))
    }

    fn clone_request(&mut self, request: &Request<B>) -> Option<Request<B>> {
        self.attempt = Some(Attempt::begins());
        if self.retries == 0 {
            self.settings.budget.deposit();
        }
        // The last attempt is not kept for another one.
        (self.theirs().min(self.ours) < self.settings.max_retries).then(|| self.clone.clone_request(request))?
    }
}

impl Default for Retry {
    fn default() -> Self {
        Self::new()
    }
}

impl<C> fmt::Debug for Retry<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retry")
            .field("max_retries", &self.settings.max_retries)
            .field("methods", &self.settings.methods)
            .field("schedule", &self.settings.schedule)
            .field("parser", &self.settings.parser)
            .field("retries", &self.retries)
            .finish_non_exhaustive()
    }
}
