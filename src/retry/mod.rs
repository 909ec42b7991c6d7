//! Retries rejected requests: [`RetryPolicy`], a policy for tower's
//! [`RetryLayer`](tower::retry::RetryLayer), for clients.
//!
//! 1. **What** is retried: a rejection by our own
//!    [`RateLimiter`](crate::RateLimiter), a 429, a 503 (or the
//!    [statuses](crate::headers::parse::Parser::rejection_statuses) that the parser is
//!    told of), and every other rejection according to
//!    [`Signal::is_rejection`](crate::headers::parse::Signal::is_rejection),
//!    such as a 403 with a signal or gRPC's RESOURCE_EXHAUSTED. Our own
//!    rejection is a [`RateLimited`] as the error, among
//!    its sources, or in a response's extensions. Other failures, such as a
//!    failed connection, are not retried.
//! 2. **Not** if a retry cannot help: the request [can never
//!    pass](crate::RateLimitedKind::NeverFits), has no tenant, or was answered
//!    with the demand not to retry.
//! 3. **Which requests**: those that can be cloned. After our own rejection any
//!    method, since the request was never sent. After the upstream's rejection
//!    only idempotent methods (RFC 9110, section 9.2.2), or those in
//!    [`RetryPolicy::methods`].
//! 4. **When**: after the time that was asked for, never earlier. Our own
//!    limiter states it to the nanosecond; the upstream in any dialect that
//!    [`Parser`] reads. A random time is added,
//!    so that a fleet does not return in one instant. If no time was asked for,
//!    after a random part of an exponentially growing time ("full jitter").
//! 5. **No longer than** [`RetryPolicy::max_wait`], and the time left until the
//!    request's [`Deadline`] or in its
//!    `grpc-timeout`. A response that asks for more is returned to the caller.
//!    A repeated call carries the time that is left as its timeout.
//! 6. **How often**: [`RetryPolicy::max_retries`] times per request, and as often
//!    again after our own rejections. All requests together: as often as the
//!    [`RetryBudget`] permits, which all clones of a policy share. Retries of
//!    requests that were never sent are not charged to the budget, since they
//!    put no load on the upstream.
//!
//! # Order of layers
//!
//! Put it outside of [`RateLimitLayer::client`](crate::RateLimitLayer::client):
//! the limiter then counts each attempt, as the upstream does, and the policy
//! sees our own rejections. Inside of it, attempts would not be counted.
//!
//! To stay within a limit of one's own, prefer a rule that lets requests
//! [wait](crate::Rule::max_wait): waits are first come, first served, and
//! retries are a race.
//!
//! Waiting needs a Tokio runtime with its time enabled. Dropping the response
//! future cancels all retries.

mod budget;

use std::{any::Any, error::Error, fmt, sync::Arc, time::Duration};

use http::{HeaderMap, Method, Request, Response, StatusCode};
use tokio::time::{Instant, Sleep, sleep};
use tower::retry::{Policy, budget::Budget};

pub use self::budget::RetryBudget;
use crate::{
    decision::{RateLimited, RateLimitedKind},
    descriptor::{Deadline, grpc},
    headers::parse::Parser,
    jitter::{doubled, draw},
    policy::Statuses,
    time::{Clock, SystemClock, nanos},
};

/// Retries requests that our own limiter or the upstream rejected: a policy for
/// tower's [`RetryLayer`](tower::retry::RetryLayer), around
/// [`RateLimitLayer::client`](crate::RateLimitLayer::client).
///
/// The [module](self) describes its rules. By default: 3 retries; waits of up
/// to 60 s if a time is asked for, else of up to 100 ms, 200 ms, 400 ms, and so
/// on to 10 s; idempotent methods; the default [`RetryBudget`].
///
/// Clones share the budget and the settings. Changing a setting of a clone
/// affects only that clone.
///
/// The inner service's error has to be boxed, as that of
/// `RateLimitLayer::client` is, or a [`RateLimited`].
/// Errors of other types are never retried.
///
/// ```
/// use http::{Request, Response};
/// use tower::{BoxError, ServiceBuilder, ServiceExt, retry::RetryLayer, service_fn};
/// use tower_ratelimit::{Quota, RateLimitLayer, RateLimiter, RetryPolicy, retry::RetryAttempt, testing::TokioClock};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<(), BoxError> {
/// // In place of an HTTP client: an upstream that is busy at first.
/// let client = service_fn(|request: Request<String>| async move {
///     let busy = request.extensions().get::<RetryAttempt>().is_none();
///     let response = Response::builder().status(if busy { 429 } else { 200 });
///     Ok::<_, BoxError>(response.header("retry-after", "2").body("hello")?)
/// });
/// let limiter = RateLimiter::builder().policy(Quota::per_second(50)).clock(TokioClock::default()).build()?;
/// let client = ServiceBuilder::new()
///     // Outside: each attempt passes the limiter.
///     .layer(RetryLayer::new(RetryPolicy::new()))
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
#[must_use]
pub struct RetryPolicy<C = Cloned> {
    settings: Arc<Settings>,
    clone: C,
    progress: Progress,
}

/// The retries of one request. A policy that no request has cloned stays at
/// the default.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    after_upstream: u32,
    /// Those that followed our own rejections.
    after_own: u32,
    /// When the latest attempt began: its timeout counts from there. `None`
    /// until a request is sent.
    began: Option<Instant>,
}

/// The number of a retry, from 1 on. It is in the extensions of a request that
/// is sent again.
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

/// A setting never changes under a clone that shares it.
#[derive(Clone)]
struct Settings {
    max_retries: u32,
    methods: Vec<Method>,
    schedule: Schedule,
    budget: Arc<dyn Budget + Send + Sync>,
    parser: Parser,
    /// Those of the upstream that are retried. `None`: what the parser takes for a rejection.
    statuses: Option<Statuses>,
    clock: Arc<dyn Clock>,
}

/// RFC 9110, section 9.2.2, without CONNECT, which gets no ordinary response.
const IDEMPOTENT: [Method; 6] =
    [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE, Method::PUT, Method::DELETE];

impl RetryPolicy {
    /// The default settings, for requests whose body is `Clone`.
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
            statuses: None,
            clock: Arc::new(SystemClock::new()),
        };
        Self { settings: Arc::new(settings), clone: Cloned, progress: Progress::default() }
    }
}

impl<C> RetryPolicy<C> {
    /// The most retries of a request after rejections by the upstream. After
    /// rejections by our own limiter there may be as many again: those requests
    /// were not sent, and an upstream's rejection also puts the key on a
    /// cooldown, see [`UpstreamFeedback`](crate::middleware::UpstreamFeedback).
    pub fn max_retries(self, retries: u32) -> Self {
        self.with(|settings| settings.max_retries = retries)
    }

    /// The methods that are retried after a rejection by the upstream. By
    /// default GET, HEAD, OPTIONS, TRACE, PUT and DELETE.
    ///
    /// Add POST or PATCH only if the upstream rejects before it acts; gRPC
    /// calls are all POST. A request that our own limiter rejected was never
    /// sent, and is retried whatever its method.
    ///
    /// ```
    /// use http::Method;
    /// use tower_ratelimit::RetryPolicy;
    ///
    /// let retry = RetryPolicy::new().methods([Method::GET, Method::POST]);
    /// ```
    pub fn methods(self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.with(|settings| settings.methods = methods.into_iter().collect())
    }

    /// The waits if no time was asked for: a random time of up to `base` before
    /// the first retry, of up to twice as much before each further one, and of
    /// at most `cap`. 100 ms and 10 s by default.
    pub fn backoff(self, base: Duration, cap: Duration) -> Self {
        self.with(|settings| (settings.schedule.base, settings.schedule.cap) = (base, cap))
    }

    /// The largest random time that is added to a wait that was asked for. By
    /// default a tenth of that wait, or the backoff's base if that is more.
    pub fn jitter(self, most: Duration) -> Self {
        self.with(|settings| settings.schedule.jitter = Some(most))
    }

    /// The longest wait. If more is asked for, the response is returned to the
    /// caller at once. 60 s by default, without the random time.
    pub fn max_wait(self, max_wait: Duration) -> Self {
        self.with(|settings| settings.schedule.max_wait = max_wait)
    }

    /// The budget of all retries; a [`RetryBudget`] by default.
    pub fn budget(self, budget: impl Budget + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.budget = Arc::new(budget))
    }

    /// How to read the upstream's responses; in every dialect by default. Its
    /// [`rejection_statuses`](Parser::rejection_statuses) are retried too, in place of a
    /// bare 503. The parser's cap is not used: a retry at a capped time would be too early,
    /// so a wait beyond [`max_wait`](Self::max_wait) is not retried.
    pub fn parser(self, parser: Parser) -> Self {
        self.with(|settings| settings.parser = parser.cap(Duration::MAX))
    }

    /// The statuses of the upstream's responses that are retried, whatever fields they
    /// have: these, and no other error. By default it is what the [parser](Self::parser)
    /// takes for a rejection, and a bare 503. A time in a listed response is obeyed as that
    /// of a 429. gRPC's responses have the status 200, and are retried as without a list.
    ///
    /// ```
    /// use tower_ratelimit::RetryPolicy;
    ///
    /// // A gateway in front of this upstream fails now and then.
    /// let retry = RetryPolicy::new().statuses([429, 502, 503, 504]);
    /// # let _ = retry;
    /// ```
    pub fn statuses(self, statuses: impl Into<Statuses>) -> Self {
        self.with(|settings| settings.statuses = Some(statuses.into()))
    }

    /// The clock for responses that name a date; the [`SystemClock`] by
    /// default. Waits use Tokio's time.
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
    /// use tower_ratelimit::{RetryPolicy, retry::clone_head};
    ///
    /// // Bodies that are streams pass unretried; requests without one do not.
    /// let retry = RetryPolicy::new().clone_with(|request: &Request<Body>| {
    ///     request.body().is_end_stream().then(|| clone_head(request).map(|()| Body::empty()))
    /// });
    /// ```
    pub fn clone_with<B, F>(self, clone: F) -> RetryPolicy<F>
    where
        F: Fn(&Request<B>) -> Option<Request<B>>,
    {
        RetryPolicy { settings: self.settings, clone, progress: self.progress }
    }

    fn with(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(Arc::make_mut(&mut self.settings));
        self
    }
}

impl<B, R, E, C> Policy<Request<B>, Response<R>, E> for RetryPolicy<C>
where
    C: CloneRequest<Request<B>>,
    E: 'static,
{
    type Future = Sleep;

    #[allow(clippy::disallowed_methods, reason = "a retry has to wait; tests pause the time")]
    fn retry(&mut self, request: &mut Request<B>, result: &mut Result<Response<R>, E>) -> Option<Sleep> {
        let Settings { max_retries, methods, schedule, budget, .. } = &*self.settings;
        let rejection = Rejection::of(result, &self.settings)?;
        let Progress { after_upstream, after_own, began } = &mut self.progress;
        let retries = if rejection.sent { after_upstream } else { after_own };
        if *retries >= *max_retries || rejection.sent && !methods.contains(request.method()) {
            return None;
        }
        let delay = schedule.delay(rejection.asked, *retries, draw)?;
        if began.is_some_and(|began| !may_wait(request, began, delay)) {
            return None;
        }
        // Last, so that only actual retries are charged.
        if rejection.sent && !budget.withdraw() {
            return None;
        }
        *retries += 1;
        request.extensions_mut().insert(RetryAttempt(self.progress.after_upstream + self.progress.after_own));
        Some(sleep(delay))
    }

    fn clone_request(&mut self, request: &Request<B>) -> Option<Request<B>> {
        let Progress { after_upstream, after_own, began } = &mut self.progress;
        *began = Some(Instant::now());
        if (*after_upstream, *after_own) == (0, 0) {
            self.settings.budget.deposit();
        }
        // The last attempt needs no copy.
        let may_retry = (*after_upstream).min(*after_own) < self.settings.max_retries;
        may_retry.then(|| self.clone.clone_request(request))?
    }
}

/// Whether a request of which an attempt `began` at that time may wait for
/// `delay` and still be sent: no retry outlasts its deadline. If so, its
/// `grpc-timeout` becomes the time that is left.
fn may_wait<B>(request: &mut Request<B>, began: Instant, delay: Duration) -> bool {
    let deadline = request.extensions().get::<Deadline>().map(Deadline::remaining);
    let timeout = grpc::timeout(request.headers()).map(|timeout| timeout.saturating_sub(began.elapsed()));
    if deadline.into_iter().chain(timeout).any(|left| left <= delay) {
        return false;
    }
    if let Some(timeout) = timeout {
        request.headers_mut().insert(grpc::GRPC_TIMEOUT, grpc::timeout_of(timeout.saturating_sub(delay)));
    }
    true
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self::new()
    }
}

impl<C> fmt::Debug for RetryPolicy<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryPolicy")
            .field("max_retries", &self.settings.max_retries)
            .field("methods", &self.settings.methods)
            .field("schedule", &self.settings.schedule)
            .field("parser", &self.settings.parser)
            .field("progress", &self.progress)
            .finish_non_exhaustive()
    }
}

/// The settings of delays, which are never shorter than the time that was asked for.
#[derive(Clone, Debug)]
struct Schedule {
    base: Duration,
    cap: Duration,
    /// `None`: a tenth of the time that was asked for, or `base` if that is
    /// more.
    jitter: Option<Duration>,
    max_wait: Duration,
}

impl Schedule {
    /// The delay after `retries` retries. `None` if it would be too long.
    /// `draw` returns a number between zero and its argument.
    fn delay(&self, asked: Option<Duration>, retries: u32, draw: impl FnOnce(u64) -> u64) -> Option<Duration> {
        // Zero would not spread retries either.
        let Some(asked) = asked.filter(|asked| !asked.is_zero()) else {
            let most = doubled(self.base, retries, self.cap.min(self.max_wait));
            return Some(Duration::from_nanos(draw(nanos(most))));
        };
        let most = self.jitter.unwrap_or_else(|| self.base.max(asked / 10));
        (asked <= self.max_wait).then(|| asked.saturating_add(Duration::from_nanos(draw(nanos(most)))))
    }
}

type BoxError = Box<dyn Error + Send + Sync>;

/// A rejection that may be retried, ours or the upstream's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rejection {
    /// The time that was asked for.
    asked: Option<Duration>,
    /// Whether the request has reached the upstream, which may have acted.
    sent: bool,
}

impl Rejection {
    /// `None` for a result that is no rejection, or a final one.
    fn of<R, E: 'static>(result: &Result<Response<R>, E>, settings: &Settings) -> Option<Self> {
        match result {
            Err(error) => Self::by_us(find(error)?),
            Ok(response) => match response.extensions().get::<RateLimited>() {
                Some(rejected) => Self::by_us(rejected),
                None => Self::by_upstream(response.status(), response.headers(), settings),
            },
        }
    }

    fn by_us(rejected: &RateLimited) -> Option<Self> {
        let kind = rejected.kind();
        let is_temporary =
            kind.is_limit() && kind != RateLimitedKind::NeverFits || kind.status() == StatusCode::SERVICE_UNAVAILABLE;
        is_temporary.then(|| Self { asked: rejected.retry_after(), sent: false })
    }

    fn by_upstream(status: StatusCode, headers: &HeaderMap, settings: &Settings) -> Option<Self> {
        let Settings { parser, statuses, clock, .. } = settings;
        let parser = statuses.map_or(*parser, |statuses| parser.rejection_statuses(statuses));
        let is_error = status.is_client_error() || status.is_server_error();
        // Most responses need no parsing.
        let is_listed = parser.lists(status);
        if !is_error && !is_listed && !headers.contains_key("grpc-status") {
            return None;
        }
        let signal = parser.read(status, headers, clock.now());
        // Of an error, a list of statuses decides alone. gRPC's statuses are none of HTTP's.
        let is_unlisted = is_error && statuses.is_some() && !is_listed;
        let again = (is_listed || signal.is_rejection()) && !is_unlisted && !signal.no_retry();
        again.then(|| Self { asked: signal.cooldown(), sent: true })
    }
}

/// The rejection in an error or among its sources.
fn find<E: 'static>(error: &E) -> Option<&RateLimited> {
    let error: &dyn Any = error;
    match error.downcast_ref::<BoxError>() {
        Some(boxed) => RateLimited::find(&**boxed),
        None => error.downcast_ref(),
    }
}

/// Copies a request for another attempt: [`Cloned`], or a function.
///
/// See [`RetryPolicy::clone_with`].
#[doc(hidden)]
pub trait CloneRequest<Req> {
    /// A copy to send in place of the original. `None` for a request that must
    /// be sent only once.
    fn clone_request(&self, request: &Req) -> Option<Req>;
}

/// Clones the whole request with its body and extensions, for bodies that are
/// cheap to clone, such as `Full<Bytes>`.
///
/// ```
/// use tower_ratelimit::retry::{CloneRequest, Cloned};
///
/// let request = http::Request::put("/").body("text").unwrap();
/// assert_eq!(Cloned.clone_request(&request).unwrap().body(), &"text");
/// ```
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Cloned;

impl<B: Clone> CloneRequest<Request<B>> for Cloned {
    fn clone_request(&self, request: &Request<B>) -> Option<Request<B>> {
        Some(request.clone())
    }
}

impl<Req, F> CloneRequest<Req> for F
where
    F: Fn(&Req) -> Option<Req>,
{
    fn clone_request(&self, request: &Req) -> Option<Req> {
        self(request)
    }
}

/// A request without its body: method, URI, version, headers and extensions.
///
/// ```
/// use tower_ratelimit::retry::clone_head;
///
/// let request = http::Request::get("/").header("accept", "*/*").body("any").unwrap();
/// assert_eq!(clone_head(&request).headers(), request.headers());
/// ```
pub fn clone_head<B>(request: &Request<B>) -> Request<()> {
    let mut head = Request::new(());
    head.method_mut().clone_from(request.method());
    head.uri_mut().clone_from(request.uri());
    *head.version_mut() = request.version();
    head.headers_mut().clone_from(request.headers());
    head.extensions_mut().clone_from(request.extensions());
    head
}

#[cfg(test)]
mod tests;
