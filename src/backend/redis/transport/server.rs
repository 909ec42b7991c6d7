//! One server: its connections, how they are opened, and the circuit breaker over them. A
//! cluster has one for each node. It decides neither when connections are opened (see
//! `upkeep`) nor which server a call is for (see `Link`).
//!
//! Invariant: nothing is sent over a connection that is known to be closed, so what waits
//! for another one has not run. The driver resends nothing, so its retries and reconnects are
//! not used.

use std::{
    future::Future,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, PushInfo, PushKind, RedisError,
    RedisResult, ServerErrorKind, TlsMode, Value,
    aio::{MultiplexedConnection, SendError},
    sentinel::{SentinelClient, SentinelNodeConnectionInfo, SentinelServerType},
};
use tokio::{
    sync::{Notify, broadcast, watch},
    time::{Instant, timeout},
};

use super::breaker::{Breaker, Failure};
use crate::{
    backend::redis::{
        settings::{Deployment, Servers, Settings},
        wire::{Call, DECIDE},
    },
    error::BackendError,
    sync::lock,
};

/// One server, or the one of several that sentinels name at present.
pub(crate) struct Server {
    /// Names it in errors; in a cluster also in redirects.
    pub(super) address: String,
    /// How to connect to it. `None` behind sentinels, which name it.
    info: Option<ConnectionInfo>,
    pub(super) breaker: Breaker,
    /// Notified when a connection is wanted that is not there, when the circuit breaker may
    /// have opened, and when the server is dropped.
    pub(super) wanted: Arc<Notify>,
    connections: watch::Sender<Option<Arc<Connections>>>,
}

impl Server {
    pub(super) fn new(address: String, info: Option<ConnectionInfo>, breaker: Breaker) -> Self {
        Self { address, info, breaker, wanted: Arc::default(), connections: watch::Sender::default() }
    }

    /// An open connection of the lane. If there is none, one is opened, and this waits for
    /// it unless the circuit breaker opens. One that was idle is checked, in case its end has
    /// not been told.
    pub(super) async fn ready(&self, lane: usize) -> Result<Arc<Connection>, BackendError> {
        let mut connections = self.connections.subscribe();
        loop {
            let _ = self.breaker.permit()?;
            let present = connections.borrow_and_update().as_ref().and_then(|present| present.of_lane(lane));
            match present {
                Some(connection) if connection.is_ready().await => return Ok(connection),
                Some(_) => {}
                None => {
                    self.wanted.notify_one();
                    let _ = connections.changed().await;
                }
            }
        }
    }

    /// Connects, loads the scripts, and runs one: the user may not run any. The connections
    /// pass on what the server pushes.
    pub(super) async fn open(
        &self,
        settings: &Settings,
        pushes: &broadcast::Sender<PushInfo>,
    ) -> Result<Connections, Failure> {
        // Each sentinel may take as long as a server.
        let Servers { deployment, named, .. } = &settings.servers;
        let others = if let Deployment::Sentinel(_) = deployment { named.len() } else { 1 };
        within(settings.connect_timeout.saturating_mul(others as u32 + 1), async {
            #[cfg(feature = "tls")]
            provide_cryptography();
            let client = match &self.info {
                Some(info) => Client::open(info.clone())?,
                None => primary(settings).await?,
            };
            // Without a timeout for replies: a call has the deadline.
            let config = AsyncConnectionConfig::new();
            let config = config.set_connection_timeout(Some(settings.connect_timeout)).set_response_timeout(None);
            let count = if settings.is_cluster() { 1 } else { settings.connections };
            let mut all = Vec::new();
            for _ in 0..count {
                let opened = Connection::open(&client, config.clone(), pushes).await;
                all.push(Arc::new(opened.map_err(login_error)?));
            }
            let first = &all[0];
            // If it fails, the first call sends the text.
            let _ = first.send(&DECIDE.load()).await;
            let process = if settings.is_cluster() { process_of(first).await? } else { None };
            Ok(Connections { all, process, opened: Instant::now() })
        })
        .await
    }

    pub(super) fn connections(&self) -> Option<Arc<Connections>> {
        self.connections.borrow().clone()
    }

    pub(super) fn first_connection(&self) -> Option<Arc<Connection>> {
        self.connections()?.all.first().cloned()
    }

    /// Whether all its connections are open.
    pub(super) fn is_connected(&self) -> bool {
        self.connections().is_some_and(|present| present.all.iter().all(|connection| connection.is_open()))
    }

    /// When connections may be opened next, in place of those that have ended.
    /// If they end at once whenever they are opened, that is after `pause`.
    pub(super) fn due(&self, pause: Duration) -> Instant {
        let now = Instant::now();
        if self.breaker.rejection().is_some() {
            return now + self.breaker.delay();
        }
        self.connections().map_or(now, |present| present.opened + pause)
    }

    /// Uses new connections, and wakes the calls that wait for one.
    pub(super) fn replace(&self, connections: Connections) {
        self.connections.send_replace(Some(Arc::new(connections)));
    }

    /// The circuit breaker may have opened. Wakes the calls that wait for a connection, and
    /// what probes.
    pub(super) fn wake(&self) {
        self.wanted.notify_one();
        self.connections.send_modify(|_| {});
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.wanted.notify_one();
    }
}

/// A client of the primary that sentinels name at present.
async fn primary(settings: &Settings) -> RedisResult<Client> {
    let Servers { deployment: Deployment::Sentinel(primary), named: sentinels, login } = &settings.servers else {
        return Err((ErrorKind::InvalidClientConfig, "no sentinels").into());
    };
    let is_tls = matches!(sentinels.first().map(ConnectionInfo::addr), Some(ConnectionAddr::TcpTls { .. }));
    let mut info = SentinelNodeConnectionInfo::default().set_redis_connection_info(login.clone());
    if is_tls {
        info = info.set_tls_mode(TlsMode::Secure);
    }
    let mut sentinel =
        SentinelClient::build(sentinels.clone(), primary.clone(), Some(info), SentinelServerType::Master)?;
    let client = sentinel.async_get_client().await?;
    #[cfg(feature = "tls")]
    let client = match &settings.certificates {
        Some(certificates) if is_tls => {
            Client::build_with_tls(client.get_connection_info().clone(), certificates.clone())?
        }
        _ => client,
    };
    Ok(client)
}

pub(super) async fn within<T>(limit: Duration, call: impl Future<Output = RedisResult<T>>) -> Result<T, Failure> {
    match timeout(limit, call).await {
        Ok(reply) => reply.map_err(|error| Failure::of(&error)),
        Err(_) => Err(Failure::timeout(format!("not connected within {limit:?}"))),
    }
}

/// Installs a provider of cryptography, unless the process has chosen one: the
/// driver brings none, and panics without.
#[cfg(feature = "tls")]
pub(crate) fn provide_cryptography() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Fails only if another thread was first.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}

/// Connections that were opened together, one for each lane or shared by several.
pub(crate) struct Connections {
    pub(super) all: Vec<Arc<Connection>>,
    /// Names the process of the server: a restart or a failover changes it. `None` without
    /// a cluster, or without the right to run `INFO`.
    pub(super) process: Option<String>,
    opened: Instant,
}

impl Connections {
    fn of_lane(&self, lane: usize) -> Option<Arc<Connection>> {
        self.all.get(lane % self.all.len().max(1)).filter(|connection| connection.is_open()).cloned()
    }
}

/// The shortest time after which a Redis server can be set to close an idle connection.
const IDLE: Duration = Duration::from_secs(1);

/// One connection.
pub(crate) struct Connection {
    driver: MultiplexedConnection,
    /// Set when the driver tells it.
    is_closed: Arc<AtomicBool>,
    used: Mutex<Instant>,
}

impl Connection {
    /// Opens a connection. It passes on what the server pushes.
    async fn open(
        client: &Client,
        config: AsyncConnectionConfig,
        pushes: &broadcast::Sender<PushInfo>,
    ) -> RedisResult<Self> {
        let is_closed = Arc::new(AtomicBool::new(false));
        let (closed, pushes) = (Arc::clone(&is_closed), pushes.clone());
        let listen = move |push: PushInfo| {
            if push.kind == PushKind::Disconnection {
                closed.store(true, Ordering::Release);
            }
            // An error where nothing receives them.
            let _ = pushes.send(push);
            Ok::<_, SendError>(())
        };
        let driver = client.get_multiplexed_async_connection_with_config(&config.set_push_sender(listen)).await?;
        Ok(Self { driver, is_closed, used: Mutex::new(Instant::now()) })
    }

    fn is_open(&self) -> bool {
        !self.is_closed.load(Ordering::Acquire)
    }

    /// Whether it may be used, at once or after a check.
    async fn is_ready(&self) -> bool {
        if lock(&self.used).elapsed() >= IDLE
            && let Err(error) = self.send(&redis::cmd("PING")).await
            && Failure::of(&error).is_lost()
        {
            self.is_closed.store(true, Ordering::Release);
            return false;
        }
        *lock(&self.used) = Instant::now();
        true
    }

    /// Runs a script by its hash, and once more with its text before that where the server
    /// does not know the hash, and so has not run it. With `is_asking` the node is only about
    /// to own its hash slot.
    pub(super) async fn evaluate(&self, call: &Call, is_asking: bool) -> RedisResult<Value> {
        let asking = is_asking.then(|| redis::cmd("ASKING"));
        match self.send_after(asking.clone(), &call.by_hash).await {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                self.send_after([call.script.load()].into_iter().chain(asking), &call.by_hash).await
            }
            reply => reply,
        }
    }

    pub(super) async fn send(&self, command: &Cmd) -> RedisResult<Value> {
        self.driver.clone().send_packed_command(command).await.and_then(Value::extract_error)
    }

    pub(super) async fn subscribe(&self, channel: &str) -> RedisResult<()> {
        self.driver.clone().subscribe(channel).await
    }

    /// Sends a command, and in the same round trip those that have to come before it.
    async fn send_after(&self, first: impl IntoIterator<Item = Cmd>, command: &Cmd) -> RedisResult<Value> {
        let mut all = redis::pipe();
        first.into_iter().for_each(|first| _ = all.add_command(first));
        if all.is_empty() {
            return self.send(command).await;
        }
        all.add_command(command.clone());
        let replies = self.driver.clone().send_packed_commands(&all, 0, all.len()).await?;
        let mut replies: Vec<_> = replies.into_iter().map(Value::extract_error).collect();
        let last = replies.pop().unwrap_or(Ok(Value::Nil));
        // Why the command has failed, one before it may say.
        replies.into_iter().find(|reply| reply.is_err() && last.is_err()).unwrap_or(last)
    }
}

/// Says of a wrong password more than the server does.
fn login_error(error: RedisError) -> RedisError {
    match error.code() {
        Some("WRONGPASS") => (ErrorKind::AuthenticationFailed, "Password authentication failed").into(),
        _ => error,
    }
}

/// The server process of a node, if the user may run `INFO`. An error if it runs no script:
/// what is asked of one server, to check its dataset, is the task of one node only.
async fn process_of(connection: &Connection) -> RedisResult<Option<String>> {
    connection.evaluate(&Call::probe(None), false).await?;
    let mut info = redis::cmd("INFO");
    info.arg("server");
    let info = connection.send(&info).await.ok().and_then(|info| redis::from_redis_value::<String>(info).ok());
    Ok(info.as_deref().and_then(run_id).map(str::to_owned))
}

/// The id of the server process, from the reply of `INFO server`.
fn run_id(info: &str) -> Option<&str> {
    info.lines().find_map(|line| line.strip_prefix("run_id:")).map(str::trim).filter(|id| !id.is_empty())
}

#[cfg(test)]
mod tests;
