//! How many keys are known, and for how long.

use std::time::Duration;

use super::super::{KNOWN_FOR, MOST_KEYS, SHARDS};
use crate::{Descriptor, Policy, Quota, RateLimiter, Rule, testing::ManualClock};

fn limiter() -> (RateLimiter, ManualClock) {
    let (rule, clock) = (Rule::new("server").tier(Quota::adaptive_concurrency(10..=500)), ManualClock::new());
    let limiter = RateLimiter::builder().policy(Policy::new().rule(rule)).clock(clock.clone()).build().unwrap();
    (limiter, clock)
}

fn known(limiter: &RateLimiter) -> usize {
    (0..SHARDS).map(|shard| limiter.inner.adaptive_limits.0.lock(shard).len()).sum()
}

/// How many answers are known. To ask is to use the key.
fn samples(limiter: &RateLimiter, tenant: &str) -> u64 {
    limiter.adaptive_limits(&Descriptor::new("/").tenant(tenant))[0].samples()
}

async fn measure(limiter: &RateLimiter, tenant: &str) {
    drop(limiter.acquire(&Descriptor::new("/").tenant(tenant), Duration::ZERO).await.unwrap());
}

#[tokio::test]
async fn a_flood_of_keys_is_bounded_and_forgets_those_not_used_for_longest() {
    let (limiter, clock) = limiter();
    for tenant in ["busy", "idle"] {
        measure(&limiter, tenant).await;
    }
    for tenant in 0..3 * SHARDS * MOST_KEYS {
        clock.advance(Duration::from_nanos(1));
        assert_eq!(samples(&limiter, &tenant.to_string()), 0);
        assert_eq!(samples(&limiter, "busy"), 1);
    }
    let known = known(&limiter);
    assert!((SHARDS * MOST_KEYS * 3 / 4..=SHARDS * MOST_KEYS).contains(&known), "{known}");
    assert_eq!(samples(&limiter, "idle"), 0);
}

#[tokio::test]
async fn a_key_that_is_not_used_for_more_than_an_hour_starts_again() {
    let (limiter, clock) = limiter();
    measure(&limiter, "acme").await;
    for _ in 0..3 {
        clock.advance(Duration::from_nanos(KNOWN_FOR));
        assert_eq!(samples(&limiter, "acme"), 1);
    }
    clock.advance(Duration::from_nanos(KNOWN_FOR + 1));
    assert_eq!(samples(&limiter, "acme"), 0);
    assert_eq!(known(&limiter), 1);
}

/// What a request has found is what it reports to, whatever became of the key.
#[tokio::test]
async fn a_request_that_outlives_its_key_changes_no_other() {
    let (limiter, clock) = limiter();
    let held = limiter.acquire(&Descriptor::new("/").tenant("acme"), Duration::ZERO).await.unwrap();
    clock.advance(Duration::from_nanos(KNOWN_FOR + 1));
    assert_eq!(samples(&limiter, "acme"), 0);
    drop(held);
    assert_eq!(samples(&limiter, "acme"), 0);
}
