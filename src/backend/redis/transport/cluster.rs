//! Connections to a cluster. The driver neither retries nor follows
//! redirections; this does the latter.
//!
//! Invariant: a command is sent once to the node that runs it. A node that
//! redirects has not run it.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard},
};

use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, RedisError, RedisResult,
    ServerErrorKind, Value,
    aio::{ConnectionLike, MultiplexedConnection},
    cluster::ClusterClientBuilder,
    cluster_async::ClusterConnection,
    cluster_routing::{
        MultipleNodeRoutingInfo, ResponsePolicy, Route, RoutingInfo, SingleNodeRoutingInfo, Slot, SlotAddr,
    },
};

use tokio::time::Instant;

use super::lane_health::IDLE;
use crate::backend::redis::{settings::Settings, sync::lock};

/// The lanes of a cluster. Each carries as many consecutive hash slots. These are
/// usually on one node, so a lane is idle, or fails, as the connection to it does.
pub(crate) const LANES: usize = 256;

const SLOTS: u16 = 16_384;

/// How many redirections a command follows.
const MAX_REDIRECTIONS: usize = 3;

pub(crate) struct Cluster {
    driver: ClusterConnection,
    /// To nodes that the driver does not know yet: hash slots are moving there.
    redirected: Mutex<HashMap<String, Redirected>>,
    node: ConnectionInfo,
    config: AsyncConnectionConfig,
}

struct Redirected {
    connection: MultiplexedConnection,
    /// When it was last known to be open.
    used: Instant,
}

impl Cluster {
    pub(crate) async fn connect(nodes: &[ConnectionInfo], settings: &Settings) -> RedisResult<Self> {
        let Some(node) = nodes.first().cloned() else {
            return Err((ErrorKind::InvalidClientConfig, "a cluster of no nodes").into());
        };
        // With any retry the driver would also resend what broke off on the
        // way, which may have run.
        let client = ClusterClientBuilder::new(nodes.to_vec())
            .retries(0)
            .connection_timeout(settings.connect_timeout)
            .response_timeout(settings.connect_timeout);
        #[cfg(feature = "redis-tls")]
        let client = match &settings.certificates {
            Some(certificates) => client.certs(certificates.clone()),
            None => client,
        };
        let driver = client.build()?.get_async_connection().await?;
        Ok(Self { driver, redirected: Mutex::default(), node, config: settings.connection_config() })
    }

    pub(crate) async fn send(&self, command: &Cmd) -> RedisResult<Value> {
        let mut reply = self.driver.clone().req_packed_command(command).await.and_then(Value::extract_error);
        for _ in 0..MAX_REDIRECTIONS {
            let Err(error) = &reply else { break };
            let is_asking = error.kind() == ErrorKind::Server(ServerErrorKind::Ask);
            let Some((address, _)) = error.redirect_node() else { break };
            let address = address.to_owned();
            reply = self.send_to(&address, command, is_asking).await;
        }
        reply
    }

    async fn send_to(&self, address: &str, command: &Cmd, is_asking: bool) -> RedisResult<Value> {
        let mut connection = self.connection_to(address).await?;
        let reply = if is_asking {
            let mut both = redis::pipe();
            both.cmd("ASKING").add_command(command.clone());
            let replies = connection.send_packed_commands(&both, 0, 2).await;
            replies.map(|mut replies| replies.pop().unwrap_or(Value::Nil))
        } else {
            connection.send_packed_command(command).await
        };
        if reply.is_err() {
            self.redirected().remove(address);
        }
        reply.and_then(Value::extract_error)
    }

    /// An open connection. One that was idle is checked first: the node may have
    /// closed it, which is no failure.
    async fn connection_to(&self, address: &str) -> RedisResult<MultiplexedConnection> {
        let known = self.redirected().get(address).map(|node| (node.connection.clone(), node.used));
        if let Some((mut connection, used)) = known
            && (used.elapsed() < IDLE || connection.send_packed_command(&redis::cmd("PING")).await.is_ok())
        {
            self.keep(address, &connection);
            return Ok(connection);
        }
        let client = Client::open(self.node_at(address)?)?;
        let connection = client.get_multiplexed_async_connection_with_config(&self.config).await?;
        self.keep(address, &connection);
        Ok(connection)
    }

    fn keep(&self, address: &str, connection: &MultiplexedConnection) {
        let node = Redirected { connection: connection.clone(), used: Instant::now() };
        self.redirected().insert(address.to_owned(), node);
    }

    fn redirected(&self) -> MutexGuard<'_, HashMap<String, Redirected>> {
        lock(&self.redirected)
    }

    /// Pings the node of the lane's first hash slot.
    pub(crate) async fn ping(&self, lane: usize) -> RedisResult<Value> {
        let first = lane % LANES * (usize::from(SLOTS) / LANES);
        let slot = u16::try_from(first).ok().and_then(Slot::new).unwrap_or_else(|| Slot::for_key(""));
        let route = SingleNodeRoutingInfo::SpecificNode(Route::with_slot(slot, SlotAddr::Master));
        self.driver.clone().route_command(redis::cmd("PING"), RoutingInfo::SingleNode(route)).await
    }

    /// How to connect to the node at an address.
    pub(crate) fn node_at(&self, address: &str) -> RedisResult<ConnectionInfo> {
        let unreadable = || RedisError::from((ErrorKind::Client, "an address that cannot be read"));
        let (name, port) = address.rsplit_once(':').ok_or_else(unreadable)?;
        let number = port.parse::<u16>().map_err(|_| unreadable())?;
        let mut node = self.node.addr().clone();
        match &mut node {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                (*host, *port) = (name.trim_matches(['[', ']']).to_owned(), number);
            }
            _ => return Err(unreadable()),
        }
        Ok(self.node.clone().set_addr(node))
    }

    /// Sends a command to all primaries; returns the replies by address.
    pub(crate) async fn on_primaries(&self, command: Cmd) -> RedisResult<Vec<(String, Value)>> {
        let all = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
        let Value::Map(replies) = self.driver.clone().route_command(command, all).await? else {
            return Ok(Vec::new());
        };
        let named = |(address, reply)| Some((redis::from_redis_value::<String>(address).ok()?, reply));
        Ok(replies.into_iter().filter_map(named).collect())
    }

    /// Whether any primary runs scripts.
    pub(crate) async fn any_evaluates(&self) -> RedisResult<()> {
        let mut command = redis::cmd("EVAL");
        command.arg("return 1").arg(0);
        let any = (MultipleNodeRoutingInfo::AllMasters, Some(ResponsePolicy::OneSucceeded));
        let reply = self.driver.clone().route_command(command, RoutingInfo::MultiNode(any)).await?;
        reply.extract_error().map(drop)
    }
}

/// The lane of a hash tag.
pub(crate) fn lane_of(hash_tag: &str) -> usize {
    // CRC-16/XMODEM, by which Redis chooses the hash slot.
    let bit = |crc: u16, _| crc << 1 ^ if crc & 0x8000 == 0 { 0 } else { 0x1021 };
    let crc = hash_tag.bytes().fold(0, |crc, byte| (0..8).fold(crc ^ u16::from(byte) << 8, bit));
    usize::from(crc % SLOTS) * LANES / usize::from(SLOTS)
}

#[cfg(test)]
mod tests {
    use super::lane_of;

    #[test]
    fn a_lane_has_consecutive_hash_slots() {
        // The slots that `CLUSTER KEYSLOT` names.
        assert_eq!(["123456789", "foo", "bar"].map(lane_of), [12_739 / 64, 12_182 / 64, 5_061 / 64]);
    }
}
