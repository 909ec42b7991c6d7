//! What operators see: events, metrics and statistics, and never a tenant.
#![allow(clippy::unwrap_used)]

#[path = "observe/counters.rs"]
mod counters;
#[path = "observe/events.rs"]
mod events;
#[path = "observe/kit.rs"]
mod kit;
#[cfg(feature = "axum")]
#[path = "observe/mistakes.rs"]
mod mistakes;

use tower_ratelimit::{Decision, Descriptor, Policy, RateLimiter, testing::ManualClock};

/// A tenant that no event or metric may name.
const SECRET: &str = "key-5f3a";

fn limiter(policy: impl Into<Policy>) -> (RateLimiter, ManualClock) {
    let clock = ManualClock::new();
    let limiter = RateLimiter::builder().policy(policy).clock(clock.clone()).build().unwrap();
    (limiter, clock)
}

async fn ask(limiter: &RateLimiter, path: &str, times: usize) -> Vec<Decision> {
    let mut decisions = Vec::new();
    for _ in 0..times {
        decisions.push(limiter.check(&Descriptor::new(path).method("GET").tenant(SECRET)).await);
    }
    decisions
}
