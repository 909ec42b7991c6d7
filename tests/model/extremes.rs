//! Extreme values: no panic, and no broken bound.

use std::time::Duration;

use proptest::prelude::*;
use tower_ratelimit::{Algorithm, Policy, Quota, RateLimitedKind, Rule};

use super::{
    ALGORITHMS, Bench,
    oracle::Oracle,
    schedule::{agree, config},
};

const DAY: Duration = Duration::from_secs(86_400);

/// Numbers of every size, and those next to a border.
fn any_size() -> impl Strategy<Value = u64> {
    const BORDERS: [u64; 9] = [0, 1, 2, 1 << 26, 1 << 32, 1 << 61, 1 << 62, 1 << 63, u64::MAX];
    prop_oneof![
        (0..64_u32, any::<u64>()).prop_map(|(bits, any)| any >> bits),
        (prop::sample::select(&BORDERS[..]), -2..3_i64).prop_map(|(border, off)| border.saturating_add_signed(off)),
    ]
}

fn any_window() -> impl Strategy<Value = Duration> {
    prop_oneof![
        any_size().prop_map(|nanos| Duration::from_nanos(nanos.max(1))),
        any_size().prop_map(|secs| Duration::from_secs(secs.max(1))),
        Just(Duration::MAX),
    ]
}

fn any_quota() -> impl Strategy<Value = Quota> {
    (prop::sample::select(&ALGORITHMS[..]), any_size(), any_window(), prop::option::of(any_size())).prop_map(
        |(algorithm, limit, window, burst)| match (algorithm, burst) {
            (Algorithm::TokenBucket | Algorithm::LeakyBucket, Some(burst)) => {
                Quota::new(limit, window).burst(burst.max(1)).algorithm(algorithm)
            }
            (Algorithm::SlidingLog, _) => Quota::new(limit.min(Quota::MAX_SLIDING_LOG), window).algorithm(algorithm),
            _ => Quota::new(limit, window).algorithm(algorithm),
        },
    )
}

/// Windows longer than 584 years, which is all of time, count as 584 years; sliding
/// windows, of which two follow the current time, as a quarter of that at most.
fn window(quota: &Quota) -> u128 {
    let longest = if quota.counted_by() == Algorithm::SlidingWindow { u64::MAX / 4 } else { u64::MAX };
    quota.window().as_nanos().min(longest.into())
}

/// The most units in `time`, by the algorithm's own bound or one above it.
fn bound(quota: &Quota, time: u64) -> u128 {
    let (limit, window) = (u128::from(quota.limit()), window(quota));
    match quota.counted_by() {
        _ if limit == 0 => 0,
        Algorithm::TokenBucket | Algorithm::LeakyBucket => {
            u128::from(quota.capacity()) + u128::from(time) * limit / window
        }
        Algorithm::SlidingLog => limit * (u128::from(time) / window + 1),
        _ => limit * (u128::from(time) / window + 2),
    }
}

proptest! {
    #![proptest_config(config(3_000))]

    #[test]
    fn nothing_panics_and_no_bound_is_broken(
        quota in any_quota(),
        steps in prop::collection::vec((prop_oneof![Just(0), any_size()], any_size(), any::<bool>()), 1..20),
    ) {
        let bench = Bench::new(quota);
        let mut admitted: Vec<(u64, u128)> = Vec::new();
        for (gap, cost, near_capacity) in steps {
            bench.advance(gap);
            let cost = if near_capacity { quota.capacity().saturating_sub(cost % 3) } else { cost };
            let decision = bench.cost(cost);
            prop_assert!(decision.remaining().unwrap() <= quota.capacity());
            if decision.is_allowed() {
                prop_assert!(quota.limit() > 0 && cost <= quota.capacity());
                admitted.push((bench.now(), cost.into()));
                for first in 0..admitted.len() {
                    let sum: u128 = admitted[first..].iter().map(|(_, cost)| cost).sum();
                    let time = bench.now() - admitted[first].0;
                    prop_assert!(sum <= bound(&quota, time), "{} units in {} ns", sum, time);
                }
            } else if let Some(retry_after) = decision.retry_after() {
                prop_assert!(!retry_after.is_zero());
                bench.clock.advance(retry_after - Duration::from_nanos(1));
                prop_assert!(!bench.admits(cost), "admitted before {:?}", retry_after);
                bench.advance(1);
                prop_assert!(bench.now() < u64::MAX, "promised after the end of time");
                prop_assert!(bench.admits(cost), "rejected after {:?}", retry_after);
                admitted.push((bench.now(), cost.into()));
            }
        }
    }

    /// Limits of any 32 bits, raised and lowered after any use: used units never
    /// become available by it.
    #[test]
    fn no_reload_panics_or_admits_more(
        quotas in prop::collection::vec((any_size(), any_size()), 1..6),
        window in any_window(),
        costs in prop::collection::vec(any_size(), 6),
        algorithm in prop::sample::select(&ALGORITHMS[..]),
    ) {
        let quota = |(limit, _): (u64, u64)| {
            let most = if algorithm == Algorithm::SlidingLog { Quota::MAX_SLIDING_LOG } else { u32::MAX.into() };
            Quota::new(limit.min(most), window).algorithm(algorithm)
        };
        let bench = Bench::new(quota(quotas[0]));
        let mut used = 0_u128;
        for (limit, cost) in quotas.into_iter().zip(costs) {
            bench.limiter.set_policy(quota(limit)).unwrap();
            for cost in [cost, quota(limit).limit(), 1] {
                if bench.admits(cost) && cost > 0 {
                    used += u128::from(cost);
                    // A leaky bucket's burst says how many may queue.
                    prop_assert!(used <= quota(limit).limit().into(), "{} of {:?}", used, quota(limit));
                }
            }
        }
    }
}

/// Rates whose exact fraction needs more than 32 bits, compared with the oracle.
fn wide_quota() -> impl Strategy<Value = Quota> {
    let limit = (1_u64 << 32)..(1 << 50);
    let window = 1..1_000_000_000_000_u64;
    (limit, window, prop::option::of(1..1_u64 << 50), any::<bool>()).prop_map(|(limit, window, burst, leaky)| {
        let algorithm = if leaky { Algorithm::LeakyBucket } else { Algorithm::TokenBucket };
        let quota = Quota::new(limit, Duration::from_nanos(window)).algorithm(algorithm);
        burst.map_or(quota, |burst| quota.burst(burst))
    })
}

proptest! {
    #![proptest_config(config(300))]

    #[test]
    fn wide_rates_are_exact(
        quota in wide_quota(),
        steps in prop::collection::vec((0..40_u64, 0..110_u64, 0..3_u64), 1..60),
    ) {
        let bench = Bench::new(quota);
        let mut oracle = Oracle::new(&quota);
        // Time and costs in hundredths of what a burst takes, and of a burst.
        let full = u128::from(quota.capacity()) * quota.window().as_nanos() / u128::from(quota.limit());
        for (gap, cost, off) in steps {
            bench.advance((full * u128::from(gap) / 100) as u64 + off);
            let cost = (u128::from(quota.capacity()) * u128::from(cost) / 100) as u64 + off;
            agree(&mut oracle, bench.now(), cost, &bench.cost(cost))?;
        }
        prop_assert_eq!(oracle.broken_bound(), None);
    }
}

#[test]
fn a_burst_of_four_billion_at_one_a_day_is_exactly_that() {
    let burst = u64::from(u32::MAX);
    let bench = Bench::new(Quota::per_day(1).burst(burst));
    assert!(bench.admits(burst - 5));
    for left in (0..5).rev() {
        assert_eq!((bench.cost(1).is_allowed(), bench.cost(0).remaining()), (true, Some(left)));
    }
    let rejected = bench.cost(1);
    assert_eq!(rejected.retry_after(), Some(DAY));
    // Eleven million years: beyond the end of time.
    assert_eq!(rejected.reset(), Duration::from_nanos(u64::MAX));

    let whole = Bench::new(Quota::per_day(1).burst(burst));
    assert!(!whole.admits(burst + 1));
    assert!(whole.admits(burst));
    assert!(!whole.admits(1));
}

#[test]
fn the_largest_limit_and_cost_are_counted() {
    for algorithm in
        [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::AnchoredWindow, Algorithm::SlidingWindow]
    {
        let bench = Bench::new(Quota::per_second(u64::MAX).algorithm(algorithm));
        assert_eq!(bench.cost(0).remaining(), Some(u64::MAX), "{algorithm}");
        assert!(bench.admits(u64::MAX - 1), "{algorithm}");
        assert_eq!(bench.cost(2).remaining(), Some(1), "{algorithm}");
        assert!(bench.admits(1), "{algorithm}");
        assert!(!bench.admits(1), "{algorithm}");
        bench.clock.advance(Duration::from_secs(2));
        assert!(bench.admits(u64::MAX), "{algorithm}");
    }
}

/// A rule's cost times a request's cost is more than can be counted.
#[test]
fn costs_do_not_wrap_when_multiplied() {
    let rule = Rule::new("dear").cost(1 << 40).tier(Quota::per_second(1 << 45));
    let bench = Bench::new(Policy::new().rule(rule));
    let rejected = bench.cost(1 << 40);
    assert_eq!(rejected.rejection(), Some(RateLimitedKind::NeverFits));
    assert_eq!(bench.cost(32).remaining(), Some(0));
}

#[test]
fn the_longest_window_is_counted() {
    for algorithm in ALGORITHMS {
        let bench = Bench::new(Quota::new(3, Duration::MAX).algorithm(algorithm));
        let passed = (0..10).filter(|_| bench.admits(1)).count();
        assert_eq!(passed, if algorithm == Algorithm::LeakyBucket { 1 } else { 3 }, "{algorithm}");
        bench.clock.advance(DAY * 365);
        assert!(!bench.admits(1), "{algorithm}: after a year of 584");
    }
}

#[test]
fn a_limit_of_zero_admits_nothing() {
    for algorithm in ALGORITHMS {
        let bench = Bench::new(Quota::per_second(0).algorithm(algorithm));
        for cost in [0, 1, u64::MAX] {
            let rejected = bench.cost(cost);
            assert_eq!(rejected.rejection(), Some(RateLimitedKind::NeverFits), "{algorithm}: cost {cost}");
            assert_eq!((rejected.retry_after(), rejected.remaining()), (None, Some(0)), "{algorithm}: cost {cost}");
            bench.clock.advance(DAY);
        }
    }
}

#[test]
fn a_cost_of_zero_takes_nothing() {
    for algorithm in ALGORITHMS {
        let bench = Bench::new(Quota::per_second(2).algorithm(algorithm));
        for _ in 0..10 {
            assert!(bench.admits(0), "{algorithm}");
        }
        assert_eq!(bench.limiter.stats().keys(), 0, "{algorithm}: it needs no memory");
        let all = if algorithm == Algorithm::LeakyBucket { 1 } else { 2 };
        assert_eq!((0..10).filter(|_| bench.admits(1)).count(), all, "{algorithm}");
    }
}
