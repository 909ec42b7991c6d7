//! The seam between requests and the limiter: [`Describe`].
//!
//! A description borrows from the request and has no side effects.

use std::{fmt, time::Duration};

use super::{ChargeHandle, ClientMessages};
use crate::{
    descriptor::{Deadline, Descriptor, grpc},
    http::{Http, Protocol, RequestHead, may_have_content},
};

/// Describes requests to the limiter.
pub trait Describe<Req> {
    /// The request's descriptor, borrowed from it.
    fn describe<'r>(&'r self, request: &'r Req) -> Descriptor<'r>;

    /// The descriptor for a policy with one rule for all requests. It needs no
    /// path, route or method.
    fn describe_tenant<'r>(&'r self, request: &'r Req) -> Descriptor<'r> {
        self.describe(request)
    }

    /// Gives the request its [`ChargeHandle`], if a rule settles afterwards. It
    /// is dropped if the request has no extensions.
    fn attach(request: &mut Req, charge: ChargeHandle) {
        let _ = (request, charge);
    }

    /// The protocol in which to answer a rejection. Called only for rejections.
    fn protocol(request: &Req) -> Protocol {
        let _ = request;
        Protocol::Other
    }

    /// The time until the request's own deadline.
    fn time_left(request: &Req) -> Duration {
        let _ = request;
        Duration::MAX
    }

    /// Gives the request the limiters of its client's messages, if a rule
    /// charges [per message](crate::Rule::per_message). They are dropped if the
    /// request has no extensions.
    fn attach_messages(request: &mut Req, messages: ClientMessages) {
        let _ = (request, messages);
    }

    /// The request is sent after a wait. The wait counts against a timeout that
    /// the request carries.
    fn waited(request: &mut Req, waited: Duration) {
        let _ = (request, waited);
    }
}

impl<B: 'static> Describe<http::Request<B>> for Http {
    fn describe<'r>(&'r self, request: &'r http::Request<B>) -> Descriptor<'r> {
        self.describe_head(&RequestHead::new(request), || may_have_content(request))
    }

    fn describe_tenant<'r>(&'r self, request: &'r http::Request<B>) -> Descriptor<'r> {
        self.describe_caller(&RequestHead::new(request), Descriptor::new("/"), || may_have_content(request))
    }

    fn attach(request: &mut http::Request<B>, charge: ChargeHandle) {
        // An empty handle does not replace that of an outer layer.
        if !charge.is_empty() || request.extensions().get::<ChargeHandle>().is_none() {
            request.extensions_mut().insert(charge);
        }
    }

    fn protocol(request: &http::Request<B>) -> Protocol {
        Protocol::of(request.headers())
    }

    fn time_left(request: &http::Request<B>) -> Duration {
        let deadline = request.extensions().get::<Deadline>().map(Deadline::remaining);
        let timeout = grpc::timeout(request.headers());
        deadline.into_iter().chain(timeout).min().unwrap_or(Duration::MAX)
    }

    fn attach_messages(request: &mut http::Request<B>, messages: ClientMessages) {
        let messages = match request.extensions_mut().remove::<ClientMessages>() {
            Some(outer) => messages.inside(&outer),
            None => messages,
        };
        request.extensions_mut().insert(messages);
    }

    fn waited(request: &mut http::Request<B>, waited: Duration) {
        if let Some(timeout) = grpc::timeout(request.headers()) {
            let left = grpc::timeout_of(timeout.saturating_sub(waited));
            request.headers_mut().insert(grpc::GRPC_TIMEOUT, left);
        }
    }
}

/// Describes requests of any type by a function; see
/// [`RateLimitLayer::keyed`](super::RateLimitLayer::keyed).
#[derive(Clone, Copy)]
pub struct Keyed<F>(pub(super) F);

impl<Req, F> Describe<Req> for Keyed<F>
where
    F: for<'r> Fn(&'r Req) -> Descriptor<'r>,
{
    fn describe<'r>(&'r self, request: &'r Req) -> Descriptor<'r> {
        (self.0)(request)
    }
}

impl<F> fmt::Debug for Keyed<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keyed")
    }
}
