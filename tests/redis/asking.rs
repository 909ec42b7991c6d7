//! Peeks and resets on a server that two instances share.

use std::time::Duration;

use tokio::time::Instant;
use tower_ratelimit::{Algorithm, Descriptor, Quota, RateLimitedKind, Rule, backend::Redis};

use super::{
    LONG, closed,
    cluster::Cluster,
    limiter,
    load::run_for,
    patient,
    server::{Server, until},
    shared_machine,
};

fn acme() -> Descriptor<'static> {
    Descriptor::new("/").tenant("acme")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peek_writes_nothing_and_says_when() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let redis = patient(server.url()).await;
    let bursting = |algorithm: &Algorithm| !matches!(algorithm, Algorithm::LeakyBucket | Algorithm::Concurrency);
    for algorithm in Algorithm::ALL.iter().copied().filter(bursting) {
        let limiter = limiter(closed(Quota::per_day(2).algorithm(algorithm)), &redis);
        let tenant = algorithm.to_string();
        let asked = Descriptor::new("/").tenant(&*tenant);
        let keys = server.keys("rl:closed*").await;
        assert_eq!(limiter.peek(&asked).await.remaining(), Some(2), "{algorithm}");
        assert_eq!(server.keys("rl:closed*").await, keys, "{algorithm}");
        limiter.check(&asked.clone().cost(2)).await;
        let (seen, decided) = (limiter.peek(&asked).await, limiter.check(&asked).await);
        assert_eq!(seen.rejection(), Some(RateLimitedKind::QuotaExceeded), "{algorithm}");
        let late = seen.retry_after().unwrap().saturating_sub(decided.retry_after().unwrap());
        assert!(late < Duration::from_secs(1), "{algorithm}: {seen:?}, {decided:?}");
        assert_eq!(limiter.peek(&asked.clone().cost(3)).await.rejection(), Some(RateLimitedKind::NeverFits));
        assert_eq!(limiter.stats().rejected, 1, "{algorithm}");
        assert_eq!(limiter.reset(&asked).await.unwrap(), 1, "{algorithm}");
        assert_eq!(limiter.reset(&asked).await.unwrap(), 0, "{algorithm}");
        assert_eq!(
            server.keys("rl:closed*").await,
            keys,
            "{algorithm}: a reset deletes the counter and its sorted set"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_explanation_says_what_the_server_has_left_and_charges_nothing() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let [one, two] = [patient(server.url()).await, patient(server.url()).await];
    let (one, two) = (limiter(closed(Quota::per_day(2)), &one), limiter(closed(Quota::per_day(2)), &two));
    assert!(one.check(&acme()).await.is_allowed());
    for _ in 0..3 {
        let text = two.explain(&acme()).await.to_string();
        assert!(text.starts_with("allowed\n") && text.contains(", from the rule; 1 left"), "{text}");
    }
    assert!(one.check(&acme()).await.is_allowed());
    let text = two.explain(&acme()).await.to_string();
    assert!(text.starts_with("rejected: QuotaExceeded, retry after ") && text.contains("; 0 left"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_holds_for_all_instances_and_voids_cached_rejections() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let policy = || {
        closed(Quota::per_day(1))
            .rule(Rule::new("busy").path("/busy").tier(Quota::concurrent(1)))
            .rule(Rule::new("log").tier(Quota::per_day(1).algorithm(Algorithm::SlidingLog)))
    };
    let [one, two] = [patient(server.url()).await, patient(server.url()).await];
    let (one, two) = (limiter(policy(), &one), limiter(policy(), &two));
    for round in 0..3 {
        assert!(one.check(&acme()).await.is_allowed(), "round {round}");
        for limiter in [&one, &two] {
            // The second one is cached.
            for _ in 0..2 {
                assert!(!limiter.check(&acme()).await.is_allowed());
            }
            assert!(!limiter.peek(&acme()).await.is_allowed());
        }
        assert_eq!(one.reset(&acme()).await.unwrap(), 2, "round {round}");
        assert!(two.peek(&acme()).await.is_allowed(), "a peek is not cached");
    }
    // Units in flight stay.
    let busy = Descriptor::new("/busy").tenant("initech");
    let held = one.acquire(&busy, Duration::ZERO).await.unwrap();
    assert_eq!(two.reset(&busy).await.unwrap(), 2, "not the unit in flight");
    assert!(!two.peek(&busy).await.is_allowed());
    drop(held);
}

/// A request that costs much must not keep the server from the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_of_single_units_is_read_once_whatever_a_request_costs() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let redis = patient(server.url()).await;
    let limiter = limiter(closed(Quota::per_day(200).algorithm(Algorithm::SlidingLog)), &redis);
    for _ in 0..200 {
        assert!(limiter.check(&acme()).await.is_allowed());
    }
    let reads = async || {
        let stats: String = server.run("INFO", ["commandstats"]).await;
        let line = stats.lines().find(|line| line.starts_with("cmdstat_zrangebyscore:"));
        line.and_then(|line| line.split(['=', ',']).nth(1)).map_or(0, |calls| calls.parse::<u64>().unwrap())
    };
    let before = reads().await;
    let rejected = limiter.check(&acme().cost(150)).await;
    assert!(!rejected.is_allowed() && rejected.retry_after().is_some(), "{rejected:?}");
    assert_eq!(reads().await - before, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peeks_and_resets_reach_every_hash_slot() {
    let _machine = shared_machine().await;
    let cluster = Cluster::start().await;
    let redis = Redis::builder().cluster(cluster.urls()).deadline(LONG).connect().await.unwrap();
    let shared = Rule::new("shared").per([]).tier(Quota::per_day(1));
    let limiter = limiter(closed(Quota::per_day(1)).rule(shared), &redis);
    for _ in 0..3 {
        assert_eq!(limiter.peek(&acme()).await.remaining(), Some(1));
        assert!(limiter.check(&acme()).await.is_allowed());
        assert!(!limiter.peek(&acme()).await.is_allowed());
        assert_eq!(limiter.reset(&acme()).await.unwrap(), 2, "in two hash slots");
    }
}

/// A peek that would be admitted holds no unit, so none is renewed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peek_holds_nothing_in_flight() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let lease = Duration::from_millis(300);
    let redis = Redis::builder().url(server.url()).deadline(LONG).lease(lease).connect().await.unwrap();
    let limiter = limiter(closed(Quota::concurrent(1)), &redis);
    assert!(limiter.peek(&acme()).await.is_allowed());
    run_for(2 * lease).await;
    assert_eq!(server.keys("rl:closed*").await, [""; 0]);
    let _permit = limiter.acquire(&acme(), Duration::ZERO).await.unwrap();
}

/// No message tells an instance what another one has released. Its waiter looks soon, if it has
/// not waited for long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_sees_soon_what_another_instance_releases() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let policy = || closed(Quota::concurrent(1));
    let (one, other) =
        (limiter(policy(), &patient(server.url()).await), limiter(policy(), &patient(server.url()).await));
    let request = Descriptor::new("/").tenant("acme");
    let mut fastest = Duration::MAX;
    for _ in 0..6 {
        let held = one.acquire(&request, Duration::ZERO).await.unwrap();
        let start = Instant::now();
        let waiting = async {
            drop(other.acquire(&request, LONG).await.unwrap());
            start.elapsed()
        };
        let releasing = async {
            until("the other instance waits", async || (other.stats().waiting > 0).then_some(())).await;
            drop(held);
        };
        let (waited, ()) = tokio::join!(waiting, releasing);
        fastest = fastest.min(waited);
        // What was released has arrived.
        drop(until("the unit is free", async || one.acquire(&request, Duration::ZERO).await.ok()).await);
    }
    assert!(fastest < Duration::from_millis(500), "{fastest:?} at least");
}
