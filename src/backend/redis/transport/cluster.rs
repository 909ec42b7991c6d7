//! The hash slots of a cluster: which keys are in which, and which server has which. It
//! does no I/O.
//!
//! Invariant: a wrong owner costs a redirect, and nothing else. So the slots may be out of
//! date.

use std::{collections::BTreeMap, sync::Arc};

use redis::{ConnectionAddr, ConnectionInfo, Value};

use super::server::Server;

/// The lanes of a cluster. Each carries as many consecutive hash slots. These are usually
/// on one node, so a lane is idle as the connection to it is.
pub(crate) const LANES: usize = 256;

const SLOTS: u16 = 16_384;

/// The servers, and what each has. One that is not a cluster is one server with no slots.
#[derive(Clone, Default)]
pub(super) struct Topology {
    /// By address.
    pub(super) servers: BTreeMap<String, Arc<Server>>,
    /// The last slot of each range, with its owner, in ascending order.
    owners: Vec<(u16, Arc<Server>)>,
}

impl Topology {
    /// With one more server, which owns no slots as far as is known.
    pub(super) fn with(mut self, server: &Arc<Server>) -> Self {
        self.servers.insert(server.address.clone(), Arc::clone(server));
        self
    }

    /// The servers that own slots, each by the last slot of a range, as `server_at` makes
    /// or finds them.
    pub(super) fn of_owners(
        ranges: Vec<(u16, String)>,
        mut server_at: impl FnMut(&str) -> Option<Arc<Server>>,
    ) -> Self {
        let mut topology = Self::default();
        for (last, address) in ranges {
            let known = topology.servers.get(&address).cloned();
            if let Some(server) = known.or_else(|| server_at(&address)) {
                topology.servers.insert(address, Arc::clone(&server));
                topology.owners.push((last, server));
            }
        }
        topology.owners.sort_by_key(|(last, _)| *last);
        topology
    }

    /// The server of a hash slot. While it is unknown, any server redirects.
    pub(super) fn owner(&self, slot: impl FnOnce() -> u16) -> Option<&Arc<Server>> {
        if self.owners.is_empty() {
            return self.servers.values().next();
        }
        let slot = slot();
        let at = self.owners.partition_point(|(last, _)| *last < slot);
        self.owners.get(at).or(self.owners.last()).map(|(_, server)| server)
    }

    /// Whether a server owns hash slots.
    pub(super) fn is_owner(&self, server: &Server) -> bool {
        self.owners.iter().any(|(_, owner)| std::ptr::eq(&**owner, server))
    }

    /// The server process at the address of each owner, where it is known. The others have
    /// no data, or that of an owner.
    pub(super) fn processes(&self) -> BTreeMap<String, String> {
        let process =
            |(_, server): &(u16, Arc<Server>)| Some((server.address.clone(), server.connections()?.process.clone()?));
        self.owners.iter().filter_map(process).collect()
    }
}

/// Reads the reply of `CLUSTER SLOTS`: the last slot of each range, and the address of its
/// owner. A server that does not know its own name leaves it out; it is `asked`.
pub(super) fn read_owners(reply: &Value, asked: &str) -> Vec<(u16, String)> {
    let Value::Array(ranges) = reply else { return Vec::new() };
    let owner = |range: &Value| {
        let Value::Array(range) = range else { return None };
        let [_, Value::Int(last), Value::Array(primary), ..] = &range[..] else { return None };
        let [host, Value::Int(port), ..] = &primary[..] else { return None };
        let host = if let Value::BulkString(host) = host { std::str::from_utf8(host).ok()? } else { "" };
        Some((u16::try_from(*last).ok()?, address_near(&format!("{host}:{port}"), asked)))
    };
    ranges.iter().filter_map(owner).collect()
}

/// An address that a server named, without its host where that is the server's own.
pub(super) fn address_near(named: &str, server: &str) -> String {
    match (named.rsplit_once(':'), server.rsplit_once(':')) {
        (Some(("" | "?", port)), Some((host, _))) => format!("{host}:{port}"),
        _ => named.to_owned(),
    }
}

/// How to connect to the node at an address, as to any other one.
pub(super) fn node_at(address: &str, any: &ConnectionInfo) -> Option<ConnectionInfo> {
    let (name, number) = address.rsplit_once(':')?;
    let mut addr = any.addr().clone();
    match &mut addr {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            (*host, *port) = (name.trim_matches(['[', ']']).to_owned(), number.parse().ok()?);
        }
        _ => return None,
    }
    Some(any.clone().set_addr(addr))
}

/// The hash slot of a key.
pub(crate) fn slot_of(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    slot_of_tag(tag.filter(|tag| !tag.is_empty()).unwrap_or(key))
}

fn slot_of_tag(tag: &str) -> u16 {
    // CRC-16/XMODEM, by which Redis chooses the hash slot.
    let bit = |crc: u16, _| crc << 1 ^ if crc & 0x8000 == 0 { 0 } else { 0x1021 };
    let crc = tag.bytes().fold(0, |crc, byte| (0..8).fold(crc ^ u16::from(byte) << 8, bit));
    crc % SLOTS
}

/// The lane of a hash tag.
pub(crate) fn lane_of(hash_tag: &str) -> usize {
    usize::from(slot_of_tag(hash_tag)) * LANES / usize::from(SLOTS)
}

#[cfg(test)]
mod tests;
