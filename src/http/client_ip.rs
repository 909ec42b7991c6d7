//! The client's address: that of the socket, [`PeerAddr`], or the one that proxies vouch for,
//! [`TrustedProxies`]; and how much of it counts.
//!
//! Callers can write anything into the lists that proxies append to: `X-Forwarded-For`, and
//! `Forwarded` (RFC 7239). So the work is bounded. Invariants: no entry counts that an untrusted
//! party could have written, and an IPv4 address never stays in its mapped IPv6 form.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use http::{HeaderMap, HeaderName, header::FORWARDED};
use ipnet::IpNet;

use super::{RequestHead, header_name};
use crate::{error::ConfigError, policy::canonical_network};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The proxies whose statements about the client's address are trusted.
///
/// 1. The list is read from the end that the nearest proxy wrote. It is
///    `X-Forwarded-For`, or with [`TrustedProxies::forwarded`] the `Forwarded`
///    of RFC 7239. Only one of them is read: a proxy passes on headers that it
///    does not know, so reading both would let callers choose. All lines of the
///    header form one list.
/// 2. The list is preceded by the socket's peer. From there backwards, the
///    client is the first untrusted address. Entries further left were written
///    by the client, and are ignored.
/// 3. An entry without an address (`unknown`, `_hidden`, garbage) ends the
///    search, and so does the start of the list: the client is then the last
///    trusted address. At most 64 entries are read.
/// 4. If the socket's peer is unknown, a list of networks trusts no one and
///    finds no client. A number of hops still counts.
///
/// ```
/// use tower_ratelimit::tenant::TrustedProxies;
///
/// let behind_two_load_balancers = TrustedProxies::hops(2);
/// let behind_our_network = TrustedProxies::cidrs(["10.0.0.0/8", "2001:db8::/32", "192.0.2.1"])?;
/// let behind_cloudflare = TrustedProxies::cidrs(["173.245.48.0/20"])?.header("cf-connecting-ip");
///
/// let error = TrustedProxies::cidrs(["10.0.0.0/33"]).unwrap_err();
/// assert_eq!(error.value(), Some("10.0.0.0/33"));
/// # Ok::<(), tower_ratelimit::ConfigError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct TrustedProxies {
    trust: Trust,
    source: Source,
}

/// Finds the address in an entry of a list.
type ParseEntry = fn(&[u8]) -> Option<IpAddr>;

#[derive(Clone, Debug)]
enum Trust {
    Networks(Arc<[IpNet]>),
    Hops(usize),
}

/// The header that is read.
#[derive(Clone, Debug)]
struct Source {
    header: HeaderName,
    parse: ParseEntry,
    is_list: bool,
}

impl Source {
    const X_FORWARDED_FOR: Self = Self { header: X_FORWARDED_FOR, parse: parse_node, is_list: true };
    const FORWARDED: Self = Self { header: FORWARDED, parse: parse_element, is_list: true };
}

impl TrustedProxies {
    /// Trusts no proxy: the client is the socket's peer.
    pub fn none() -> Self {
        Self::hops(0)
    }

    /// Trusts the addresses in `networks`: `10.0.0.0/8`, or one address.
    ///
    /// # Errors
    ///
    /// An entry is neither an address nor a network.
    pub fn cidrs(networks: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self, ConfigError> {
        let networks: Result<_, _> = networks.into_iter().map(|network| parse_network(network.as_ref())).collect();
        Ok(Self { trust: Trust::Networks(networks?), source: Source::X_FORWARDED_FOR })
    }

    /// Trusts the `count` proxies nearest to this server. The socket's peer is
    /// the first of them, and the client is `count` entries from the end of the
    /// list.
    ///
    /// Use it only if no request can bypass them: a caller that reaches an
    /// inner proxy, or this server, chooses its own address.
    pub fn hops(count: usize) -> Self {
        Self { trust: Trust::Hops(count), source: Source::X_FORWARDED_FOR }
    }

    /// Whether any proxy is trusted.
    pub(super) fn trust_any(&self) -> bool {
        match &self.trust {
            Trust::Networks(networks) => !networks.is_empty(),
            Trust::Hops(count) => *count > 0,
        }
    }

    /// A proxy that seems not to be trusted by mistake, with the reason: the peer sends the
    /// header that is read, and is in no network; or the client is itself a proxy, or has a
    /// private address.
    pub(super) fn suspect(&self, request: &RequestHead<'_>) -> Option<(IpAddr, &'static str)> {
        let (Trust::Networks(networks), Some(peer)) = (&self.trust, peer(request)) else { return None };
        if networks.is_empty() || !request.headers().contains_key(&self.source.header) {
            return None;
        }
        if !self.trusts(peer, 0) {
            return Some((peer, "the peer, which is in no trusted network, sends the header that is read"));
        }
        let client = self.client(request)?;
        if self.trusts(client, 0) {
            return Some((client, "the client's address, is in a trusted network"));
        }
        is_private(client).then_some((client, "the client's address, is private"))
    }

    /// Reads `Forwarded` (RFC 7239) instead of `X-Forwarded-For`.
    pub fn forwarded(self) -> Self {
        Self { source: Source::FORWARDED, ..self }
    }

    /// Reads a header with a single address, such as `CF-Connecting-IP`,
    /// instead of a list. It counts if it is sent once, and by a trusted peer
    /// (with a number of hops, by any peer). Otherwise the client is the peer.
    ///
    /// # Panics
    ///
    /// If the name is not a valid header name.
    #[track_caller]
    pub fn header(self, name: impl TryInto<HeaderName>) -> Self {
        let header = header_name("TrustedProxies::header", name);
        Self { source: Source { header, parse: parse_node, is_list: false }, ..self }
    }

    /// The client's address. A mapped IPv6 address becomes IPv4.
    pub(super) fn client(&self, request: &RequestHead<'_>) -> Option<IpAddr> {
        let peer = peer(request);
        let trusted = match &self.trust {
            Trust::Networks(_) => peer.is_some_and(|peer| self.trusts(peer, 0)),
            Trust::Hops(count) => *count > 0,
        };
        if !trusted {
            return peer;
        }
        let Source { header, parse, is_list } = &self.source;
        if !is_list {
            return request.single_header(header).and_then(parse).map(canonical_ip).or(peer);
        }
        let mut client = peer;
        for (index, entry) in nearest_first(request.headers(), header).enumerate() {
            let Some(address) = parse(entry).map(canonical_ip) else { break };
            client = Some(address);
            if !self.trusts(address, index + 1) {
                break;
            }
        }
        client
    }

    /// Whether the address `hops` before this server is a trusted proxy. The
    /// socket's peer is 0 hops before it.
    fn trusts(&self, address: IpAddr, hops: usize) -> bool {
        match &self.trust {
            Trust::Networks(networks) => networks.iter().any(|network| network.contains(&address)),
            Trust::Hops(count) => hops < *count,
        }
    }
}

fn parse_network(text: &str) -> Result<IpNet, ConfigError> {
    let network = match text.parse::<IpAddr>() {
        Ok(address) => IpNet::from(address),
        Err(_) => text.parse().map_err(|_| {
            ConfigError::new("trusted_proxies", "must be an address, or a network such as 10.0.0.0/8").with_value(text)
        })?,
    };
    Ok(canonical_network(network))
}

/// Whether no client outside of the operator's network has such an address.
fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_private() || v4.is_loopback() || v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unique_local() || v6.is_loopback() || v6.is_unicast_link_local(),
    }
}

/// The most entries that are read, counting empty entries and lines.
const MAX_ENTRIES: usize = 64;

/// The longest entry that is read. An entry with address, host, protocol and
/// port is much shorter.
const MAX_LENGTH: usize = 512;

/// The entries of all lines of the header, last one first, without empty ones
/// (RFC 9110, section 5.6.1). Ends at an entry that is too long.
fn nearest_first<'r>(headers: &'r HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'r [u8]> + use<'r> {
    let entries = headers.get_all(name).iter().rev().flat_map(|line| Entries { rest: Some(line.as_bytes()) });
    let bounded = entries.take(MAX_ENTRIES).take_while(|entry| entry.len() <= MAX_LENGTH);
    bounded.map(<[u8]>::trim_ascii).filter(|entry| !entry.is_empty())
}

/// The entries of one line, from the right: a quote that the caller left open,
/// further left, must not affect what a proxy has appended.
struct Entries<'a> {
    rest: Option<&'a [u8]>,
}

impl<'a> Iterator for Entries<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let line = self.rest?;
        // One byte more than the limit shows that an entry exceeds it.
        let start = line.len().saturating_sub(MAX_LENGTH + 1);
        let mut quoted = false;
        for at in (start..line.len()).rev() {
            match line[at] {
                b'"' if !escaped(&line[start..at]) => quoted = !quoted,
                b',' if !quoted => {
                    self.rest = Some(&line[..at]);
                    return Some(&line[at + 1..]);
                }
                _ => {}
            }
        }
        self.rest = None;
        Some(&line[start..])
    }
}

/// Whether the byte after `before` is escaped, as within a quoted string.
fn escaped(before: &[u8]) -> bool {
    before.iter().rev().take_while(|&&byte| byte == b'\\').count() % 2 == 1
}

/// The address in a `forwarded-element`: `for=192.0.2.7;proto=https`. `None` if
/// there is not exactly one.
fn parse_element(element: &[u8]) -> Option<IpAddr> {
    parse_node(parameter_for(element)?)
}

/// The value of the one `for` of a `forwarded-element`, without quotes.
fn parameter_for(entry: &[u8]) -> Option<&[u8]> {
    let mut found = None;
    let (mut quoted, mut escaped) = (false, false);
    let parameters = entry.split(|&byte| {
        quoted ^= byte == b'"' && !escaped;
        escaped = byte == b'\\' && quoted && !escaped;
        byte == b';' && !quoted
    });
    for parameter in parameters {
        let parameter = parameter.trim_ascii();
        let Some(equals) = parameter.iter().position(|&byte| byte == b'=') else { continue };
        let (name, value) = (&parameter[..equals], &parameter[equals + 1..]);
        if name.eq_ignore_ascii_case(b"for") && found.replace(value).is_some() {
            return None;
        }
    }
    match found? {
        // No address needs an escape, so escapes are not decoded.
        [b'"', value @ .., b'"'] => Some(value),
        value => Some(value),
    }
}

/// The address in a node with an optional port, which may be obfuscated (RFC
/// 7239, section 6): `192.0.2.7`, `192.0.2.7:4711`, `2001:db8::1`,
/// `[2001:db8::1]` or `[2001:db8::1]:4711`.
fn parse_node(node: &[u8]) -> Option<IpAddr> {
    let node = str::from_utf8(node).ok()?.trim_ascii();
    if let Some(bracketed) = node.strip_prefix('[') {
        let (address, port) = bracketed.split_once(']')?;
        let address: Ipv6Addr = address.parse().ok()?;
        return (port.is_empty() || port.strip_prefix(':').is_some_and(is_port)).then_some(address.into());
    }
    if let Ok(address) = node.parse() {
        return Some(address);
    }
    let (address, port) = node.split_once(':')?;
    let address = address.parse().ok().map(IpAddr::V4)?;
    is_port(port).then_some(address)
}

fn is_port(port: &str) -> bool {
    match port.strip_prefix('_') {
        Some(obfuscated) => {
            !obfuscated.is_empty()
                && obfuscated.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
        }
        None => port.parse::<u16>().is_ok(),
    }
}

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
fn canonical_ip(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    }
}

/// The part of an IPv6 address that distinguishes callers. A caller with one
/// address mostly has its whole /64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ipv6Prefix(u8);

impl Default for Ipv6Prefix {
    fn default() -> Self {
        Self(64)
    }
}

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

#[cfg(test)]
mod tests;
