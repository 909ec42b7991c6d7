//! The conformance suite of all backends.

use std::time::Duration;

use tower_ratelimit::{
    Consistency,
    backend::{Redis, RedisBuilder},
    testing::conformance::Suite,
};

use super::{LONG, cluster::Cluster, exclusive_machine, server::Server, shared_machine};

/// Few enough for a round trip each.
const KEYS: usize = 500;

/// Enough for a refund to arrive on a busy machine.
const LAG: Duration = Duration::from_millis(50);

/// By the server's clock. A machine that stalls for longer than the tolerance does not
/// do so every time.
async fn run_in_real_time(builder: RedisBuilder, consistency: Consistency) {
    for prefix in ["first", "second", "third"] {
        let redis = builder.clone().deadline(LONG).prefix(prefix).connect().await.unwrap();
        let suite = Suite::new(move || redis.clone()).keys(KEYS).real_time(5 * LAG).remote(LAG);
        let run = || suite.consistency(consistency).run();
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_ok() {
            return;
        }
    }
    panic!("failed three times in a row");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conforms_on_a_manual_clock() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let redis = Redis::builder().url(server.url()).deadline(LONG).limiter_time().connect().await.unwrap();
    Suite::new(move || redis.clone()).keys(KEYS).remote(LAG).run();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leased_conforms_on_a_manual_clock() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let redis = Redis::builder().url(server.url()).deadline(LONG).limiter_time().connect().await.unwrap();
    Suite::new(move || redis.clone()).keys(KEYS).remote(LAG).consistency(Consistency::Leased).run();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leased_conforms_in_real_time() {
    let _machine = exclusive_machine().await;
    let server = Server::start().await;
    run_in_real_time(Redis::builder().url(server.url()), Consistency::Leased).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leased_conforms_on_a_cluster() {
    let _machine = shared_machine().await;
    let cluster = Cluster::start().await;
    let redis = Redis::builder().cluster(cluster.urls()).deadline(LONG).limiter_time().connect().await.unwrap();
    Suite::new(move || redis.clone()).keys(KEYS).remote(LAG).consistency(Consistency::Leased).run();
}

/// By the server's clock, as in production.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conforms_in_real_time() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    run_in_real_time(Redis::builder().url(server.url()), Consistency::Exact).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conforms_on_a_cluster() {
    let _machine = shared_machine().await;
    let cluster = Cluster::start().await;
    let redis = Redis::builder().cluster(cluster.urls()).deadline(LONG).limiter_time().connect().await.unwrap();
    Suite::new(move || redis.clone()).keys(KEYS).remote(LAG).run();
    let spread = cluster.spread("*").await;
    assert!(spread.values().all(|&keys| keys > KEYS / 10), "not spread over the nodes: {spread:?}");
}

/// Several connections, small batches, no rejection cache.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conforms_with_every_setting_changed() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let redis = Redis::builder().url(server.url()).deadline(LONG).limiter_time();
    let redis = redis.connections(3).max_batch(1).rejection_cache_ttl(Duration::ZERO).database(3).prefix("other");
    let redis = redis.connect().await.unwrap();
    Suite::new(move || redis.clone()).keys(KEYS / 4).remote(LAG).run();
    assert!(server.keys("*").await.is_empty(), "database 0 was written to");
}
