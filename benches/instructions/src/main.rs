//! Makes one kind of decision a given number of times: `CASE COUNT`.
//!
//! `scripts/instructions` runs it under callgrind, which collects only inside
//! [`decide_repeatedly`]. That leaves out the setup: building the limiter,
//! calibrating the clock, and one decision for each of the 1,000 keys so that
//! every counter exists.

use std::{
    env,
    future::Future,
    hint::black_box,
    pin::pin,
    process::ExitCode,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use tower_ratelimit::{
    Decision, Descriptor, Policy, Quota, RateLimiter, Rule,
    backend::{Backend, Local, Share, Split},
};

/// No decision is rejected, whatever the count.
const PLENTY: u64 = 60_000_000_000;

const KEYS: usize = 1_000;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().collect();
    let [_, case, count] = arguments.as_slice() else { return usage() };
    let (Some(limiter), Ok(count)) = (limiter(case), count.parse()) else { return usage() };
    let tenants: Vec<String> = (0..KEYS).map(|key| format!("tenant-{key:07}")).collect();
    tenants.iter().for_each(|tenant| drop(check(&limiter, tenant)));
    decide_repeatedly(&limiter, &tenants, count);
    ExitCode::SUCCESS
}

#[inline(never)]
fn decide_repeatedly(limiter: &RateLimiter, tenants: &[String], count: usize) {
    for tenant in tenants.iter().cycle().take(count) {
        black_box(check(black_box(limiter), black_box(tenant)));
    }
}

fn usage() -> ExitCode {
    eprintln!("usage: tower-ratelimit-instructions CASE COUNT");
    ExitCode::FAILURE
}

fn limiter(case: &str) -> Option<RateLimiter> {
    let one_tier = || Policy::from(Quota::per_minute(PLENTY));
    let two_tiers = Rule::new("two").tier(Quota::per_minute(PLENTY)).tier(Quota::per_hour(PLENTY));
    let two_rules = Policy::new()
        .rule(Rule::new("one").tier(Quota::per_minute(PLENTY)))
        .rule(Rule::new("other").path("/product/{id}").tier(Quota::per_hour(PLENTY)));
    Some(match case {
        "one-tier" => with(Local::new(), one_tier()),
        "top" => RateLimiter::builder().policy(one_tier()).top_tenants(256).build().expect("a valid policy"),
        "two-tiers" => with(Local::new(), Policy::new().rule(two_tiers)),
        "two-rules" => with(Local::new(), two_rules),
        "ten-rules" => with(Local::new(), one_of_ten()),
        "arc" => with(Arc::new(Local::new()), one_tier()),
        "split" => with(Split::new(Share::new(0, 2).ok()?), one_tier()),
        _ => return None,
    })
}

fn with(backend: impl Backend, policy: Policy) -> RateLimiter {
    RateLimiter::builder().policy(policy).backend(backend).build().expect("a valid policy")
}

/// Ten rules, each for a path of its own.
fn one_of_ten() -> Policy {
    let product = Rule::new("product").path("/product/{id}").tier(Quota::per_minute(PLENTY));
    (1..10).fold(Policy::new().rule(product), |policy, rule| {
        let other = Rule::new(format!("rule-{rule}")).path(format!("/other-{rule}/{{id}}"));
        policy.rule(other.tier(Quota::per_minute(PLENTY)))
    })
}

fn check(limiter: &RateLimiter, tenant: &str) -> Decision {
    let descriptor = Descriptor::new("/product/7").method("GET").tenant(tenant);
    match pin!(limiter.check(&descriptor)).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(decision) => decision,
        Poll::Pending => unreachable!("a local decision is ready at the first poll"),
    }
}
