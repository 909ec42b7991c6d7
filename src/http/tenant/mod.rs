//! Tenant extractors: how to identify the tenant of a request.
//!
//! | extractor | tenant |
//! |---|---|
//! | [`header`] | the value of a header, such as an API key |
//! | [`peer_ip`] | the address of the socket |
//! | [`client_ip`] | the client's address according to trusted proxies |
//! | [`extension`] | an extension set by an outer layer, such as the signed-in user |
//! | `client_certificate` | the fingerprint of the client's TLS certificate, with the features `tonic` and `tls` |
//! | [`from_fn`] | the result of a closure |
//!
//! A server's default is [`peer_ip`], a client's the host that is called. An extension
//! is read only where an extractor asks for it.
//!
//! [`or`](TenantExtractor::or) adds a second choice. A request that sends the
//! header twice is rejected with 400, see [`header`]. A header's value is
//! whatever the caller sent: unless something in front verifies it, a caller
//! gets new counters by inventing values.
//!
//! ```
//! use http::Request;
//! use tower_ratelimit::{RequestHead, descriptor::TenantRef, tenant::{self, PeerAddr, TenantExtractor}};
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
#[cfg(all(feature = "tonic", feature = "tls"))]
mod certificate;
mod extractor;
mod named;

#[cfg(test)]
mod tests;

#[cfg(all(feature = "tonic", feature = "tls"))]
pub use self::certificate::client_certificate;
pub(super) use self::named::UpstreamHost;
pub use self::{
    address::{client_ip, peer_ip},
    extractor::{TenantExtractor, from_fn},
    named::{extension, header},
};
// What the functions return.
#[doc(hidden)]
#[cfg(all(feature = "tonic", feature = "tls"))]
pub use self::certificate::ClientCertificate;
#[doc(hidden)]
pub use self::{
    address::{ClientIp, named_or_address},
    extractor::{Or, TenantFn},
    named::{AsTenant, Extension, HeaderTenant},
};
pub use super::{address::PeerAddr, client_ip::TrustedProxies};

/// `or` as an inherent method, so that no trait has to be imported for it.
macro_rules! chain {
    ($($extractor:ident $(<$($parameter:ident),+>)?),+ $(,)?) => {$(
        impl$(<$($parameter),+>)? $extractor$(<$($parameter),+>)?
        where
            Self: TenantExtractor,
        {
            /// Asks `other` if this one finds no tenant and the request is not
            /// ambiguous.
            #[must_use]
            pub fn or<E: TenantExtractor>(self, other: E) -> Or<Self, E> {
                TenantExtractor::or(self, other)
            }
        }
    )+};
}

#[cfg(all(feature = "tonic", feature = "tls"))]
chain!(ClientCertificate);
chain!(ClientIp, Extension, HeaderTenant, Or<A, B>, TenantFn<F>);
