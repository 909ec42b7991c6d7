//! One quota, random quotas and schedules.

use std::time::Duration;

use proptest::prelude::*;
use tower_ratelimit::{Algorithm, Decision, Quota};

use super::{ALGORITHMS, Bench, oracle::Oracle};

/// One request: the time since the last, in parts of the window, and its cost.
pub(crate) type Step = (u64, u64);

/// Limits and windows that do not divide each other, and ones that do.
pub(crate) fn quota(algorithm: Algorithm) -> impl Strategy<Value = Quota> {
    let window = prop_oneof![
        1..50_u64,
        Just(1_000_000_000),
        Just(60_000_000_000),
        1_000_000_000..100_000_000_000_u64,
        Just(86_400_000_000_000),
    ];
    let limit = prop_oneof![0..3_u64, 1..20_u64, 1..1_000_u64, Just(60)];
    (limit, window, prop::option::of(1..30_u64)).prop_map(move |(limit, window, burst)| {
        let quota = Quota::new(limit, Duration::from_nanos(window)).algorithm(algorithm);
        match (algorithm, burst) {
            (Algorithm::TokenBucket | Algorithm::LeakyBucket, Some(burst)) => quota.burst(burst),
            _ => quota,
        }
    })
}

pub(crate) fn any_quota() -> impl Strategy<Value = Quota> {
    prop::sample::select(&ALGORITHMS[..]).prop_flat_map(quota)
}

/// Gaps from none to several windows, mostly near the rate; costs mostly small.
pub(crate) fn steps() -> impl Strategy<Value = Vec<Step>> {
    let gap = prop_oneof![3 => Just(0), 3 => 1..60_u64, 2 => 60..1_000_u64, 1 => 1_000..4_000_u64];
    let cost = prop_oneof![6 => Just(1), 1 => Just(0), 2 => 2..6_u64, 1 => 6..40_u64];
    prop::collection::vec((gap, cost), 1..80)
}

/// A gap is in thousandths of the window, with a remainder that keeps times
/// from being round.
pub(crate) fn nanos(quota: &Quota, gap: u64) -> u64 {
    let window = u64::try_from(quota.window().as_nanos()).unwrap();
    (u128::from(gap) * u128::from(window) / 997) as u64
}

/// Whether a decision agrees with the oracle, to the nanosecond.
pub(crate) fn agree(oracle: &mut Oracle, now: u64, cost: u64, decision: &Decision) -> Result<(), TestCaseError> {
    let earliest = oracle.earliest(now, cost);
    prop_assert_eq!(decision.is_allowed(), earliest == Some(now), "cost {} at {}: {:?}", cost, now, decision);
    if decision.is_allowed() {
        oracle.admit(now, cost);
    } else {
        let retry_after = earliest.map(|earliest| Duration::from_nanos(earliest - now));
        prop_assert_eq!(decision.retry_after(), retry_after, "cost {}", cost);
    }
    prop_assert_eq!(decision.remaining(), Some(oracle.remaining(now)), "remaining after cost {}", cost);
    prop_assert_eq!(decision.reset(), Duration::from_nanos(oracle.reset(now)), "reset after cost {}", cost);
    Ok(())
}

pub(crate) fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

/// All decisions agree, and the bound holds over the whole log.
fn follow(quota: Quota, steps: &[Step]) -> Result<(), TestCaseError> {
    let bench = Bench::new(quota);
    let mut oracle = Oracle::new(&quota);
    for &(gap, cost) in steps {
        bench.advance(nanos(&quota, gap));
        agree(&mut oracle, bench.now(), cost, &bench.cost(cost))?;
    }
    prop_assert_eq!(oracle.broken_bound(), None);
    Ok(())
}

/// Spends all, then: rejected until one nanosecond before `retry_after`, and
/// admitted then.
fn retry(quota: Quota, steps: &[Step]) -> Result<(), TestCaseError> {
    let bench = Bench::new(quota);
    for &(gap, cost) in steps {
        bench.advance(nanos(&quota, gap));
        let Some(retry_after) = bench.cost(cost).retry_after() else { continue };
        prop_assert!(!retry_after.is_zero());
        bench.clock.advance(retry_after - Duration::from_nanos(1));
        prop_assert!(!bench.admits(cost), "admitted before {:?}", retry_after);
        bench.advance(1);
        prop_assert!(bench.admits(cost), "rejected after {:?}", retry_after);
    }
    Ok(())
}

/// Exactly the remaining units are admitted, one by one or together. A leaky
/// bucket without a queue reports one.
fn remaining(quota: Quota, steps: &[Step], together: bool) -> Result<(), TestCaseError> {
    let bench = Bench::new(quota);
    let mut left = None;
    for &(gap, cost) in steps {
        bench.advance(nanos(&quota, gap));
        left = bench.cost(cost).remaining();
    }
    let left = left.unwrap_or_default();
    if together {
        prop_assert!(left == 0 || bench.admits(left), "{} remained", left);
    } else {
        for unit in 0..left {
            prop_assert!(bench.admits(1), "{} of {} passed", unit, left);
        }
    }
    let rejected = bench.cost(1);
    prop_assert!(!rejected.is_allowed(), "one more than the {} that remained", left);
    prop_assert_eq!(rejected.remaining(), Some(0));
    Ok(())
}

macro_rules! schedules {
    ($($name:ident: $algorithm:ident,)*) => {
        $(mod $name {
            use super::*;

            proptest! {
                #![proptest_config(config(200))]

                #[test]
                fn decides_as_defined(quota in quota(Algorithm::$algorithm), steps in steps()) {
                    follow(quota, &steps)?;
                }

                #[test]
                fn retry_after_is_exact(quota in quota(Algorithm::$algorithm), steps in steps()) {
                    retry(quota, &steps)?;
                }

                #[test]
                fn remaining_is_honest(
                    quota in quota(Algorithm::$algorithm), steps in steps(), together in any::<bool>(),
                ) {
                    remaining(quota, &steps, together)?;
                }
            }
        })*
    };
}

schedules! {
    token_bucket: TokenBucket,
    leaky_bucket: LeakyBucket,
    fixed_window: FixedWindow,
    anchored_window: AnchoredWindow,
    sliding_window: SlidingWindow,
    sliding_log: SlidingLog,
}

/// Checks the oracles: on a busy schedule each admits some requests and rejects
/// some.
#[test]
fn schedules_are_busy() {
    for algorithm in ALGORITHMS {
        let mut oracle = Oracle::new(&Quota::per_second(10).algorithm(algorithm));
        let admitted = |oracle: &mut Oracle, now| {
            let conforms = oracle.conforms(now, 1);
            if conforms {
                oracle.admit(now, 1);
            }
            conforms
        };
        let passed = (0..100_u64).filter(|step| admitted(&mut oracle, 5_000_000_000 + step * 50_000_000)).count();
        assert_eq!(passed, oracle.admissions());
        assert!((45..=60).contains(&passed), "{algorithm}: {passed} in five seconds");
    }
}
