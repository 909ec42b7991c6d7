//! A rule that finds the limit of its upstream, through the limiter: tasks that
//! wait for their slots, on paused time.
#![allow(clippy::unwrap_used, clippy::cast_precision_loss)]
#![allow(clippy::disallowed_methods, reason = "time is paused, and upstreams take some")]

#[path = "common/upstream.rs"]
mod upstream;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};
use tower_ratelimit::{
    AdaptiveRate, Algorithm, Descriptor, Policy, Quota, RateLimitedKind, RateLimiter, Rule,
    backend::{Backend, Local},
    testing::{FaultyBackend, TokioClock},
};

use self::upstream::{Upstream, call, limiter};

const MS: Duration = Duration::from_millis(1);

fn upstream_rule() -> Rule {
    let adapt = AdaptiveRate::between(Quota::per_second(1), Quota::per_second(1_000)).start(Quota::per_second(20));
    Rule::new("upstream").adaptive_rate(adapt)
}

#[tokio::test(start_paused = true)]
async fn sixty_four_tasks_find_the_upstreams_limit() {
    let window = Quota::per_second(200).algorithm(Algorithm::FixedWindow);
    for (quota, round_trip) in [
        (Quota::per_second(200).burst(20), MS),
        (Quota::per_second(200).burst(20), 100 * MS),
        (Quota::per_second(200), 10 * MS),
        (window, 10 * MS),
    ] {
        let (limiter, upstream) = (limiter(upstream_rule()), Upstream::new(quota, round_trip));
        call(&limiter, &upstream, "acme", 64, 30, false).await;
        let (rate, rejected) = upstream.rates(5..30);
        println!("{quota:?}, {round_trip:?}: {rate:.1}/s, {:.2} % rejected", rejected * 100.0);
        assert!(rate >= 180.0 && rejected < 0.02, "{rate} {rejected}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_limit_is_found_from_the_floor_with_a_pause_after_each_rejection() {
    let adapt = AdaptiveRate::between(Quota::per_second(1), Quota::per_second(1_000));
    let limiter = limiter(Rule::new("upstream").adaptive_rate(adapt));
    let upstream = Upstream::new(Quota::per_second(200).burst(20), 10 * MS);
    call(&limiter, &upstream, "acme", 64, 90, true).await;
    let ((climbing, _), (rate, rejected)) = (upstream.rates(0..10), upstream.rates(30..90));
    println!("{climbing:.1}/s in the first 10 s, then {rate:.1}/s, {:.2} % rejected", rejected * 100.0);
    assert!(climbing >= 20.0 && rate >= 180.0 && rejected < 0.02, "{climbing} {rate} {rejected}");
}

#[tokio::test(start_paused = true)]
async fn a_limit_below_one_a_second_is_found() {
    let adapt = AdaptiveRate::between(Quota::per_hour(1), Quota::per_second(10)).start(Quota::per_minute(1));
    let limiter = limiter(Rule::new("upstream").adaptive_rate(adapt));
    let upstream = Upstream::new(Quota::per_minute(12).burst(2), 10 * MS);
    call(&limiter, &upstream, "acme", 4, 3_600, false).await;
    let (rate, rejected) = upstream.rates(600..3_600);
    println!("{:.2} a minute, {:.2} % rejected", rate * 60.0, rejected * 100.0);
    assert!(rate * 60.0 >= 10.8 && rejected < 0.05, "{rate} {rejected}");
}

#[tokio::test(start_paused = true)]
async fn the_rate_stays_between_floor_and_ceiling() {
    let adapt = AdaptiveRate::between(Quota::per_second(5), Quota::per_second(50));
    let limiter = limiter(Rule::new("upstream").adaptive_rate(adapt));
    let upstream = Upstream::new(Quota::per_second(100_000), MS);
    call(&limiter, &upstream, "acme", 16, 20, false).await;
    let seen = upstream.seen.lock().unwrap().clone();
    assert!(seen.iter().all(|[admitted, rejected]| *admitted <= 51 && *rejected == 0), "{seen:?}");
    assert!(upstream.rates(10..20).0 >= 49.0);
    let request = Descriptor::new("/").tenant("acme");
    assert_eq!(limiter.adaptive_rates(&request)[0].rate(), 50.0);

    let nothing = Upstream::new(Quota::per_hour(1), MS);
    call(&limiter, &nothing, "acme", 16, 20, false).await;
    let found = limiter.adaptive_rates(&request)[0];
    assert_eq!((found.rate(), found.floor(), found.ceiling()), (5.0, 5.0, 50.0));
    assert!(found.rejections() > 50, "{}", found.rejections());
    let seen = nothing.seen.lock().unwrap().clone();
    assert!(seen[15..19].iter().all(|[_, rejected]| (4..=6).contains(rejected)), "{seen:?}");
}

#[tokio::test(start_paused = true)]
async fn the_adaptive_tier_applies_beside_fixed_tiers() {
    let adapt = AdaptiveRate::between(Quota::per_second(10), Quota::per_second(1_000)).start(Quota::per_second(20));
    let limiter = limiter(Rule::new("upstream").tier(Quota::per_second(50).burst(1)).adaptive_rate(adapt));
    let upstream = Upstream::new(Quota::per_second(100_000), 5 * MS);
    call(&limiter, &upstream, "acme", 32, 20, false).await;
    let (rate, _) = upstream.rates(5..20);
    assert!((49.0..=50.1).contains(&rate), "{rate}");
    // A rate that is not used is not raised.
    let request = Descriptor::new("/").tenant("acme");
    let found = limiter.adaptive_rates(&request)[0].rate();
    assert!((50.0..=90.0).contains(&found), "{found}");

    sleep(Duration::from_secs(1)).await;
    let decision = limiter.check(&request).await;
    let [own, adapting] = decision.tiers() else { panic!("{decision:?}") };
    assert_eq!((own.limit(), own.window()), (50, Duration::from_secs(1)));
    let shown = adapting.limit() as f64 / adapting.window().as_secs_f64();
    assert!(shown <= found && shown >= found * 0.97, "{shown} of {found}");
}

#[tokio::test(start_paused = true)]
async fn each_key_has_its_own_rate() {
    let limiter = limiter(upstream_rule());
    let [high, low] = [400, 40].map(|rate| Upstream::new(Quota::per_second(rate).burst(10), 5 * MS));
    tokio::join!(call(&limiter, &high, "a", 32, 20, false), call(&limiter, &low, "b", 32, 20, false));
    let (a, b) = (high.rates(8..20).0, low.rates(8..20).0);
    assert!(a >= 350.0 && b >= 35.0, "{a} {b}");
    let rate = |tenant| limiter.adaptive_rates(&Descriptor::new("/").tenant(tenant))[0].rate();
    assert!(rate("a") >= 330.0 && rate("b") <= 50.0 && rate("unused") == 20.0);
}

/// Queued requests are admitted in order, and one that leaves keeps nothing.
#[tokio::test(start_paused = true)]
async fn waiters_are_admitted_in_order_and_leave_nothing_behind() {
    let adapt = AdaptiveRate::between(Quota::per_second(2), Quota::per_second(1_000));
    let limiter = limiter(Rule::new("upstream").adaptive_rate(adapt));
    let (start, order) = (Instant::now(), Arc::new(Mutex::new(Vec::new())));
    let mut set = JoinSet::new();
    for number in 0..10 {
        let (limiter, order) = (limiter.clone(), Arc::clone(&order));
        set.spawn(async move {
            let request = Descriptor::new("/");
            let acquiring = limiter.acquire(&request, Duration::from_secs(60));
            if number % 3 == 2 {
                assert!(tokio::time::timeout(100 * MS, acquiring).await.is_err());
                return;
            }
            let _permit = acquiring.await.unwrap();
            order.lock().unwrap().push((number, start.elapsed().as_millis()));
        });
    }
    while let Some(result) = set.join_next().await {
        result.unwrap();
    }
    let order = order.lock().unwrap().clone();
    let numbers: Vec<_> = order.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, [0, 1, 3, 4, 6, 7, 9]);
    for (position, (_, at)) in order.iter().enumerate() {
        let due = position as u128 * 500;
        assert!((due..=due + 3).contains(at), "{order:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_may_not_wait_so_long_is_rejected_at_once() {
    let adapt = AdaptiveRate::between(Quota::per_second(1), Quota::per_second(1_000));
    let limiter = limiter(Rule::new("upstream").adaptive_rate(adapt));
    let request = Descriptor::new("/");
    let start = Instant::now();
    let _first = limiter.acquire(&request, Duration::ZERO).await.unwrap();
    let rejected = limiter.acquire(&request, 900 * MS).await.unwrap_err();
    assert_eq!((rejected.kind(), rejected.retry_after()), (RateLimitedKind::QuotaExceeded, Some(1_000 * MS)));
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert!(!limiter.check(&request).await.is_allowed());
    let _second = limiter.acquire(&request, 1_100 * MS).await.unwrap();
    assert!((1_000 * MS..=1_005 * MS).contains(&start.elapsed()), "{:?}", start.elapsed());
}

/// Requests that queue at a slow rate are admitted sooner once the rate rises:
/// all but the first, as units out come back at the old rate, and the first to
/// reserve at the new rate counts them as a whole unit.
#[tokio::test(start_paused = true)]
async fn no_request_waits_by_an_outdated_rate() {
    let adapt = AdaptiveRate::between(Quota::per_minute(1), Quota::per_second(100));
    let limiter = limiter(Rule::new("upstream").adaptive_rate(adapt));
    let request = Descriptor::new("/");
    let first = limiter.acquire(&request, Duration::ZERO).await.unwrap();
    let second = limiter.acquire(&request, Duration::from_secs(70)).await.unwrap();
    first.report_success();
    let start = Instant::now();
    let mut set = JoinSet::new();
    for _ in 0..3 {
        let limiter = limiter.clone();
        set.spawn(async move {
            let _permit = limiter.acquire(&Descriptor::new("/"), Duration::from_secs(200)).await.unwrap();
            start.elapsed().as_secs_f64()
        });
    }
    sleep(MS).await;
    // 1 a minute becomes 2.7.
    second.report_success();
    let mut admitted = set.join_all().await;
    admitted.sort_by(f64::total_cmp);
    for (at, due) in admitted.iter().zip([60.0, 104.5, 126.8]) {
        assert!((at - due).abs() < 0.5, "{at} rather than {due}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_policy_keeps_the_rate_within_its_bounds() {
    let limiter = limiter(upstream_rule());
    let upstream = Upstream::new(Quota::per_second(300).burst(10), MS);
    call(&limiter, &upstream, "acme", 32, 15, false).await;
    let request = Descriptor::new("/").tenant("acme");
    assert!(limiter.adaptive_rates(&request)[0].rate() > 200.0);
    let lower = AdaptiveRate::between(Quota::per_second(1), Quota::per_second(50));
    limiter.set_policy(Policy::new().rule(Rule::new("upstream").adaptive_rate(lower))).unwrap();
    assert_eq!(limiter.adaptive_rates(&request)[0].rate(), 50.0);
    let upstream = Upstream::new(Quota::per_second(300).burst(10), MS);
    call(&limiter, &upstream, "acme", 32, 10, false).await;
    assert!((48.0..=51.0).contains(&upstream.rates(1..10).0), "{:?}", upstream.rates(1..10));
    limiter.set_policy(Quota::per_second(1)).unwrap();
    assert!(limiter.adaptive_rates(&request).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_checked_request_is_reported_by_its_decision() {
    let limiter = limiter(upstream_rule());
    let request = Descriptor::new("/").tenant("acme");
    let rate = || limiter.adaptive_rates(&request)[0].rate();
    for _ in 0..20 {
        let decision = limiter.check(&request).await;
        assert!(decision.is_allowed());
        limiter.report_success(&request, &decision);
        sleep(decision.reset()).await;
    }
    let grown = rate();
    assert!((35.0..=60.0).contains(&grown), "{grown}");
    let decision = limiter.check(&request).await;
    limiter.report_rejection(&request, &decision);
    assert!((rate() - grown * 0.7).abs() < 1e-6);
    // A request that the limiter rejected was not sent, so its report is ignored.
    let rejected = limiter.check(&request).await;
    assert!(!rejected.is_allowed());
    limiter.report_rejection(&request, &rejected);
    assert_eq!(limiter.adaptive_rates(&request)[0].rejections(), 1);
}

/// Otherwise a request that costs more than the units of 5 ms would never be
/// admitted, and the rate would never rise.
#[tokio::test(start_paused = true)]
async fn a_rule_with_a_higher_cost_adapts_its_rate_too() {
    let adapt = AdaptiveRate::between(Quota::per_second(10), Quota::per_second(1_000));
    let limiter = limiter(Rule::new("upstream").cost(7).adaptive_rate(adapt).max_wait(MS * 10_000));
    let start = Instant::now();
    for _ in 0..30 {
        let permit = limiter.acquire(&Descriptor::new("/"), MS * 10_000).await.unwrap();
        permit.report_success();
    }
    let rate = limiter.adaptive_rates(&Descriptor::new("/"))[0].rate();
    assert!(rate > 20.0, "{rate}");
    // The rate grows at most 2.7-fold with the units of each second.
    assert!(start.elapsed() > MS * 1_000, "{:?}", start.elapsed());
}

/// All call one upstream, and each tenant has its own limit.
fn two_limits(backend: impl Backend) -> RateLimiter {
    let own = Rule::new("own").tier(Quota::new(1, Duration::from_secs(10))).max_wait(Duration::from_secs(40));
    let upstream = upstream_rule().per([]).max_wait(Duration::from_secs(5));
    let policy = Policy::new().rule(upstream).rule(own);
    RateLimiter::builder().policy(policy).backend(backend).clock(TokioClock::default()).build().unwrap()
}

/// When a newcomer is admitted.
fn admitted_after(
    limiter: &RateLimiter,
    set: &mut JoinSet<(usize, Duration)>,
    tenant: String,
    number: usize,
    start: Instant,
) {
    let limiter = limiter.clone();
    set.spawn(async move {
        let request = Descriptor::new("/").tenant(&*tenant);
        drop(limiter.acquire(&request, Duration::MAX).await.unwrap());
        (number, start.elapsed())
    });
}

/// Requests that wait for their own limit are admitted in order, by their own
/// rule's bound, and delay no other at the shared rate, whichever backend
/// decides.
async fn each_limit_has_a_queue(backend: impl Backend) {
    let limiter = two_limits(backend);
    let (start, mut acme, mut others) = (Instant::now(), JoinSet::new(), JoinSet::new());
    for number in 0..4 {
        admitted_after(&limiter, &mut acme, "acme".into(), number, start);
    }
    for number in 0..20 {
        admitted_after(&limiter, &mut others, number.to_string(), number, start);
    }
    while let Some(result) = others.join_next().await {
        let (number, at) = result.unwrap();
        assert!(at <= 2_500 * MS, "{number} at {at:?}");
    }
    // As acme's next slots come, the upstream is busy.
    sleep_until(start + 8_000 * MS).await;
    for number in 20..100 {
        admitted_after(&limiter, &mut others, number.to_string(), number, start);
    }
    let admitted: Vec<_> = acme.join_all().await;
    let others = others.join_all().await;
    let last = others.iter().map(|(_, at)| *at).max().unwrap();
    assert!(last <= 13_000 * MS, "{last:?}");
    for (number, at) in admitted {
        let due = Duration::from_secs(10) * u32::try_from(number).unwrap();
        assert!((due..=due + 60 * MS).contains(&at), "{number} at {at:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_delayed_by_its_own_limit_blocks_no_other() {
    each_limit_has_a_queue(Local::new()).await;
    each_limit_has_a_queue(FaultyBackend::new(Local::new())).await;
}

/// Each rule's bound is for its own queue; the caller's is for all of them. The
/// cooldown ends up to a quarter later than asked for: after 12.5 s to 13.25 s.
#[tokio::test(start_paused = true)]
async fn a_caller_waits_no_longer_than_it_asked_for_over_several_queues() {
    for (bound, is_admitted) in [(12_000 * MS, false), (14_000 * MS, true)] {
        let limiter = two_limits(Local::new());
        let request = Descriptor::new("/").tenant("acme");
        drop(limiter.acquire(&request, Duration::ZERO).await.unwrap());
        let start = Instant::now();
        let cools_down = async {
            sleep_until(start + 9_500 * MS).await;
            limiter.cool_down(&request, 3_000 * MS);
        };
        let (outcome, ()) = tokio::join!(limiter.acquire(&request, bound), cools_down);
        assert_eq!(outcome.is_ok(), is_admitted, "{bound:?}");
        assert!(start.elapsed() <= bound, "{:?} of {bound:?}", start.elapsed());
    }
}

/// A request in the queue of its own limit is admitted as soon as that admits.
#[tokio::test(start_paused = true)]
async fn a_give_back_admits_queued_requests() {
    let limiter = two_limits(Local::new());
    let request = Descriptor::new("/").tenant("acme");
    let permit = limiter.acquire(&request, Duration::ZERO).await.unwrap();
    let (start, mut set) = (Instant::now(), JoinSet::new());
    admitted_after(&limiter, &mut set, "acme".into(), 0, start);
    sleep(2_000 * MS).await;
    permit.refund();
    let (_, at) = set.join_next().await.unwrap().unwrap();
    assert_eq!(at, 2_000 * MS);
}

/// The slots of an adaptive rate are reserved shortly before they come; those of other
/// rules are reserved at once.
#[tokio::test(start_paused = true)]
async fn a_rule_beside_one_that_adapts_keeps_its_waits() {
    let plain = Rule::new("plain").path("/plain").tier(Quota::per_second(1));
    let limiter = RateLimiter::builder()
        .policy(Policy::new().rule(upstream_rule().path("/upstream")).rule(plain))
        .clock(TokioClock::default())
        .build()
        .unwrap();
    let start = Instant::now();
    for _ in 0..3 {
        drop(limiter.acquire(&Descriptor::new("/plain"), Duration::from_secs(1)).await.unwrap());
    }
    assert_eq!(start.elapsed(), Duration::from_secs(2));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_may_wait_just_until_its_slot_waits() {
    let adapt = AdaptiveRate::between(Quota::per_second(1), Quota::per_second(1_000)).start(Quota::per_second(2));
    for of_rule in [false, true] {
        for short in [Duration::ZERO, Duration::from_nanos(1)] {
            let after = Duration::from_millis(500);
            let rule = Rule::new("upstream").adaptive_rate(adapt);
            let limiter = limiter(if of_rule { rule.max_wait(after - short) } else { rule });
            drop(limiter.acquire(&Descriptor::new("/"), Duration::ZERO).await.unwrap());
            let rejected = limiter.check(&Descriptor::new("/")).await;
            assert_eq!(rejected.retry_after(), Some(after));
            let bound = if of_rule { Duration::MAX } else { after - short };
            let outcome = limiter.acquire(&Descriptor::new("/"), bound).await;
            assert_eq!(outcome.is_ok(), short.is_zero(), "of the rule: {of_rule}, {short:?} less");
        }
    }
}
