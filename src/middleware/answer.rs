use std::{error::Error, fmt, sync::Arc};

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::Full;

use super::{Body, InFlightGuard, UpstreamFeedback};
use crate::{
    decision::{Decision, RateLimited},
    headers::Headers,
    http::{Protocol, grpc, problem},
};

/// Turns decisions into what the caller sees.
pub trait Answer<Res, Err> {
    /// What the limited service responds with.
    type Response;
    /// What the limited service fails with.
    type Error;

    /// Whether [`Answer::admitted`] looks at the decision. Where it does not,
    /// the one handed over may say that nothing was limited.
    fn uses_decision(&self) -> bool {
        true
    }

    /// Whether [`Answer::admitted_holding`] is to be called for every request
    /// that a rule applies to, whether it holds anything in flight or not: to
    /// tell what the provider says of its limits.
    fn needs_feedback(&self) -> bool {
        false
    }

    /// The inner service failed before it took a request.
    fn unready(&self, error: Err) -> Self::Error;

    /// The request went, and this came of it.
    ///
    /// # Errors
    ///
    /// Those of the inner service.
    fn admitted(&self, result: Result<Res, Err>, decision: &Decision) -> Result<Self::Response, Self::Error>;

    /// The status of what came of it, where it has one: some rules count by
    /// it. Without one they count every request.
    fn status(&self, result: &Result<Res, Err>) -> Option<StatusCode> {
        let _ = result;
        None
    }

    /// As [`Answer::admitted`], for a request that holds something for as
    /// long as it is in flight. Whoever can tell when the response has gone
    /// keeps `holding` until then; else it is over now.
    ///
    /// # Errors
    ///
    /// Those of the inner service.
    fn admitted_holding(
        &self,
        result: Result<Res, Err>,
        decision: &Decision,
        holding: InFlightGuard,
    ) -> Result<Self::Response, Self::Error> {
        drop(holding);
        self.admitted(result, decision)
    }

    /// The request was rejected.
    ///
    /// # Errors
    ///
    /// The rejection, where it is answered as an error.
    fn rejected(&self, rejection: RateLimited) -> Result<Self::Response, Self::Error>;

    /// As [`Answer::rejected`], for a request that speaks `protocol`.
    ///
    /// # Errors
    ///
    /// The rejection, where it is answered as an error.
    fn rejected_over(&self, rejection: RateLimited, protocol: Protocol) -> Result<Self::Response, Self::Error> {
        drop(protocol);
        self.rejected(rejection)
    }
}

type Hook = Arc<dyn Fn(&RateLimited) -> Response<Full<Bytes>> + Send + Sync>;

/// Answers over HTTP: stamps rate limit headers, and turns a rejection into a
/// response, of gRPC's kind where the request is a gRPC call. The inner
/// service's error type stays as it is.
#[derive(Clone, Default)]
pub struct Respond {
    pub(super) headers: Headers,
    pub(super) hook: Option<Hook>,
    /// On a client: does what the provider says.
    pub(super) feedback: Option<UpstreamFeedback>,
    pub(super) pushback: bool,
}

impl<B, Err> Answer<Response<B>, Err> for Respond {
    type Response = Response<Body<B>>;
    type Error = Err;

    fn uses_decision(&self) -> bool {
        self.headers != Headers::NONE
    }

    fn needs_feedback(&self) -> bool {
        self.feedback.is_some()
    }

    fn unready(&self, error: Err) -> Err {
        error
    }

    fn admitted(&self, result: Result<Response<B>, Err>, decision: &Decision) -> Result<Response<Body<B>>, Err> {
        let mut response = result?;
        if !decision.tiers().is_empty() {
            self.headers.stamp(response.headers_mut(), decision, decision.decided_at());
        }
        Ok(response.map(Body::inner))
    }

    fn status(&self, result: &Result<Response<B>, Err>) -> Option<StatusCode> {
        Some(result.as_ref().map_or(StatusCode::INTERNAL_SERVER_ERROR, Response::status))
    }

    fn admitted_holding(
        &self,
        result: Result<Response<B>, Err>,
        decision: &Decision,
        mut holding: InFlightGuard,
    ) -> Result<Response<Body<B>>, Err> {
        if let (Some(feedback), Ok(response)) = (&self.feedback, &result) {
            feedback.read(response, &holding);
        }
        let meter = holding.take_meter();
        let response = self.admitted(result, decision)?;
        // It is the answer that shows what it is: what a request says of itself
        // may be untrue. A provider's messages are its own affair.
        let counts = |_: &_| self.feedback.is_none() && Protocol::of(response.headers()).frames_messages();
        let meter = meter.filter(counts);
        Ok(response.map(|body| body.holding(holding, meter)))
    }

    fn rejected(&self, rejection: RateLimited) -> Result<Response<Body<B>>, Err> {
        let response = match &self.hook {
            None => problem::rejection(rejection, &self.headers),
            Some(hook) => {
                let mut response = hook(&rejection);
                response.extensions_mut().insert(rejection);
                response
            }
        };
        Ok(response.map(Body::rejection))
    }

    fn rejected_over(&self, rejection: RateLimited, protocol: Protocol) -> Result<Response<Body<B>>, Err> {
        match protocol {
            Protocol::Grpc { content_type } => {
                Ok(grpc::rejection(rejection, &self.headers, content_type, self.pushback).map(Body::rejection))
            }
            Protocol::Other => Answer::<Response<B>, Err>::rejected(self, rejection),
        }
    }
}

impl fmt::Debug for Respond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Respond").field("headers", &self.headers).finish_non_exhaustive()
    }
}

/// Answers a rejection with [`RateLimited`] as the error; responses pass as they
/// are.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fail;

impl<Res, Err> Answer<Res, Err> for Fail
where
    Err: Into<Box<dyn Error + Send + Sync>>,
{
    type Response = Res;
    type Error = Box<dyn Error + Send + Sync>;

    fn uses_decision(&self) -> bool {
        false
    }

    fn unready(&self, error: Err) -> Self::Error {
        error.into()
    }

    fn admitted(&self, result: Result<Res, Err>, _: &Decision) -> Result<Res, Self::Error> {
        result.map_err(Into::into)
    }

    fn rejected(&self, rejection: RateLimited) -> Result<Res, Self::Error> {
        Err(rejection.into())
    }
}
