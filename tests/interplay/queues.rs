//! Queues of concurrency limits and of the overflow counter beside other features.

use std::time::Duration;

use tokio::{sync::watch, time::Instant};
use tower_ratelimit::{
    Policy, Quota, Rule,
    backend::{Local, Share, Split},
};

use super::{MILLI, SECOND, arrives, by, limiter, on, poll, shared};

/// The queue of a concurrency limit is called when units are released, when the
/// policy changes, and when the share grows.
#[tokio::test(start_paused = true)]
async fn a_larger_share_admits_queued_requests() {
    let (shares, receiver) = watch::channel(Share::new(0, 4).unwrap());
    let limiter = on(Split::watch(receiver), Policy::new().rule(shared("jobs").tier(Quota::concurrent(4))));
    let _held = limiter.acquire(&by("acme"), Duration::ZERO).await.unwrap();
    let mut waits = tokio::spawn(arrives(&limiter, "acme", SECOND * 600));
    tokio::time::advance(SECOND).await;
    shares.send_replace(Share::new(0, 1).unwrap());
    let outcome = tokio::time::timeout(SECOND * 60, &mut waits).await;
    assert!(outcome.is_ok(), "three of four units are free, and it has waited for a minute");
}

/// Requests that share the overflow counter are admitted in the order of its
/// queue.
#[tokio::test(start_paused = true)]
async fn no_request_overtakes_the_queue_of_the_overflow_counter() {
    let local = Local::builder().max_keys(1).build();
    let limiter = on(local, Policy::new().rule(Rule::new("jobs").tier(Quota::concurrent(1))));
    let _own = limiter.acquire(&by("own"), Duration::ZERO).await.unwrap();
    let held = limiter.acquire(&by("one"), Duration::ZERO).await.unwrap();
    assert!(limiter.acquire(&by("two"), Duration::ZERO).await.is_err(), "they share a counter");
    let mut first = arrives(&limiter, "two", SECOND * 60);
    drop(held);
    let overtakes = limiter.acquire(&by("three"), Duration::ZERO).await;
    assert!(overtakes.is_err(), "\"two\" came before it");
    assert!(poll(&mut first).is_ready());
}

/// In a queue, for a slot, and once more behind a cooldown.
#[tokio::test(start_paused = true)]
async fn a_decision_includes_the_wait_in_the_queue() {
    let rule = shared("jobs").tier(Quota::concurrent(1)).tier(Quota::new(1, SECOND * 10));
    let limiter = limiter(Policy::new().rule(rule));
    let held = limiter.acquire(&by("acme"), Duration::ZERO).await.unwrap();
    let start = Instant::now();
    let waits = tokio::spawn(arrives(&limiter, "acme", SECOND * 600));
    tokio::time::advance(SECOND * 5).await;
    drop(held);
    tokio::time::advance(SECOND).await;
    limiter.cool_down(&by("acme"), SECOND * 20);
    let permit = waits.await.unwrap().unwrap();
    let (reported, waited) = (permit.decision().wait(), start.elapsed());
    assert!(reported + MILLI * 10 >= waited, "it reports {reported:?}, and waited for {waited:?}");
}

/// A shadow rule counts a request in flight for as long as it is, however often
/// it reserved another slot.
#[tokio::test(start_paused = true)]
async fn a_shadow_rule_counts_a_request_that_reserved_another_slot_in_flight() {
    let shadow = shared("shadow").tier(Quota::concurrent(1)).shadow(true);
    let limiter = limiter(Policy::new().rule(shared("rate").tier(Quota::new(1, SECOND * 10))).rule(shadow));
    drop(limiter.acquire(&by("acme"), Duration::ZERO).await.unwrap());
    let waits = tokio::spawn(arrives(&limiter, "acme", SECOND * 600));
    tokio::time::advance(SECOND).await;
    limiter.cool_down(&by("acme"), SECOND * 20);
    let permit = waits.await.unwrap().unwrap();
    assert!(permit.decision().wait() > SECOND && permit.decision().shadows().len() == 1, "{permit:?}");
    tokio::time::advance(SECOND * 60).await;
    let before = limiter.stats().shadow_rejected;
    assert!(limiter.check(&by("acme")).await.is_allowed());
    assert_eq!(limiter.stats().shadow_rejected - before, 1, "one is in flight, which is the limit");
    drop(permit);
}
