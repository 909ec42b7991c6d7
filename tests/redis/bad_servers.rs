//! Servers that reply wrongly, not at all, or not enough.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    time::Instant,
};
use tower_ratelimit::{FailureMode, Policy, Quota, Rule, backend::Redis, error::BackendErrorKind};

use super::{
    DEADLINE, SCHEDULING, Seen, ask, chain, closed, exclusive_machine, failure_kind, limiter, patient,
    server::{Options, Server},
    shared_machine, until,
};

/// A server that sends this to each client, on each message.
async fn speaks(reply: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut received = [0; 4_096];
                while stream.read(&mut received).await.is_ok_and(|length| length > 0) {
                    if stream.write_all(reply).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    url
}

const REPLIES: [&[u8]; 9] = [
    b"",
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
    b"\0\x01\x02\xff\xfe",
    b"+OK\r\n",
    b":1\r\n",
    b"-ERR something else\r\n",
    b"*3\r\n:1\r\n:2\r\n:3\r\n",
    b"*-1\r\n",
    b"$-1\r\n",
];

/// An error or the failure mode, in time and counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_another_protocol_fails_in_time() {
    let _machine = exclusive_machine().await;
    let timeout = Duration::from_millis(300);
    for reply in REPLIES {
        let text = reply.escape_ascii();
        let builder = Redis::builder().url(speaks(reply).await).connect_timeout(timeout);
        let start = Instant::now();
        let connected = builder.clone().connect().await;
        let took = start.elapsed();
        assert!(took < 4 * timeout + SCHEDULING, "`{text}`: connecting took {took:?}");
        let redis = connected.unwrap_or_else(|_| builder.connect_lazy().unwrap());
        let rule =
            |id: &str, mode| Rule::new(id).path(format!("/{id}")).tier(Quota::per_day(5)).on_backend_failure(mode);
        let policy = Policy::new().rule(rule("open", FailureMode::Open)).rule(rule("closed", FailureMode::Closed));
        let limiter = limiter(policy, &redis);
        for _ in 0..10 {
            for (path, expected) in [("/open", Seen::Admitted), ("/closed", Seen::Failed)] {
                let start = Instant::now();
                assert_eq!(ask(&limiter, path, "acme").await, expected, "`{text}`: {path}");
                let took = start.elapsed();
                assert!(took < DEADLINE + SCHEDULING, "`{text}`: a request took {took:?}");
            }
        }
        let stats = limiter.stats();
        assert_eq!((stats.failed_open, stats.failed_closed), (10, 10), "`{text}`: {stats:?}");
    }
}

/// Each request sees the failure, and the backend recovers.
async fn fails_until(server: &Server, kind: BackendErrorKind, breaks: [&str; 3], mends: [&str; 3]) {
    let redis = patient(server.url()).await;
    let limiter = limiter(closed(Quota::per_day(1_000)), &redis);
    assert_eq!(ask(&limiter, "/", "acme").await, Seen::Admitted);
    let () = server.run("CONFIG", breaks).await;
    let seen = failure_kind(&limiter, "acme").await;
    assert_eq!(seen, Some(kind), "after CONFIG {breaks:?}");
    let () = server.run("CONFIG", mends).await;
    until("it to recover", async || (ask(&limiter, "/", "acme").await == Seen::Admitted).then_some(())).await;
    let stats = limiter.stats();
    assert!(stats.failed_closed > 0 && stats.failed_open == 0, "{stats:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_out_of_memory_fails_until_it_recovers() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let (breaks, mends) = (["SET", "maxmemory", "1"], ["SET", "maxmemory", "0"]);
    fails_until(&server, BackendErrorKind::OutOfMemory, breaks, mends).await;
}

/// Its primary is gone, or a sentinel named the wrong server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_is_unavailable_until_it_is_promoted() {
    let _machine = shared_machine().await;
    let primary = Server::start().await;
    let replica = Options::default().set("replicaof", ["127.0.0.1", &primary.port().to_string()]).start().await;
    until("the replica to follow", async || {
        let info: String = replica.run("INFO", ["replication"]).await;
        info.contains("master_link_status:up").then_some(())
    })
    .await;
    let redis = Redis::builder().url(replica.url()).connect_lazy().unwrap();
    let limiter = limiter(closed(Quota::per_day(1_000)), &redis);
    for _ in 0..5 {
        assert_eq!(ask(&limiter, "/", "acme").await, Seen::Failed);
    }
    assert_eq!(limiter.stats().failed_closed, 5);
    let () = replica.run("REPLICAOF", ["NO", "ONE"]).await;
    until("it to recover", async || (ask(&limiter, "/", "acme").await == Seen::Admitted).then_some(())).await;
}

/// Scripts that the server has lost are sent again; callers do not notice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_loses_its_scripts_gets_them_again() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let limiter = limiter(closed(Quota::per_day(100)), &patient(server.url()).await);
    for _ in 0..20 {
        let () = server.run("SCRIPT", ["FLUSH"]).await;
        assert_eq!(ask(&limiter, "/", "acme").await, Seen::Admitted);
    }
    assert_eq!(limiter.stats().failed_closed, 0);
    let request = tower_ratelimit::Descriptor::new("/").tenant("acme");
    assert_eq!(limiter.check(&request).await.remaining(), Some(79), "each was charged once");
}

/// Connections that end are reopened.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_connection_is_reopened() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let limiter = limiter(closed(Quota::per_day(1_000)), &patient(server.url()).await);
    for _ in 0..5 {
        assert_eq!(ask(&limiter, "/", "acme").await, Seen::Admitted);
        let _: i64 = server.run("CLIENT", ["KILL", "TYPE", "normal"]).await;
        until("a new connection", async || (ask(&limiter, "/", "acme").await == Seen::Admitted).then_some(())).await;
    }
}

/// A script that runs for too long blocks all others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_server_is_unavailable_until_it_recovers() {
    let _machine = exclusive_machine().await;
    let server = Server::options().set("lua-time-limit", ["100"]).start().await;
    let redis = Redis::connect(&server.url()).await.unwrap();
    let limiter = limiter(closed(Quota::per_day(1_000)), &redis);
    assert_eq!(ask(&limiter, "/", "acme").await, Seen::Admitted);
    let mut connection = server.connection().await.unwrap();
    let busy =
        tokio::spawn(
            async move { redis::cmd("EVAL").arg("while true do end").arg(0).exec_async(&mut connection).await },
        );
    until("it to be busy", async || (ask(&limiter, "/", "acme").await == Seen::Failed).then_some(())).await;
    let start = Instant::now();
    assert_eq!(ask(&limiter, "/", "acme").await, Seen::Failed);
    assert!(start.elapsed() < DEADLINE + SCHEDULING, "{:?}", start.elapsed());
    let mut other = server.connection().await.unwrap();
    until("the script to be killed", async || redis::cmd("SCRIPT").arg("KILL").exec_async(&mut other).await.ok()).await;
    let killed = busy.await.unwrap().unwrap_err();
    until("it to recover", async || (ask(&limiter, "/", "acme").await == Seen::Admitted).then_some(())).await;
    assert!(chain(&killed).contains("killed"), "{killed}");
}
