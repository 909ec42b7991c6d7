//! Two features that act on one request: each module is named for one of them. Tokio's
//! time is paused wherever a request waits.
#![allow(clippy::unwrap_used)]

#[path = "interplay/adaptive_rates.rs"]
mod adaptive_rates;
#[path = "interplay/cooldowns.rs"]
mod cooldowns;
#[path = "interplay/queues.rs"]
mod queues;
#[path = "interplay/redis.rs"]
mod redis;
#[path = "interplay/settlement.rs"]
mod settlement;

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::{task::JoinHandle, time::Instant};
use tower_ratelimit::{
    Descriptor, Dimension, Permit, Policy, RateLimited, RateLimiter, Rule,
    backend::{Backend, Local},
    error::BackendErrorKind,
    testing::{Fault, TokioClock},
};

const SECOND: Duration = Duration::from_secs(1);
const MILLI: Duration = Duration::from_millis(1);
const DOWN: Fault = Fault::Error(BackendErrorKind::Unavailable);

fn on(backend: impl Backend, policy: impl Into<Policy>) -> RateLimiter {
    RateLimiter::builder().policy(policy).backend(backend).clock(TokioClock::default()).build().unwrap()
}

fn limiter(policy: impl Into<Policy>) -> RateLimiter {
    on(Local::new(), policy)
}

fn by(tenant: &str) -> Descriptor<'_> {
    Descriptor::new("/").tenant(tenant)
}

type Outcome = Result<Permit, RateLimited>;

/// Arrives when this is called; a task polls the returned future.
fn arrives(
    limiter: &RateLimiter,
    tenant: &'static str,
    max_wait: Duration,
) -> Pin<Box<dyn Future<Output = Outcome> + Send>> {
    let limiter = limiter.clone();
    let mut future: Pin<Box<dyn Future<Output = Outcome> + Send>> =
        Box::pin(async move { limiter.acquire(&by(tenant), max_wait).await });
    match poll(&mut future) {
        Poll::Ready(outcome) => Box::pin(async move { outcome }),
        Poll::Pending => future,
    }
}

/// So many requests of one tenant arrive. Each task returns when its request is admitted.
fn admission_times(limiter: &RateLimiter, requests: usize, max_wait: Duration) -> Vec<JoinHandle<Instant>> {
    let admitted = |waits: Pin<Box<dyn Future<Output = Outcome> + Send>>| async move {
        drop(waits.await.unwrap());
        Instant::now()
    };
    (0..requests).map(|_| tokio::spawn(admitted(arrives(limiter, "acme", max_wait)))).collect()
}

fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

fn shared(id: &str) -> Rule {
    Rule::new(id).per([] as [Dimension; 0])
}
