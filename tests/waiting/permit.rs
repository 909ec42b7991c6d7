use std::time::Duration;

use tower_ratelimit::{
    Permit, Policy, Quota, RateLimiter, Rule, Verdict,
    testing::{Fault, FaultyBackend},
};

use super::{SECOND, by, limiter};

#[test]
fn a_permit_can_be_sent_to_another_task() {
    fn anywhere<T: Send + Sync + 'static + std::fmt::Debug>() {}
    anywhere::<Permit>();
    fn is_send<T: Send>(_: &T) {}
    let limiter = RateLimiter::new(Quota::per_second(1)).unwrap();
    is_send(&limiter.acquire(&by("acme"), Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn a_permit_says_how_it_was_decided() {
    let limiter = limiter(Quota::per_second(1));
    let first = limiter.acquire(&by("acme"), SECOND).await.unwrap();
    assert_eq!((first.decision().verdict(), first.decision().remaining()), (Verdict::Allow, Some(0)));
    let second = limiter.acquire(&by("acme"), SECOND).await.unwrap();
    assert_eq!(second.decision().verdict(), Verdict::Delay(SECOND));
    assert_eq!(limiter.stats().permits, 2);
    drop((first, second));
    assert_eq!(limiter.stats().permits, 0);
    assert_eq!((limiter.stats().allowed, limiter.stats().delayed), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn refunded_units_come_back_and_dropped_ones_are_spent() {
    let limiter = limiter(Quota::per_hour(2));
    for _ in 0..10 {
        limiter.acquire(&by("acme").cost(2), Duration::ZERO).await.unwrap().refund();
    }
    drop(limiter.acquire(&by("acme").cost(2), Duration::ZERO).await.unwrap());
    assert!(limiter.acquire(&by("acme"), Duration::ZERO).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_request_without_a_rule_is_admitted() {
    let limiter = limiter(tower_ratelimit::Policy::new());
    let permit = limiter.acquire(&by("acme"), Duration::ZERO).await.unwrap();
    assert_eq!((permit.decision().limit(), limiter.stats().permits), (None, 0));
    permit.refund();
    let exempt = super::limiter(Quota::per_second(0));
    drop(exempt.acquire(&by("acme").exempt(), Duration::ZERO).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn acquire_waits_for_a_slow_backend() {
    let backend = FaultyBackend::new(tower_ratelimit::backend::Local::new());
    backend.set(Fault::Slow);
    let limiter = super::builder(Quota::per_second(1)).backend(backend.clone()).build().unwrap();
    let start = tokio::time::Instant::now();
    for slot in 0..4 {
        drop(limiter.acquire(&by("acme"), SECOND).await.unwrap());
        assert_eq!(start.elapsed(), SECOND * slot);
    }
    assert_eq!((limiter.stats().waiting, backend.requests()), (0, 4), "asked once each");

    let dropped = super::Caller::arrive(&limiter, "acme", SECOND);
    assert_eq!(limiter.stats().waiting, 1, "it may come to wait");
    drop(dropped);
    assert_eq!(limiter.stats().waiting, 0);
}

#[tokio::test(start_paused = true)]
async fn units_that_were_added_last_are_given_back_first() {
    let limiter = limiter(Policy::new().rule(Rule::new("tokens").tier(Quota::per_hour(20)).settle(true)));
    let permit = limiter.acquire(&by("acme").cost(3), Duration::ZERO).await.unwrap();
    permit.try_add(4).await.unwrap();
    permit.try_add(2).await.unwrap();
    for (units, left) in [(1, 12), (3, 15), (2, 17), (1, 18), (9, 20)] {
        permit.give_back(units);
        assert_eq!(limiter.peek(&by("acme")).await.remaining(), Some(left), "after {units}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_refund_gives_back_added_units_too() {
    let limiter = limiter(Policy::new().rule(Rule::new("tokens").tier(Quota::per_hour(10)).settle(true)));
    let permit = limiter.acquire(&by("acme"), Duration::ZERO).await.unwrap();
    permit.try_add(4).await.unwrap();
    permit.try_add(2).await.unwrap();
    permit.refund();
    assert_eq!(limiter.peek(&by("acme")).await.remaining(), Some(10));
    assert_eq!(limiter.stats().permits, 0);
}
