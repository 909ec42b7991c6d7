//! The tower middleware: [`RateLimitLayer`] and [`RateLimit`].
//!
//! It decides nothing: [`RateLimiter`] does. One
//! [`Service`](tower_service::Service) implementation serves every use. It has two
//! seams: [`Describe`] describes a request to the limiter, [`Answer`] turns decisions
//! into what the caller sees. A description borrows from its request, and
//! has no side effects. The invariant: a request that waits or is rejected
//! occupies no capacity of the inner service.

mod answer;
mod body;
mod charge;
mod feedback;
mod future;
mod layer;
mod messages;

use std::fmt;

use http::{Extensions, HeaderMap};

#[cfg(feature = "tonic")]
pub use self::messages::charge_client_messages;
pub use self::{
    answer::Rejection,
    charge::{ChargeHandle, ConnectionPermit},
    feedback::{CooldownScope, ResponseHead, UpstreamFeedback},
    layer::{RateLimit, RateLimitLayer},
};
// The machinery of the layer. It has names only where a type has to be written out.
#[doc(hidden)]
pub use self::{
    answer::{AdmissionContext, Answer, ErrorAnswer, HttpAnswer, RejectionContext},
    body::Body,
    charge::InFlightGuard,
    future::ResponseFuture,
    messages::ClientMessages,
};
#[doc(hidden)]
pub use crate::http::Http;
pub use crate::http::Protocol;
use crate::{
    descriptor::Descriptor,
    http::{RequestHead, may_have_content},
    limiter::RateLimiter,
};

/// Describes requests to the limiter.
#[doc(hidden)]
pub trait Describe<Req> {
    /// Writes what it knows of the request into its descriptor, which borrows from it.
    fn describe<'r>(&'r self, request: &'r Req, descriptor: &mut Descriptor<'r>);

    /// The request, if it is one of HTTP. The layer then answers its rejection in its
    /// protocol, and gives an admitted one what its handler may need. By default it is
    /// none.
    fn http(request: &mut Req) -> Option<&mut dyn HttpRequest> {
        let _ = request;
        None
    }

    /// Looks for mistakes in the set-up of a layer, which applies one rule or all,
    /// before anything else. Returns whether to reject the request for one. Does
    /// nothing by default.
    fn inspect(&self, request: &mut Req, limiter: &RateLimiter, rule: Option<&str>) -> bool {
        let _ = (request, limiter, rule);
        false
    }
}

/// An HTTP request, whatever its body is.
#[doc(hidden)]
pub trait HttpRequest {
    /// The request without its body.
    fn head(&self) -> RequestHead<'_>;

    /// The headers, of which the layer changes `grpc-timeout` after a wait. Those of a
    /// rejected request are taken: its response uses their memory.
    fn headers_mut(&mut self) -> &mut HeaderMap;

    /// The extensions, for what the handler may need. Those of a rejected request are
    /// taken as well.
    fn extensions_mut(&mut self) -> &mut Extensions;
}

impl<B> HttpRequest for http::Request<B> {
    fn head(&self) -> RequestHead<'_> {
        RequestHead::new(self)
    }

    fn headers_mut(&mut self) -> &mut HeaderMap {
        self.headers_mut()
    }

    fn extensions_mut(&mut self) -> &mut Extensions {
        self.extensions_mut()
    }
}

impl<B: 'static> Describe<http::Request<B>> for Http {
    fn describe<'r>(&'r self, request: &'r http::Request<B>, descriptor: &mut Descriptor<'r>) {
        self.describe_into(descriptor, &RequestHead::new(request), || may_have_content(request));
    }

    fn http(request: &mut http::Request<B>) -> Option<&mut dyn HttpRequest> {
        Some(request)
    }

    fn inspect(&self, request: &mut http::Request<B>, limiter: &RateLimiter, rule: Option<&str>) -> bool {
        self.pass_priority_on(request);
        self.checks_are_open() && self.check(request, limiter, rule)
    }
}

/// Describes requests of any type by a function; see
/// [`RateLimitLayer::keyed`].
#[doc(hidden)]
#[derive(Clone, Copy)]
pub struct Keyed<F>(F);

impl<Req, F> Describe<Req> for Keyed<F>
where
    F: for<'r> Fn(&'r Req) -> Descriptor<'r>,
{
    fn describe<'r>(&'r self, request: &'r Req, descriptor: &mut Descriptor<'r>) {
        *descriptor = (self.0)(request);
    }
}

impl<F> fmt::Debug for Keyed<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keyed")
    }
}
