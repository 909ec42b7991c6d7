//! Waits that are given up beside a store: slots return to it.

use std::time::Duration;

use tokio::time::{Instant, timeout};
use tower_ratelimit::{Policy, Quota, RateLimiter, Rule, backend::Redis};

use super::{MILLI, SECOND, arrives, by, poll};

#[allow(dead_code, reason = "shared with the tests of the backend itself")]
#[path = "../redis/server.rs"]
mod server;

/// Polls until the probe finds a value.
async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let start = Instant::now();
    let mut ticks = tokio::time::interval(MILLI * 10);
    loop {
        ticks.tick().await;
        if let Some(found) = look().await {
            return found;
        }
        assert!(start.elapsed() < SECOND * 30, "waited in vain for {what}");
    }
}

/// Dropped while it waits, a request gives its slot back: also before the store
/// has replied, since it has reserved the slot all the same.
#[tokio::test]
async fn a_request_dropped_while_the_store_is_asked_leaves_no_slot() {
    let server = server::Server::start().await;
    let redis = Redis::builder().url(server.url()).deadline(SECOND * 10).connect().await.unwrap();
    let limiter = RateLimiter::builder().policy(Quota::per_second(1)).backend(redis).build().unwrap();
    drop(limiter.acquire(&by("acme"), Duration::ZERO).await.unwrap());
    for _ in 0..20 {
        let mut waits = arrives(&limiter, "acme", SECOND * 600);
        tokio::task::yield_now().await;
        assert!(poll(&mut waits).is_pending());
        drop(waits);
    }
    let start = Instant::now();
    let near = async || limiter.check(&by("acme")).await.retry_after().filter(|after| *after <= SECOND);
    until("the slots to be refunded", near).await;
    let took = start.elapsed();
    assert!(took <= SECOND * 5, "no request waits, and the next one would have for {took:?}");
}

/// Thirty requests a second arrive, of which twenty pass, and each gives up
/// after 300 ms.
#[tokio::test]
async fn abandoned_waiters_leave_their_slots_to_others_of_the_same_store() {
    const SECONDS: u32 = 5;
    let server = server::Server::start().await;
    for fair in [false, true] {
        let rule = Rule::new(if fair { "fair" } else { "plain" }).tier(Quota::per_second(20));
        let policy = Policy::new().rule(if fair { rule.per([]).fair(true) } else { rule });
        let redis = Redis::builder().url(server.url()).connect().await.unwrap();
        let limiter = RateLimiter::builder().policy(policy).backend(redis).build().unwrap();
        let start = Instant::now();
        let mut tasks = tokio::task::JoinSet::new();
        for index in 0..30 * SECONDS {
            // By the time of the server, which cannot be paused.
            tokio::time::sleep_until(start + SECOND * index / 30).await;
            let limiter = limiter.clone();
            tasks.spawn(async move {
                let tenant = if fair { ["a", "b", "c"][index as usize % 3] } else { "acme" };
                let acquired = timeout(MILLI * 300, arrives(&limiter, tenant, SECOND * 3)).await;
                matches!(acquired, Ok(Ok(_)))
            });
        }
        let mut served = 0;
        while let Some(is_served) = tasks.join_next().await {
            served += u32::from(is_served.unwrap());
        }
        assert!(served >= 20 * SECONDS * 95 / 100, "fair {fair}: {served} of {}", 20 * SECONDS);
        assert!(served <= 20 * SECONDS + 20 + 6, "fair {fair}: {served}, over the limit");
        assert_eq!(limiter.stats().waiting, 0);
    }
}
