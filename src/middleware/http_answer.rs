//! The answer over HTTP: [`HttpAnswer`].
//!
//! It never changes the inner service's error type: a rejection is a response.

use std::{fmt, sync::Arc};

use http::{
    HeaderValue, Response, StatusCode,
    header::{CONNECTION, Entry},
};

use super::{AdmissionContext, Answer, Body, InFlightGuard, RejectionContext, UpstreamFeedback, rejection::Hook};
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
    /// Apart, since each response's future holds a clone.
    custom: Option<Arc<Custom>>,
}

/// What few layers set.
#[derive(Clone, Default)]
pub(super) struct Custom {
    pub(super) on_rejected: Option<Hook>,
    /// On a client: follows the upstream's responses.
    pub(super) feedback: Option<UpstreamFeedback>,
    pub(super) grpc_pushback: bool,
}

impl HttpAnswer {
    pub(super) fn customize(&mut self) -> &mut Custom {
        Arc::make_mut(self.custom.get_or_insert_default())
    }

    #[inline]
    fn feedback(&self) -> Option<&UpstreamFeedback> {
        self.custom.as_ref()?.feedback.as_ref()
    }

    #[inline]
    fn stamp<B>(&self, response: &mut Response<B>, decision: &Decision) {
        if !decision.tiers().is_empty() {
            self.headers.stamp(response.headers_mut(), decision);
        }
    }

    /// Kept out of line: most responses have no guard.
    #[inline(never)]
    fn admitted_under<B, Err>(
        &self,
        mut guard: InFlightGuard,
        result: Result<Response<B>, Err>,
        decision: &Decision,
    ) -> Result<Response<Body<B>>, Err> {
        guard.report_status(result.as_ref().map_or(StatusCode::INTERNAL_SERVER_ERROR, Response::status));
        if let Ok(response) = &result {
            let is_rejected = response.extensions().get().is_some_and(|by| guard.report_rejection(by));
            if let Some(feedback) = self.feedback().filter(|_| !is_rejected) {
                feedback.read(response, &guard);
            }
        }
        let mut response = result?;
        guard.report_upgrade(response.status());
        self.stamp(&mut response, decision);
        if !guard.outlives_response() {
            return Ok(response.map(Body::inner));
        }
        // The response shows whether this is gRPC; a request may claim it. A
        // client does not limit its upstream's messages.
        let is_limited = |_: &_| self.feedback().is_none() && Protocol::of(response.headers()).frames_messages();
        let messages = guard.take_server_messages().filter(is_limited);
        Ok(response.map(|body| Body::in_flight(body, guard, messages)))
    }
}

impl<B, Err> Answer<Response<B>, Err> for HttpAnswer {
    type Response = Response<Body<B>>;
    type Error = Err;

    #[inline]
    fn needs_decision(&self) -> bool {
        self.headers.describe_admissions()
    }

    #[inline]
    fn needs_guard(&self) -> bool {
        self.feedback().is_some()
    }

    fn unready(&self, error: Err) -> Err {
        error
    }

    /// Kept out of line: it then writes the response where it is returned. Inlined, the
    /// response was moved twice more.
    #[inline(never)]
    fn admitted(
        &self,
        mut result: Result<Response<B>, Err>,
        admission: AdmissionContext<'_>,
    ) -> Result<Response<Body<B>>, Err> {
        let decision = admission.decision();
        match admission.into_guard() {
            Some(guard) => self.admitted_under(guard, result, decision),
            None => {
                if let Ok(response) = &mut result {
                    self.stamp(response, decision);
                }
                result.map(|response| response.map(Body::inner))
            }
        }
    }

    fn rejected(&self, rejection: RejectionContext<'_>) -> Result<Response<Body<B>>, Err> {
        let RejectionContext { error, protocol, head, extensions, ends_connection } = rejection;
        let ends_connection = ends_connection && self.feedback().is_none();
        let custom = self.custom.as_deref();
        let mut response = match (protocol, custom.and_then(|custom| custom.on_rejected.as_ref())) {
            (Protocol::Grpc { content_type }, _) => {
                let pushback = custom.is_some_and(|custom| custom.grpc_pushback);
                grpc::rejection(error, &self.headers, content_type, pushback).map(Body::rejection)
            }
            (Protocol::Other, None) => {
                problem::rejection(error, &self.headers, extensions.unwrap_or_default(), Body::rejection)
            }
            (Protocol::Other, Some(hook)) => {
                let head = head.map(|head| head.with_extensions(extensions.as_ref()));
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
