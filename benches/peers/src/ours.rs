//! `tower-ratelimit`'s own contestants.

use std::time::Duration;

use tower::Layer;
use tower_ratelimit::{Descriptor, Headers, Policy, Quota, RateLimitLayer, RateLimiter, Rule, tenant};

use crate::{
    contenders::{self, API_KEY, Limit, NoOp, Per},
    decision::{self, PLENTY, REFILL},
    keys::Caller,
    pacers::{Pace, Pacer, Tenants},
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

pub fn two_tiers() -> Contestant<String> {
    // Not slower: a backlog of more than 438 years would take a wider state.
    let faster = Quota::new(1, REFILL / 2).burst(u64::from(PLENTY));
    let limiter = limiter(Policy::new().rule(Rule::new("two").tier(plenty()).tier(faster)));
    decision::contestant("tower-ratelimit", move || {
        let limiter = limiter.clone();
        move |tenant| allows(&limiter, tenant)
    })
}

pub fn headers(on: bool) -> Headers {
    if on { Headers::ALL } else { Headers::NONE }
}

pub fn layer(name: &'static str, per: Per, limit: Limit, on: bool) -> Contestant<Caller> {
    let quota = match limit {
        Limit::Plenty => plenty(),
        Limit::Exhausted => Quota::per_hour(1),
    };
    let layer = RateLimitLayer::new(limiter(quota)).headers(headers(on));
    match per {
        Per::Peer => contenders::contestant(name, layer.layer(NoOp), limit),
        Per::ApiKey => {
            let layer = layer.tenant(tenant::header(API_KEY.as_str()));
            contenders::contestant(name, layer.layer(NoOp), limit)
        }
    }
}

pub struct Pacing {
    limiter: RateLimiter,
    tenants: Tenants,
}

impl Pacing {
    pub fn new(pace: Pace) -> Self {
        let limiter = RateLimiter::builder()
            .policy(Quota::new(1, pace.interval).burst(1))
            .max_waiters(usize::MAX)
            .max_waiters_per_key(usize::MAX)
            .build()
            .expect("a valid policy");
        Self { limiter, tenants: Tenants::new(pace) }
    }
}

impl Pacer for Pacing {
    async fn admit(&self, caller: usize) {
        let descriptor = Descriptor::new("/").tenant(self.tenants.of(caller).as_str());
        drop(self.limiter.acquire(&descriptor, Duration::MAX).await.expect("there is no waiter limit"));
    }
}
