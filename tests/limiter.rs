//! What a limiter decides with a backend of this process: what quotas admit, which keys
//! and rules count a request, and how it works beside other code.
#![allow(clippy::unwrap_used)]

#[path = "limiter/any_window.rs"]
mod any_window;
#[path = "limiter/calendar.rs"]
mod calendar;
#[path = "limiter/keys.rs"]
mod keys;
#[path = "limiter/matching.rs"]
mod matching;
#[path = "limiter/overrides.rs"]
mod overrides;
#[path = "limiter/quotas.rs"]
mod quotas;
#[path = "limiter/reentrancy.rs"]
mod reentrancy;
#[path = "limiter/reload.rs"]
mod reload;
#[path = "limiter/service.rs"]
mod service;
#[path = "limiter/top.rs"]
mod top;
#[path = "limiter/units.rs"]
mod units;

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tower_ratelimit::{
    Decision, Descriptor, Policy, RateLimiter,
    backend::{Backend, Local},
    testing::ManualClock,
};

fn ask(limiter: &RateLimiter, request: &Descriptor<'_>) -> Decision {
    let mut check = std::pin::pin!(limiter.check(request));
    match check.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(decision) => decision,
        Poll::Pending => panic!("a local decision is ready at once"),
    }
}

/// Polls once. Returns whether the future is still pending.
fn is_pending(future: &mut (impl Future + Unpin)) -> bool {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

fn admitted(limiter: &RateLimiter, request: &Descriptor<'_>, tries: usize) -> usize {
    (0..tries).filter(|_| ask(limiter, request).is_allowed()).count()
}

/// A limiter on a clock that the test advances.
struct Bench {
    limiter: RateLimiter,
    clock: ManualClock,
}

impl Bench {
    fn new(policy: impl Into<Policy>) -> Self {
        Self::on(Local::new(), policy)
    }

    fn on(backend: impl Backend, policy: impl Into<Policy>) -> Self {
        let clock = ManualClock::new();
        let limiter = RateLimiter::builder().policy(policy).backend(backend).clock(clock.clone()).build().unwrap();
        Self { limiter, clock }
    }

    fn ask(&self, tenant: &str, cost: u64) -> Decision {
        ask(&self.limiter, &Descriptor::new("/").tenant(tenant).cost(cost))
    }

    fn admitted(&self, tenant: &str, tries: usize) -> usize {
        (0..tries).filter(|_| self.ask(tenant, 1).is_allowed()).count()
    }

    fn pass(&self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
    }
}
