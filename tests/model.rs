//! Every algorithm, decision by decision, compared with a naive oracle that keeps
//! all admissions and counts them again each time.
#![cfg(feature = "test-util")]
#![allow(clippy::unwrap_used)]

#[path = "common/algorithms.rs"]
mod algorithms;
#[path = "model/backwards.rs"]
mod backwards;
#[path = "model/extremes.rs"]
mod extremes;
#[path = "model/oracle.rs"]
mod oracle;
#[path = "model/rates.rs"]
mod rates;
#[path = "model/reload.rs"]
mod reload;
#[path = "model/reserves.rs"]
mod reserves;
#[path = "model/schedule.rs"]
mod schedule;
#[path = "model/several.rs"]
mod several;

use std::{
    future::Future,
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tower_ratelimit::{Decision, Descriptor, Policy, RateLimiter, testing::ManualClock, time::Clock};

use self::algorithms::ALGORITHMS;

/// A limiter on a manual clock.
struct Bench {
    limiter: RateLimiter,
    clock: ManualClock,
}

impl Bench {
    fn new(policy: impl Into<Policy>) -> Self {
        let clock = ManualClock::new();
        let limiter = RateLimiter::builder().policy(policy).clock(clock.clone()).build().unwrap();
        Self { limiter, clock }
    }

    fn ask(&self, path: &str, tenant: &str, cost: u64) -> Decision {
        ready(self.limiter.check(&Descriptor::new(path).tenant(tenant).cost(cost)))
    }

    fn cost(&self, cost: u64) -> Decision {
        self.ask("/", "acme", cost)
    }

    fn admits(&self, cost: u64) -> bool {
        self.cost(cost).is_allowed()
    }

    fn now(&self) -> u64 {
        self.clock.now().as_nanos()
    }

    fn advance(&self, nanos: u64) {
        self.clock.advance(Duration::from_nanos(nanos));
    }
}

/// A local decision is ready at the first poll.
fn ready<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("a local decision took more than one poll"),
    }
}
