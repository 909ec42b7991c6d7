//! The seam between decisions and what the caller sees: [`Answer`].
//!
//! An answer decides nothing. The invariant: it turns every result of the inner
//! service, and every rejection, into one response or one error.

use std::mem;

use http::Response;

use super::{HttpRequest, InFlightGuard, UpstreamFeedback, body::BoxError};
use crate::{
    decision::{Decision, RateLimited},
    http::{Protocol, RequestHead},
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
    pub(super) fn report<B>(&self, response: &Response<B>, feedback: Option<&UpstreamFeedback>) {
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
    pub(super) fn follow_error(&self, error: BoxError) -> BoxError {
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
    pub(super) http: Option<RejectedRequest<'a>>,
}

/// A rejected HTTP request.
#[derive(Debug)]
pub(super) struct RejectedRequest<'a> {
    /// Without its headers and extensions: they were taken.
    head: RequestHead<'a>,
    /// Has them until it is written, in their memory.
    pub(super) response: Response<()>,
    /// Whether a server must close the connection after the response, because the
    /// request's body stays unread.
    pub(super) ends_connection: bool,
}

impl RejectedRequest<'_> {
    pub(super) fn head(&self) -> RequestHead<'_> {
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
