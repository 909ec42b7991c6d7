//! What is put around the handler of a simulated server: tower's layers, and ours.
//!
//! Used by `tests/sim.rs`, `benches/simulate` and `benches/overload`.
#![allow(dead_code, reason = "each uses some of it")]

use tower::{
    ServiceBuilder, ServiceExt, limit::ConcurrencyLimitLayer, load_shed::LoadShedLayer, util::BoxCloneService,
};
use tower_ratelimit::{
    Policy, Priority, Quota, RateLimitLayer, RateLimiter, Rule,
    overload::{self, Overload},
    priority,
};

use super::server::{Handler, Protected, Server, VirtualClock, WORKERS};

/// In flight: the workers, and half as many that wait.
pub(crate) const RIGHT: u64 = WORKERS as u64 * 3 / 2;
pub(crate) const TOO_HIGH: u64 = RIGHT * 3;

/// Both bounds are far from [`RIGHT`].
pub(crate) const ADAPTIVE: Quota = Quota::adaptive_concurrency(5..=200);

/// Puts a protection around a handler.
pub(crate) type Protect = fn(Handler, &Server) -> Protected;

pub(crate) type Contestant = (&'static str, Protect);

pub(crate) const CONTESTANTS: [Contestant; 8] = [
    ("no protection", |handler, _| statuses(handler)),
    ("tower: ConcurrencyLimit, LoadShed", |handler, _| tower(RIGHT, handler)),
    ("tower, three times too high", |handler, _| tower(TOO_HIGH, handler)),
    ("concurrent, reserve", |handler, _| ours(limited(Quota::concurrent(RIGHT)), handler)),
    ("concurrent, three times too high", |handler, _| ours(limited(Quota::concurrent(TOO_HIGH)), handler)),
    ("adaptive concurrency, reserve", |handler, _| ours(limited(ADAPTIVE), handler)),
    ("overload", |handler, server| ours(shedding(Policy::new(), server), handler)),
    ("concurrent, three times too high; overload", |handler, server| {
        ours(shedding(limited(Quota::concurrent(TOO_HIGH)), server), handler)
    }),
];

/// A handler without a protection.
pub(crate) fn statuses(handler: Handler) -> Protected {
    BoxCloneService::new(handler.map_response(|response| response.status()).map_err(Into::into))
}

fn tower(limit: u64, handler: Handler) -> Protected {
    let limit = ConcurrencyLimitLayer::new(usize::try_from(limit).unwrap_or(usize::MAX));
    BoxCloneService::new(ServiceBuilder::new().layer(LoadShedLayer::new()).layer(limit).service(statuses(handler)))
}

/// One limit for all, of which a fifth is left to critical requests.
pub(crate) fn limited(quota: Quota) -> Policy {
    Policy::new().rule(Rule::new("all").per([]).tier(quota).reserve(Priority::Critical, 0.2))
}

/// Sheds while more requests wait than there are workers.
pub(crate) fn shedding(policy: Policy, server: &Server) -> Policy {
    let server = server.clone();
    let signal = overload::named("in flight", move || server.in_flight() as f64);
    policy.overload(Overload::new().signal(signal, RIGHT as f64))
}

pub(crate) fn ours(policy: Policy, handler: Handler) -> Protected {
    let limiter = RateLimiter::builder().policy(policy).clock(VirtualClock::new()).build();
    let layer = RateLimitLayer::new(limiter.expect("a valid policy")).priority(priority::extension::<Priority>());
    let service = ServiceBuilder::new().layer(layer).service(handler);
    BoxCloneService::new(service.map_response(|response| response.status()).map_err(Into::into))
}
