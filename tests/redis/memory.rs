//! A store that has lost its data: the loss is noticed, and decisions continue.

use std::time::Duration;

use tokio::time::Instant;
use tower_ratelimit::{Algorithm, Descriptor, Quota, RateLimiter, backend::Redis};

use super::{
    LONG, Seen, ask, closed, limiter, patient,
    sentinel::{MASTER, Watched},
    server::Server,
    shared_machine, until,
};

fn daily(limit: u64) -> Quota {
    Quota::per_day(limit).algorithm(Algorithm::FixedWindow)
}

/// Makes requests until the loss is noticed.
async fn noticed(limiter: &RateLimiter, redis: &Redis, losses: u64) {
    until("the loss to be noticed", async || {
        ask(limiter, "/", "somebody").await;
        (redis.stats().memory_lost == losses).then_some(())
    })
    .await;
}

async fn use_up(limiter: &RateLimiter, tenant: &str, limit: usize) {
    for _ in 0..limit {
        assert_eq!(ask(limiter, "/", tenant).await, Seen::Admitted);
    }
    assert_eq!(ask(limiter, "/", tenant).await, Seen::Rejected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_all_keys_is_noticed() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let redis = patient(server.url()).await;
    let limiter = limiter(closed(daily(5)), &redis);
    use_up(&limiter, "acme", 5).await;
    assert_eq!(redis.stats().memory_lost, 0, "nothing was lost");
    for losses in 1..=2 {
        let () = server.run("FLUSHALL", []).await;
        noticed(&limiter, &redis, losses).await;
        use_up(&limiter, &format!("newcomer-{losses}"), 5).await;
    }
}

/// What it was charged is lost: what others were charged since then is not its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refund_after_a_loss_gives_back_nothing_of_others() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let redis = patient(server.url()).await;
    let limiter = limiter(closed(Quota::per_day(10)), &redis);
    let all = Descriptor::new("/").method("GET").tenant("acme").cost(10);
    let permit = limiter.acquire(&all, Duration::ZERO).await.unwrap();
    let () = server.run("FLUSHALL", []).await;
    for _ in 0..5 {
        assert_eq!(ask(&limiter, "/", "acme").await, Seen::Admitted);
    }
    permit.refund();
    use_up(&limiter, "acme", 5).await;
}

/// Every instance that shares the store notices the loss once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_instance_notices_a_loss() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let (one, other) = (patient(server.url()).await, patient(server.url()).await);
    let limiters = [limiter(closed(daily(5)), &one), limiter(closed(daily(5)), &other)];
    for (limiter, redis) in limiters.iter().zip([&one, &other]) {
        assert_eq!(ask(limiter, "/", "acme").await, Seen::Admitted);
        assert_eq!(redis.stats().memory_lost, 0, "a new instance accepts the data");
    }
    let () = server.run("FLUSHALL", []).await;
    for (limiter, redis) in limiters.iter().zip([&one, &other]) {
        noticed(limiter, redis, 1).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_without_data_is_noticed() {
    let _machine = shared_machine().await;
    let mut server = Server::start().await;
    let redis = patient(server.url()).await;
    let limiter = limiter(closed(daily(5)), &redis);
    use_up(&limiter, "acme", 5).await;
    server.restart().await;
    noticed(&limiter, &redis, 1).await;
    use_up(&limiter, "newcomer", 5).await;
}

/// A cached rejection does not outlive its lost counter by more than the TTL.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loss_clears_cached_rejections() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let redis = patient(server.url()).await;
    let limiter = limiter(closed(daily(5)), &redis);
    use_up(&limiter, "acme", 5).await;
    let () = server.run("FLUSHALL", []).await;
    until("the cached rejection to end", async || (ask(&limiter, "/", "acme").await == Seen::Admitted).then_some(()))
        .await;
}

/// A primary and its replica, both with a limit that is used up.
async fn used_up() -> (Watched, Redis, RateLimiter) {
    let servers = Watched::start().await;
    let sentinels = [servers.sentinel.url()];
    let redis = Redis::builder().sentinel(MASTER, sentinels).deadline(Duration::from_millis(500));
    let redis = redis.connect().await.unwrap();
    let limiter = limiter(closed(daily(5)), &redis);
    use_up(&limiter, "acme", 5).await;
    servers.replicated().await;
    (servers, redis, limiter)
}

async fn decides_again(limiter: &RateLimiter) {
    until("the new primary to decide", async || (ask(limiter, "/", "another").await != Seen::Failed).then_some(()))
        .await;
}

/// The replica is up to date, so what was used stays used.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_without_loss_is_no_loss() {
    let _machine = shared_machine().await;
    let (mut servers, redis, limiter) = used_up().await;
    servers.fail_over().await;
    decides_again(&limiter).await;
    assert_eq!(ask(&limiter, "/", "acme").await, Seen::Rejected, "what was used stays used");
    assert_eq!(redis.stats().memory_lost, 0, "nothing was lost");
}

/// The replica has no data.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_to_an_empty_replica_is_a_loss() {
    let _machine = shared_machine().await;
    let (mut servers, redis, limiter) = used_up().await;
    let () = servers.replica.run("FLUSHALL", []).await;
    servers.fail_over().await;
    decides_again(&limiter).await;
    noticed(&limiter, &redis, 1).await;
}

/// A unit in flight that the store has lost is not released twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unit_lost_in_flight_is_not_released_twice() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let redis = Redis::builder().url(server.url()).deadline(LONG).connect().await.unwrap();
    let limiter = limiter(closed(Quota::concurrent(2)), &redis);
    let request = Descriptor::new("/").tenant("acme");
    let before = limiter.acquire(&request, Duration::ZERO).await.unwrap();
    let () = server.run("FLUSHALL", []).await;
    noticed(&limiter, &redis, 1).await;
    let permits = [limiter.acquire(&request, Duration::ZERO).await, limiter.acquire(&request, Duration::ZERO).await];
    // How many it admits now is up to the backend; but the late release must not
    // add a third.
    drop(before);
    let start = Instant::now();
    let mut later = Vec::new();
    until("a late release to have arrived", async || {
        later.extend(limiter.acquire(&request, Duration::ZERO).await.ok());
        (start.elapsed() > Duration::from_millis(300)).then_some(())
    })
    .await;
    let count = permits.iter().filter(|result| result.is_ok()).count() + later.len();
    assert_eq!(count, 2, "units in flight");
}
