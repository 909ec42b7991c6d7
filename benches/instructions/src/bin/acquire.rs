//! Acquires a permit at once, and drops it: `CASE COUNT`, for `scripts/instructions`.
//!
//! A binary of its own: in one with the decisions, less of those is inlined.

use std::{
    env,
    future::Future,
    hint::black_box,
    pin::pin,
    process::ExitCode,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tower_ratelimit::{Descriptor, Quota, RateLimiter};

const KEYS: usize = 1_000;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().collect();
    let [_, _, count] = arguments.as_slice() else { return ExitCode::FAILURE };
    let Ok(count) = count.parse() else { return ExitCode::FAILURE };
    // No request is rejected, whatever the count.
    let limiter = RateLimiter::new(Quota::per_minute(60_000_000_000)).expect("a valid policy");
    let tenants: Vec<String> = (0..KEYS).map(|key| format!("tenant-{key:07}")).collect();
    tenants.iter().for_each(|tenant| assert!(acquire(&limiter, tenant)));
    decide_repeatedly(&limiter, &tenants, count);
    ExitCode::SUCCESS
}

/// Callgrind collects only in here.
#[inline(never)]
fn decide_repeatedly(limiter: &RateLimiter, tenants: &[String], count: usize) {
    for tenant in tenants.iter().cycle().take(count) {
        black_box(acquire(black_box(limiter), black_box(tenant)));
    }
}

fn acquire(limiter: &RateLimiter, tenant: &str) -> bool {
    let descriptor = Descriptor::new("/product/7").method("GET").tenant(tenant);
    match pin!(limiter.acquire(&descriptor, Duration::ZERO)).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(permit) => permit.is_ok(),
        Poll::Pending => unreachable!("a local decision is ready at the first poll"),
    }
}
