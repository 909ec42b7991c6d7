//! The upper floor of the Redis backend: the [`Link`] to the store chooses the server of a
//! call, runs it under the deadline and that server's circuit breaker, and checks the dataset
//! once a second. `upkeep` keeps the servers connected; a [`lane`] batches what is sent at the
//! same time. All this does not know what is charged: a lane is generic over what it carries,
//! and a link runs any script.
//!
//! Invariant: a script runs at most once, since a second charge is worse than a missing reply.
//! After a timeout, or a lost connection, nothing is known about whether it ran; only what
//! certainly did not run is sent again.

pub(crate) mod breaker;
pub(crate) mod cluster;
mod dataset;
pub(crate) mod lane;
pub(crate) mod server;
pub(crate) mod task_runtime;
#[cfg(test)]
mod tests;
mod upkeep;

use std::{future::Future, pin::Pin, sync::Arc};

use arc_swap::ArcSwap;
use redis::{PushInfo, Value};
use tokio::{
    sync::{Notify, broadcast},
    time::{Instant, timeout},
};

use self::{
    breaker::{CallPermit, Failure, at},
    cluster::{Topology, address_near, slot_of},
    dataset::{DatasetId, DatasetWatch, take_check},
    server::{Connection, Server, within},
    task_runtime::{Deadline, TaskRuntime},
};
use super::{
    settings::Settings,
    wire::{Call, DatasetCheck},
};
use crate::{
    error::{BackendError, BackendErrorKind},
    observe::{MEASURES, StoreReport},
};

/// How many pushes wait to be received. Of more, the first are lost.
const MAX_PUSHES: usize = 64;

/// How many redirects a call follows.
const MAX_REDIRECTS: usize = 3;

/// Connections to the store. Dropping it ends its background tasks.
pub(crate) struct Link {
    pub(crate) settings: Settings,
    topology: ArcSwap<Topology>,
    /// Notified when the owners of hash slots are to be asked for.
    is_outdated: Arc<Notify>,
    pub(crate) dataset: DatasetWatch,
    /// What servers push: messages of channels, and that a connection has ended. Also sent when
    /// others take the place of connections that may be open still.
    pub(crate) pushes: broadcast::Sender<PushInfo>,
    /// The deadline for a decision: its calls, and the callers that wait.
    pub(crate) deadline: Deadline,
    pub(crate) report: Arc<StoreReport>,
    pub(crate) runtime: Arc<TaskRuntime>,
}

impl Link {
    /// Connects. In a cluster it is enough that one node replies.
    pub(crate) async fn connect(settings: Settings) -> Result<Arc<Self>, BackendError> {
        let link = Self::new(settings)?;
        let connected = link.runtime.spawn(Arc::clone(&link).connect_all()).await;
        connected.map_err(|ended| BackendError::unavailable(ended.to_string()))??;
        link.watch_owners();
        Ok(link)
    }

    /// Connects in the background; until then the circuit breakers are open.
    pub(crate) fn lazy(settings: Settings) -> Result<Arc<Self>, BackendError> {
        let link = Self::new(settings)?;
        link.add_seeds(Some(&BackendError::unavailable(format!("not connected yet to {}", link.settings.servers))));
        link.watch_owners();
        Ok(link)
    }

    fn new(settings: Settings) -> Result<Arc<Self>, BackendError> {
        let runtime = match settings.uses_current_runtime {
            true => TaskRuntime::current(),
            false => TaskRuntime::start()
                .map_err(|error| BackendError::unavailable(format!("no thread for its tasks: {error}")))?,
        };
        let (runtime, report) = (Arc::new(runtime), Arc::default());
        Ok(Arc::new(Self {
            topology: ArcSwap::default(),
            is_outdated: Arc::default(),
            dataset: DatasetWatch::new(&settings, &report),
            pushes: broadcast::Sender::new(MAX_PUSHES),
            deadline: Deadline::new(settings.deadline, &runtime),
            report,
            runtime,
            settings,
        }))
    }

    /// Why every call is rejected. `None` while any circuit breaker is closed.
    pub(crate) fn rejection(&self) -> Option<BackendError> {
        let mut rejection = None;
        for server in self.topology.load().servers.values() {
            rejection = Some(server.breaker.rejection()?);
        }
        rejection
    }

    /// Whether any circuit breaker is open or half-open.
    pub(crate) fn is_open(&self) -> bool {
        self.topology.load().servers.values().any(|server| server.breaker.rejection().is_some())
    }

    /// Subscribes to a channel, on the server that has the key of its name. That ends with
    /// the connection. Returns what is pushed from then on.
    pub(crate) async fn subscribe(&self, channel: &str) -> Result<broadcast::Receiver<PushInfo>, BackendError> {
        let subscribed = async {
            let connection = self.owner(|| slot_of(channel))?.ready(0).await?;
            let pushes = self.pushes.subscribe();
            connection.subscribe(channel).await.map(|()| pushes).map_err(|error| Failure::of(&error).error)
        };
        let late = |_| Err(BackendError::timeout("not subscribed within the time to connect"));
        timeout(self.settings.connect_timeout, subscribed).await.unwrap_or_else(late)
    }

    /// Makes sure that the lane's connection is open. The server may have closed it
    /// while it was idle. That is no failure, since nothing was sent over it. In a cluster
    /// each call does so, since the lane's hash slots may be on several nodes.
    pub(crate) async fn ready(&self, lane: usize) -> Result<(), BackendError> {
        if self.settings.is_cluster() {
            return Ok(());
        }
        let server = self.owner(|| 0)?;
        let permit = server.breaker.permit()?;
        // Boxed, since it rarely waits and its future is large.
        let ready: Pin<Box<dyn Future<Output = _> + Send + '_>> = Box::pin(server.ready(lane));
        match self.deadline.within(ready).await {
            Some(ready) => ready.map(drop),
            // The caller no longer waits, so nothing is sent for it.
            None => Err(self.failed(&server, permit, self.late()).error),
        }
    }

    /// Runs a script, at most once, within the deadline.
    pub(crate) async fn call(self: &Arc<Self>, lane: usize, call: &Call) -> Result<Value, BackendError> {
        if self.dataset.is_due() {
            self.check_dataset();
        }
        let started = MEASURES.then(Instant::now);
        let reply = self.call_owner(lane, call).await;
        if let Some(started) = started {
            self.report.called(started.elapsed());
        }
        let (dataset, value) = take_check(reply.map_err(|failure| failure.error)?);
        if let Some(dataset) = dataset {
            self.dataset.update(dataset);
        }
        Ok(value)
    }

    /// A check of the dataset for a batch that is about to be sent; `None` where it is not due,
    /// or in a cluster, where the key is in a hash slot of its own.
    pub(crate) fn dataset_check(&self) -> Option<DatasetCheck> {
        (!self.settings.is_cluster() && self.dataset.is_due()).then(|| self.dataset.check())
    }

    /// Checks the dataset in a call of its own, if its server can be called.
    fn check_dataset(self: &Arc<Self>) {
        let link = Arc::clone(self);
        self.runtime.spawn(async move {
            let Ok(server) = link.owner(|| slot_of(&link.dataset.key)) else { return };
            if server.breaker.rejection().is_none()
                && let Some(connection) = server.first_connection()
                && let Ok(dataset) = link.read_dataset(&connection).await
            {
                let processes = link.topology.load().processes();
                link.dataset.update(DatasetId { processes, ..dataset });
            }
        });
    }

    /// Reads what identifies the dataset, over a connection to the server that has its key.
    async fn read_dataset(&self, connection: &Connection) -> Result<DatasetId, Failure> {
        let call = Call::probe(Some(&self.dataset.check()));
        let reply = within(self.settings.connect_timeout, connection.evaluate(&call, false)).await?;
        Ok(take_check(reply).0.unwrap_or_default())
    }

    /// Runs a script on the owner of its keys, also if that has changed.
    async fn call_owner(self: &Arc<Self>, lane: usize, call: &Call) -> Result<Value, Failure> {
        let end = self.deadline.end();
        let mut server = self.owner(|| call.key(1).map_or(0, slot_of)).map_err(Failure::unsent)?;
        let mut reply = self.call_server(&server, (lane, false), call, end).await;
        for _ in 0..MAX_REDIRECTS {
            let Err(Failure { redirect: Some(redirect), .. }) = &reply else { break };
            let Some(next) = self.server_at(&address_near(&redirect.address, &server.address)) else { break };
            if !redirect.is_asking {
                self.is_outdated.notify_one();
            }
            server = next;
            reply = self.call_server(&server, (lane, redirect.is_asking), call, end).await;
        }
        reply
    }

    async fn call_server(
        &self,
        server: &Server,
        (lane, is_asking): (usize, bool),
        call: &Call,
        end: Instant,
    ) -> Result<Value, Failure> {
        let permit = server.breaker.permit().map_err(Failure::unsent)?;
        let reply = async {
            let connection = server.ready(lane).await.map_err(Failure::unsent)?;
            connection.evaluate(call, is_asking).await.map_err(|error| Failure::of(&error))
        };
        match self.deadline.until(end, reply).await {
            Some(Ok(value)) => {
                server.breaker.succeeded(permit);
                Ok(value)
            }
            Some(Err(failure)) => Err(self.failed(server, permit, failure)),
            None => Err(self.failed(server, permit, self.late())),
        }
    }

    /// Tells the circuit breaker of a failure.
    fn failed(&self, server: &Server, permit: CallPermit, failure: Failure) -> Failure {
        if failure.error.kind() == BackendErrorKind::OutOfMemory {
            self.report.out_of_memory();
        }
        match failure.effect {
            Some(effect) => server.breaker.failed(permit, effect, &at(&server.address, &failure.error)),
            None => server.breaker.succeeded(permit),
        }
        server.wake();
        failure
    }

    fn late(&self) -> Failure {
        Failure::timeout(format!("no answer within {:?}", self.settings.deadline))
    }

    /// The server of a hash slot.
    fn owner(&self, slot: impl FnOnce() -> u16) -> Result<Arc<Server>, BackendError> {
        self.topology.load().owner(slot).cloned().ok_or_else(|| BackendError::unavailable("not connected"))
    }
}
