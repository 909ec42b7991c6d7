//! Raised and lowered limits: used units stay used, and `retry_after` holds.

use std::time::Duration;

use proptest::prelude::*;
use tower_ratelimit::{Algorithm, Policy, Quota, Rule};

use super::{
    ALGORITHMS, Bench,
    schedule::{config, nanos, steps},
};

proptest! {
    #![proptest_config(config(500))]

    /// Raising or lowering a limit loses and adds no unit.
    #[test]
    fn a_reload_keeps_what_was_used_to_the_unit(
        limits in (1..1_u64 << 26, 1..1_u64 << 26),
        part in 0..=1_000_u64,
        window in 1..100_000_000_000_u64,
        algorithm in prop::sample::select(&ALGORITHMS[..]),
    ) {
        let most = if algorithm == Algorithm::SlidingLog { Quota::MAX_SLIDING_LOG } else { u64::MAX };
        let (old, new) = (limits.0.min(most), limits.1.min(most));
        let quota = |limit| Quota::new(limit, Duration::from_nanos(window)).algorithm(algorithm);
        let bench = Bench::new(quota(old));
        let used = old * part / 1_000;
        prop_assert!(bench.admits(used));
        bench.limiter.set_policy(quota(new)).unwrap();
        let left = if algorithm == Algorithm::LeakyBucket { u64::from(used == 0) } else { new.saturating_sub(used) };
        prop_assert_eq!(bench.cost(u64::MAX).remaining(), Some(left));
        prop_assert!(left == 0 || bench.admits(left));
        prop_assert!(!bench.admits(1));
    }

    /// After a reload, `retry_after` is exact to the nanosecond.
    #[test]
    fn retry_after_holds_after_a_reload(
        changes in prop::collection::vec((limit(), steps()), 1..6),
        window in 1..100_000_000_000_u64,
        burst in prop::option::of(1..100_u64),
        algorithm in prop::sample::select(&ALGORITHMS[..]),
    ) {
        let quota = |limit| match (algorithm, burst) {
            (Algorithm::TokenBucket | Algorithm::LeakyBucket, Some(burst)) => {
                Quota::new(limit, Duration::from_nanos(window)).burst(burst).algorithm(algorithm)
            }
            _ => Quota::new(limit, Duration::from_nanos(window)).algorithm(algorithm),
        };
        let bench = Bench::new(quota(1));
        for (limit, steps) in changes {
            bench.limiter.set_policy(quota(limit)).unwrap();
            for (gap, cost) in steps {
                bench.advance(nanos(&quota(limit), gap));
                let Some(retry_after) = bench.cost(cost).retry_after() else { continue };
                prop_assert!(!retry_after.is_zero());
                bench.clock.advance(retry_after - Duration::from_nanos(1));
                prop_assert!(!bench.admits(cost), "admitted before {:?}", retry_after);
                bench.advance(1);
                prop_assert!(bench.admits(cost), "rejected after {:?}", retry_after);
                break;
            }
        }
    }
}

/// Limits that states store exactly, and, for buckets, rounded ones.
fn limit() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0..100_u64, 1 => 0..Quota::MAX_SLIDING_LOG]
}

/// Above 2^26 a state stores the old limit rounded up: `retry_after` may be a
/// little late, but it holds.
#[test]
fn retry_after_holds_after_a_reload_of_a_huge_limit() {
    let wide = 1 << 40;
    for (old, new) in [
        (100_000_001, 1_000),
        (100_000_001, 90_000_017),
        (3_000_000_019, 1_000),
        (3_000_000_019, 2_000_000_011),
        (wide + 15, wide - 1),
        (wide + 15, 2 * wide + 27),
    ] {
        let bench = Bench::new(Quota::per_minute(old));
        assert!(bench.admits(old));
        bench.limiter.set_policy(Quota::per_minute(new).burst(100)).unwrap();
        let rejected = bench.cost(60);
        let retry_after = rejected.retry_after().unwrap();
        bench.clock.advance(retry_after - Duration::from_nanos(1));
        assert!(!bench.admits(60), "{old} to {new}");
        bench.advance(1);
        assert!(bench.admits(60), "{old} to {new}");
    }
}

/// Buckets of rules that settle afterwards, and those of odd rates, are stored in
/// another form.
#[test]
fn a_reload_that_changes_the_form_of_a_bucket_keeps_what_was_used() {
    let policy = |limit, algorithm, settle| {
        let quota = Quota::per_second(limit).burst(20).algorithm(algorithm);
        Policy::new().rule(Rule::new("rule").tier(quota).settle(settle))
    };
    for algorithm in [Algorithm::TokenBucket, Algorithm::LeakyBucket] {
        for limit in [3, 10, 6_000_000_007] {
            let bench = Bench::new(policy(limit, algorithm, false));
            let spaced = algorithm == Algorithm::LeakyBucket;
            assert!(bench.admits(if spaced { 1 } else { 4 }));
            let reset = bench.cost(0).reset();
            for (settle, used) in [true, false, true, true, false].into_iter().zip(5..) {
                bench.limiter.set_policy(policy(limit, algorithm, settle)).unwrap();
                assert_eq!(bench.limiter.stats().keys(), 1);
                if spaced {
                    assert_eq!((bench.cost(1).retry_after(), bench.cost(1).remaining()), (Some(reset), Some(0)));
                } else {
                    assert!(bench.admits(1));
                    assert_eq!(bench.cost(0).remaining(), Some(20 - used), "{limit}, settled late: {settle}");
                }
            }
            bench.limiter.set_policy(policy(1_000_000_000, algorithm, true)).unwrap();
            let left = if spaced { 0 } else { 11 };
            assert_eq!(bench.cost(0).remaining(), Some(left), "{limit} to another rate");
        }
    }
}
