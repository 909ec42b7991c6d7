//! Waiting for a slot. Tokio's time is paused: it passes only while
//! everybody waits.
#![allow(clippy::unwrap_used)]

#[path = "common/algorithms.rs"]
mod algorithms;
#[path = "waiting/bounds.rs"]
mod bounds;
#[path = "waiting/cancel.rs"]
mod cancel;
#[path = "waiting/clock.rs"]
mod clock;
#[path = "waiting/cooldown.rs"]
mod cooldown;
#[path = "waiting/cooldown_attacks.rs"]
mod cooldown_attacks;
#[path = "waiting/deadline.rs"]
mod deadline;
#[path = "waiting/fair.rs"]
mod fair;
#[path = "waiting/in_flight.rs"]
mod in_flight;
#[path = "waiting/order.rs"]
mod order;
#[path = "waiting/permit.rs"]
mod permit;
#[path = "waiting/promises.rs"]
mod promises;
#[path = "waiting/reload.rs"]
mod reload;
#[path = "waiting/settle.rs"]
mod settle;
#[path = "waiting/shared_cooldowns.rs"]
mod shared_cooldowns;
#[path = "waiting/smooth.rs"]
mod smooth;
#[path = "waiting/storms.rs"]
mod storms;
#[path = "waiting/threads.rs"]
mod threads;
#[path = "waiting/whole_rate.rs"]
mod whole_rate;

use std::{
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::time::Instant;
use tower_ratelimit::{
    Descriptor, Permit, Policy, Quota, RateLimited, RateLimiter, Rule, limiter::RateLimiterBuilder, testing::TokioClock,
};

const SECOND: Duration = Duration::from_secs(1);
const MILLI: Duration = Duration::from_millis(1);

fn builder(policy: impl Into<Policy>) -> RateLimiterBuilder {
    RateLimiter::builder().policy(policy).clock(TokioClock::default())
}

fn limiter(policy: impl Into<Policy>) -> RateLimiter {
    builder(policy).build().unwrap()
}

/// One rule with these tiers.
fn tiers(quotas: &[Quota]) -> Policy {
    Policy::new().rule(quotas.iter().fold(Rule::new("paced"), |rule, quota| rule.tier(*quota)))
}

fn by(tenant: &str) -> Descriptor<'_> {
    Descriptor::new("/").tenant(tenant)
}

/// Lets time pass as it would: everybody wakes when it is their time.
async fn pass(time: Duration) {
    tokio::time::sleep_until(Instant::now() + time).await;
}

type Outcome = Result<Permit, RateLimited>;

/// A caller of its own, that has come before any other that is made later.
struct Caller {
    future: Pin<Box<dyn Future<Output = Outcome> + Send>>,
    outcome: Option<Outcome>,
}

impl Caller {
    fn comes(limiter: &RateLimiter, tenant: &'static str, max_wait: Duration) -> Self {
        let limiter = limiter.clone();
        let future = Box::pin(async move { limiter.acquire(&by(tenant), max_wait).await });
        let mut caller = Self { future, outcome: None };
        caller.poll();
        caller
    }

    /// Whether it knows by now.
    fn poll(&mut self) -> bool {
        if self.outcome.is_none()
            && let Poll::Ready(outcome) = self.future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        {
            self.outcome = Some(outcome);
        }
        self.outcome.is_some()
    }

    fn waits(&mut self) -> bool {
        !self.poll()
    }

    async fn outcome(self) -> Outcome {
        match self.outcome {
            Some(outcome) => outcome,
            None => self.future.await,
        }
    }
}

/// Who went, and when: by place in the order of coming.
#[derive(Clone, Default)]
struct Departures(Arc<Mutex<Vec<(usize, Duration)>>>);

impl Departures {
    fn note(&self, who: usize, when: Duration) {
        self.0.lock().unwrap().push((who, when));
    }

    fn take(&self) -> Vec<(usize, Duration)> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

/// So many come at once, each in its own task; returns when each is admitted.
async fn rush(limiter: &RateLimiter, callers: usize) -> Vec<(usize, Duration)> {
    let (start, departures) = (Instant::now(), Departures::default());
    let tasks: Vec<_> = (0..callers)
        .map(|who| {
            let (caller, departures) = (Caller::comes(limiter, "acme", Duration::MAX), departures.clone());
            tokio::spawn(async move {
                drop(caller.outcome().await.unwrap());
                departures.note(who, start.elapsed());
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    departures.take()
}
