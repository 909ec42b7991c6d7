//! Waiting for a slot. Tokio's time is paused: it advances only while all tasks
//! wait.
#![allow(clippy::unwrap_used)]

#[path = "waiting/abandoned.rs"]
mod abandoned;
#[path = "common/algorithms.rs"]
mod algorithms;
#[path = "waiting/bounds.rs"]
mod bounds;
#[path = "waiting/cancel.rs"]
mod cancel;
#[path = "waiting/changed_limits.rs"]
mod changed_limits;
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
#[path = "waiting/hostile_wakers.rs"]
mod hostile_wakers;
#[path = "waiting/in_flight.rs"]
mod in_flight;
#[path = "waiting/order.rs"]
mod order;
#[path = "waiting/permit.rs"]
mod permit;
#[path = "waiting/promises.rs"]
mod promises;
#[path = "waiting/raised.rs"]
mod raised;
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

/// Advances the time, so that each task wakes at its own time.
async fn pass(time: Duration) {
    tokio::time::sleep_until(Instant::now() + time).await;
}

type Outcome = Result<Permit, RateLimited>;

/// A caller that has arrived: it is polled once when it is created.
struct Caller {
    future: Pin<Box<dyn Future<Output = Outcome> + Send>>,
    outcome: Option<Outcome>,
}

impl Caller {
    fn arrive(limiter: &RateLimiter, tenant: &'static str, max_wait: Duration) -> Self {
        Self::arrive_with(limiter, by(tenant), max_wait)
    }

    fn arrive_with(limiter: &RateLimiter, descriptor: Descriptor<'static>, max_wait: Duration) -> Self {
        let limiter = limiter.clone();
        let future = Box::pin(async move { limiter.acquire(&descriptor, max_wait).await });
        let mut caller = Self { future, outcome: None };
        caller.poll();
        caller
    }

    /// Whether it is admitted or rejected by now.
    fn poll(&mut self) -> bool {
        if self.outcome.is_none()
            && let Poll::Ready(outcome) = self.future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        {
            self.outcome = Some(outcome);
        }
        self.outcome.is_some()
    }

    fn is_waiting(&mut self) -> bool {
        !self.poll()
    }

    async fn outcome(self) -> Outcome {
        match self.outcome {
            Some(outcome) => outcome,
            None => self.future.await,
        }
    }
}

/// Which callers were admitted, and when. A caller is its position of arrival.
#[derive(Clone, Default)]
struct Admissions(Arc<Mutex<Vec<(usize, Duration)>>>);

impl Admissions {
    fn record(&self, caller: usize, at: Duration) {
        self.0.lock().unwrap().push((caller, at));
    }

    fn take(&self) -> Vec<(usize, Duration)> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

/// So many callers arrive at once, each in its own task. Returns when each is
/// admitted.
async fn rush(limiter: &RateLimiter, callers: usize) -> Vec<(usize, Duration)> {
    let (start, admissions) = (Instant::now(), Admissions::default());
    let tasks: Vec<_> = (0..callers)
        .map(|index| {
            let (caller, admissions) = (Caller::arrive(limiter, "acme", Duration::MAX), admissions.clone());
            tokio::spawn(async move {
                drop(caller.outcome().await.unwrap());
                admissions.record(index, start.elapsed());
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    admissions.take()
}
