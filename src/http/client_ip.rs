//! The client's address behind proxies: [`TrustedProxies`].
//!
//! No entry counts that an untrusted party could have written.

use std::{net::IpAddr, sync::Arc};

use http::{HeaderName, header::FORWARDED};
use ipnet::IpNet;

use super::{
    RequestHead,
    address::{canonical_ip, peer},
    forwarded::{nearest_first, parse_element, parse_node},
    request_head::header_name,
};
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

/// Whether no client outside of the operator's network has such an address.
fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_private() || v4.is_loopback() || v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unique_local() || v6.is_loopback() || v6.is_unicast_link_local(),
    }
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

#[cfg(test)]
mod tests;
