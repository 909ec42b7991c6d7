//! Guarantees where they are hardest to keep: callers that hang up, settle twice,
//! or run on another runtime.

use std::time::Duration;

use tokio::{
    runtime::{Builder, Runtime},
    task::{JoinSet, yield_now},
    time::{Instant, timeout},
};
use tower_ratelimit::{
    Algorithm, Consistency, Descriptor, FailureMode, Permit, Policy, Quota, RateLimitedKind, RateLimiter, Rule,
    backend::Redis, testing::ManualClock,
};

use super::{
    LONG, Seen, ask, chain, closed, cluster::Cluster, exclusive_machine, failure, limiter, patient, server::Server,
    shared_machine, until,
};

fn rule(id: &str) -> Rule {
    Rule::new(id).on_backend_failure(FailureMode::Closed)
}

async fn take(limiter: &RateLimiter, tenant: &str, cost: u64) -> Permit {
    let request = Descriptor::new("/").tenant(tenant).cost(cost);
    limiter.acquire(&request, Duration::ZERO).await.unwrap()
}

async fn admits(limiter: &RateLimiter, tenant: &str, cost: u64) -> bool {
    let decision = limiter.check(&Descriptor::new("/").tenant(tenant).cost(cost)).await;
    assert_ne!(decision.rejection(), Some(RateLimitedKind::BackendUnavailable), "{decision:?}");
    decision.is_allowed()
}

/// Runs all tasks that are ready.
async fn settle() {
    for _ in 0..50 {
        yield_now().await;
    }
}

/// Makes both calls of a connection wait for a frozen server, so that all that
/// follows is sent together.
async fn occupy(limiter: &RateLimiter) -> Vec<tokio::task::JoinHandle<bool>> {
    let asks = ["one", "two"].map(|tenant| {
        let limiter = limiter.clone();
        tokio::spawn(async move { admits(&limiter, tenant, 1).await })
    });
    settle().await;
    asks.into()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refund_is_available_to_the_next_request() {
    let _machine = shared_machine().await;
    let mut server = Server::start().await;
    let redis = patient(server.url()).await;
    let limiter = limiter(closed(Quota::per_day(10).algorithm(Algorithm::FixedWindow)), &redis);
    for round in 0..10 {
        let [one, other] = ["one", "other"].map(|name| format!("{name}-{round}"));
        let permits = [take(&limiter, &one, 10).await, take(&limiter, &other, 10).await];
        server.freeze();
        let [first, second] = permits;
        first.refund();
        settle().await;
        second.refund();
        let asks = limiter.clone();
        let asks = tokio::spawn(async move { admits(&asks, &other, 10).await });
        settle().await;
        server.thaw();
        assert!(asks.await.unwrap(), "round {round}");
    }
}

/// However often it is changed while the server does not reply.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_debt_that_is_refunded_at_once_is_refunded_once() {
    let _machine = shared_machine().await;
    let mut server = Server::start().await;
    let redis = patient(server.url()).await;
    for algorithm in super::algorithms::ALGORITHMS {
        if algorithm == Algorithm::LeakyBucket {
            continue;
        }
        let quota = Quota::new(1_000, Duration::from_secs(360_000)).algorithm(algorithm);
        let policy = Policy::new().rule(rule(&format!("at-once-{algorithm}")).tier(quota).settle(true));
        let limiter = limiter(policy, &redis);
        let permit = take(&limiter, "acme", 100).await;
        drop(take(&limiter, "acme", 500).await);
        server.freeze();
        let busy = occupy(&limiter).await;
        permit.add(50);
        permit.give_back(100);
        permit.give_back(u64::MAX);
        server.thaw();
        for ask in busy {
            assert!(ask.await.unwrap());
        }
        permit.give_back(u64::MAX);
        // The server of a busy machine may take a while to recover.
        until("a reply", async || (ask(&limiter, "/", "other").await != Seen::Failed).then_some(())).await;
        // 500 are used, and the rest of the permit.
        let mut admitted = 0;
        while admits(&limiter, "acme", 10).await {
            admitted += 10;
        }
        assert!((350..=500).contains(&admitted), "{algorithm}: {admitted} beside 500 of 1,000");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refund_clears_every_cached_rejection() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let redis = Redis::builder().url(server.url()).deadline(LONG).rejection_cache_ttl(LONG).connect().await.unwrap();
    let limiter = limiter(closed(Quota::per_day(10).algorithm(Algorithm::FixedWindow)), &redis);
    let permit = take(&limiter, "acme", 10).await;
    assert!(!admits(&limiter, "acme", 1).await && !admits(&limiter, "acme", 2).await);
    permit.refund();
    assert!(admits(&limiter, "acme", 1).await && admits(&limiter, "acme", 2).await);
}

/// The queue of a connection is full of requests, and yet no refund is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refund_is_never_rejected_by_a_full_queue() {
    let _machine = shared_machine().await;
    let mut server = Server::start().await;
    let redis = Redis::builder().url(server.url()).deadline(LONG).max_batch(1).connect().await.unwrap();
    let policy = Policy::new().rule(rule("slots").tier(Quota::concurrent(200)));
    let limiter = limiter(policy, &redis);
    let mut permits = Vec::new();
    for _ in 0..200 {
        permits.push(take(&limiter, "acme", 1).await);
    }
    server.freeze();
    let asks: Vec<_> = (0..100)
        .map(|number| {
            let limiter = limiter.clone();
            tokio::spawn(async move { ask(&limiter, "/", &format!("tenant-{number}")).await })
        })
        .collect();
    settle().await;
    drop(permits);
    server.thaw();
    let mut rejected = 0;
    for ask in asks {
        rejected += usize::from(ask.await.unwrap() == Seen::Failed);
    }
    assert!(rejected > 0, "the queue was not full");
    let all = Descriptor::new("/").tenant("acme").cost(200);
    drop(until("all units", async || limiter.acquire(&all, Duration::ZERO).await.ok()).await);
}

/// A caller that hangs up, during the call or the wait, refunds its own reservation
/// once, and no other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_hangs_up_admits_no_other_too_early() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let redis = patient(server.url()).await;
    let limiter = limiter(closed(Quota::per_second(100).burst(1)), &redis);
    let start = Instant::now();
    let mut stay = JoinSet::new();
    for number in 0..400 {
        let limiter = limiter.clone();
        let waits = async move {
            drop(limiter.acquire(&Descriptor::new("/").tenant("acme"), LONG).await.unwrap());
            start.elapsed()
        };
        if number % 5 == 0 {
            stay.spawn(waits);
            continue;
        }
        let leaves = tokio::spawn(waits);
        for _ in 0..number % 7 {
            yield_now().await;
        }
        leaves.abort();
    }
    let mut admitted = stay.join_all().await;
    admitted.sort_unstable();
    for (before, at) in (0..).zip(&admitted) {
        assert!(*at >= Duration::from_millis(10) * before, "{before} were admitted within {at:?}");
    }
}

/// A request that was admitted at once stays charged, as if it had been served. What was
/// added to another one does not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_hangs_up_while_it_adds_units_is_not_charged_them() {
    let _machine = exclusive_machine().await;
    let mut server = Server::start().await;
    let redis = patient(server.url()).await;
    for tokens in [rule("exact"), rule("leased").consistency(Consistency::Leased)] {
        let daily = Quota::per_day(1_000).algorithm(Algorithm::FixedWindow);
        let limiter = limiter(Policy::new().rule(tokens.tier(daily).settle(true)), &redis);
        let permit = take(&limiter, "acme", 10).await;
        server.freeze();
        let adding = timeout(Duration::from_millis(100), permit.try_add(700)).await;
        assert!(adding.is_err(), "a frozen server decides nothing");
        server.thaw();
        let others = Descriptor::new("/").tenant("acme").cost(990);
        let comes_back = async || limiter.acquire(&others, Duration::ZERO).await.ok();
        drop(until("what was added", comes_back).await);
    }
}

/// A caller hangs up while one hash slot has replied and another has not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_leaves_between_two_hash_slots_holds_nothing() {
    let _machine = exclusive_machine().await;
    let mut cluster = Cluster::start().await;
    let redis = Redis::builder().cluster(cluster.urls()).deadline(LONG).connect().await.unwrap();
    let own = rule("own").tier(Quota::concurrent(3)).tier(Quota::per_day(4));
    let all = rule("all").per([]).tier(Quota::per_hour(1_000_000));
    let limiter = limiter(Policy::new().rule(own).rule(all), &redis);
    let shared = cluster.owner(cluster.slot_of("rl:all:{*all}").await).await;
    let mut tenant = String::new();
    for number in 0.. {
        tenant = format!("tenant-{number}");
        if cluster.owner(cluster.slot_of(&format!("rl:own:{{{tenant}}}")).await).await != shared {
            break;
        }
    }
    drop(take(&limiter, &tenant, 1).await);
    cluster.nodes[shared].freeze();
    for _ in 0..3 {
        let request = Descriptor::new("/").tenant(&*tenant);
        let cancelled = timeout(Duration::from_millis(100), limiter.acquire(&request, Duration::ZERO)).await;
        assert!(cancelled.is_err(), "half of the request cannot be decided");
    }
    cluster.nodes[shared].thaw();
    let comes_back =
        async || limiter.acquire(&Descriptor::new("/").tenant(&*tenant).cost(3), Duration::ZERO).await.ok();
    drop(until("all units, and what was charged beside them", comes_back).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prefix_with_braces_is_an_error_in_a_cluster() {
    let _machine = shared_machine().await;
    for prefix in ["{app}", "a{b", "{}", "}"] {
        let error = Redis::builder().cluster(["redis://127.0.0.1:1"]).prefix(prefix).connect_lazy().unwrap_err();
        assert_eq!((error.key(), error.value()), ("prefix", Some(prefix)));
    }
}

/// The runtime that connected exists, but is not driven.
#[test]
fn deadlines_hold_on_every_runtime() {
    let (outer, inner) = (Runtime::new().unwrap(), Builder::new_current_thread().enable_all().build().unwrap());
    let mut server = outer.block_on(Server::start());
    let redis = inner.block_on(async { Redis::connect(server.url()).await.unwrap() });
    let limiter = limiter(closed(Quota::per_day(10)), &redis);
    server.freeze();
    outer.block_on(async {
        for _ in 0..3 {
            let answer = timeout(Duration::from_secs(5), ask(&limiter, "/", "acme")).await;
            assert_eq!(answer, Ok(Seen::Failed));
        }
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_do_not_name_tenants() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let limiter = limiter(closed(Quota::per_day(10)), &patient(server.url()).await);
    drop(take(&limiter, "a-secret", 1).await);
    let keys = server.keys("rl:closed*").await;
    let () = server.run("SET", [&*keys[0], "7"]).await;
    let error = failure(&limiter, "a-secret").await.unwrap();
    assert!(chain(&error).contains("rl:closed:{…}"), "{}", chain(&error));
    assert!(!chain(&error).contains("secret"), "{}", chain(&error));
}

/// The snapshot is older than later charges.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_from_an_old_snapshot_is_noticed() {
    let _machine = shared_machine().await;
    let mut server = Server::start().await;
    let redis = Redis::builder().url(server.url()).breaker(5, Duration::from_millis(50), Duration::from_millis(100));
    let redis = redis.deadline(LONG).connect().await.unwrap();
    let limiter = limiter(closed(Quota::per_day(1)), &redis);
    let () = server.run("SAVE", [] as [&str; 0]).await;
    assert!(admits(&limiter, "acme", 1).await);
    // The epoch is checked once a second while the store is used.
    let before = server.keys("rl:epoch").await;
    assert_eq!(before.len(), 1);
    let seen = async || {
        ask(&limiter, "/", "initech").await;
        server.run::<String, 1>("GET", ["rl:epoch"]).await
    };
    let first = seen().await;
    until("another check", async || (seen().await != first).then_some(())).await;
    server.restart().await;
    until("the store to reply", async || (ask(&limiter, "/", "globex").await != Seen::Failed).then_some(())).await;
    until("the loss to be noticed", async || {
        ask(&limiter, "/", "globex").await;
        (redis.stats().memory_lost == 1).then_some(())
    })
    .await;
    let rejected = limiter.acquire(&Descriptor::new("/").tenant("acme").cost(2), Duration::ZERO).await.unwrap_err();
    assert_eq!(rejected.kind(), RateLimitedKind::NeverFits);
}

/// What is reserved is not counted as used when the limit changes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_that_is_raised_for_a_second_locks_no_key() {
    let _machine = exclusive_machine().await;
    let server = Server::start().await;
    let longest = Duration::from_secs(60);
    for algorithm in [Algorithm::TokenBucket, Algorithm::LeakyBucket] {
        for settle in [false, true] {
            let id = format!("raised-{algorithm}-{settle}");
            // A leaky bucket holds a queue of 20 seconds.
            let is_leaky = algorithm == Algorithm::LeakyBucket;
            let burst = |limit| if is_leaky { 20 * limit } else { limit };
            let quota = |limit| Quota::per_second(limit).algorithm(algorithm).burst(burst(limit));
            let policy = |limit| Policy::new().rule(rule(&id).tier(quota(limit)).settle(settle));
            let clock = ManualClock::new();
            let redis = Redis::builder().url(server.url()).deadline(LONG).limiter_time();
            let redis = redis.rejection_cache_ttl(Duration::ZERO).connect().await.unwrap();
            let limiter =
                RateLimiter::builder().backend(redis).policy(policy(10)).clock(clock.clone()).build().unwrap();
            let mut waiting = JoinSet::new();
            let mut arrive = |count, max_wait| {
                for _ in 0..count {
                    let limiter = limiter.clone();
                    waiting.spawn(async move {
                        limiter.acquire(&Descriptor::new("/").tenant("acme"), max_wait).await.map(drop)
                    });
                }
            };
            let retry_after = async || limiter.check(&Descriptor::new("/").tenant("acme")).await.retry_after();
            let reserved_until = async |least: Duration| {
                until("slots to be reserved", async || retry_after().await.filter(|after| *after >= least)).await
            };
            let queue = if is_leaky { longest / 3 } else { longest };
            arrive(800, longest);
            reserved_until(queue - Duration::from_millis(200)).await;
            limiter.set_policy(policy(100)).unwrap();
            arrive(6_500, longest);
            reserved_until(queue - Duration::from_millis(20)).await;
            limiter.set_policy(policy(10)).unwrap();
            clock.advance(Duration::from_secs(1));
            // Not of what a further request reserves: it may get a slot that another has left.
            let after = retry_after().await.unwrap();
            assert!(after < longest + queue, "{algorithm}, settled late: {settle}: nothing admitted for {after:?}");
            // Of another process, which has no such slot: if there is room for it, the bucket is
            // written under the low limit.
            let redis = Redis::builder().url(server.url()).deadline(LONG).limiter_time().connect().await.unwrap();
            let other = RateLimiter::builder().backend(redis).policy(policy(10)).clock(clock.clone()).build().unwrap();
            let late = Descriptor::new("/").tenant("acme");
            let acquiring = other.acquire(&late, LONG * 1_000);
            let reserved = async {
                until("another slot to be reserved", async || (other.stats().waiting == 1).then_some(())).await;
                other.check(&late).await.retry_after().unwrap()
            };
            let after = tokio::select! {
                result = acquiring => result.unwrap_err().retry_after().unwrap(),
                after = reserved => after,
            };
            assert!(after < longest + queue, "{algorithm}, settled late: {settle}: then nothing for {after:?}");
        }
    }
}

/// Each waits for the one before, as only the reply to that tells where the units are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settlements_in_a_row_all_count() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let redis = patient(server.url()).await;
    let limiter = limiter(Policy::new().rule(rule("settled").tier(Quota::per_day(100)).settle(true)), &redis);
    let permit = take(&limiter, "acme", 10).await;
    for units in 1..=3 {
        permit.give_back(units);
        permit.add(1);
    }
    let left = async || limiter.peek(&Descriptor::new("/").tenant("acme")).await.remaining();
    until("all of them to count", async || (left().await == Some(100 - 10 + 6 - 3)).then_some(())).await;
}

/// What is left to give back is given back; all further settlements have no effect, and
/// delay no request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settlements_without_effect_delay_no_other_decision() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let redis = patient(server.url()).await;
    let settled = rule("settled").path("/").tier(Quota::per_day(1_000_000)).settle(true);
    let other = rule("other").path("/other").tier(Quota::per_day(1_000_000));
    let limiter = limiter(Policy::new().rule(settled).rule(other), &redis);
    let mut tasks = JoinSet::new();
    for task in 0..8 {
        let limiter = limiter.clone();
        tasks.spawn(async move {
            for _ in 0..40 {
                let permit = take(&limiter, &format!("tenant-{task}"), 1).await;
                for _ in 0..4 {
                    permit.give_back(1);
                }
            }
        });
    }
    let asked = async {
        while !tasks.is_empty() {
            assert_eq!(ask(&limiter, "/other", "acme").await, Seen::Admitted);
            while tasks.try_join_next().transpose().unwrap().is_some() {}
        }
    };
    timeout(LONG / 2, asked).await.expect("no settlement is waited for until the deadline");
}
