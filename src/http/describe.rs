//! Describes HTTP requests to the limiter: [`Http`]; and looks for mistakes in how it is set up.
//!
//! It decides nothing. The invariant: on a client it ignores extensions that a server
//! has set, since a forwarded request still carries them.

use std::{
    any::Any,
    collections::{HashMap, HashSet},
    fmt,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
};

use http::{
    Extensions, HeaderValue, Method, Request, Version,
    header::{ACCESS_CONTROL_REQUEST_METHOD, CONTENT_LENGTH, CONTENT_TYPE, FORWARDED, TRANSFER_ENCODING},
};

use super::{
    RequestHead, TenantExtractor,
    client_ip::peer,
    cost::CostExtractor,
    priority::PriorityExtractor,
    tenant::{UpstreamHost, peer_ip},
};
use crate::{
    descriptor::{Descriptor, HttpTarget, MissingTenant, Priority, StatedCost, TenantId},
    limiter::RateLimiter,
    observe::{Mistake, Reported},
    sync::lock,
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
            descriptor.on_missing = Some(choice);
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

/// The requests of a layer that are looked at.
const FIRST: u32 = 1_000;

/// So many requests of a rule that lack one of its keys are a mistake, if none had it.
const LACKING: u32 = 20;

/// In place of a number of requests without a key: one had it.
const FOUND: u32 = u32::MAX;

/// What was looked at, and what was reported.
#[derive(Debug, Default)]
struct Checks {
    /// The requests that were looked at, and were not rejected.
    passed: AtomicU32,
    reported: Reported,
    /// The tenants that the policy names.
    tenants: OnceLock<HashSet<String>>,
    /// By rule and key: the requests without it.
    without_key: Mutex<HashMap<String, u32>>,
}

/// Looks for mistakes in how a layer is set up, at its first requests only;
/// `Policy::warnings` looks at the policy alone. After them, a request costs one load and a
/// branch, except where a strict layer rejects every request.
impl Http {
    /// Whether the layer still looks for mistakes.
    pub(crate) fn checks_are_open(&self) -> bool {
        self.side == Side::Server && self.checks.passed.load(Ordering::Relaxed) < FIRST
    }

    /// Looks at a request. Returns whether to reject it for a mistake.
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
        // A strict layer rejects for as long as it stays wrong.
        let rejects = self.is_wrong(&descriptor, &head, limiter) && self.is_strict;
        if !rejects {
            self.checks.passed.fetch_add(1, Ordering::Relaxed);
        }
        SeenBy::add(request.extensions_mut(), limiter, rule);
        rejects
    }

    /// Whether a mistake makes every request wrong.
    fn is_wrong(&self, request: &Descriptor<'_>, head: &RequestHead<'_>, limiter: &RateLimiter) -> bool {
        let report = |mistake, detail: &dyn fmt::Display| self.checks.reported.report(mistake, detail);
        let seen = head.extensions().get::<SeenBy>();
        if seen.is_some_and(|seen| seen.contains(limiter, request.rule)) {
            report(Mistake::LayeredTwice, &head.uri().path());
            return true;
        }
        if let Some(id) = request.rule.filter(|id| !limiter.has_rule(id)) {
            report(Mistake::UnknownRule, &format_args!("rule `{id}`"));
            return true;
        }
        let is_wrong = !request.exempt && self.keys_are_wrong(request, limiter);
        if !limiter.counts_tenants() {
            return is_wrong;
        }
        let tenant = self.tenant.extract(head);
        let proxies = self.tenant.proxies();
        let headers = head.headers();
        let is_forwarded = || headers.contains_key(FORWARDED) || headers.contains_key("x-forwarded-for");
        match &tenant {
            None if proxies.is_some() && peer(head).is_none() => {
                report(Mistake::NoPeerAddress, &"no `ConnectInfo` and no `PeerAddr` in the extensions");
                return true;
            }
            None if self.has_own_tenant && self.missing_tenant.is_none() && !self.tenant.is_ambiguous(head) => {
                report(Mistake::NoTenant, &head.uri().path());
            }
            Some(tenant) if matches!(tenant.id(), TenantId::Address(_)) => match proxies {
                Some(proxies) if !proxies.trust_any() && is_forwarded() => {
                    report(Mistake::UntrustedProxy, &"X-Forwarded-For or Forwarded");
                }
                Some(proxies) => {
                    if let Some((address, reason)) = proxies.suspect(head) {
                        report(Mistake::SuspectProxy, &format_args!("{address}: {reason}"));
                    }
                }
                None => {}
            },
            _ => {}
        }
        let known = self.checks.tenants.get_or_init(|| limiter.named_tenants());
        let id = tenant.as_ref().map(|tenant| tenant.whole_id().to_string());
        if !known.is_empty() && id.is_none_or(|id| !known.contains(&id)) {
            let names = |value: &HeaderValue| value.to_str().is_ok_and(|value| known.contains(value.trim()));
            if let Some((name, _)) = headers.iter().find(|(_, value)| names(value)) {
                report(Mistake::OtherHeader, name);
            }
        }
        is_wrong
    }

    /// Whether a rule counts the request by a key that the layer does not look for, or that
    /// no request had, and no setting says what happens then. A strict layer does not wait for
    /// more requests without the key.
    fn keys_are_wrong(&self, request: &Descriptor<'_>, limiter: &RateLimiter) -> bool {
        let keys: Vec<&str> = self.keys.iter().map(|(name, _)| &**name).collect();
        let mut without_key = lock(&self.checks.without_key);
        let mut is_wrong = false;
        limiter.keys_asked(request, |rule, key, is_found| {
            let (choice, detail) = (rule.keys.on_missing_key(request), format!("rule `{}`, key `{key}`", rule.id));
            if !keys.contains(&key) {
                let is_meant = match choice {
                    Some(MissingTenant::Allow) => true,
                    Some(MissingTenant::Anonymous) => rule.keys.tells_apart_by(&keys),
                    Some(MissingTenant::Reject) | None => false,
                };
                if !is_meant {
                    self.checks.reported.report(Mistake::UnknownKey, &detail);
                    is_wrong = true;
                }
                return;
            }
            let count = without_key.entry(detail.clone()).or_default();
            *count = if is_found { FOUND } else { count.saturating_add(1) };
            if *count < FOUND && (*count >= LACKING || self.is_strict && choice.is_none()) {
                self.checks.reported.report(Mistake::KeyNeverFound, &detail);
                is_wrong |= choice.is_none();
            }
        });
        is_wrong
    }
}

/// In the extensions of requests that a layer has seen: which limiters, and of each
/// which rule, where the layer applies only one.
#[derive(Clone, Debug, Default)]
struct SeenBy(Vec<(u64, Option<Box<str>>)>);

impl SeenBy {
    fn add(extensions: &mut Extensions, limiter: &RateLimiter, rule: Option<&str>) {
        let mut seen = extensions.remove::<Self>().unwrap_or_default();
        seen.0.push((limiter.id(), rule.map(Box::from)));
        extensions.insert(seen);
    }

    fn contains(&self, limiter: &RateLimiter, rule: Option<&str>) -> bool {
        self.0.iter().any(|(id, own)| *id == limiter.id() && own.as_deref() == rule)
    }
}

#[cfg(test)]
mod tests;
