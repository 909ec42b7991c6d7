//! A primary with a replica, and a sentinel that watches them.

use super::{
    server::{Options, Server},
    until,
};

pub(crate) const MASTER: &str = "limits";

/// A primary, its replica and a sentinel. Dropping this ends them.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) primary: Server,
    pub(crate) replica: Server,
    pub(crate) sentinel: Server,
}

impl Watched {
    pub(crate) async fn start() -> Self {
        let primary = Options::default().set("repl-diskless-sync-delay", ["0"]).start().await;
        let port = primary.port().to_string();
        let replica = Options::default().set("replica-read-only", ["no"]).set("replicaof", ["127.0.0.1", &port]);
        let replica = replica.start().await;
        until("the replica to follow", async || {
            let info: String = replica.run("INFO", ["replication"]).await;
            info.contains("master_link_status:up").then_some(())
        })
        .await;
        let settings = format!(
            "sentinel monitor {MASTER} 127.0.0.1 {port} 1\n\
             sentinel down-after-milliseconds {MASTER} 500\n\
             sentinel failover-timeout {MASTER} 2000\n"
        );
        let sentinel = Options::default().sentinel(settings).start().await;
        until("the sentinel to know the replica", async || {
            let known: Vec<redis::Value> = sentinel.run("SENTINEL", ["REPLICAS", MASTER]).await;
            (known.len() == 1).then_some(())
        })
        .await;
        Self { primary, replica, sentinel }
    }

    /// Waits until the replica has all that was written.
    pub(crate) async fn replicated(&self) {
        // Not by WAIT, which covers only the writes of its own connection.
        let written = offset(&self.primary, "master_repl_offset:").await;
        until("the replica to be up to date", async || {
            (offset(&self.replica, "slave_repl_offset:").await >= written).then_some(())
        })
        .await;
    }

    /// Kills the primary, and waits until the replica is promoted.
    pub(crate) async fn fail_over(&mut self) {
        self.primary.kill();
        let port = self.replica.port().to_string();
        until("a failover", async || {
            let info: String = self.replica.run("INFO", ["replication"]).await;
            let address: Vec<String> = self.sentinel.run("SENTINEL", ["GET-MASTER-ADDR-BY-NAME", MASTER]).await;
            (info.contains("role:master") && address.last() == Some(&port)).then_some(())
        })
        .await;
    }
}

/// A server's replication offset.
async fn offset(server: &Server, field: &str) -> u64 {
    let info: String = server.run("INFO", ["replication"]).await;
    info.lines().find_map(|line| line.strip_prefix(field)?.trim().parse().ok()).unwrap()
}
