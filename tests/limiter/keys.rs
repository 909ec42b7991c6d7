//! Counters: which requests share one, how many there are, and what becomes of them.

use std::{
    convert::Infallible,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use tower::{Layer, ServiceExt, service_fn};
use tower_ratelimit::{
    Algorithm, Descriptor, Policy, Quota, RateLimitLayer, RateLimiter, Rule,
    backend::Local,
    testing::{ManualClock, TokioClock},
};

use super::{Bench, admitted, ask, is_pending};

#[test]
fn rules_with_similar_ids_have_separate_counters() {
    let rules = (0..1_000).map(|id| Rule::new(id.to_string()).tier(Quota::per_day(10)));
    let limiter = RateLimiter::new(rules.fold(Policy::new(), Policy::rule)).unwrap();
    assert_eq!(admitted(&limiter, &Descriptor::new("/").tenant("acme"), 20), 10);
    assert_eq!(limiter.stats().keys(), 1_000);
}

#[test]
fn entries_are_reused_over_a_long_run() {
    let clock = ManualClock::new();
    let policy = Policy::new()
        .rule(Rule::new("1").tier(Quota::per_second(10)))
        .rule(Rule::new("11").tier(Quota::per_second(10)));
    let local = Local::builder().max_keys(1_000).build();
    let limiter = RateLimiter::builder().policy(policy).backend(local).clock(clock.clone()).build().unwrap();
    for tenant in 0..3_000 {
        let tenant = tenant.to_string();
        assert!(ask(&limiter, &Descriptor::new("/").tenant(&*tenant)).is_allowed());
        clock.advance(Duration::from_secs(60));
    }
    assert_eq!(limiter.stats().backend.overflowed, 0);
    assert!(limiter.stats().keys() < 100, "{}", limiter.stats().keys());
}

#[test]
fn racing_threads_are_not_rejected_below_the_limit() {
    for algorithm in [Algorithm::SlidingLog, Algorithm::SlidingWindow, Algorithm::FixedWindow] {
        let limiter = RateLimiter::new(Quota::per_day(20_000).algorithm(algorithm)).unwrap();
        let rejected = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let rejections = 2_000 - admitted(&limiter, &Descriptor::new("/").tenant("acme"), 2_000);
                    rejected.fetch_add(rejections, Ordering::Relaxed);
                });
            }
        });
        assert_eq!(rejected.into_inner(), 0, "{algorithm}");
    }
}

#[test]
fn windows_beyond_the_last_timestamp_have_separate_counters() {
    const YEAR: u64 = 365 * 86_400;
    let tier = |years| Quota::new(1_000, Duration::from_secs(years * YEAR)).algorithm(Algorithm::FixedWindow);
    let limiter = RateLimiter::new(Policy::new().rule(Rule::new("long").tier(tier(600)).tier(tier(700)))).unwrap();
    let decision = ask(&limiter, &Descriptor::new("/"));
    assert!(decision.tiers().iter().all(|tier| tier.remaining() == 999));
}

/// 5,000 tenants, at most a hundred keys. The flood neither locks newcomers out
/// nor returns the quota of a tenant that has used it up.
#[test]
fn the_cap_on_keys_holds() {
    let bench = Bench::on(Local::builder().max_keys(100).build(), Quota::per_hour(2));
    assert_eq!(bench.admitted("acme", 5), 2);
    for tenant in 0..5_000 {
        assert_eq!(bench.admitted(&format!("tenant-{tenant}"), 1), 1, "newcomer {tenant}");
        assert!(bench.limiter.stats().keys() <= 100);
        assert_eq!(bench.admitted("acme", 1), 0, "after {tenant}");
    }
    assert_eq!(bench.limiter.stats().backend.overflowed, 0);
}

#[tokio::test(start_paused = true)]
async fn a_charge_of_the_overflow_counter_is_not_refunded_to_another_counter() {
    let rule = Rule::new("paced")
        .path("/")
        .tier(Quota::per_minute(5).algorithm(Algorithm::AnchoredWindow))
        .max_wait(Duration::MAX);
    let held = Rule::new("held").path("/held").tier(Quota::concurrent(1));
    let local = Local::builder().max_keys(1).build();
    let limiter =
        RateLimiter::builder().policy(Policy::new().rule(rule).rule(held)).backend(local).clock(TokioClock::default());
    let limiter = limiter.build().unwrap();
    let layer = RateLimitLayer::keyed(limiter.clone(), |tenant: &&'static str| Descriptor::new("/").tenant(*tenant));
    let service = layer.layer(service_fn(async |tenant: &'static str| Ok::<_, Infallible>(tenant)));
    // The only entry is in flight, so the newcomer uses the overflow counter.
    let resident = limiter.acquire(&Descriptor::new("/held"), Duration::ZERO).await.unwrap();
    for _ in 0..5 {
        service.clone().oneshot("newcomer").await.unwrap();
    }
    let mut waiting: Vec<_> = (0..5).map(|_| Box::pin(service.clone().oneshot("newcomer"))).collect();
    for wait in &mut waiting {
        assert!(is_pending(wait));
    }
    drop(resident);
    tokio::time::advance(Duration::from_secs(61)).await;
    let newcomer = Descriptor::new("/").tenant("newcomer");
    assert_eq!(admitted(&limiter, &newcomer, 5), 5, "the newcomer has its own entry by now");
    drop(waiting);
    assert_eq!(admitted(&limiter, &newcomer, 5), 0);
}
