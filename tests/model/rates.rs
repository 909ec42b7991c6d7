//! Rates are exact over any time: rounding loses and adds nothing.

use std::time::Duration;

use proptest::prelude::*;
use tower_ratelimit::{Algorithm, Quota};

use super::{Bench, schedule::config};

const SECOND: u64 = 1_000_000_000;

/// Spends all units, at the start and every `step` nanoseconds until `time` is
/// over, one unit after the other.
fn one_by_one(quota: Quota, step: u64, time: u64) -> u64 {
    let bench = Bench::new(quota);
    let (mut passed, mut left) = (0, time);
    loop {
        while bench.admits(1) {
            passed += 1;
        }
        if left == 0 {
            return passed;
        }
        bench.advance(step.min(left));
        left = left.saturating_sub(step);
    }
}

/// As [`one_by_one`], with all remaining units in one request.
fn all_at_once(quota: Quota, step: u64, time: u64) -> u64 {
    let bench = Bench::new(quota);
    let (mut passed, mut left) = (0, time);
    loop {
        let remaining = bench.cost(0).remaining().unwrap();
        assert!(bench.admits(remaining), "{remaining} remained");
        passed += remaining;
        if left == 0 {
            return passed;
        }
        bench.advance(step.min(left));
        left = left.saturating_sub(step);
    }
}

#[test]
fn three_a_second_is_three_a_second() {
    let quota = Quota::per_second(3);
    for step in [SECOND / 10, SECOND / 7, 333_333_333] {
        assert_eq!(one_by_one(quota, step, 1_000 * SECOND), 3 + 3_000, "token bucket, every {step} ns");
        assert_eq!(one_by_one(quota.burst(20), step, 1_000 * SECOND), 20 + 3_000, "burst 20, every {step} ns");
    }
    for algorithm in [Algorithm::FixedWindow, Algorithm::AnchoredWindow, Algorithm::SlidingLog] {
        let passed = one_by_one(quota.algorithm(algorithm), SECOND / 10, 1_000 * SECOND);
        assert_eq!(passed, 3 * 1_001, "{algorithm}: 1,001 windows");
    }
    // A request at every departure, a third of a second apart and rounded up:
    // no departure is late by a whole nanosecond.
    let spaced = Bench::new(quota.algorithm(Algorithm::LeakyBucket));
    let start = spaced.now();
    for _ in 0..3_000 {
        assert!(spaced.admits(1));
        spaced.clock.advance(spaced.cost(1).retry_after().unwrap());
    }
    // 3,000 departures, rounded up each: each is a third later at most.
    assert!(spaced.now() - start <= 1_000 * SECOND + 3_000, "{}", spaced.now() - start);
}

#[test]
fn six_hundred_million_a_second_is_not_a_thousand_million() {
    let rate = 600_000_000;
    assert_eq!(all_at_once(Quota::per_second(rate), SECOND / 1_000, 10 * SECOND), rate + 10 * rate);
    // 1.666 ns a unit: five units in three ticks of five.
    assert_eq!(all_at_once(Quota::per_second(rate).burst(100), 1, 10_000), 100 + 6_000);
}

#[test]
fn rates_faster_than_the_clock_are_exact() {
    let rate = 7_000_000_000;
    assert_eq!(all_at_once(Quota::per_second(rate), SECOND / 1_000, SECOND), rate + rate);
    assert_eq!(all_at_once(Quota::per_second(rate).burst(7), 1, 1_000), 7 + 7_000);
}

proptest! {
    #![proptest_config(config(200))]

    /// A bucket that never overflows loses no token.
    #[test]
    fn no_token_is_lost(
        limit in 1..10_000_000_u64,
        window in 1..100_000_u64,
        steps in 1..300_u64,
        part in 1..1_000_u64,
    ) {
        let window = window * 1_000_003;
        let quota = Quota::new(limit, Duration::from_nanos(window));
        let step = window * part / 1_000;
        let time = step * steps;
        let expected = u128::from(limit) + u128::from(limit) * u128::from(time) / u128::from(window);
        prop_assert_eq!(u128::from(all_at_once(quota, step, time)), expected);
    }
}
