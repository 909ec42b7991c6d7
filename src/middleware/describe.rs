//! The seam between requests and the limiter: [`Describe`].
//!
//! A description borrows from the request and has no side effects.

use std::{fmt, mem, time::Duration};

use http::Extensions;

use super::{ChargeHandle, ClientMessages, ConnectionPermit};
use crate::{
    decision::Decision,
    descriptor::{Deadline, Descriptor, Tenant, grpc},
    http::{Http, RequestHead, SeenBy, may_have_content},
    limiter::RateLimiter,
};

/// Describes requests to the limiter.
pub trait Describe<Req> {
    /// The request's descriptor, borrowed from it.
    fn describe<'r>(&'r self, request: &'r Req) -> Descriptor<'r>;

    /// Describes a request to a policy with one rule for all requests, which needs
    /// no path, route or method. In place: a descriptor is large.
    fn describe_tenant<'r>(&'r self, request: &'r Req, descriptor: &mut Descriptor<'r>) {
        *descriptor = self.describe(request);
    }

    /// Gives the request its [`ChargeHandle`], if a rule settles afterwards. It
    /// is dropped if the request has no extensions.
    fn attach(request: &mut Req, charge: ChargeHandle) {
        let _ = (request, charge);
    }

    /// Looks for mistakes in the set-up of a layer, which applies one rule or all,
    /// before anything else. Returns whether to reject the request for one. Does
    /// nothing by default.
    fn inspect(&self, request: &mut Req, limiter: &RateLimiter, rule: Option<&str>) -> bool {
        let _ = (request, limiter, rule);
        false
    }

    /// The head of an HTTP request, by which a rejection is answered: it tells
    /// gRPC from the rest. Called only for rejections.
    fn head(request: &Req) -> Option<RequestHead<'_>> {
        let _ = request;
        None
    }

    /// Takes the extensions of a rejected HTTP request: its response reuses their memory.
    /// An answer still sees them. By default none are taken.
    fn take_extensions(request: &mut Req) -> Option<Extensions> {
        let _ = request;
        None
    }

    /// Gives the request the tenant that was found, if the layer
    /// [exposes](crate::RateLimitLayer::expose) it. Called before the decision.
    fn attach_tenant(request: &mut Req, tenant: Tenant) {
        let _ = (request, tenant);
    }

    /// Gives an admitted request its decision, if the layer
    /// [exposes](crate::RateLimitLayer::expose) it.
    fn attach_decision(request: &mut Req, decision: Decision) {
        let _ = (request, decision);
    }

    /// Whether a success upgrades the request's connection, which then outlives
    /// the response. A response of 101 does in any case.
    fn asks_for_upgrade(request: &Req) -> bool {
        let _ = request;
        false
    }

    /// Whether the connection may outlive the response, if the service agrees.
    fn may_upgrade(request: &Req) -> bool {
        Self::asks_for_upgrade(request)
    }

    /// Gives a request that [may upgrade](Self::may_upgrade) its connection the
    /// permit to keep for it. It is dropped if the request has no extensions.
    fn attach_connection(request: &mut Req, permit: ConnectionPermit) {
        let _ = (request, permit);
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

    fn describe_tenant<'r>(&'r self, request: &'r http::Request<B>, descriptor: &mut Descriptor<'r>) {
        self.describe_caller(&RequestHead::new(request), descriptor, || may_have_content(request));
    }

    fn attach(request: &mut http::Request<B>, charge: ChargeHandle) {
        // An empty handle does not replace that of an outer layer.
        if !charge.is_empty() || request.extensions().get::<ChargeHandle>().is_none() {
            request.extensions_mut().insert(charge);
        }
    }

    #[inline]
    fn inspect(&self, request: &mut http::Request<B>, limiter: &RateLimiter, rule: Option<&str>) -> bool {
        if !self.checks_are_open() {
            return false;
        }
        let is_wrong = self.check(&RequestHead::new(request), || may_have_content(request), limiter, rule);
        let mut seen = request.extensions_mut().remove::<SeenBy>().unwrap_or_default();
        seen.push(limiter, rule);
        request.extensions_mut().insert(seen);
        is_wrong
    }

    fn head(request: &http::Request<B>) -> Option<RequestHead<'_>> {
        Some(RequestHead::new(request))
    }

    fn take_extensions(request: &mut http::Request<B>) -> Option<Extensions> {
        Some(mem::take(request.extensions_mut()))
    }

    fn attach_tenant(request: &mut http::Request<B>, tenant: Tenant) {
        request.extensions_mut().insert(tenant);
    }

    fn attach_decision(request: &mut http::Request<B>, decision: Decision) {
        request.extensions_mut().insert(decision);
    }

    /// A tunnel, or a WebSocket over HTTP/2 (extended CONNECT, RFC 8441).
    fn asks_for_upgrade(request: &http::Request<B>) -> bool {
        request.method() == http::Method::CONNECT
    }

    fn may_upgrade(request: &http::Request<B>) -> bool {
        <Self as Describe<http::Request<B>>>::asks_for_upgrade(request)
            || request.headers().contains_key(http::header::UPGRADE)
    }

    fn attach_connection(request: &mut http::Request<B>, permit: ConnectionPermit) {
        let outer = request.extensions_mut().remove::<ConnectionPermit>();
        request.extensions_mut().insert(permit.inside(outer));
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
