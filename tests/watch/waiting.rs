//! A policy that removes the rule that somebody waits on.

use std::time::Duration;

use tower_ratelimit::{
    Descriptor, Policy, Quota, RateLimiter, Rule,
    policy_source::{Document, Watching},
    testing::TokioClock,
};

use super::fake::{Voice, fake};

async fn watched(policy: Policy) -> (RateLimiter, Voice, Watching) {
    let limiter = RateLimiter::builder().clock(TokioClock::default()).build().unwrap();
    let (voice, source) = fake();
    let mut watching = limiter.watch(source).unwrap();
    voice.says(Document::policy(policy));
    watching.wait_for(|status| status.applied == 1).await.unwrap();
    (limiter, voice, watching)
}

#[tokio::test(start_paused = true)]
async fn who_has_a_turn_keeps_it_and_its_bound() {
    let rule = Rule::new("jobs").tier(Quota::per_second(1).burst(1)).max_wait(Duration::from_secs(60));
    let (limiter, voice, mut watching) = watched(Policy::new().rule(rule)).await;
    let start = tokio::time::Instant::now();
    let waiting: Vec<_> = (0..4)
        .map(|_| {
            let limiter = limiter.clone();
            let wait = Duration::from_secs(60);
            tokio::spawn(async move { limiter.acquire(&Descriptor::new("/jobs"), wait).await.map(|_| start.elapsed()) })
        })
        .collect();
    tokio::task::yield_now().await;
    voice.says(Document::policy(Policy::new()));
    watching.wait_for(|status| status.applied == 2).await.unwrap();
    // Whoever comes now is limited by nothing.
    drop(limiter.acquire(&Descriptor::new("/jobs"), Duration::ZERO).await.unwrap());
    let mut went = Vec::new();
    for waiting in waiting {
        went.push(waiting.await.unwrap().unwrap().as_secs());
    }
    assert_eq!(went, [0, 1, 2, 3]);
}

#[tokio::test(start_paused = true)]
async fn who_stands_in_line_is_neither_stranded_nor_let_through_too_early() {
    let (limiter, voice, mut watching) =
        watched(Policy::new().rule(Rule::new("jobs").tier(Quota::concurrent(1)))).await;
    let held = limiter.acquire(&Descriptor::new("/jobs"), Duration::ZERO).await.unwrap();
    let in_line = {
        let limiter = limiter.clone();
        tokio::spawn(async move { limiter.acquire(&Descriptor::new("/jobs"), Duration::from_secs(60)).await.map(drop) })
    };
    tokio::task::yield_now().await;
    voice.says(Document::policy(Policy::new()));
    watching.wait_for(|status| status.applied == 2).await.unwrap();
    tokio::task::yield_now().await;
    assert!(!in_line.is_finished(), "it goes by the limits under which it came");
    drop(held);
    in_line.await.unwrap().unwrap();
}
