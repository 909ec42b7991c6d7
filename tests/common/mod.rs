//! What the tests over sockets share: servers, a client, and what came back.
#![allow(dead_code, unused_imports, reason = "each test binary uses a part")]

mod reply;
mod server;

pub(crate) use self::{
    reply::{Reply, params},
    server::{Caller, serve},
};

use tower_ratelimit::{Policy, RateLimiter, testing::ManualClock};

/// A limiter on a clock that the test steps.
pub(crate) fn limiter(policy: impl Into<Policy>) -> (RateLimiter, ManualClock) {
    let clock = ManualClock::new();
    let limiter = RateLimiter::builder().policy(policy).clock(clock.clone()).build().unwrap();
    (limiter, clock)
}
