//! Networks under `tenants:`: how they are written, and which of them an address
//! is in. A tenant that is identified by a name is in none, whatever the name says.

use std::{
    collections::{HashMap, hash_map::Entry},
    net::IpAddr,
};

use foldhash::fast::RandomState;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// The network that a tenant's name is; `None` if it is a name. The error is the
/// reason.
pub(super) fn parse(name: &str) -> Result<Option<IpNet>, String> {
    let Some((address, _)) = name.split_once('/').filter(|(address, bits)| is_meant(address, bits)) else {
        return Ok(None);
    };
    let Ok(network) = name.parse::<IpNet>() else {
        return Err(match address.parse::<IpAddr>().map(IpNet::from) {
            Ok(whole) => format!("has a number of bits from 0 to {}, such as `{whole}`", whole.prefix_len()),
            Err(_) => "is no network: write an address and the number of its leading bits, such as `10.0.0.0/8`".into(),
        });
    };
    match network.trunc() {
        first if first == network => Ok(Some(canonical_network(network))),
        first => {
            let ip = network.addr();
            Err(format!("is an address within a network: write `{first}` for the network, or `{ip}`"))
        }
    }
}

/// The addresses that a tenant's name stands for, if it is an address or a network.
pub(crate) fn addresses(name: &str) -> Option<IpNet> {
    match name.parse::<IpAddr>() {
        Ok(address) => Some(address.to_canonical().into()),
        Err(_) => parse(name).ok().flatten(),
    }
}

/// Whether the text looks like a network, valid or not. Names of tenants may have
/// slashes, too.
fn is_meant(address: &str, bits: &str) -> bool {
    let is_number = |bits: &str| bits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let is_v4 = address.contains('.') && address.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let is_v6 = address.contains(':') && address.bytes().all(|byte| byte.is_ascii_hexdigit() || b":.".contains(&byte));
    is_number(bits) && (is_v4 || is_v6)
}

/// Mapped addresses are compared as IPv4, so mapped networks must be too.
pub(crate) fn canonical_network(network: IpNet) -> IpNet {
    let mapped = match network {
        IpNet::V6(v6) => v6.addr().to_ipv4_mapped().zip(v6.prefix_len().checked_sub(96)),
        IpNet::V4(_) => None,
    };
    mapped.and_then(|(v4, bits)| Ipv4Net::new(v4, bits).ok()).map_or(network, IpNet::V4)
}

/// Values by network.
#[derive(Debug)]
pub(crate) struct Networks<T> {
    by_network: HashMap<IpNet, T, RandomState>,
    /// The numbers of bits that occur, descending: the smallest network first.
    bits: Vec<u8>,
}

impl<T> Networks<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.bits.is_empty()
    }

    pub(crate) fn entry(&mut self, network: IpNet) -> Entry<'_, IpNet, T> {
        if let Err(index) = self.bits.binary_search_by(|bits| network.prefix_len().cmp(bits)) {
            self.bits.insert(index, network.prefix_len());
        }
        self.by_network.entry(network)
    }

    /// The values of the networks that have the address, the smallest first: one lookup
    /// for each number of bits that occurs.
    pub(crate) fn all(&self, address: IpAddr) -> impl Iterator<Item = &T> {
        let network = move |bits: u8| match address {
            IpAddr::V4(v4) => Ipv4Net::new(v4, bits).ok().map(|network| IpNet::V4(network.trunc())),
            IpAddr::V6(v6) => Ipv6Net::new(v6, bits).ok().map(|network| IpNet::V6(network.trunc())),
        };
        self.bits.iter().filter_map(move |&bits| self.by_network.get(&network(bits)?))
    }
}

impl<T> Default for Networks<T> {
    fn default() -> Self {
        Self { by_network: HashMap::default(), bits: Vec::new() }
    }
}

#[cfg(test)]
mod tests;
