use std::{fmt, time::Duration};

use super::{ChargeHandle, ClientMessages};
use crate::{
    descriptor::{Deadline, Descriptor, grpc},
    http::{Http, Protocol, RequestHead},
};

/// Says what the limiter needs to know of a request.
pub trait Describe<Req> {
    /// The request's descriptor, borrowed from it.
    fn describe<'r>(&'r self, request: &'r Req) -> Descriptor<'r>;

    /// The same where the policy has one rule for all, so that path, route and
    /// method need not be found.
    fn describe_tenant<'r>(&'r self, request: &'r Req) -> Descriptor<'r> {
        self.describe(request)
    }

    /// Hands the request its [`ChargeHandle`], where a rule lets it be settled late.
    /// Without extensions to put it into, it is dropped.
    fn attach(request: &mut Req, charge: ChargeHandle) {
        let _ = (request, charge);
    }

    /// How a rejection has to be answered; asked only where there is one.
    fn protocol(request: &Req) -> Protocol {
        let _ = request;
        Protocol::Other
    }

    /// What is left of the request's own time: of a deadline that it carries.
    fn time_left(request: &Req) -> Duration {
        let _ = request;
        Duration::MAX
    }

    /// Hands the request the meter of what its client streams, where a rule
    /// charges that [per message](crate::Rule::per_message). Without extensions
    /// to put it into, it is dropped.
    fn attach_messages(request: &mut Req, messages: ClientMessages) {
        let _ = (request, messages);
    }

    /// The request goes now, after it has waited for so long: a timeout that
    /// it carries has run meanwhile.
    fn waited(request: &mut Req, waited: Duration) {
        let _ = (request, waited);
    }
}

impl<B> Describe<http::Request<B>> for Http {
    fn describe<'r>(&'r self, request: &'r http::Request<B>) -> Descriptor<'r> {
        self.describe_head(&RequestHead::new(request))
    }

    fn describe_tenant<'r>(&'r self, request: &'r http::Request<B>) -> Descriptor<'r> {
        self.describe_caller(&RequestHead::new(request), Descriptor::new("/"))
    }

    fn attach(request: &mut http::Request<B>, charge: ChargeHandle) {
        // One that does nothing leaves that of a layer around this one.
        if !charge.is_of_nothing() || request.extensions().get::<ChargeHandle>().is_none() {
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
