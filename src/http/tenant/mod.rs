//! Who pays for a request: extractors of a tenant.
//!
//! | extractor | finds |
//! |---|---|
//! | [`header`] | the value of a header, such as an API key |
//! | [`peer_ip`] | the address of the socket |
//! | [`client_ip`] | the address that trusted proxies vouch for |
//! | [`extension`] | what an outer layer found out, such as who is signed in |
//! | `client_certificate` | the fingerprint of its TLS certificate, with the feature `tonic-tls` |
//! | [`from_fn`] | what a closure makes of the request |
//! | [`default_tenant`] | a `Tenant` in the extensions, else the peer's address |
//!
//! [`or`](TenantExtractor::or) puts one behind another. A header's value is
//! whatever the caller wrote: unless something in front has verified it, a
//! caller that invents values gets new counters.
//!
//! ```
//! use http::Request;
//! use tower_ratelimit::{descriptor::TenantRef, http::{PeerAddr, RequestHead, tenant::{self, TenantExtractor}}};
//!
//! let by_key_or_address = tenant::header("x-api-key").or(tenant::peer_ip());
//!
//! let peer = PeerAddr("[2001:db8::1:2:3]:4711".parse().unwrap());
//! let request = Request::get("/").extension(peer).header("x-api-key", "k-123").body(()).unwrap();
//! assert_eq!(by_key_or_address.extract(&RequestHead::new(&request)), Some(TenantRef::name("k-123")));
//!
//! let request = Request::get("/").extension(peer).body(()).unwrap();
//! let network = "2001:db8::".parse().unwrap();
//! assert_eq!(by_key_or_address.extract(&RequestHead::new(&request)), Some(TenantRef::address(network)));
//! ```

mod address;
#[cfg(feature = "tonic-tls")]
mod certificate;
mod extension;
mod fallback;
mod from_fn;
mod header;

#[cfg(test)]
mod tests;

use std::sync::Arc;

#[cfg(feature = "tonic-tls")]
pub use self::certificate::{ClientCertificate, client_certificate};
pub use self::{
    address::{ClientIp, PeerIp, client_ip, peer_ip},
    extension::{AsTenant, Extension, extension},
    fallback::{DefaultTenant, default_tenant},
    from_fn::{TenantFn, from_fn},
    header::{HeaderTenant, header},
};
pub(super) use self::{fallback::UpstreamTenant, header::only};
use super::RequestHead;
use crate::descriptor::TenantRef;

/// Finds who pays for a request.
///
/// ```
/// use tower_ratelimit::{descriptor::TenantRef, http::{RequestHead, tenant::TenantExtractor}};
///
/// /// `acme.api.example` is the tenant `acme`.
/// struct Subdomain;
///
/// impl TenantExtractor for Subdomain {
///     fn extract<'r>(&self, request: &RequestHead<'r>) -> Option<TenantRef<'r>> {
///         let host = request.headers().get("host")?.to_str().ok()?;
///         Some(TenantRef::name(host.strip_suffix(".api.example")?))
///     }
/// }
/// ```
pub trait TenantExtractor: Send + Sync + 'static {
    /// The request's tenant, borrowed from it where possible.
    fn extract<'r>(&self, request: &RequestHead<'r>) -> Option<TenantRef<'r>>;

    /// Asks `other` where this one finds nobody.
    fn or<E: TenantExtractor>(self, other: E) -> Or<Self, E>
    where
        Self: Sized,
    {
        Or { first: self, second: other }
    }
}

impl<E: TenantExtractor + ?Sized> TenantExtractor for Arc<E> {
    fn extract<'r>(&self, request: &RequestHead<'r>) -> Option<TenantRef<'r>> {
        (**self).extract(request)
    }
}

impl<E: TenantExtractor + ?Sized> TenantExtractor for Box<E> {
    fn extract<'r>(&self, request: &RequestHead<'r>) -> Option<TenantRef<'r>> {
        (**self).extract(request)
    }
}

/// One extractor, then another: see [`TenantExtractor::or`].
#[derive(Clone, Debug)]
pub struct Or<A, B> {
    first: A,
    second: B,
}

/// `or` as a method of the type, so that no trait has to be imported for it.
macro_rules! chain {
    ($($extractor:ident $(<$($parameter:ident),+>)?),+ $(,)?) => {$(
        impl$(<$($parameter),+>)? $extractor$(<$($parameter),+>)?
        where
            Self: TenantExtractor,
        {
            /// Asks `other` where this one finds nobody.
            #[must_use]
            pub fn or<E: TenantExtractor>(self, other: E) -> Or<Self, E> {
                TenantExtractor::or(self, other)
            }
        }
    )+};
}

#[cfg(feature = "tonic-tls")]
chain!(ClientCertificate);
chain!(ClientIp, DefaultTenant, Extension<T>, TenantFn<F>, HeaderTenant, Or<A, B>, PeerIp);

impl<A: TenantExtractor, B: TenantExtractor> TenantExtractor for Or<A, B> {
    fn extract<'r>(&self, request: &RequestHead<'r>) -> Option<TenantRef<'r>> {
        self.first.extract(request).or_else(|| self.second.extract(request))
    }
}
