//! Shared by the tests over sockets: servers, a client, and its replies.
#![allow(dead_code, unused_imports, reason = "each test binary uses some of it")]

mod reply;
mod server;

pub(crate) use self::{
    reply::{Reply, params},
    server::{Caller, serve},
};

use tower_ratelimit::{Policy, RateLimiter, testing::ManualClock};

/// A limiter with a clock that the test steps.
pub(crate) fn limiter(policy: impl Into<Policy>) -> (RateLimiter, ManualClock) {
    let clock = ManualClock::new();
    let limiter = RateLimiter::builder().policy(policy).clock(clock.clone()).build().unwrap();
    (limiter, clock)
}
