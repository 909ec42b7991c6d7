//! A clock that steps back: nothing panics. If it steps back by less than ten
//! seconds, no bound is broken: time does not pass twice, and the latest reading
//! that was charged counts. If by more, keys are rejected for one span at most.

use std::time::Duration;

use proptest::prelude::*;
use tower_ratelimit::{Quota, time::Timestamp};

use super::{
    ALGORITHMS, Bench,
    oracle::Oracle,
    schedule::{any_quota, config, nanos, steps},
};

/// A clock that is set back by more is not waited for.
const MOST: u64 = 9_000_000_000 / 80;

/// The clock's step before a request: forward, or back by up to some windows.
fn back() -> impl Strategy<Value = Vec<Option<u64>>> {
    prop::collection::vec(prop::option::weighted(0.3, 0..3_000_u64), 80)
}

proptest! {
    #![proptest_config(config(600))]

    #[test]
    fn no_bound_is_broken(
        quota in any_quota(),
        steps in steps(),
        back in back(),
    ) {
        let bench = Bench::new(quota);
        let mut oracle = Oracle::new(&quota);
        let mut latest = 0;
        for ((gap, cost), back) in steps.into_iter().zip(back) {
            step(&bench, &quota, gap, back);
            if bench.admits(cost) && cost > 0 {
                latest = bench.now().max(latest);
                oracle.admit(latest, cost);
            }
        }
        prop_assert_eq!(oracle.broken_bound(), None);
    }

    /// After any schedule, `retry_after` holds.
    #[test]
    fn retry_after_holds(quota in any_quota(), steps in steps(), back in back()) {
        let bench = Bench::new(quota);
        for ((gap, cost), back) in steps.into_iter().zip(back) {
            step(&bench, &quota, gap, back);
            let Some(retry_after) = bench.cost(cost).retry_after() else { continue };
            bench.clock.advance(retry_after - Duration::from_nanos(1));
            prop_assert!(!bench.admits(cost), "admitted before {:?}", retry_after);
            bench.advance(1);
            prop_assert!(bench.admits(cost), "rejected after {:?}", retry_after);
        }
    }
}

fn step(bench: &Bench, quota: &Quota, gap: u64, back: Option<u64>) {
    match back {
        Some(back) => bench.clock.set(Timestamp::from_nanos(bench.now() - nanos(quota, back).min(MOST))),
        None => bench.advance(nanos(quota, gap)),
    }
}

/// After a day back, used units stay used, and come back within a window (two for
/// sliding windows). A day forward again, at most one more quota is admitted.
#[test]
fn a_day_back_rejects_for_one_span_at_most() {
    let day = Duration::from_secs(86_400);
    for algorithm in ALGORITHMS {
        let bench = Bench::new(Quota::per_second(10).algorithm(algorithm));
        let passed = (0..20).filter(|_| bench.admits(1)).count();
        let now = bench.now();
        bench.clock.set(Timestamp::from_nanos(now - day.as_nanos() as u64));
        let rejected = bench.cost(1);
        assert!(!rejected.is_allowed(), "{algorithm}: after {passed}");
        assert!(rejected.retry_after().unwrap() <= Duration::from_secs(2), "{algorithm}: {rejected:?}");
        bench.clock.set(Timestamp::from_nanos(now));
        let again = (0..20).filter(|_| bench.admits(1)).count();
        assert!(again <= passed, "{algorithm}: {again} after {passed}");
    }
}

/// To the epoch and to the end of time, where nothing can be counted that
/// would pass later.
#[test]
fn the_ends_of_time_admit_no_more() {
    for algorithm in ALGORITHMS {
        for (nanos, cost) in [0, 1, u64::MAX - 1, u64::MAX].into_iter().flat_map(|nanos| [(nanos, 1), (nanos, 10)]) {
            for window in [Duration::from_nanos(1), Duration::from_secs(1)] {
                let bench = Bench::new(Quota::new(10, window).algorithm(algorithm));
                bench.clock.set(Timestamp::from_nanos(nanos));
                let first = if bench.admits(cost) { cost } else { 0 };
                let passed = first + (0..30).filter(|_| bench.admits(1)).count() as u64;
                assert!(passed <= 10, "{algorithm} at {nanos}: {passed}");
                assert!(nanos > 1 || passed > 0, "{algorithm} at {nanos}: none");
            }
        }
    }
}
