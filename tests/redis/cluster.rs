//! A real cluster of three primaries.

use std::collections::HashMap;

use redis::Value;

use super::{
    server::{Options, Server},
    until,
};

pub(crate) const SLOTS: u16 = 16_384;

/// A range of hash slots: first, last, and address, port and id of its owner, after
/// which servers from version 7 on have more.
type Range = (u16, u16, Vec<Value>);

/// A cluster. Dropping this ends it.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Server>,
    ids: Vec<String>,
}

impl Cluster {
    pub(crate) async fn start() -> Self {
        let mut nodes = Vec::new();
        for _ in 0..3 {
            nodes.push(Options::default().cluster().start().await);
        }
        let mut ids = Vec::new();
        for (nth, node) in nodes.iter().enumerate() {
            // Each node is assigned its hash slots; different epochs make a
            // vote on them unnecessary.
            let _: () = node.run("CLUSTER", ["SET-CONFIG-EPOCH", &(nth + 1).to_string()]).await;
            let mut add = redis::cmd("CLUSTER");
            let slots: Vec<_> = (share(nth)..share(nth + 1)).collect();
            let () = add.arg("ADDSLOTS").arg(slots).query_async(&mut node.connection().await.unwrap()).await.unwrap();
            ids.push(node.run("CLUSTER", ["MYID"]).await);
        }
        for node in &nodes[1..] {
            let (port, bus) = (node.port().to_string(), node.bus().to_string());
            let _: () = nodes[0].run("CLUSTER", ["MEET", "127.0.0.1", &port, &bus]).await;
        }
        for node in &nodes {
            until("the cluster to be up", async || {
                let info: String = node.run("CLUSTER", ["INFO"]).await;
                let has = |line| info.lines().any(|other| other == line);
                let whole = has("cluster_state:ok") && has("cluster_slots_ok:16384") && has("cluster_known_nodes:3");
                whole.then_some(())
            })
            .await;
        }
        Self { nodes, ids }
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(Server::url).collect()
    }

    /// All keys of all nodes, sorted.
    pub(crate) async fn keys(&self, pattern: &str) -> Vec<String> {
        let mut keys = Vec::new();
        for node in &self.nodes {
            keys.extend(node.keys(pattern).await);
        }
        keys.sort();
        keys
    }

    pub(crate) async fn slot_of(&self, key: &str) -> u16 {
        self.nodes[0].run("CLUSTER", ["KEYSLOT", key]).await
    }

    /// The node that owns a hash slot, according to the first node.
    pub(crate) async fn owner(&self, slot: u16) -> usize {
        let ranges: Vec<Range> = self.nodes[0].run("CLUSTER", ["SLOTS"]).await;
        let range = ranges.into_iter().find(|(first, last, _)| (*first..=*last).contains(&slot)).unwrap();
        let owner: String = redis::from_redis_value(range.2[2].clone()).unwrap();
        self.ids.iter().position(|id| *id == owner).unwrap()
    }

    /// Moves a hash slot with its keys. During the move nodes reply `ASK`, and then
    /// `MOVED`.
    pub(crate) async fn move_slot(&self, slot: u16, to: usize) {
        let from = self.owner(slot).await;
        if from == to {
            return;
        }
        self.start_moving(slot, to).await;
        // The new owner is set first, so that the hash slot always has one.
        for node in [&self.nodes[to], &self.nodes[from]] {
            let _: () = node.run("CLUSTER", ["SETSLOT", &slot.to_string(), "NODE", &self.ids[to]]).await;
        }
    }

    /// Moves the keys of a hash slot, but not the slot: its node replies `ASK`.
    pub(crate) async fn start_moving(&self, slot: u16, to: usize) {
        let from = self.owner(slot).await;
        let (number, source, target) = (slot.to_string(), &self.nodes[from], &self.nodes[to]);
        let _: () = target.run("CLUSTER", ["SETSLOT", &number, "IMPORTING", &self.ids[from]]).await;
        let _: () = source.run("CLUSTER", ["SETSLOT", &number, "MIGRATING", &self.ids[to]]).await;
        loop {
            let keys: Vec<String> = source.run("CLUSTER", ["GETKEYSINSLOT", &number, "100"]).await;
            if keys.is_empty() {
                break;
            }
            let port = target.port().to_string();
            for key in &keys {
                // `NOKEY` if it has expired by now.
                let _: String = source.run("MIGRATE", ["127.0.0.1", &port, key, "0", "5000"]).await;
            }
        }
    }

    /// The number of keys of each node.
    pub(crate) async fn spread(&self, pattern: &str) -> HashMap<u16, usize> {
        let mut spread = HashMap::new();
        for node in &self.nodes {
            spread.insert(node.port(), node.keys(pattern).await.len());
        }
        spread
    }
}

fn share(nth: usize) -> usize {
    usize::from(SLOTS) * nth / 3
}
