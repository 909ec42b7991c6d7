use std::{future::Future, pin::pin, task::Waker, time::Duration};

use super::*;
use crate::{
    descriptor::Descriptor,
    limiter::RateLimiter,
    policy::{Policy, Rule},
    quota::{Algorithm, Quota},
    testing::ManualClock,
};

fn caller() -> Descriptor<'static> {
    Descriptor::new("/items")
}

/// The output of a future that is ready at its first poll.
fn now<F: Future>(future: F) -> F::Output {
    let polled = pin!(future).poll(&mut std::task::Context::from_waker(Waker::noop()));
    match polled {
        std::task::Poll::Ready(output) => output,
        std::task::Poll::Pending => panic!("it would wait"),
    }
}

/// A limiter whose counters exist, a window after they were used.
fn limiter(policy: impl Into<Policy>) -> RateLimiter {
    let clock = ManualClock::new();
    let limiter = RateLimiter::builder().policy(policy).clock(clock.clone()).build().unwrap();
    assert!(limiter.try_check(&caller()).unwrap().is_allowed());
    clock.advance(Duration::from_secs(61));
    limiter
}

/// A permit that was admitted at once.
fn acquire(limiter: &RateLimiter) -> Permit {
    now(limiter.acquire(&caller(), Duration::ZERO)).unwrap()
}

/// What is left of each tier.
fn left(limiter: &RateLimiter) -> Vec<u64> {
    now(limiter.peek(&caller())).tiers().iter().map(|tier| tier.remaining()).collect()
}

#[test]
fn a_permit_that_was_admitted_at_once_is_refunded_in_full() {
    let quotas = Algorithm::WINDOWED.map(|algorithm| Quota::per_minute(10).algorithm(algorithm));
    // In a form of its own: more than two words.
    let exact = Quota::new(4_294_967_311, Duration::from_secs(59));
    for quota in quotas.into_iter().chain([exact]) {
        let one = Rule::new("one").tier(quota);
        let two_tiers = one.clone().tier(Quota::per_hour(100));
        let by_path = Rule::new("other").path("/items").tier(Quota::per_day(1_000));
        let several = [Policy::new().rule(two_tiers), Policy::new().rule(one.clone()).rule(by_path)];
        for policy in [Policy::new().rule(one)].into_iter().chain(several) {
            let limiter = limiter(policy);
            let before = left(&limiter);
            let permit = acquire(&limiter);
            let charged: Vec<_> = permit.decision().tiers().iter().map(|tier| tier.remaining()).collect();
            assert!(charged.iter().zip(&before).all(|(charged, before)| charged < before), "{quota:?}");
            assert_eq!(limiter.stats().permits, 1);
            permit.refund();
            assert_eq!((left(&limiter), limiter.stats().permits), (before, 0), "{quota:?}");
        }
    }
}

#[test]
fn a_permit_that_is_dropped_keeps_its_charge() {
    let limiter = limiter(Quota::per_minute(10));
    drop((acquire(&limiter), acquire(&limiter)));
    assert_eq!((left(&limiter), limiter.stats().permits), (vec![8], 0));
    // It was asked, but had nothing to do.
    let permit = acquire(&limiter);
    permit.give_back(1);
    permit.report_success();
    assert_eq!((left(&limiter), limiter.stats().permits), (vec![7], 1));
    drop(permit);
    assert_eq!((left(&limiter), limiter.stats().permits), (vec![7], 0));
}

/// What was charged later stays.
#[test]
fn a_refund_of_an_earlier_permit_admits_no_more_than_the_limit() {
    let limiter = limiter(Quota::per_minute(2).algorithm(Algorithm::SlidingLog));
    let first = acquire(&limiter);
    let _second = acquire(&limiter);
    first.refund();
    assert!(left(&limiter)[0] <= 1);
}
