//! Opens connections: to one server, to the primary that sentinels name, or to
//! a cluster. It does not reconnect: `link` does.
//!
//! Invariant: the driver resends nothing, so its retries and reconnects are off.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures_util::future::join_all;
use redis::{
    Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, ProtocolVersion, RedisResult, ServerErrorKind, TlsMode,
    Value,
    aio::{AsyncPushSender, MultiplexedConnection},
    sentinel::{SentinelClient, SentinelNodeConnectionInfo, SentinelServerType},
};
use tokio::time::timeout;

use super::{cluster::Cluster, dataset::run_id, failure::Failure};
use crate::backend::redis::{
    settings::{Servers, Settings},
    wire::{Call, LOADED},
};

/// Open connections to the store.
pub(crate) enum Connections {
    Single(Vec<MultiplexedConnection>),
    Cluster(Box<Cluster>),
}

/// Connects, and loads the scripts.
pub(crate) async fn open(settings: &Settings) -> Result<Connections, Failure> {
    let connected = async {
        let connections = connect(settings).await?;
        // To an unauthenticated client a server closes the connection on a long
        // command, without an error that says why. A short one gets the error.
        if let Connections::Single(_) = connections {
            connections.ping(0).await?;
        }
        join_all(LOADED.into_iter().map(|script| {
            let mut load = redis::cmd("SCRIPT");
            load.arg("LOAD").arg(script.text());
            connections.send_to_all(load)
        }))
        .await;
        Ok(connections)
    };
    let servers = match &settings.servers {
        Servers::Single(_) => 1,
        Servers::Cluster(nodes) => nodes.len(),
        Servers::Sentinel { sentinels, .. } => sentinels.len(),
    };
    within(settings.connect_timeout.saturating_mul(servers as u32 + 1), connected).await
}

async fn connect(settings: &Settings) -> RedisResult<Connections> {
    #[cfg(feature = "redis-tls")]
    provide_cryptography();
    let client = match &settings.servers {
        Servers::Single(info) => Client::open(info.clone())?,
        Servers::Sentinel { .. } => primary(settings).await?,
        Servers::Cluster(nodes) => {
            return Ok(Connections::Cluster(Box::new(Cluster::connect(nodes, settings).await?)));
        }
    };
    let mut connections = Vec::new();
    for _ in 0..settings.connections.max(1) {
        let config = settings.connection_config();
        connections.push(client.get_multiplexed_async_connection_with_config(&config).await?);
    }
    Ok(Connections::Single(connections))
}

/// The primary that the sentinels name at present.
async fn primary(settings: &Settings) -> RedisResult<Client> {
    let Servers::Sentinel { primary, sentinels, node } = &settings.servers else {
        return Err((ErrorKind::InvalidClientConfig, "no sentinels").into());
    };
    let is_tls = matches!(sentinels.first().map(ConnectionInfo::addr), Some(ConnectionAddr::TcpTls { .. }));
    let mut info = SentinelNodeConnectionInfo::default().set_redis_connection_info((**node).clone());
    if is_tls {
        info = info.set_tls_mode(TlsMode::Secure);
    }
    let mut sentinel =
        SentinelClient::build(sentinels.clone(), primary.clone(), Some(info), SentinelServerType::Master)?;
    let client = sentinel.async_get_client().await?;
    #[cfg(feature = "redis-tls")]
    let client = match &settings.certificates {
        Some(certificates) if is_tls => {
            Client::build_with_tls(client.get_connection_info().clone(), certificates.clone())?
        }
        _ => client,
    };
    Ok(client)
}

/// Opens another connection, whose push messages `push` receives. In a cluster
/// it is to any node, preferably one that the open connections know.
pub(crate) async fn open_subscriber(
    settings: &Settings,
    open: Option<Arc<Connections>>,
    push: impl AsyncPushSender + Clone,
) -> Result<MultiplexedConnection, Failure> {
    #[cfg(feature = "redis-tls")]
    provide_cryptography();
    let limit = settings.connect_timeout;
    let servers = match &settings.servers {
        Servers::Single(info) => vec![info.clone()],
        Servers::Sentinel { sentinels, .. } => {
            let client = within(limit.saturating_mul(sentinels.len() as u32 + 1), primary(settings)).await?;
            vec![client.get_connection_info().clone()]
        }
        Servers::Cluster(nodes) => {
            let mut servers = Vec::new();
            if let Some(Connections::Cluster(cluster)) = open.as_deref() {
                let replies = within(limit, cluster.on_primaries(redis::cmd("PING"))).await.unwrap_or_default();
                servers.extend(replies.into_iter().filter_map(|(address, _)| cluster.node_at(&address).ok()));
            }
            servers.extend(nodes.iter().cloned());
            servers
        }
    };
    let mut failure = None;
    for server in servers {
        let login = server.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let config = settings.connection_config().set_push_sender(push.clone());
        let connected = async {
            let client = Client::open(server.set_redis_settings(login))?;
            client.get_multiplexed_async_connection_with_config(&config).await
        };
        match within(limit, connected).await {
            Ok(connection) => return Ok(connection),
            Err(error) => failure = Some(error),
        }
    }
    Err(failure.unwrap_or_else(|| not_connected(limit)))
}

async fn within<T>(limit: Duration, connecting: impl Future<Output = RedisResult<T>>) -> Result<T, Failure> {
    match timeout(limit, connecting).await {
        Ok(connected) => connected.map_err(|error| Failure::of(&error)),
        Err(_) => Err(not_connected(limit)),
    }
}

fn not_connected(limit: Duration) -> Failure {
    Failure::timeout(format!("not connected within {limit:?}"))
}

/// Installs a provider of cryptography, unless the process has chosen one: the
/// driver brings none, and panics without.
#[cfg(feature = "redis-tls")]
pub(crate) fn provide_cryptography() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Fails only if another thread was first.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}

impl Connections {
    /// Runs a script by its hash, and by its text where the server does not know
    /// the hash, and so has not run it.
    pub(crate) async fn evaluate(&self, lane: usize, call: &Call) -> RedisResult<Value> {
        match self.send(lane, call.by_hash()).await {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                self.send(lane, &call.by_text()).await
            }
            reply => reply,
        }
    }

    /// Sends a command over the connection of this lane.
    async fn send(&self, lane: usize, command: &Cmd) -> RedisResult<Value> {
        match self {
            Self::Single(connections) => {
                let Some(connection) = connections.get(lane % connections.len().max(1)) else {
                    return Err((ErrorKind::Client, "no connection").into());
                };
                connection.clone().send_packed_command(command).await?.extract_error()
            }
            Self::Cluster(cluster) => cluster.send(command).await,
        }
    }

    /// Asks the server of this lane for a sign of life.
    pub(crate) async fn ping(&self, lane: usize) -> RedisResult<Value> {
        match self {
            Self::Single(_) => self.send(lane, &redis::cmd("PING")).await,
            Self::Cluster(cluster) => cluster.ping(lane).await,
        }
    }

    /// Sends a command to every primary. Those that fail are left out.
    async fn send_to_all(&self, command: Cmd) -> Vec<(String, Value)> {
        let replies = match self {
            Self::Single(_) => self.send(0, &command).await.map(|value| vec![(String::new(), value)]),
            Self::Cluster(cluster) => cluster.on_primaries(command).await,
        };
        replies.unwrap_or_default()
    }

    /// Whether any node of a cluster runs scripts. One server has replied
    /// already.
    pub(crate) async fn any_evaluates(&self) -> RedisResult<()> {
        match self {
            Self::Single(_) => Err((ErrorKind::Client, "not a cluster").into()),
            Self::Cluster(cluster) => cluster.any_evaluates().await,
        }
    }

    /// The server process at each address, where the user may run `INFO`.
    pub(crate) async fn processes(&self) -> BTreeMap<String, String> {
        let mut info = redis::cmd("INFO");
        info.arg("server");
        let replies = self.send_to_all(info).await.into_iter();
        let processes = replies.filter_map(|(address, info)| {
            let info = redis::from_redis_value::<String>(info).ok()?;
            Some((address, run_id(&info)?.to_owned()))
        });
        processes.collect()
    }
}
