//! Addresses of peers: where they come from, and how much of them counts.
//!
//! It trusts no proxy: `client_ip` does. The invariant: an IPv4 address never stays in its mapped IPv6 form.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::RequestHead;

/// The address of the socket that a request came from.
///
/// Servers may insert it into the request's extensions. The layer also reads
/// axum's `ConnectInfo<SocketAddr>` with the feature `axum`, tonic's
/// `TcpConnectInfo` with `tonic`, and tonic's info about TLS connections with
/// `tls`.
///
/// ```
/// use http::Request;
/// use tower_ratelimit::{RequestHead, descriptor::TenantRef, tenant::{self, PeerAddr, TenantExtractor}};
///
/// let request = Request::get("/").extension(PeerAddr("192.0.2.7:50123".parse().unwrap())).body(()).unwrap();
/// let caller = tenant::peer_ip().extract(&RequestHead::new(&request));
/// assert_eq!(caller, Some(TenantRef::address([192, 0, 2, 7].into())));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerAddr(
    /// Address and port.
    pub SocketAddr,
);

/// The peer's address. A mapped IPv6 address becomes IPv4. An address that the
/// application names comes first.
pub(crate) fn peer(request: &RequestHead<'_>) -> Option<IpAddr> {
    let extensions = request.extensions();
    if let Some(PeerAddr(address)) = extensions.get() {
        return Some(canonical_ip(address.ip()));
    }
    #[cfg(feature = "axum")]
    if let Some(axum::extract::ConnectInfo(address)) = extensions.get::<axum::extract::ConnectInfo<SocketAddr>>() {
        return Some(canonical_ip(address.ip()));
    }
    #[cfg(feature = "tonic")]
    if let Some(address) = tonic_peer(extensions) {
        return Some(canonical_ip(address.ip()));
    }
    None
}

#[cfg(feature = "tonic")]
fn tonic_peer(extensions: &http::Extensions) -> Option<SocketAddr> {
    use tonic::transport::server::TcpConnectInfo;
    let tcp = extensions.get::<TcpConnectInfo>();
    #[cfg(all(feature = "tonic", feature = "tls"))]
    let tcp = tcp.or_else(|| {
        use tonic::transport::server::TlsConnectInfo;
        extensions.get::<TlsConnectInfo<TcpConnectInfo>>().map(TlsConnectInfo::get_ref)
    });
    tcp.and_then(TcpConnectInfo::remote_addr)
}

/// The one form of an address. `::ffff:a.b.c.d` becomes `a.b.c.d`: the form depends on the socket, not on
/// the caller.
pub(super) fn canonical_ip(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    }
}

/// The part of an IPv6 address that distinguishes callers. A caller with one
/// address mostly has its whole /64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ipv6Prefix(u8);

impl Ipv6Prefix {
    pub(super) fn new(bits: u8) -> Self {
        Self(bits.clamp(32, 128))
    }

    /// The network of an address that is not mapped, or the IPv4 address that is embedded
    /// in it.
    pub(super) fn cut(self, address: IpAddr) -> IpAddr {
        match address {
            IpAddr::V6(v6) => {
                let mask = u128::MAX << (128 - u32::from(self.0));
                let network = || IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & mask));
                embedded_ipv4(v6).map_or_else(network, IpAddr::V4)
            }
            IpAddr::V4(_) => address,
        }
    }
}

/// The IPv4 address of a client behind NAT64 (`64:ff9b::/96`, RFC 6052), where all clients
/// share a /64, or with 6to4 (`2002::/16`, RFC 3056), where each has a /48. It only counts:
/// such an address may be made up, so it is no address of a trusted proxy, and has no
/// exception.
fn embedded_ipv4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    match address.segments() {
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => {
            Some(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)))
        }
        _ => None,
    }
}

impl Default for Ipv6Prefix {
    fn default() -> Self {
        Self(64)
    }
}

#[cfg(test)]
mod tests;
