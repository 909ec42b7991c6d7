//! Connects the servers of a link: a loop for each opens connections when one is wanted, and
//! is the probe of its circuit breaker. In a cluster another one asks who owns the hash
//! slots.
//!
//! Invariant: one task at a time opens the connections of a server.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use futures_util::future::join_all;
use redis::{ConnectionInfo, PushInfo, PushKind};
use tokio::time::{Instant, sleep_until};

use super::{
    Link,
    breaker::{Breaker, Failure, at},
    cluster::{Topology, node_at, read_owners},
    dataset::DatasetId,
    server::{Server, within},
};
use crate::{backend::redis::settings::Deployment, error::BackendError};

/// The shortest time between two looks for the owners of the hash slots.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);

impl Link {
    /// Connects to the servers that the settings name. In a cluster it is enough that one
    /// of them replies.
    pub(super) async fn connect_all(self: Arc<Self>) -> Result<(), BackendError> {
        self.add_seeds(None);
        let mut failure = None;
        let seeds = self.servers();
        for opened in join_all(seeds.iter().map(|seed| self.open(seed))).await {
            failure = failure.or(opened.err());
        }
        if let Some(failure) = failure.filter(|_| !seeds.iter().any(|seed| seed.is_connected())) {
            return Err(at(&self.settings.servers, &failure.error));
        }
        if self.settings.is_cluster() {
            self.ask_for_owners().await;
            let nodes = self.servers();
            // Until each is connected, or its circuit breaker is open.
            join_all(nodes.iter().map(|node| node.ready(0))).await;
        }
        Ok(())
    }

    /// Adds the servers that the settings name, unless they are known. Each rejects calls
    /// for this reason until it is connected.
    pub(super) fn add_seeds(self: &Arc<Self>, rejection: Option<&BackendError>) {
        let servers = &self.settings.servers;
        let seeds = match servers.deployment {
            Deployment::Sentinel(_) => vec![None],
            _ => servers.named.iter().map(Some).collect(),
        };
        for info in seeds {
            let address = info.map_or_else(|| servers.to_string(), |info| info.addr().to_string());
            let is_known = self.topology.load().servers.contains_key(&address);
            if !is_known {
                self.add(address, info.cloned(), rejection.cloned());
            }
        }
    }

    /// The server at an address. `None` if that cannot be read.
    pub(super) fn server_at(self: &Arc<Self>, address: &str) -> Option<Arc<Server>> {
        if let Some(known) = self.topology.load().servers.get(address) {
            return Some(Arc::clone(known));
        }
        let node = self.settings.servers.named.first().filter(|_| self.settings.is_cluster())?;
        Some(self.add(address.to_owned(), Some(node_at(address, node)?), None))
    }

    fn add(
        self: &Arc<Self>,
        address: String,
        info: Option<ConnectionInfo>,
        rejection: Option<BackendError>,
    ) -> Arc<Server> {
        let breaker = Breaker::new(self.settings.breaker, Arc::clone(&self.report), rejection);
        let server = Arc::new(Server::new(address, info, breaker));
        if server.breaker.rejection().is_some() {
            server.wake();
        }
        self.topology.rcu(|topology| Topology::clone(topology).with(&server));
        self.runtime.keep(keep_connected(Arc::downgrade(self), Arc::downgrade(&server)));
        server
    }

    /// Between two openings, if connections end at once: a decision has time for both.
    fn pause(&self) -> Duration {
        self.settings.breaker.shortest.min(self.settings.deadline / 2)
    }

    fn servers(&self) -> Vec<Arc<Server>> {
        self.topology.load().servers.values().cloned().collect()
    }

    /// Opens connections to a server, and checks its dataset before any of them is used.
    async fn open(&self, server: &Server) -> Result<(), Failure> {
        let connections = server.open(&self.settings, &self.pushes).await?;
        if self.settings.is_cluster() {
            let topology = self.topology.load();
            let mut processes = topology.processes();
            let process = connections.process.clone().filter(|_| topology.is_owner(server));
            processes.extend(process.map(|process| (server.address.clone(), process)));
            let dataset = DatasetId { latest: self.dataset.latest_time(), processes, ..DatasetId::default() };
            self.dataset.update(dataset);
            self.is_outdated.notify_one();
        } else if let Some(first) = connections.all.first() {
            self.dataset.update(self.read_dataset(first).await?);
        }
        server.replace(connections);
        Ok(())
    }

    /// Opens connections in place of those that have ended. The circuit breaker follows what
    /// becomes of it.
    async fn reconnect(&self, server: &Server) {
        if server.breaker.rejection().is_some() {
            server.breaker.half_open();
        } else if server.is_connected() {
            return;
        }
        let Err(failure) = self.open(server).await else {
            server.breaker.close();
            // Connections that are dropped do not say that they end.
            return drop(self.pushes.send(PushInfo { kind: PushKind::Disconnection, data: Vec::new() }));
        };
        server.breaker.reopen(&at(&server.address, &failure.error));
        server.wake();
        // Another node may have taken its place.
        self.is_outdated.notify_one();
    }

    /// Asks for the owners of the hash slots. If no known node says them, those that the
    /// settings name may.
    async fn ask_for_owners(self: &Arc<Self>) {
        let mut command = redis::cmd("CLUSTER");
        command.arg("SLOTS");
        for server in self.servers() {
            let asked = async {
                let connection = server.first_connection()?;
                within(self.settings.connect_timeout, connection.send(&command)).await.ok()
            };
            let owners = match server.breaker.rejection() {
                None => asked.await.map(|reply| read_owners(&reply, &server.address)).unwrap_or_default(),
                Some(_) => Vec::new(),
            };
            if !owners.is_empty() {
                let topology = Topology::of_owners(owners, |address| self.server_at(address));
                // Hash slots may be about to move to the others that are connected.
                let others = self.servers().into_iter().filter(|server| server.is_connected());
                self.topology.store(Arc::new(others.fold(topology, |topology, server| topology.with(&server))));
                return;
            }
        }
        self.add_seeds(None);
        self.servers().iter().for_each(|server| server.wanted.notify_one());
    }

    /// In a cluster, asks for the owners of the hash slots whenever they may have changed.
    pub(super) fn watch_owners(self: &Arc<Self>) {
        if !self.settings.is_cluster() {
            return;
        }
        let (link, is_outdated) = (Arc::downgrade(self), Arc::clone(&self.is_outdated));
        self.runtime.keep(async move {
            loop {
                is_outdated.notified().await;
                let Some(link) = Weak::upgrade(&link) else { return };
                link.ask_for_owners().await;
                drop(link);
                sleep_until(Instant::now() + REFRESH_INTERVAL).await;
            }
        });
    }
}

/// Connects a server when a connection is wanted, and probes while its circuit breaker is
/// open, for as long as it exists.
async fn keep_connected(link: Weak<Link>, server: Weak<Server>) {
    let Some(wanted) = server.upgrade().map(|server| Arc::clone(&server.wanted)) else { return };
    loop {
        wanted.notified().await;
        let Some(due) = link.upgrade().and_then(|link| Some(server.upgrade()?.due(link.pause()))) else {
            return;
        };
        sleep_until(due).await;
        let (Some(link), Some(server)) = (link.upgrade(), server.upgrade()) else { return };
        link.reconnect(&server).await;
    }
}
