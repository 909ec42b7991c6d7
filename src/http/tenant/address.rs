//! Tenants by address: the socket's peer, or the client behind trusted proxies.
//!
//! It parses no header: `TrustedProxies` does. The invariant: IPv6 addresses are always
//! cut to a prefix.

use std::net::IpAddr;

use super::extractor::TenantExtractor;
use crate::{
    descriptor::TenantRef,
    http::{RequestHead, address::Ipv6Prefix, client_ip::TrustedProxies},
};

/// The address of the socket that the request came from: [`PeerAddr`], or the
/// connection info of axum or tonic, with the feature `axum`, `tonic` or
/// `tls`. Behind a proxy this is the proxy's address: see [`client_ip`].
///
/// IPv6 addresses are cut to their /64, those of NAT64 and 6to4 to the IPv4 address in
/// them. Exceptions for addresses are compared with the whole one.
///
/// [`PeerAddr`]: crate::tenant::PeerAddr
///
/// ```
/// use http::Request;
/// use tower_ratelimit::{RequestHead, descriptor::TenantRef, tenant::{self, PeerAddr, TenantExtractor}};
///
/// let by_site = tenant::peer_ip().ipv6_prefix(48);
/// let peer = PeerAddr("[2001:db8:1:2::3]:4711".parse().unwrap());
/// let request = Request::get("/").extension(peer).body(()).unwrap();
/// let site = "2001:db8:1::".parse().unwrap();
/// assert_eq!(by_site.extract(&RequestHead::new(&request)), Some(TenantRef::address(site)));
/// ```
#[must_use]
pub fn peer_ip() -> ClientIp {
    client_ip(TrustedProxies::none())
}

/// The client's address, as far as trusted proxies vouch for it: see
/// [`TrustedProxies`].
///
/// IPv6 addresses are cut as by [`peer_ip`].
///
/// ```
/// use http::Request;
/// use tower_ratelimit::{RequestHead, descriptor::TenantRef, tenant::{self, PeerAddr, TenantExtractor, TrustedProxies}};
///
/// let by_client = tenant::client_ip(TrustedProxies::cidrs(["10.0.0.0/8"])?);
/// let request = Request::get("/")
///     .extension(PeerAddr("10.0.0.1:50123".parse().unwrap()))
///     .header("x-forwarded-for", "6.6.6.6, 192.0.2.7, 10.0.0.2")
///     .body(())
///     .unwrap();
/// // Entries left of the first untrusted address are ignored.
/// let caller = by_client.extract(&RequestHead::new(&request));
/// assert_eq!(caller, Some(TenantRef::address([192, 0, 2, 7].into())));
/// # Ok::<(), tower_ratelimit::ConfigError>(())
/// ```
#[must_use]
pub fn client_ip(proxies: TrustedProxies) -> ClientIp {
    ClientIp { proxies, prefix: Ipv6Prefix::default() }
}

/// The tenant that a text stands for, such as an argument of a command: by its address,
/// counted as by [`peer_ip`], if the text reads as one, else by its name.
#[doc(hidden)]
pub fn named_or_address(text: &str) -> TenantRef<'_> {
    let Ok(address) = text.parse().map(|address: IpAddr| address.to_canonical()) else { return TenantRef::name(text) };
    TenantRef::address_in(address, Ipv6Prefix::default().cut(address))
}

/// Extracts an address: see [`peer_ip`] and [`client_ip`].
#[derive(Clone, Debug)]
pub struct ClientIp {
    proxies: TrustedProxies,
    prefix: Ipv6Prefix,
}

impl ClientIp {
    /// The number of bits of an IPv6 address that distinguish callers: 64 by
    /// default, clamped to 32 to 128.
    #[must_use]
    pub fn ipv6_prefix(self, bits: u8) -> Self {
        Self { prefix: Ipv6Prefix::new(bits), ..self }
    }
}

impl TenantExtractor for ClientIp {
    fn extract<'r>(&self, request: &RequestHead<'r>) -> Option<TenantRef<'r>> {
        self.proxies.client(request).map(|address| TenantRef::address_in(address, self.prefix.cut(address)))
    }

    fn proxies(&self) -> Option<&TrustedProxies> {
        Some(&self.proxies)
    }
}
