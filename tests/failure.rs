//! Failure modes and late replies of the backend. Tokio's time is paused, and the
//! limiter follows it.
#![allow(clippy::unwrap_used)]

#[path = "common/algorithms.rs"]
mod algorithms;
#[path = "failure/late.rs"]
mod late;
#[path = "failure/modes.rs"]
mod modes;
#[path = "failure/share.rs"]
mod share;
#[path = "failure/warm.rs"]
mod warm;

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tower_ratelimit::{
    Descriptor, FailureMode, Permit, Policy, Quota, RateLimited, RateLimiter, Rule,
    backend::Local,
    error::BackendErrorKind,
    testing::{Fault, FaultyBackend, TokioClock},
};

const SECOND: Duration = Duration::from_secs(1);
const MILLI: Duration = Duration::from_millis(1);

/// The backend is unavailable.
const DOWN: Fault = Fault::Error(BackendErrorKind::Unavailable);

/// A limiter with a backend that fails on demand.
fn limiter(policy: impl Into<Policy>) -> (RateLimiter, FaultyBackend) {
    on(policy, FaultyBackend::new(Local::new()))
}

fn on(policy: impl Into<Policy>, backend: FaultyBackend) -> (RateLimiter, FaultyBackend) {
    let builder = RateLimiter::builder().policy(policy).clock(TokioClock::default());
    (builder.backend(backend.clone()).build().unwrap(), backend)
}

/// A rule that fails local.
fn local(id: &str, quota: Quota) -> Rule {
    Rule::new(id).per([tower_ratelimit::Dimension::Tenant]).tier(quota).on_backend_failure(FailureMode::Local)
}

fn policy(rules: impl IntoIterator<Item = Rule>) -> Policy {
    rules.into_iter().fold(Policy::new(), Policy::rule)
}

fn by(tenant: &str) -> Descriptor<'_> {
    Descriptor::new("/").tenant(tenant)
}

/// The number of admitted requests of a tenant, of `requests`.
async fn admitted(limiter: &RateLimiter, tenant: &str, requests: usize) -> usize {
    let mut count = 0;
    for _ in 0..requests {
        count += usize::from(limiter.check(&by(tenant)).await.is_allowed());
    }
    count
}

type Acquired = Result<Permit, RateLimited>;

/// A caller that has been polled once.
fn arrive(
    limiter: &RateLimiter,
    tenant: &'static str,
    max_wait: Duration,
) -> Pin<Box<dyn Future<Output = Acquired> + Send>> {
    let limiter = limiter.clone();
    let mut caller: Pin<Box<dyn Future<Output = Acquired> + Send>> =
        Box::pin(async move { limiter.acquire(&by(tenant), max_wait).await });
    assert!(poll(&mut caller).is_pending(), "the reply takes a while");
    caller
}

fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}
