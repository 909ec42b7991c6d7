//! Our own contestants.

use tower::Layer;
use tower_ratelimit::{Descriptor, Headers, Policy, Quota, RateLimitLayer, RateLimiter, http::tenant};

use crate::{
    contenders::{self, API_KEY, Limit, Nothing, Per},
    decision::{self, PLENTY, REFILL},
    keys::Caller,
    race::{Contestant, now},
};

pub fn plenty() -> Quota {
    Quota::new(1, REFILL).burst(u64::from(PLENTY))
}

pub fn limiter(policy: impl Into<Policy>) -> RateLimiter {
    RateLimiter::new(policy).expect("a valid policy")
}

pub fn allows(limiter: &RateLimiter, tenant: &str) -> bool {
    now(limiter.check(&Descriptor::new("/").tenant(tenant))).is_allowed()
}

pub fn decision() -> Contestant<String> {
    let limiter = limiter(plenty());
    decision::contestant("tower-ratelimit", move || {
        let limiter = limiter.clone();
        move |tenant| allows(&limiter, tenant)
    })
}

pub fn headers(on: bool) -> Headers {
    if on { Headers::default() } else { Headers::NONE }
}

pub fn layer(name: &'static str, per: Per, limit: Limit, on: bool) -> Contestant<Caller> {
    let quota = match limit {
        Limit::Plenty => plenty(),
        Limit::Exhausted => Quota::per_hour(1),
    };
    let layer = RateLimitLayer::new(limiter(quota)).headers(headers(on));
    match per {
        Per::Peer => contenders::contestant(name, layer.layer(Nothing), limit),
        Per::ApiKey => {
            let layer = layer.tenant(tenant::header(API_KEY.as_str()));
            contenders::contestant(name, layer.layer(Nothing), limit)
        }
    }
}
