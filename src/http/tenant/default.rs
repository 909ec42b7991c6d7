//! The tenants of a layer without an extractor, on a server and on a client.

use std::borrow::Cow;

use super::{
    address::{ClientIp, peer_ip},
    extractor::{Or, TenantExtractor},
    named::{Extension, extension},
};
use crate::{
    descriptor::{Tenant, TenantRef},
    http::RequestHead,
};

/// The tenant on a server by default: a [`Tenant`] in the request's extensions,
/// else the peer's address.
///
/// ```
/// use http::Request;
/// use tower_ratelimit::{Tenant, descriptor::TenantRef, http::{PeerAddr, RequestHead, tenant::{self, TenantExtractor}}};
///
/// let mut request = Request::get("/").extension(PeerAddr("192.0.2.7:50123".parse().unwrap())).body(()).unwrap();
/// let caller = tenant::default_tenant().extract(&RequestHead::new(&request));
/// assert_eq!(caller, Some(TenantRef::address([192, 0, 2, 7].into())));
///
/// request.extensions_mut().insert(Tenant::new("acme"));
/// let caller = tenant::default_tenant().extract(&RequestHead::new(&request));
/// assert_eq!(caller, Some(TenantRef::name("acme")));
/// ```
#[must_use]
pub fn default_tenant() -> Or<Extension<Tenant>, ClientIp> {
    extension().or(peer_ip())
}

/// The tenant on a client by default: a [`Tenant`] in the request's extensions,
/// else the host that the request is sent to, since each host has its own
/// limits.
#[derive(Clone, Debug)]
pub(in crate::http) struct UpstreamTenant;

impl TenantExtractor for UpstreamTenant {
    fn extract<'r>(&self, request: &RequestHead<'r>) -> Option<TenantRef<'r>> {
        let named = request.extensions().get::<Tenant>().map(Tenant::as_ref);
        named.or_else(|| {
            let host = request.uri().host().filter(|host| !host.is_empty())?;
            // Host names are case-insensitive.
            let upper = host.bytes().any(|byte| byte.is_ascii_uppercase());
            Some(TenantRef::name(if upper { Cow::Owned(host.to_ascii_lowercase()) } else { Cow::Borrowed(host) }))
        })
    }
}
