//! The answer over HTTP: [`HttpAnswer`], and what a hook of
//! [`on_rejected`](super::RateLimitLayer::on_rejected) sees: [`Rejection`].
//!
//! It decides nothing, and never changes the inner service's error type, since a
//! rejection is a response. The invariant: a header that a hook has set stays.

use std::{
    convert::identity,
    fmt,
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
    AdmissionContext, Answer, Body, RejectionContext, UpstreamFeedback, answer::RejectedRequest, body::HookBody,
};
use crate::{
    decision::{Decision, RateLimited, RateLimitedKind},
    headers::Headers,
    http::{Protocol, RequestHead, rejection},
};

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
