//! The answer over HTTP: [`HttpAnswer`].
//!
//! It decides nothing. The invariant: it never changes the inner service's error type,
//! since a rejection is a response.

use std::{fmt, sync::Arc};

use http::{
    HeaderValue, Response, StatusCode,
    header::{CONNECTION, Entry},
};

use super::{
    AdmissionContext, Answer, Body, InFlightGuard, RejectionContext, UpstreamFeedback, answer::RejectedRequest,
    feedback, rejection::Hook,
};
use crate::{
    decision::Decision,
    headers::Headers,
    http::{Protocol, grpc, problem},
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
    pub(super) on_rejected: Option<Hook>,
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
        if !decision.tiers().is_empty() {
            self.headers.stamp(response.headers_mut(), decision);
        }
    }

    /// Reports a response to its guard. Returns the guard if it has to outlive the
    /// response.
    fn report<B>(&self, mut guard: InFlightGuard, response: &Response<B>) -> Option<InFlightGuard> {
        feedback::report(response, &guard, self.feedback());
        guard.report_upgrade(response.status());
        // The response shows whether this is gRPC; a request may claim it. A
        // client does not limit its upstream's messages.
        if self.feedback().is_some() || !Protocol::of(response.headers()).frames_messages() {
            guard.ignore_messages();
        }
        guard.outlives_response().then_some(guard)
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
        let decision = admission.decision();
        let guard = admission.into_guard();
        if let (Err(_), Some(guard)) = (&result, &guard) {
            guard.report_status(StatusCode::INTERNAL_SERVER_ERROR);
        }
        let mut response = result?;
        let guard = guard.and_then(|guard| self.report(guard, &response));
        self.stamp(&mut response, decision);
        Ok(response.map(|body| Body::inner(body, guard)))
    }

    fn rejected(&self, rejection: RejectionContext<'_>) -> Result<Response<Body<B>>, Err> {
        let RejectionContext { error, protocol, http } = rejection;
        let ends_connection = self.feedback().is_none() && http.as_ref().is_some_and(|http| http.ends_connection);
        let rare = self.rare.as_deref();
        let mut response = match (protocol, rare.and_then(|rare| rare.on_rejected.as_ref())) {
            (Protocol::Grpc { content_type }, _) => {
                let pushback = rare.is_some_and(|rare| rare.grpc_pushback);
                grpc::rejection(error, &self.headers, content_type, pushback).map(Body::rejection)
            }
            (Protocol::Other, None) => {
                let extensions = http.map(|http| http.extensions).unwrap_or_default();
                problem::rejection(error, &self.headers, extensions, Body::rejection)
            }
            (Protocol::Other, Some(hook)) => {
                let head = http.as_ref().map(RejectedRequest::head);
                hook.respond(error, head, &self.headers).map(Body::hook)
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
