//! The policy is replaced while requests wait.

use std::time::Duration;

use tower_ratelimit::{Permit, Policy, Quota, RateLimiter, Rule};

use super::{Caller, SECOND, by, limiter, tiers};

async fn take_units(limiter: &RateLimiter, units: usize) -> Vec<Permit> {
    let mut held = Vec::new();
    for _ in 0..units {
        held.push(limiter.acquire(&by("acme"), Duration::ZERO).await.unwrap());
    }
    held
}

fn queue_callers(limiter: &RateLimiter, callers: usize) -> Vec<tokio::task::JoinHandle<Permit>> {
    (0..callers)
        .map(|_| {
            let caller = Caller::arrive(limiter, "acme", Duration::MAX);
            tokio::spawn(async move { caller.outcome().await.unwrap() })
        })
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_raised_limit_admits_the_queue_before_newcomers() {
    let limiter = limiter(tiers(&[Quota::concurrent(1)]));
    let _stuck = take_units(&limiter, 1).await;
    let queue = queue_callers(&limiter, 3);
    // They wait to be called.
    tokio::task::yield_now().await;
    tokio::time::advance(SECOND).await;
    limiter.set_policy(tiers(&[Quota::concurrent(5)])).unwrap();
    let newcomer = limiter.acquire(&by("acme"), SECOND).await.unwrap();
    assert!(newcomer.decision().wait() < SECOND, "one unit is left for it after the queue");
    let mut inside = Vec::new();
    for caller in queue {
        inside.push(caller.await.unwrap());
    }
    assert!(limiter.acquire(&by("acme"), Duration::ZERO).await.is_err(), "five of five");
    assert_eq!((limiter.stats().waiting, limiter.stats().permits), (0, 5));
    drop((newcomer, inside));
    assert_eq!(limiter.stats().permits, 1);
    assert_eq!(take_units(&limiter, 4).await.len(), 4);
}

#[tokio::test(start_paused = true)]
async fn the_queue_is_admitted_up_to_the_new_limit() {
    let limiter = limiter(tiers(&[Quota::concurrent(1)]));
    let stuck = take_units(&limiter, 1).await;
    let mut queue: Vec<_> = (0..4).map(|_| Caller::arrive(&limiter, "acme", Duration::MAX)).collect();
    limiter.set_policy(tiers(&[Quota::concurrent(3)])).unwrap();
    let admitted: Vec<_> = queue.iter_mut().map(|caller| !caller.is_waiting()).collect();
    assert_eq!(admitted, [true, true, false, false]);
    drop(stuck);
    assert!(!queue[2].is_waiting() && queue[3].is_waiting(), "one for one");
}

#[tokio::test(start_paused = true)]
async fn no_request_is_admitted_over_a_lowered_limit() {
    let limiter = limiter(tiers(&[Quota::concurrent(3)]));
    let mut held = take_units(&limiter, 3).await;
    let mut waits = Caller::arrive(&limiter, "acme", Duration::MAX);
    limiter.set_policy(tiers(&[Quota::concurrent(1)])).unwrap();
    for left in [2, 1] {
        held.pop();
        assert!(waits.is_waiting(), "{left} are in flight, where one may be");
    }
    held.pop();
    assert!(!waits.is_waiting());
    assert!(limiter.acquire(&by("acme"), Duration::ZERO).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn the_queue_is_charged_by_the_new_tiers() {
    let limiter = limiter(tiers(&[Quota::concurrent(1)]));
    let stuck = take_units(&limiter, 1).await;
    let (mut first, mut second) =
        (Caller::arrive(&limiter, "acme", Duration::MAX), Caller::arrive(&limiter, "acme", Duration::MAX));
    limiter.set_policy(tiers(&[Quota::per_hour(1)])).unwrap();
    assert!(!first.is_waiting(), "nothing is limited in flight any more");
    assert!(second.is_waiting(), "one an hour");
    drop(stuck);
    assert!(second.is_waiting());
    drop(second);
    assert!(limiter.acquire(&by("acme"), Duration::ZERO).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_waiter_of_a_removed_rule_is_admitted_by_it() {
    let removed = [
        Policy::new(),
        Policy::new().rule(Rule::new("paced").tier(Quota::concurrent(9)).enabled(false)),
        Policy::new().rule(Rule::new("paced").tier(Quota::concurrent(9)).shadow(true)),
        Policy::new().rule(Rule::new("paced").tier(Quota::concurrent(9)).path("/")),
        Policy::new().rule(Rule::new("paced").tier(Quota::concurrent(9)).plan("pro", [Quota::concurrent(90)])),
        Policy::new().rule(Rule::new("paced").tier(Quota::concurrent(9)).tenant_unlimited("initech")),
    ];
    for policy in removed {
        let limiter = limiter(tiers(&[Quota::concurrent(1)]));
        let stuck = take_units(&limiter, 1).await;
        let mut waits = Caller::arrive(&limiter, "acme", Duration::MAX);
        limiter.set_policy(policy.clone()).unwrap();
        assert!(waits.is_waiting(), "{policy:?}");
        drop(stuck);
        assert!(!waits.is_waiting(), "{policy:?}");
        drop(waits);
        assert_eq!((limiter.stats().waiting, limiter.stats().permits), (0, 0));
    }
}
