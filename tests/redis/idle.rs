//! A server with `timeout 1` closes connections that are idle. That is no failure:
//! the backend connects again before it sends anything.

use std::time::Duration;

use tower_ratelimit::{
    Algorithm, FailureMode, Policy, Quota, RateLimiter, Rule,
    backend::{Redis, RedisBuilder},
};

use super::{LONG, Seen, ask, closed, cluster::Cluster, limiter, load::run_for, server::Server, shared_machine, until};

/// Makes the server close idle connections.
async fn close_idle(server: &Server) {
    let () = server.run("CONFIG", ["SET", "timeout", "1"]).await;
    create_user(server).await;
}

/// Creates a user for the backend, so that its connections differ from those of the
/// test.
async fn create_user(server: &Server) {
    let () = server.run("ACL", ["SETUSER", "limiter", "on", ">pass", "~*", "+@all"]).await;
}

fn builder() -> RedisBuilder {
    Redis::builder().username("limiter").password("pass").deadline(LONG).rejection_cache_ttl(Duration::ZERO)
}

async fn all_are_closed(servers: &[Server]) {
    until("the servers to close all connections", async || {
        for server in servers {
            let clients: String = server.run("CLIENT", ["LIST"]).await;
            if clients.contains(" user=limiter ") {
                return None;
            }
        }
        Some(())
    })
    .await;
}

/// Two requests are admitted and all others are rejected, for each failure mode
/// and tenant. Before each round the server closes all connections.
async fn assert_decided(servers: &[Server], redis: Redis) {
    let rule = |mode: FailureMode| {
        Rule::new(format!("{mode}")).path(format!("/{mode}")).tier(Quota::per_day(2)).on_backend_failure(mode)
    };
    let limiter = limiter(Policy::new().rule(rule(FailureMode::Open)).rule(rule(FailureMode::Closed)), &redis);
    for expected in [Seen::Admitted, Seen::Admitted, Seen::Rejected, Seen::Rejected] {
        all_are_closed(servers).await;
        for tenant in ["acme", "globex", "initech", "umbrella"] {
            for path in ["/open", "/closed"] {
                assert_eq!(ask(&limiter, path, tenant).await, expected, "{path} for {tenant}");
            }
        }
        assert!(!redis.stats().open);
    }
    let stats = limiter.stats();
    assert_eq!((stats.failed_open, stats.failed_closed), (0, 0), "{stats:?}");
    assert_eq!(redis.stats().memory_lost, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_closed_while_idle_is_no_failure() {
    let _machine = shared_machine().await;
    for connections in [1, 3] {
        let server = Server::start().await;
        close_idle(&server).await;
        let redis = builder().url(server.url()).connections(connections).connect().await.unwrap();
        assert_decided(&[server], redis).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_to_a_node_closed_while_idle_is_no_failure() {
    let _machine = shared_machine().await;
    let cluster = Cluster::start().await;
    for node in &cluster.nodes {
        close_idle(node).await;
    }
    let redis = builder().cluster(cluster.urls()).connect().await.unwrap();
    assert_decided(&cluster.nodes, redis).await;
}

/// While a hash slot moves, its node redirects to another one, which may close that
/// connection, or the runtime that sent the first request may end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redirected_connection_closed_while_idle_is_no_failure() {
    let _machine = shared_machine().await;
    let cluster = Cluster::start().await;
    for node in &cluster.nodes {
        create_user(node).await;
    }
    let redis = builder().cluster(cluster.urls()).breaker(1, LONG, LONG).connect().await.unwrap();
    let rule = Rule::new("daily").tier(Quota::per_day(4).algorithm(Algorithm::FixedWindow));
    let limiter: RateLimiter = limiter(Policy::new().rule(rule.on_backend_failure(FailureMode::Closed)), &redis);
    assert_eq!(ask(&limiter, "/", "acme").await, Seen::Admitted);
    let key = cluster.keys("*{acme}*").await.pop().unwrap();
    let slot = cluster.slot_of(&key).await;
    let to = (cluster.owner(slot).await + 1) % 3;
    cluster.start_moving(slot, to).await;
    let on_its_own = limiter.clone();
    let first = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(ask(&on_its_own, "/", "acme"))
    });
    assert_eq!(first.await.unwrap(), Seen::Admitted, "over the connection that is opened");
    assert_eq!(ask(&limiter, "/", "acme").await, Seen::Admitted, "on another runtime");
    let () = cluster.nodes[to].run("CONFIG", ["SET", "timeout", "1"]).await;
    for expected in [Seen::Admitted, Seen::Rejected, Seen::Rejected] {
        all_are_closed(&cluster.nodes[to..=to]).await;
        assert_eq!(ask(&limiter, "/", "acme").await, expected);
        assert!(!redis.stats().open);
    }
}

/// Nothing on the backend's runtime could notice that the connection was closed.
#[tokio::test]
async fn a_connection_closed_while_its_runtime_stood_still_is_no_failure() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    close_idle(&server).await;
    let url = server.url();
    let (requests, mut next) = tokio::sync::mpsc::unbounded_channel();
    let (reply, mut replies) = tokio::sync::mpsc::unbounded_channel();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let redis = runtime.block_on(builder().url(url).connect()).unwrap();
        let rule = Rule::new("open").tier(Quota::per_day(2)).on_backend_failure(FailureMode::Open);
        let limiter: RateLimiter = limiter(Policy::new().rule(rule), &redis);
        while next.blocking_recv().is_some() {
            reply.send(runtime.block_on(ask(&limiter, "/", "acme"))).unwrap();
        }
    });
    for expected in [Seen::Admitted, Seen::Admitted, Seen::Rejected, Seen::Rejected] {
        all_are_closed(std::slice::from_ref(&server)).await;
        requests.send(()).unwrap();
        assert_eq!(replies.recv().await, Some(expected));
    }
    drop(requests);
    thread.join().unwrap();
}

/// The backend notices when they are closed, and not when they are used next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_are_killed_between_requests_are_no_failure() {
    let _machine = shared_machine().await;
    let (server, cluster) = (Server::start().await, Cluster::start().await);
    let servers = [std::slice::from_ref(&server), &cluster.nodes[..]];
    let builders = [Redis::builder().url(server.url()).connections(2), Redis::builder().cluster(cluster.urls())];
    for (servers, builder) in servers.into_iter().zip(builders) {
        let redis = builder.deadline(LONG).breaker(1, Duration::from_millis(100), LONG).connect().await.unwrap();
        let limiter = limiter(closed(Quota::per_day(1_000)), &redis);
        for round in 0..5 {
            for tenant in ["acme", "globex", "initech", "umbrella"] {
                assert_eq!(ask(&limiter, "/", tenant).await, Seen::Admitted, "{tenant} in round {round}");
            }
            assert!(!redis.stats().open, "round {round}");
            for server in servers {
                let _: i64 = server.run("CLIENT", ["KILL", "TYPE", "normal"]).await;
            }
            run_for(Duration::from_millis(500)).await;
        }
        assert_eq!(redis.stats().memory_lost, 0);
    }
}

/// A closed connection over which nothing can be opened again is a failure.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_died_while_idle_is_a_failure() {
    let _machine = shared_machine().await;
    let mut server = Server::start().await;
    close_idle(&server).await;
    let redis = builder().url(server.url()).connect().await.unwrap();
    let rule = Rule::new("closed").tier(Quota::per_day(2)).on_backend_failure(FailureMode::Closed);
    let limiter = limiter(Policy::new().rule(rule), &redis);
    assert_eq!(ask(&limiter, "/", "acme").await, Seen::Admitted);
    all_are_closed(std::slice::from_ref(&server)).await;
    server.kill();
    assert_eq!(ask(&limiter, "/", "acme").await, Seen::Failed);
    assert!(redis.stats().open);
}
