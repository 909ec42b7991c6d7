//! Connections: to one server, to the master that sentinels name, or to a
//! cluster. None of them sends anything twice that may have been run, and none
//! reconnects by itself but the cluster's to its nodes.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, ProtocolVersion, RedisError,
    RedisResult, ServerErrorKind, TlsMode, Value,
    aio::{AsyncPushSender, ConnectionLike, MultiplexedConnection},
    cluster::ClusterClientBuilder,
    cluster_async::ClusterConnection,
    cluster_routing::{MultipleNodeRoutingInfo, ResponsePolicy, RoutingInfo},
    sentinel::{SentinelClient, SentinelNodeConnectionInfo, SentinelServerType},
};
use tokio::time::timeout;

use super::{
    epoch::run_id,
    failure::Failure,
    script,
    settings::{Place, Settings},
};

/// What commands are sent over.
pub(super) enum Connections {
    Alone(Vec<MultiplexedConnection>),
    Cluster(Box<Cluster>),
}

pub(super) struct Cluster {
    driver: ClusterConnection,
    /// To nodes that the driver does not ask yet: slots are on their way there.
    redirected: Mutex<HashMap<String, MultiplexedConnection>>,
    node: ConnectionInfo,
    connect_timeout: Duration,
}

/// Connects, and loads the scripts.
pub(super) async fn open(settings: &Settings) -> Result<Connections, Failure> {
    let nodes = match &settings.place {
        Place::Alone(_) => 1,
        Place::Cluster(nodes) => nodes.len(),
        Place::Sentinel { sentinels, .. } => sentinels.len(),
    };
    let within = settings.connect_timeout.saturating_mul(nodes as u32 + 1);
    let connected = async {
        let connections = connect(settings).await?;
        // To whom it does not know a server takes no long command, and hangs up
        // instead of saying why.
        if let Connections::Alone(_) = connections {
            connections.send(0, &redis::cmd("PING")).await?;
        }
        for script in script::ALL {
            let mut load = redis::cmd("SCRIPT");
            load.arg("LOAD").arg(script.text());
            connections.everywhere(load).await;
        }
        Ok(connections)
    };
    match timeout(within, connected).await {
        Ok(connected) => connected.map_err(|error: RedisError| Failure::of(&error)),
        Err(_) => Err(Failure::timeout(format!("not connected within {within:?}"))),
    }
}

async fn connect(settings: &Settings) -> RedisResult<Connections> {
    #[cfg(feature = "redis-tls")]
    provide_cryptography();
    match &settings.place {
        Place::Alone(info) => several(&Client::open(info.clone())?, settings).await,
        Place::Sentinel { .. } => several(&primary(settings).await?, settings).await,
        Place::Cluster(nodes) => {
            // With any retry the driver would send again what broke off on the
            // way, which may have been counted. So it has none, and what a node
            // only points elsewhere for is followed here.
            let client = ClusterClientBuilder::new(nodes.clone())
                .retries(0)
                .connection_timeout(settings.connect_timeout)
                .response_timeout(settings.connect_timeout);
            #[cfg(feature = "redis-tls")]
            let client = match &settings.certificates {
                Some(certificates) => client.certs(certificates.clone()),
                None => client,
            };
            let Some(node) = nodes.first().cloned() else {
                return Err((ErrorKind::InvalidClientConfig, "a cluster of no nodes").into());
            };
            Ok(Connections::Cluster(Box::new(Cluster {
                driver: client.build()?.get_async_connection().await?,
                redirected: Mutex::default(),
                node,
                connect_timeout: settings.connect_timeout,
            })))
        }
    }
}

/// The master that sentinels name at present.
async fn primary(settings: &Settings) -> RedisResult<Client> {
    let Place::Sentinel { master, sentinels, node } = &settings.place else {
        return Err((ErrorKind::InvalidClientConfig, "no sentinels").into());
    };
    let secure = matches!(sentinels.first().map(ConnectionInfo::addr), Some(ConnectionAddr::TcpTls { .. }));
    let mut wanted = SentinelNodeConnectionInfo::default().set_redis_connection_info((**node).clone());
    if secure {
        wanted = wanted.set_tls_mode(TlsMode::Secure);
    }
    let mut asked = SentinelClient::build(sentinels.clone(), master.clone(), Some(wanted), SentinelServerType::Master)?;
    let client = asked.async_get_client().await?;
    #[cfg(feature = "redis-tls")]
    let client = match &settings.certificates {
        Some(certificates) if secure => {
            Client::build_with_tls(client.get_connection_info().clone(), certificates.clone())?
        }
        _ => client,
    };
    Ok(client)
}

/// One connection more, of which `push` is told what the server says default_cooldown:
/// in a cluster to any node, those first that it is known to have.
pub(super) async fn listening(
    settings: &Settings,
    known: Option<Arc<Connections>>,
    push: impl AsyncPushSender + Clone,
) -> Result<MultiplexedConnection, Failure> {
    #[cfg(feature = "redis-tls")]
    provide_cryptography();
    let within = settings.connect_timeout;
    let late = || Failure::timeout(format!("not connected within {within:?}"));
    let servers = match &settings.place {
        Place::Alone(info) => vec![info.clone()],
        Place::Sentinel { sentinels, .. } => {
            let asked = timeout(within.saturating_mul(sentinels.len() as u32 + 1), primary(settings));
            let client = asked.await.map_err(|_| late())?.map_err(|error| Failure::of(&error))?;
            vec![client.get_connection_info().clone()]
        }
        Place::Cluster(nodes) => {
            let mut servers = Vec::new();
            if let Some(Connections::Cluster(cluster)) = known.as_deref() {
                let asked = timeout(within, cluster.on_primaries(redis::cmd("PING"))).await;
                let answers = asked.ok().and_then(Result::ok).unwrap_or_default().into_iter();
                servers.extend(answers.filter_map(|(address, _)| cluster.info_of(&address).ok()));
            }
            servers.extend(nodes.iter().cloned());
            servers
        }
    };
    let mut failed = None;
    for server in servers {
        let login = server.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let config = config(within).set_push_sender(push.clone());
        let connected = async {
            let client = Client::open(server.set_redis_settings(login))?;
            client.get_multiplexed_async_connection_with_config(&config).await
        };
        match timeout(within, connected).await {
            Ok(Ok(connection)) => return Ok(connection),
            Ok(Err(error)) => failed = Some(Failure::of(&error)),
            Err(_) => failed = Some(late()),
        }
    }
    Err(failed.unwrap_or_else(late))
}

/// The driver brings none, and panics where the process has not chosen one. What
/// the process has chosen stands.
#[cfg(feature = "redis-tls")]
pub(crate) fn provide_cryptography() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Fails only where another thread was first, which is as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}

/// The caller bounds the time of an answer, so the driver sets no second timer.
fn config(connect_timeout: Duration) -> AsyncConnectionConfig {
    AsyncConnectionConfig::new().set_connection_timeout(Some(connect_timeout)).set_response_timeout(None)
}

async fn several(client: &Client, settings: &Settings) -> RedisResult<Connections> {
    let mut connections = Vec::new();
    for _ in 0..settings.connections.max(1) {
        let config = config(settings.connect_timeout);
        connections.push(client.get_multiplexed_async_connection_with_config(&config).await?);
    }
    Ok(Connections::Alone(connections))
}

impl Connections {
    /// Sends it, once, over the connection of this lane.
    pub(super) async fn send(&self, lane: usize, command: &Cmd) -> RedisResult<Value> {
        match self {
            Self::Alone(connections) => {
                let at = lane % connections.len().max(1);
                let Some(connection) = connections.get(at) else {
                    return Err((ErrorKind::Client, "no connection").into());
                };
                connection.clone().send_packed_command(command).await?.extract_error()
            }
            Self::Cluster(cluster) => cluster.send(command).await,
        }
    }

    /// Sends it to every server that decides. Whoever fails is left out.
    async fn everywhere(&self, command: Cmd) -> Vec<(String, Value)> {
        let answer = match self {
            Self::Alone(_) => self.send(0, &command).await.map(|value| vec![(String::new(), value)]),
            Self::Cluster(cluster) => cluster.on_primaries(command).await,
        };
        answer.unwrap_or_default()
    }

    /// Whether any server of a cluster runs scripts. One that is alone was
    /// asked already.
    pub(super) async fn any_evaluates(&self) -> RedisResult<()> {
        let Self::Cluster(cluster) = self else { return Err((ErrorKind::Client, "not a cluster").into()) };
        let mut command = redis::cmd("EVAL");
        command.arg("return 1").arg(0);
        let any = (MultipleNodeRoutingInfo::AllMasters, Some(ResponsePolicy::OneSucceeded));
        let answer = cluster.driver.clone().route_command(command, RoutingInfo::MultiNode(any)).await?;
        answer.extract_error().map(drop)
    }

    /// The processes behind the addresses, where we may ask.
    pub(super) async fn processes(&self) -> BTreeMap<String, String> {
        let mut info = redis::cmd("INFO");
        info.arg("server");
        let answers = self.everywhere(info).await.into_iter();
        let processes = answers.filter_map(|(address, info)| {
            let info = redis::from_redis_value::<String>(info).ok()?;
            Some((address, run_id(&info)?.to_owned()))
        });
        processes.collect()
    }
}

/// How often a command follows where it is pointed to.
const MOST_REDIRECTIONS: usize = 3;

impl Cluster {
    async fn send(&self, command: &Cmd) -> RedisResult<Value> {
        let mut answer = self.driver.clone().req_packed_command(command).await.and_then(Value::extract_error);
        for _ in 0..MOST_REDIRECTIONS {
            let Err(error) = &answer else { break };
            let asking = error.kind() == ErrorKind::Server(ServerErrorKind::Ask);
            let Some((address, _)) = error.redirect_node() else { break };
            let address = address.to_owned();
            // Whoever points elsewhere has not run it, so it is sent once still.
            answer = self.send_to(&address, command, asking).await;
        }
        answer
    }

    async fn send_to(&self, address: &str, command: &Cmd, asking: bool) -> RedisResult<Value> {
        let mut connection = self.connection_to(address).await?;
        let answer = if asking {
            let mut both = redis::pipe();
            both.cmd("ASKING").add_command(command.clone());
            let answers = connection.send_packed_commands(&both, 0, 2).await;
            answers.map(|mut answers| answers.pop().unwrap_or(Value::Nil))
        } else {
            connection.send_packed_command(command).await
        };
        if answer.is_err() {
            self.redirected().remove(address);
        }
        answer.and_then(Value::extract_error)
    }

    async fn connection_to(&self, address: &str) -> RedisResult<MultiplexedConnection> {
        if let Some(known) = self.redirected().get(address) {
            return Ok(known.clone());
        }
        let client = Client::open(self.info_of(address)?)?;
        let connection = client.get_multiplexed_async_connection_with_config(&config(self.connect_timeout)).await?;
        self.redirected().insert(address.to_owned(), connection.clone());
        Ok(connection)
    }

    /// How a node is reached that is known by its address.
    fn info_of(&self, address: &str) -> RedisResult<ConnectionInfo> {
        let unreadable = || RedisError::from((ErrorKind::Client, "an address that cannot be read"));
        let (name, port) = address.rsplit_once(':').ok_or_else(unreadable)?;
        let number = port.parse::<u16>().map_err(|_| unreadable())?;
        let mut there = self.node.addr().clone();
        match &mut there {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                (*host, *port) = (name.trim_matches(['[', ']']).to_owned(), number);
            }
            _ => return Err(unreadable()),
        }
        Ok(self.node.clone().set_addr(there))
    }

    fn redirected(&self) -> std::sync::MutexGuard<'_, HashMap<String, MultiplexedConnection>> {
        self.redirected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn on_primaries(&self, command: Cmd) -> RedisResult<Vec<(String, Value)>> {
        let all = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
        let Value::Map(answers) = self.driver.clone().route_command(command, all).await? else {
            return Ok(Vec::new());
        };
        let named = |(address, answer)| Some((redis::from_redis_value::<String>(address).ok()?, answer));
        Ok(answers.into_iter().filter_map(named).collect())
    }
}
