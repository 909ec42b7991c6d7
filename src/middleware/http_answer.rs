//! The answer over HTTP: [`HttpAnswer`].
//!
//! It never changes the inner service's error type: a rejection is a response.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::Full;

use super::{AdmissionContext, Answer, Body, RejectionContext, UpstreamFeedback};
use crate::{
    decision::RateLimited,
    headers::Headers,
    http::{Protocol, grpc, problem},
};

type Hook = Arc<dyn Fn(&RateLimited) -> Response<Full<Bytes>> + Send + Sync>;

/// Answers over HTTP: stamps rate limit headers, and answers a rejection with a
/// response, or with a gRPC status if the request is a gRPC call.
#[derive(Clone, Default)]
pub struct HttpAnswer {
    pub(super) headers: Headers,
    pub(super) on_rejected: Option<Hook>,
    /// On a client: follows the upstream's responses.
    pub(super) feedback: Option<Arc<UpstreamFeedback>>,
    pub(super) grpc_pushback: bool,
}

impl<B, Err> Answer<Response<B>, Err> for HttpAnswer {
    type Response = Response<Body<B>>;
    type Error = Err;

    fn needs_decision(&self) -> bool {
        self.headers != Headers::NONE
    }

    fn needs_guard(&self) -> bool {
        self.feedback.is_some()
    }

    fn unready(&self, error: Err) -> Err {
        error
    }

    fn admitted(
        &self,
        result: Result<Response<B>, Err>,
        admission: AdmissionContext<'_>,
    ) -> Result<Response<Body<B>>, Err> {
        if let Some(guard) = admission.guard() {
            guard.report_status(result.as_ref().map_or(StatusCode::INTERNAL_SERVER_ERROR, Response::status));
            if let (Some(feedback), Ok(response)) = (&self.feedback, &result) {
                feedback.read(response, guard);
            }
        }
        let mut response = result?;
        if let (StatusCode::SWITCHING_PROTOCOLS, Some(guard)) = (response.status(), admission.guard()) {
            guard.upgrades();
        }
        let decision = admission.decision();
        if !decision.tiers().is_empty() {
            self.headers.stamp(response.headers_mut(), decision, decision.decided_at());
        }
        let Some(mut guard) = admission.into_guard() else { return Ok(response.map(Body::inner)) };
        // The response shows whether this is gRPC; a request may claim it. A
        // client does not limit its upstream's messages.
        let is_limited = |_: &_| self.feedback.is_none() && Protocol::of(response.headers()).frames_messages();
        let messages = guard.take_server_messages().filter(is_limited);
        Ok(response.map(|body| Body::in_flight(body, guard, messages)))
    }

    fn rejected(&self, rejection: RejectionContext) -> Result<Response<Body<B>>, Err> {
        let RejectionContext { error, protocol } = rejection;
        let response = match (protocol, &self.on_rejected) {
            (Protocol::Grpc { content_type }, _) => {
                grpc::rejection(error, &self.headers, content_type, self.grpc_pushback)
            }
            (Protocol::Other, None) => problem::rejection(error, &self.headers),
            (Protocol::Other, Some(hook)) => {
                let mut response = hook(&error);
                response.extensions_mut().insert(error);
                response
            }
        };
        Ok(response.map(Body::rejection))
    }
}

impl fmt::Debug for HttpAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpAnswer").field("headers", &self.headers).finish_non_exhaustive()
    }
}
