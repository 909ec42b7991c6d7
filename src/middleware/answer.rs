//! The seam between decisions and what the caller sees: [`Answer`]. [`HttpAnswer`] answers over
//! HTTP, [`ErrorAnswer`] and [`UpstreamFeedback`] by an error.
//!
//! An answer decides nothing. The invariant: it turns every result of the inner
//! service, and every rejection, into one response or one error. Over HTTP it never changes the
//! inner service's error type, and a header that a hook has set stays.

use std::{
    convert::identity,
    fmt, mem,
    sync::{Arc, LazyLock},
    time::Duration,
};

use bytes::Bytes;
use http::{
    HeaderValue, Request, Response, StatusCode,
    header::{CONNECTION, Entry},
};
use http_body_util::Full;

use super::{
    Body, HttpRequest, InFlightGuard, UpstreamFeedback,
    body::{BoxError, HookBody},
};
use crate::{
    decision::{Decision, RateLimited, RateLimitedKind},
    headers::Headers,
    http::{Protocol, RequestHead, rejection},
};

/// Turns decisions into what the caller sees.
pub trait Answer<Res, Err> {
    /// The limited service's response.
    type Response;
    /// The limited service's error.
    type Error;

    /// Whether [`Answer::admitted`] reads the decision. If not, it may be given
    /// a decision that says that nothing was limited.
    fn needs_decision(&self) -> bool {
        true
    }

    /// Whether [`Answer::admitted`] needs an [`InFlightGuard`] for every request
    /// that a rule applies to, to report an upstream's response.
    fn needs_guard(&self) -> bool {
        false
    }

    /// The inner service failed before it took a request.
    fn unready(&self, error: Err) -> Self::Error;

    /// The request was admitted, with this result.
    ///
    /// # Errors
    ///
    /// Those of the inner service.
    fn admitted(
        &self,
        result: Result<Res, Err>,
        admission: AdmissionContext<'_>,
    ) -> Result<Self::Response, Self::Error>;

    /// The request was rejected.
    ///
    /// # Errors
    ///
    /// The rejection, if this answers with an error.
    fn rejected(&self, rejection: RejectionContext<'_>) -> Result<Self::Response, Self::Error>;
}

/// The context of an admitted request.
#[derive(Debug)]
pub struct AdmissionContext<'a> {
    decision: &'a Decision,
    guard: Option<Box<InFlightGuard>>,
}

impl<'a> AdmissionContext<'a> {
    pub(super) fn new(decision: &'a Decision, guard: Option<Box<InFlightGuard>>) -> Self {
        Self { decision, guard }
    }

    /// The decision that admitted the request.
    #[must_use]
    pub fn decision(&self) -> &'a Decision {
        self.decision
    }

    /// The guard of a request that holds in-flight permits or may be settled,
    /// for which the answer [needs](Answer::needs_guard) one, or that a layer
    /// further in may reject by [a rule](super::RateLimitLayer::rule) of the same
    /// limiter.
    #[must_use]
    pub fn guard(&self) -> Option<&InFlightGuard> {
        self.guard.as_deref()
    }

    /// Reports a response to the guard. `feedback` follows that of an upstream, and none
    /// that a layer further in has made.
    fn report<B>(&self, response: &Response<B>, feedback: Option<&UpstreamFeedback>) {
        let Some(guard) = self.guard() else { return };
        let rejection = response.extensions().get();
        // A rejection of a layer further in, whatever its status, is no answer of the handler.
        if rejection.is_none() {
            guard.lease.measure(Some(response.status()));
        }
        guard.report_status(response.status());
        let is_own_rejection = rejection.is_some_and(|by| guard.report_rejection(by));
        if let Some(feedback) = feedback.filter(|_| !is_own_rejection) {
            feedback.read(response, guard);
        }
    }

    /// An error of the inner service: perhaps a layer further in has rejected the
    /// request.
    fn follow_error(&self, error: BoxError) -> BoxError {
        if let Some(guard) = self.guard()
            && let Some(rejection) = RateLimited::find(&*error)
        {
            guard.report_rejection(rejection);
        }
        error
    }

    /// The guard, to keep until the response has ended. Dropping it, or this
    /// context, ends the request.
    pub fn into_guard(self) -> Option<Box<InFlightGuard>> {
        self.guard
    }
}

/// The context of a rejected request.
#[derive(Debug)]
#[non_exhaustive]
pub struct RejectionContext<'a> {
    /// The reason.
    pub error: RateLimited,
    /// The protocol that the client speaks.
    pub protocol: Protocol,
    /// `None` if the request is not one of HTTP.
    http: Option<RejectedRequest<'a>>,
}

/// A rejected HTTP request.
#[derive(Debug)]
struct RejectedRequest<'a> {
    /// Without its headers and extensions: they were taken.
    head: RequestHead<'a>,
    /// Has them until it is written, in their memory.
    response: Response<()>,
    /// Whether a server must close the connection after the response, because the
    /// request's body stays unread.
    ends_connection: bool,
}

impl RejectedRequest<'_> {
    fn head(&self) -> RequestHead<'_> {
        self.head.with_taken(self.response.headers(), self.response.extensions())
    }
}

impl<'a> RejectionContext<'a> {
    /// `limiter` is the id of the layer's limiter.
    pub(super) fn new(limiter: u64, decision: Decision, request: Option<&'a mut dyn HttpRequest>) -> Self {
        let error = RateLimited::new(decision).by_layer(limiter);
        let Some(request) = request else { return Self { error, protocol: Protocol::Other, http: None } };
        let ends_connection = request.head().ends_connection_unread();
        let mut response = Response::new(());
        mem::swap(response.headers_mut(), request.headers_mut());
        mem::swap(response.extensions_mut(), request.extensions_mut());
        let protocol = Protocol::of(response.headers());
        let http = RejectedRequest { head: request.head(), response, ends_connection };
        Self { error, protocol, http: Some(http) }
    }

    /// The request's head; `None` if it is not an HTTP request.
    #[must_use]
    pub fn head(&self) -> Option<RequestHead<'_>> {
        self.http.as_ref().map(RejectedRequest::head)
    }
}

/// Answers a rejection with [`RateLimited`] as the error. Responses pass
/// unchanged.
#[derive(Clone, Copy, Debug, Default)]
pub struct ErrorAnswer;

impl<Res, Err> Answer<Res, Err> for ErrorAnswer
where
    Err: Into<BoxError>,
{
    type Response = Res;
    type Error = BoxError;

    fn needs_decision(&self) -> bool {
        false
    }

    fn unready(&self, error: Err) -> Self::Error {
        error.into()
    }

    fn admitted(&self, result: Result<Res, Err>, admission: AdmissionContext<'_>) -> Result<Res, Self::Error> {
        result.map_err(|error| admission.follow_error(error.into()))
    }

    fn rejected(&self, rejection: RejectionContext<'_>) -> Result<Res, Self::Error> {
        Err(rejection.error.into())
    }
}

impl<B, Err> Answer<Response<B>, Err> for UpstreamFeedback
where
    Err: Into<BoxError>,
{
    type Response = Response<B>;
    type Error = BoxError;

    fn needs_decision(&self) -> bool {
        false
    }

    fn needs_guard(&self) -> bool {
        true
    }

    fn unready(&self, error: Err) -> Self::Error {
        error.into()
    }

    fn admitted(
        &self,
        result: Result<Response<B>, Err>,
        admission: AdmissionContext<'_>,
    ) -> Result<Response<B>, Self::Error> {
        if let Ok(response) = &result {
            admission.report(response, Some(self));
        }
        result.map_err(|error| admission.follow_error(error.into()))
    }

    fn rejected(&self, rejection: RejectionContext<'_>) -> Result<Response<B>, Self::Error> {
        Err(rejection.error.into())
    }
}

/// Answers over HTTP: stamps rate limit headers, and answers a rejection with a
/// response, or with a gRPC status if the request is a gRPC call.
#[derive(Clone, Default)]
pub struct HttpAnswer {
    pub(super) headers: Headers,
    /// Shared, since each response's future holds a clone.
    rare: Option<Arc<RareOptions>>,
}

/// The options that few layers set.
#[derive(Clone, Default)]
pub(super) struct RareOptions {
    pub(super) on_rejected: Option<Arc<Hook>>,
    /// On a client: follows the upstream's responses.
    pub(super) feedback: Option<UpstreamFeedback>,
    pub(super) grpc_pushback: bool,
}

impl HttpAnswer {
    pub(super) fn rare_mut(&mut self) -> &mut RareOptions {
        Arc::make_mut(self.rare.get_or_insert_default())
    }

    fn feedback(&self) -> Option<&UpstreamFeedback> {
        self.rare.as_ref()?.feedback.as_ref()
    }

    fn stamp<B>(&self, response: &mut Response<B>, decision: &Decision) {
        if decision.tiers().is_empty() {
            return;
        }
        match response.extensions().get::<RateLimited>() {
            Some(_) => self.headers.stamp_around_rejection(response.headers_mut(), decision),
            None => self.headers.stamp(response.headers_mut(), decision),
        }
    }
}

impl<B, Err> Answer<Response<B>, Err> for HttpAnswer {
    type Response = Response<Body<B>>;
    type Error = Err;

    fn needs_decision(&self) -> bool {
        self.headers.describe_admissions()
    }

    fn needs_guard(&self) -> bool {
        self.feedback().is_some()
    }

    fn unready(&self, error: Err) -> Err {
        error
    }

    fn admitted(
        &self,
        result: Result<Response<B>, Err>,
        admission: AdmissionContext<'_>,
    ) -> Result<Response<Body<B>>, Err> {
        if let (Err(_), Some(guard)) = (&result, admission.guard()) {
            guard.report_status(StatusCode::INTERNAL_SERVER_ERROR);
        }
        let mut response = result?;
        admission.report(&response, self.feedback());
        self.stamp(&mut response, admission.decision());
        let guard = admission.into_guard().and_then(|mut guard| {
            guard.report_upgrade(response.status());
            // The response shows whether this is gRPC; a request may claim it. A
            // client does not limit its upstream's messages.
            let is_framed = || self.feedback().is_none() && Protocol::of(response.headers()).frames_messages();
            if guard.messages.is_some() && !is_framed() {
                guard.messages = None;
            }
            guard.lease.outlives_response().then_some(guard)
        });
        Ok(response.map(|body| Body::inner(body, guard)))
    }

    fn rejected(&self, rejection: RejectionContext<'_>) -> Result<Response<Body<B>>, Err> {
        let RejectionContext { error, protocol, http } = rejection;
        let ends_connection = self.feedback().is_none() && http.as_ref().is_some_and(|http| http.ends_connection);
        let rare = self.rare.as_deref();
        let mut response = match (protocol, rare.and_then(|rare| rare.on_rejected.as_deref())) {
            (Protocol::Grpc { content_type }, _) => {
                let pushback = rare.is_some_and(|rare| rare.grpc_pushback);
                rejection::grpc(error, &self.headers, content_type, pushback).map(Body::rejection)
            }
            (Protocol::Other, None) => {
                let memory = http.map(|http| http.response).unwrap_or_default();
                rejection::problem(error, &self.headers, memory, Body::rejection)
            }
            (Protocol::Other, Some(hook)) => {
                let head = http.as_ref().map(RejectedRequest::head);
                respond(hook, error, head, &self.headers).map(Body::hook)
            }
        };
        // Without it, the client may send its next request on a connection that
        // the server is closing. A full map gets no more fields.
        if ends_connection && let Ok(Entry::Vacant(vacant)) = response.headers_mut().try_entry(CONNECTION) {
            let _ = vacant.try_insert(HeaderValue::from_static("close"));
        }
        Ok(response)
    }
}

impl fmt::Debug for HttpAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpAnswer").field("headers", &self.headers).finish_non_exhaustive()
    }
}

/// The head of a request that is not HTTP's.
static NO_HEAD: LazyLock<Request<()>> = LazyLock::new(|| Request::new(()));

/// A rejected request, as a hook of
/// [`on_rejected`](crate::RateLimitLayer::on_rejected) sees it; or one that a rule in shadow
/// mode would have rejected, as a hook of
/// [`on_shadow_rejected`](crate::RateLimitLayer::on_shadow_rejected) sees it.
///
/// ```
/// use axum::{Json, response::IntoResponse};
/// use http::StatusCode;
/// use tower_ratelimit::{Quota, RateLimitLayer, RateLimiter, middleware::Rejection};
///
/// let limiter = RateLimiter::new(Quota::per_minute(60))?;
/// // The layer adds `Retry-After` and the rate limit headers.
/// let layer = RateLimitLayer::new(limiter).on_rejected(|rejection: &Rejection<'_>| {
///     let path = rejection.head().uri().path().to_owned();
///     (StatusCode::TOO_MANY_REQUESTS, Json([path, rejection.error().to_string()])).into_response()
/// });
/// # let _ = layer;
/// # Ok::<_, tower_ratelimit::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Rejection<'a> {
    error: &'a RateLimited,
    head: Option<RequestHead<'a>>,
    headers: &'a Headers,
}

impl<'a> Rejection<'a> {
    /// The reason.
    #[must_use]
    pub fn error(&self) -> &'a RateLimited {
        self.error
    }

    /// Why the request was rejected: see [`RateLimited::kind`].
    #[must_use]
    pub fn kind(&self) -> RateLimitedKind {
        self.error.kind()
    }

    /// When the same request could pass: see [`RateLimited::retry_after`].
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.error.retry_after()
    }

    /// The method, URI, headers and extensions of the request. An empty head if
    /// a custom [`Describe`](super::Describe) gives none.
    #[must_use]
    pub fn head(&self) -> RequestHead<'a> {
        self.head.unwrap_or_else(|| RequestHead::new(&*NO_HEAD))
    }

    /// The response that the layer sends without a hook, to change a part of it.
    #[must_use]
    pub fn to_response(&self) -> Response<Full<Bytes>> {
        rejection::problem(self.error.clone(), self.headers, Response::default(), identity)
    }
}

/// A hook of [`on_shadow_rejected`](super::RateLimitLayer::on_shadow_rejected).
pub(super) type ShadowHook = dyn Fn(&Rejection<'_>) + Send + Sync;

/// Calls the hook for each shadow rule that would have rejected the request.
pub(super) fn report_shadows(hook: &ShadowHook, decision: &Decision, head: RequestHead<'_>) {
    for shadow in decision.shadows().iter().filter(|shadow| !shadow.is_allowed()) {
        hook(&Rejection { error: &RateLimited::new(shadow.clone()), head: Some(head), headers: &Headers::NONE });
    }
}

/// A hook of [`on_rejected`](super::RateLimitLayer::on_rejected).
pub(super) type Hook = dyn Fn(&Rejection<'_>) -> Response<HookBody> + Send + Sync;

/// The hook's response, with the standard headers that it has left out. The rejection is
/// in its extensions.
fn respond(hook: &Hook, error: RateLimited, head: Option<RequestHead<'_>>, headers: &Headers) -> Response<HookBody> {
    let mut response = hook(&Rejection { error: &error, head, headers });
    let map = response.headers_mut();
    for (name, value) in &rejection::headers(&error, headers) {
        // A map with thousands of entries may be full. It then gets none.
        if let Ok(entry) = map.try_entry(name) {
            entry.or_insert_with(|| value.clone());
        }
    }
    response.extensions_mut().insert(error);
    response
}
