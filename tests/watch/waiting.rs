//! Reloads that remove the rule that requests wait for.

use std::time::Duration;

use tower_ratelimit::{
    Descriptor, Policy, Quota, RateLimiter, Rule,
    policy_source::{Document, WatchHandle},
    testing::TokioClock,
};

use super::fake::{Script, fake};

async fn watched(policy: Policy) -> (RateLimiter, Script, WatchHandle) {
    let limiter = RateLimiter::builder().clock(TokioClock::default()).build().unwrap();
    let (script, source) = fake();
    let mut handle = limiter.watch(source).unwrap();
    script.holds(Document::policy(policy));
    handle.wait_for(|status| status.applied == 1).await.unwrap();
    (limiter, script, handle)
}

#[tokio::test(start_paused = true)]
async fn a_reservation_survives_a_reload() {
    let rule = Rule::new("jobs").tier(Quota::per_second(1).burst(1)).max_wait(Duration::from_secs(60));
    let (limiter, script, mut handle) = watched(Policy::new().rule(rule)).await;
    let start = tokio::time::Instant::now();
    let waiting: Vec<_> = (0..4)
        .map(|_| {
            let limiter = limiter.clone();
            let wait = Duration::from_secs(60);
            tokio::spawn(async move { limiter.acquire(&Descriptor::new("/jobs"), wait).await.map(|_| start.elapsed()) })
        })
        .collect();
    tokio::task::yield_now().await;
    script.holds(Document::policy(Policy::new()));
    handle.wait_for(|status| status.applied == 2).await.unwrap();
    // New requests are not limited.
    drop(limiter.acquire(&Descriptor::new("/jobs"), Duration::ZERO).await.unwrap());
    let mut admitted = Vec::new();
    for waiting in waiting {
        admitted.push(waiting.await.unwrap().unwrap().as_secs());
    }
    assert_eq!(admitted, [0, 1, 2, 3]);
}

#[tokio::test(start_paused = true)]
async fn a_queued_request_keeps_the_limit_under_which_it_arrived() {
    let (limiter, script, mut handle) = watched(Policy::new().rule(Rule::new("jobs").tier(Quota::concurrent(1)))).await;
    let permit = limiter.acquire(&Descriptor::new("/jobs"), Duration::ZERO).await.unwrap();
    let queued = {
        let limiter = limiter.clone();
        tokio::spawn(async move { limiter.acquire(&Descriptor::new("/jobs"), Duration::from_secs(60)).await.map(drop) })
    };
    tokio::task::yield_now().await;
    script.holds(Document::policy(Policy::new()));
    handle.wait_for(|status| status.applied == 2).await.unwrap();
    tokio::task::yield_now().await;
    assert!(!queued.is_finished(), "the old limit still applies to it");
    drop(permit);
    queued.await.unwrap().unwrap();
}
