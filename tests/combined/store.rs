//! Combinations of features with a remote store.

use std::time::Duration;

use tokio::time::Instant;
use tower_ratelimit::{Quota, RateLimiter, backend::Redis};

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
