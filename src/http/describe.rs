//! Describes HTTP requests to the limiter: [`Http`].
//!
//! It decides nothing. The invariant: on a client it ignores extensions that a server
//! has set, since a forwarded request still carries them.

use std::{any::Any, fmt, sync::Arc};

use http::{
    HeaderValue, Method, Request, Version,
    header::{ACCESS_CONTROL_REQUEST_METHOD, CONTENT_LENGTH, CONTENT_TYPE, TRANSFER_ENCODING},
};

use super::{
    RequestHead, TenantExtractor,
    checks::{Checks, SeenBy, Setup},
    cost::CostExtractor,
    priority::PriorityExtractor,
    tenant::{UpstreamHost, peer_ip},
};
use crate::{
    descriptor::{Descriptor, HttpTarget, MissingTenant, Priority, StatedCost},
    limiter::RateLimiter,
};

/// Describes HTTP requests: path, method, route and tenant. What can be set is explained at
/// the methods of [`RateLimitLayer`](crate::RateLimitLayer) that set it.
#[derive(Clone)]
#[must_use]
pub struct Http {
    pub(crate) tenant: Arc<dyn TenantExtractor>,
    /// `None`: as each rule says.
    pub(crate) missing_tenant: Option<MissingTenant>,
    /// `None`: on, except on tonic's server.
    pub(crate) exempt_preflight: Option<bool>,
    pub(crate) cost: Option<Arc<dyn CostExtractor>>,
    /// In other units.
    pub(crate) costs: Vec<(Arc<str>, Arc<dyn CostExtractor>)>,
    pub(crate) priority: Option<Arc<dyn PriorityExtractor>>,
    pub(crate) skip: Option<Arc<Skip>>,
    pub(crate) keys: Vec<(Arc<str>, Arc<dyn TenantExtractor>)>,
    /// Whether the extractor was set.
    pub(crate) has_own_tenant: bool,
    /// Whether a mistake in the set-up rejects requests.
    pub(crate) is_strict: bool,
    side: Side,
    checks: Arc<Checks>,
}

/// Whether no rule applies to a request.
type Skip = dyn Fn(&RequestHead<'_>) -> bool + Send + Sync;

/// The side of the connection that the layer is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Server,
    Client,
}

impl Http {
    /// Incoming requests. The tenant is the peer's address. CORS preflights are
    /// exempt, except on tonic's server.
    pub fn server() -> Self {
        Self::new(Side::Server, Arc::new(peer_ip()), None)
    }

    /// Outgoing requests. The tenant is the host that the request is sent to.
    ///
    /// Extensions of a router or a server are ignored: a forwarded request
    /// still carries those of the incoming one.
    pub fn client() -> Self {
        Self::new(Side::Client, Arc::new(UpstreamHost), Some(false))
    }

    fn new(side: Side, tenant: Arc<dyn TenantExtractor>, exempt_preflight: Option<bool>) -> Self {
        Self {
            tenant,
            missing_tenant: None,
            exempt_preflight,
            cost: None,
            costs: Vec::new(),
            priority: None,
            skip: None,
            keys: Vec::new(),
            has_own_tenant: false,
            is_strict: false,
            side,
            checks: Arc::default(),
        }
    }

    /// Whether the layer still looks for mistakes.
    pub(crate) fn checks_are_open(&self) -> bool {
        self.side == Side::Server && self.checks.are_open()
    }

    /// Looks for mistakes. Returns whether the request has to be rejected for one.
    pub(crate) fn check<B: 'static>(
        &self,
        request: &mut Request<B>,
        limiter: &RateLimiter,
        rule: Option<&str>,
    ) -> bool {
        let head = RequestHead::new(request);
        let mut descriptor = Descriptor::new("");
        self.identify(&mut descriptor, &head, || may_have_content(request));
        descriptor.rule = rule;
        let setup = Setup {
            rule,
            counted_as: (!descriptor.exempt).then_some(descriptor),
            keys: self.keys.iter().map(|(name, _)| &**name).collect(),
            extractor: &*self.tenant,
            chooses_tenant: self.has_own_tenant,
            chooses_missing: self.missing_tenant.is_some(),
            is_strict: self.is_strict,
        };
        let rejects = self.checks.look(&setup, &head, limiter);
        SeenBy::add(request.extensions_mut(), limiter, rule);
        rejects
    }

    /// On a client, lets the upstream know the priority of the request's extensions.
    pub(crate) fn pass_priority_on<B>(&self, request: &mut Request<B>) {
        if let Some(name) = self.priority.as_ref().and_then(|extractor| extractor.header())
            && self.side == Side::Client
            && let Some(priority) = request.extensions().get::<Priority>().copied()
        {
            let value = HeaderValue::from_static(priority.as_str());
            request.headers_mut().entry(name).or_insert(value);
        }
    }

    pub(crate) fn describe_head<'r>(
        &'r self,
        head: &RequestHead<'r>,
        has_content: impl FnOnce() -> bool,
    ) -> Descriptor<'r> {
        let mut descriptor = Descriptor::new("");
        self.describe_into(&mut descriptor, head, has_content);
        descriptor
    }

    /// In place: a descriptor is large to move. `has_content` tells it of the body, where no
    /// header does.
    pub(crate) fn describe_into<'r>(
        &'r self,
        descriptor: &mut Descriptor<'r>,
        head: &RequestHead<'r>,
        has_content: impl FnOnce() -> bool,
    ) {
        self.identify(descriptor, head, has_content);
        if descriptor.exempt {
            return;
        }
        if let Some(extractor) = &self.cost {
            descriptor.cost = extractor.cost(head);
        }
        for (unit, extractor) in &self.costs {
            let at_most = || StatedCost::AtMost(extractor.cost(head));
            descriptor.insert_cost(unit, extractor.known(head).map_or_else(at_most, StatedCost::Exactly));
        }
        descriptor.priority = self.priority.as_ref().and_then(|extractor| extractor.priority(head));
    }

    /// Where the request is sent, and whose it is.
    fn identify<'r>(
        &'r self,
        descriptor: &mut Descriptor<'r>,
        head: &RequestHead<'r>,
        has_content: impl FnOnce() -> bool,
    ) {
        let router = (self.side == Side::Server).then_some(head.extensions());
        descriptor.set_http_target(HttpTarget { uri: head.uri(), router });
        descriptor.method = head.method().as_str();
        descriptor.extensions = Some(head.extensions());
        descriptor.headers = Some(head.headers());
        if let Some(choice) = self.missing_tenant {
            descriptor.missing_tenant = choice;
            descriptor.missing_key = Some(choice);
        }
        descriptor.exempt = self.exempts(head, has_content);
        if descriptor.exempt {
            return;
        }
        descriptor.tenant = self.tenant.extract(head);
        descriptor.ambiguous_tenant = descriptor.tenant.is_none() && self.tenant.is_ambiguous(head);
        for (name, extractor) in &self.keys {
            let key = extractor.extract(head);
            if key.is_some() || extractor.is_ambiguous(head) {
                descriptor.insert_key(name, key);
            }
        }
    }

    fn exempts(&self, head: &RequestHead<'_>, has_content: impl FnOnce() -> bool) -> bool {
        // Tonic serves a method for `OPTIONS` too, and a stream of no messages has no
        // content.
        let exempts_preflight = || self.exempt_preflight.unwrap_or_else(|| !is_served_by_tonic(head));
        is_preflight(head, has_content) && exempts_preflight() || self.skip.as_ref().is_some_and(|skip| skip(head))
    }
}

/// A browser never sends content with a preflight. A caller that disguises a
/// request as one does.
fn is_preflight(head: &RequestHead<'_>, has_content: impl FnOnce() -> bool) -> bool {
    let headers = head.headers();
    *head.method() == Method::OPTIONS
        && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
        && !headers.contains_key(CONTENT_TYPE)
        && !headers.contains_key(TRANSFER_ENCODING)
        && headers.get(CONTENT_LENGTH).map_or_else(|| !has_content(), |length| length == "0")
}

/// Whether a request without `Content-Length` and `Transfer-Encoding` may have
/// content. Over HTTP/1 it has none. Over HTTP/2 only the body knows, and a body
/// of an unknown type may have some.
pub(crate) fn may_have_content<B: 'static>(request: &Request<B>) -> bool {
    request.version() > Version::HTTP_11 && has_ended(request.body()) != Some(true)
}

/// Whether a body that has not been polled has no content; `None` if its type
/// is unknown. The layer puts no bound on bodies by which it could ask any.
fn has_ended(body: &dyn Any) -> Option<bool> {
    #[cfg(any(feature = "axum", feature = "tonic"))]
    if let Some(body) = body.downcast_ref::<hyper::body::Incoming>() {
        return Some(http_body::Body::is_end_stream(body));
    }
    #[cfg(feature = "axum")]
    if let Some(body) = body.downcast_ref::<axum::body::Body>() {
        return Some(http_body::Body::is_end_stream(body));
    }
    #[cfg(feature = "tonic")]
    if let Some(body) = body.downcast_ref::<tonic::body::Body>() {
        return Some(http_body::Body::is_end_stream(body));
    }
    let _ = body;
    None
}

/// Tonic's server inserts its connection info into the extensions.
fn is_served_by_tonic(head: &RequestHead<'_>) -> bool {
    let extensions = head.extensions();
    #[cfg(feature = "tonic")]
    if extensions.get::<tonic::transport::server::TcpConnectInfo>().is_some() {
        return true;
    }
    #[cfg(all(feature = "tonic", unix))]
    if extensions.get::<tonic::transport::server::UdsConnectInfo>().is_some() {
        return true;
    }
    let _ = extensions;
    false
}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http")
            .field("side", &self.side)
            .field("missing_tenant", &self.missing_tenant)
            .field("exempt_preflight", &self.exempt_preflight)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
