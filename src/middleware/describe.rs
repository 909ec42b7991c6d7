use std::fmt;

use super::Charge;
use crate::{
    descriptor::Descriptor,
    http::{Http, RequestHead},
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

    /// Hands the request its [`Charge`], where a rule lets it be settled late.
    /// Without extensions to put it into, it is dropped.
    fn attach(request: &mut Req, charge: Charge) {
        let _ = (request, charge);
    }
}

impl<B> Describe<http::Request<B>> for Http {
    fn describe<'r>(&'r self, request: &'r http::Request<B>) -> Descriptor<'r> {
        self.describe_head(&RequestHead::new(request))
    }

    fn describe_tenant<'r>(&'r self, request: &'r http::Request<B>) -> Descriptor<'r> {
        self.describe_caller(&RequestHead::new(request), Descriptor::new("/"))
    }

    fn attach(request: &mut http::Request<B>, charge: Charge) {
        request.extensions_mut().insert(charge);
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
