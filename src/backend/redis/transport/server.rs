//! One server: its connections, and the circuit breaker over them. A cluster has one for
//! each node. It neither opens connections nor chooses the server of a call: see `link`.
//!
//! Invariant: nothing is sent over a connection that is known to be closed, so what waits
//! for another one has not run.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, ErrorKind, PushInfo, PushKind, RedisResult, ServerErrorKind,
    Value,
    aio::{MultiplexedConnection, SendError},
};
use tokio::{
    sync::{Notify, broadcast, watch},
    time::Instant,
};

use super::{breaker::Breaker, failure::Failure};
use crate::{backend::redis::wire::Call, error::BackendError, sync::lock};

/// The shortest time after which a Redis server can be set to close an idle connection.
const IDLE: Duration = Duration::from_secs(1);

/// One server, or the one of several that sentinels name at present.
pub(crate) struct Server {
    /// Names it in errors; in a cluster also in redirects.
    pub(super) address: String,
    /// How to connect to it. `None` behind sentinels, which name it.
    pub(super) info: Option<ConnectionInfo>,
    pub(super) breaker: Arc<Breaker>,
    /// Notified when a connection is wanted that is not there, when the circuit breaker may
    /// have opened, and when the server is dropped.
    pub(super) wanted: Arc<Notify>,
    connections: watch::Sender<Option<Arc<Connections>>>,
}

/// Connections that were opened together, one for each lane or shared by several.
pub(crate) struct Connections {
    pub(super) all: Vec<Arc<Connection>>,
    /// Names the process of the server: a restart or a failover changes it. `None` without
    /// a cluster, or without the right to run `INFO`.
    pub(super) process: Option<String>,
    pub(super) opened: Instant,
}

/// One connection.
pub(crate) struct Connection {
    driver: MultiplexedConnection,
    /// Set when the driver tells it.
    is_closed: Arc<AtomicBool>,
    used: Mutex<Instant>,
}

impl Server {
    pub(super) fn new(address: String, info: Option<ConnectionInfo>, breaker: Breaker) -> Self {
        let (breaker, wanted) = (Arc::new(breaker), Arc::default());
        Self { address, info, breaker, wanted, connections: watch::Sender::default() }
    }

    /// An open connection of the lane. If there is none, one is opened, and this waits for
    /// it unless the circuit breaker opens. One that was idle is checked, in case its end has not been told.
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

impl Connections {
    fn of_lane(&self, lane: usize) -> Option<Arc<Connection>> {
        self.all.get(lane % self.all.len().max(1)).filter(|connection| connection.is_open()).cloned()
    }
}

impl Connection {
    /// Opens a connection. It passes on what the server pushes.
    pub(super) async fn open(
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
