//! Limits that change while shares have weights.

use super::*;

/// The most that the fleet admits in the window in which the limit changes:
/// every instance spends its whole share before and after the change.
fn worst(weights: &[f64], quota: impl Fn(u64) -> Quota, old: u64, new: u64) -> u64 {
    let shares = (0..weights.len()).map(|index| Share::weighted(index, weights.to_vec()).unwrap());
    let fleet = Fleet::of(shares, quota(old));
    let all = |limit| fleet.limiters.iter().for_each(|limiter| limiter.set_policy(quota(limit)).unwrap());
    let windows = (0..20).map(|_| {
        all(old);
        let before = fleet.drained();
        all(new);
        let sum = before + fleet.drained();
        fleet.pass(SECOND);
        sum
    });
    windows.max().unwrap()
}

const WEIGHTS: [&[f64]; 6] = [
    &[1.0, 1.0, 1.0],
    &[1.0, 2.0, 3.0],
    &[6.0, 6.0, 2.0],
    &[1.0, 0.0, 5.0],
    &[0.1, 0.2, 0.7],
    &[8.0, 4.0, 2.0, 1.0, 1.0],
];

#[test]
fn weighted_windows_admit_the_larger_limit_when_it_changes() {
    for (old, new) in [(1, 2), (2, 3), (5, 7), (10, 11), (100, 101), (101, 100), (7, 2), (3, 50)] {
        for weights in WEIGHTS {
            let sum = worst(weights, fixed, old, new);
            assert_eq!(sum, old.max(new), "{old} and {new} by {weights:?}");
        }
    }
}

/// Shares by largest remainder would not grow with the limit: 10 and 11 would
/// admit 12.
#[test]
fn stable_weighted_shares_admit_at_most_the_larger_limit() {
    let log = |limit| Quota::per_second(limit).algorithm(Algorithm::SlidingLog);
    for (old, new) in [(10, 11), (11, 10), (1, 2), (20, 33)] {
        for weights in WEIGHTS {
            let sum = worst(weights, log, old, new);
            assert!(sum <= old.max(new), "{old} and {new} by {weights:?}: {sum}");
        }
    }
}

/// A thousand instances of three sizes. The limit changes on half of them after
/// they have spent.
#[test]
fn a_thousand_instances_admit_at_most_the_larger_of_two_limits() {
    let weights: std::sync::Arc<[f64]> = (0..1_000).map(|index| [1.0, 2.0, 5.0][index % 3]).collect();
    let fleet = Fleet::of((0..1_000).map(|index| Share::weighted(index, weights.clone()).unwrap()), fixed(300));
    let mut limit = 300;
    for next in [1_500, 299, 301, 300] {
        let before: u64 = fleet.limiters.iter().step_by(2).map(|limiter| drain(limiter, u64::MAX)).sum();
        fleet.limiters.iter().for_each(|limiter| limiter.set_policy(fixed(next)).unwrap());
        assert!(before + fleet.drained() <= limit.max(next), "{limit} to {next}");
        limit = next;
        fleet.pass(SECOND);
        assert_eq!(fleet.drained(), limit);
        fleet.pass(SECOND);
    }
}

#[test]
fn a_share_of_nothing_admits_nothing() {
    for algorithm in Algorithm::WINDOWED {
        for settle in [false, true] {
            let rule = crate::policy::Rule::new("rule").tier(Quota::per_second(0).algorithm(algorithm)).settle(settle);
            let fleet = Fleet::new(2, Policy::new().rule(rule));
            assert_eq!(fleet.drained(), 0, "{algorithm}, settled late: {settle}");
            assert_eq!(ask(&fleet.limiters[0], 1).retry_after(), None, "{algorithm}, settled late: {settle}");
            let fleet = Fleet::of([Share::none()], Quota::per_second(5).algorithm(algorithm));
            assert_eq!(fleet.drained(), 0, "{algorithm}: an instance without a share");
        }
    }
}
