use std::{net::IpAddr, sync::Arc};

use http::{HeaderName, header::FORWARDED};
use ipnet::{IpNet, Ipv4Net};

use super::{
    RequestHead,
    address::{fold, peer},
    forwarded::{Syntax, nearest_first},
    tenant::only,
};
use crate::error::ConfigError;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Whose word about the client's address counts.
///
/// 1. The list that proxies keep is read from the end that the nearest proxy
///    wrote: `X-Forwarded-For`, or with [`TrustedProxies::forwarded`] the
///    `Forwarded` of RFC 7239. One of them, for a proxy passes on what it does
///    not know, and reading both would let callers choose. All lines of the
///    header are one list.
/// 2. The socket's peer comes before the list. The client is the first address
///    that is not trusted, from there backwards. What stands further left was
///    written by the client itself, and is not looked at.
/// 3. An entry that is no address (`unknown`, `_hidden`, garbage) ends the
///    search, and so does the start of the list: the client is then the last
///    trusted address. No more than 64 entries are looked at.
/// 4. Where the socket's peer is not known, a list of networks trusts nobody
///    and no client is found; a number of hops still counts.
///
/// ```
/// use tower_ratelimit::http::TrustedProxies;
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
pub struct TrustedProxies {
    trust: Trust,
    source: Source,
}

#[derive(Clone, Debug)]
enum Trust {
    Networks(Arc<[IpNet]>),
    Hops(usize),
}

#[derive(Clone, Debug)]
enum Source {
    XForwardedFor,
    Forwarded,
    /// `None` where its name was no header's.
    Single(Option<HeaderName>),
}

impl TrustedProxies {
    /// Nobody's: the client is the socket's peer.
    #[must_use]
    pub fn none() -> Self {
        Self::hops(0)
    }

    /// That of the addresses in `networks`: `10.0.0.0/8`, or one address.
    ///
    /// # Errors
    ///
    /// One of them is neither an address nor a network.
    pub fn cidrs(networks: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self, ConfigError> {
        let networks: Result<_, _> = networks.into_iter().map(|network| parse_network(network.as_ref())).collect();
        Ok(Self { trust: Trust::Networks(networks?), source: Source::XForwardedFor })
    }

    /// That of the `count` proxies nearest to this server: the socket's peer
    /// is the first of them, and the client is `count` entries from the end of
    /// the list.
    ///
    /// For use where no request can come around them: a caller that reaches an
    /// inner proxy, or this server, chooses its own address.
    #[must_use]
    pub fn hops(count: usize) -> Self {
        Self { trust: Trust::Hops(count), source: Source::XForwardedFor }
    }

    /// Reads `Forwarded` (RFC 7239) in place of `X-Forwarded-For`.
    #[must_use]
    pub fn forwarded(self) -> Self {
        Self { source: Source::Forwarded, ..self }
    }

    /// Reads a header with a single address, such as `CF-Connecting-IP`, in
    /// place of a list. It counts when it comes from a trusted peer (any, with
    /// a number of hops), and once; else the client is the peer. A `name` that
    /// cannot be a header's is never found.
    #[must_use]
    pub fn header(self, name: impl TryInto<HeaderName>) -> Self {
        Self { source: Source::Single(name.try_into().ok()), ..self }
    }

    /// The client's address, in IPv4 where it is an IPv4 address in IPv6 form.
    pub(super) fn client(&self, request: &RequestHead<'_>) -> Option<IpAddr> {
        let peer = peer(request);
        let trusted = match &self.trust {
            Trust::Networks(_) => peer.is_some_and(|peer| self.trusts(peer, 0)),
            Trust::Hops(count) => *count > 0,
        };
        if !trusted {
            return peer;
        }
        let (name, syntax) = match &self.source {
            Source::XForwardedFor => (&X_FORWARDED_FOR, Syntax::Addresses),
            Source::Forwarded => (&FORWARDED, Syntax::Forwarded),
            Source::Single(name) => {
                let told = name.as_ref().and_then(|name| only(request, name));
                return told.and_then(|value| Syntax::Addresses.address(value)).map(fold).or(peer);
            }
        };
        let mut client = peer;
        for (index, entry) in nearest_first(request.headers(), name).enumerate() {
            let Some(address) = syntax.address(entry).map(fold) else { break };
            client = Some(address);
            if !self.trusts(address, index + 1) {
                break;
            }
        }
        client
    }

    /// Whether the address `hops` before this server is a trusted proxy's; the
    /// socket's peer is 0 before it.
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
    // Addresses are compared in IPv4 where they can be, so networks must be.
    if let IpNet::V6(v6) = network
        && let (Some(v4), Some(bits)) = (v6.addr().to_ipv4_mapped(), v6.prefix_len().checked_sub(96))
        && let Ok(mapped) = Ipv4Net::new(v4, bits)
    {
        return Ok(IpNet::V4(mapped));
    }
    Ok(network)
}

#[cfg(test)]
mod tests;
