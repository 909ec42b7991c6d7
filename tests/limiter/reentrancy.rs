//! Backends and clocks that use a limiter themselves.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tower_ratelimit::{
    Descriptor, Quota, RateLimiter,
    backend::{Backend, Decide, Local, Outcome, Receipt, Request, Usage},
    time::{Clock, Timestamp},
};

use super::{Bench, ask};

/// A backend that calls another limiter before it decides: a global limit in
/// front of its own.
#[derive(Debug)]
struct Nested {
    first: RateLimiter,
    then: Local,
}

impl Backend for Nested {
    fn decide(&self, request: &Request<'_>) -> Decide {
        match ask(&self.first, &Descriptor::new("/").tenant("all")).is_allowed() {
            true => self.then.decide(request),
            false => Decide::Now(Ok(Outcome::rejected(Some(Duration::from_secs(1))))),
        }
    }

    fn refund(&self, receipt: &Receipt, now: Timestamp) {
        self.then.refund(receipt, now);
    }

    fn usage(&self) -> Usage {
        self.then.usage()
    }
}

#[test]
fn a_backend_may_call_another_limiter() {
    let mut limiter = Bench::new(Quota::per_hour(12)).limiter;
    let global = limiter.clone();
    // More limiters than a thread caches.
    for _ in 0..12 {
        let nested = Nested { first: limiter, then: Local::new() };
        limiter = Bench::on(nested, Quota::per_hour(100)).limiter;
    }
    let passed = (0..30).filter(|_| ask(&limiter, &Descriptor::new("/").tenant("acme")).is_allowed()).count();
    assert_eq!(passed, 12);
    assert_eq!((limiter.stats().allowed, limiter.stats().rejected), (12, 18));
    assert_eq!((global.stats().allowed, global.stats().rejected), (12, 18));
}

/// During a decision, its own limiter is called, its policy replaced and its
/// statistics read.
#[derive(Debug, Default)]
struct Reentrant {
    limiter: OnceLock<RateLimiter>,
    depth: AtomicU64,
}

impl Clock for Reentrant {
    fn now(&self) -> Timestamp {
        let depth = self.depth.fetch_add(1, Ordering::Relaxed);
        if let Some(limiter) = self.limiter.get()
            && depth < 4
        {
            limiter.set_policy(Quota::per_hour(depth + 10)).unwrap();
            assert!(ask(limiter, &Descriptor::new("/").tenant("inner")).is_allowed());
            assert!(limiter.stats().allowed > 0);
        }
        self.depth.fetch_sub(1, Ordering::Relaxed);
        Timestamp::from_secs(1_704_067_200)
    }
}

#[test]
fn a_clock_may_call_its_own_limiter() {
    let clock = Arc::new(Reentrant::default());
    let limiter = RateLimiter::builder().policy(Quota::per_hour(10)).clock(Arc::clone(&clock)).build().unwrap();
    assert!(ask(&limiter, &Descriptor::new("/").tenant("acme")).is_allowed());
    clock.limiter.set(limiter.clone()).unwrap();
    for _ in 0..2 {
        assert!(ask(&limiter, &Descriptor::new("/").tenant("acme")).is_allowed());
    }
    // Each of the two called four more, nested.
    assert_eq!(limiter.stats().allowed, 1 + 2 + 2 * 4);
}
