use proptest::prelude::*;

use super::*;

/// A share of one limit in each of a sequence of windows.
struct WindowShares(Share, u64);

impl WindowShares {
    fn at(&self, number: u64) -> u64 {
        self.0.in_window(self.1, number)
    }

    fn least(&self) -> u64 {
        self.0.range(self.1).0
    }

    fn most(&self) -> u64 {
        self.0.range(self.1).1
    }

    fn first_with(&self, number: u64, units: u64) -> Option<u64> {
        (units <= self.most()).then(|| self.0.first_with(self.1, number, units))?
    }

    fn last_of(&self, number: u64, units: u64) -> Option<(u64, u64)> {
        self.0.last_of(self.1, number, units)
    }
}

impl Share {
    fn in_windows(&self, limit: u64) -> WindowShares {
        WindowShares(self.clone(), limit)
    }
}

fn fleet(weights: &[u64]) -> Vec<Share> {
    (0..weights.len()).map(|index| Share::by_weight(index, weights)).collect()
}

fn equal(count: u64) -> Vec<Share> {
    (0..count).map(|index| Share::equal(index, count)).collect()
}

#[test]
fn shares_sum_to_the_limit_and_units_rotate_where_not_all_have_one() {
    for count in [1, 2, 3, 7, 80, 96, 97] {
        let fleet = equal(count);
        for limit in [0, 1, 10, 95, 96, 97, 1_000, 2_000_000, u64::MAX] {
            let shares: Vec<WindowShares> = fleet.iter().map(|share| share.in_windows(limit)).collect();
            for first in [0, 1_704_067_200, u64::MAX - 2 * count] {
                for window in first..first + count {
                    let sum: u128 = shares.iter().map(|shares| u128::from(shares.at(window))).sum();
                    assert_eq!(sum, u128::from(limit), "{limit} over {count} in window {window}");
                }
                for (shares, share) in shares.iter().zip(&fleet) {
                    let own: u128 = (first..first + count).map(|window| u128::from(shares.at(window))).sum();
                    let expected =
                        if limit < count { limit.into() } else { u128::from(share.units(limit)) * u128::from(count) };
                    assert_eq!(own, expected, "{limit} over {count} in {count} windows");
                }
            }
            let stable: u128 = fleet.iter().map(|share| u128::from(share.units(limit))).sum();
            assert_eq!(stable, u128::from(limit));
        }
    }
}

#[test]
fn a_higher_limit_reduces_no_share() {
    for share in equal(96) {
        for window in 0..96 {
            let parts: Vec<u64> = (0..300).map(|limit| share.in_windows(limit).at(window)).collect();
            assert!(parts.is_sorted(), "{parts:?}");
        }
    }
}

#[test]
fn extra_units_are_spread_evenly() {
    let shares = Share::equal(5, 96).in_windows(10);
    let own: Vec<u64> = (0..960).filter(|window| shares.at(*window) == 1).collect();
    let gaps: Vec<u64> = own.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.iter().all(|gap| (3..=21).contains(gap)), "{gaps:?}");
}

#[test]
fn rates_are_exact() {
    let second = 1_000_000_000;
    assert_eq!(Share::equal(3, 96).rate(10, second), (1, 9_600_000_000));
    assert_eq!(Share::equal(3, 96).rate(96, second), (1, second));
    assert_eq!(fleet(&[1, 2])[1].rate(1, second), (1, 1_500_000_000));
    assert_eq!(Share::equal(0, 1 << 40).rate(1, second), (1, u64::MAX), "one in 34,000 years");
    assert_eq!(Share::none().rate(5, second).0, 0);
}

/// Shares sum to the limit, and each is less than `most_off` units away from
/// its exact part.
fn assert_shares(weights: &[u64], limit: u64, parts: &[u64], most_off: f64) {
    let total: u64 = weights.iter().sum();
    assert_eq!(parts.iter().map(|part| u128::from(*part)).sum::<u128>(), u128::from(limit), "{weights:?}");
    for (part, weight) in parts.iter().zip(weights) {
        // Exactly, as whole parts of the total.
        let exact = i128::from(limit) * i128::from(*weight);
        let off = (i128::from(*part) * i128::from(total) - exact) as f64 / total as f64;
        assert!(off.abs() < most_off, "{part} by {weight} of {total} of {limit}: {off}");
        assert!(*weight > 0 || *part == 0);
    }
}

fn windows(fleet: &[Share], limit: u64, window: u64) -> Vec<u64> {
    fleet.iter().map(|share| share.in_windows(limit).at(window)).collect()
}

fn stable(fleet: &[Share], limit: u64) -> Vec<u64> {
    fleet.iter().map(|share| share.units(limit)).collect()
}

/// No share of the higher of two limits is smaller.
fn assert_nested(lower: &[u64], higher: &[u64]) {
    assert!(lower.iter().zip(higher).all(|(lower, higher)| lower <= higher), "{lower:?} and {higher:?}");
}

#[test]
fn equal_weights_are_equal_shares() {
    assert_eq!(Share::by_weight(2, &[7, 7, 7]), Share::equal(2, 3));
    assert_ne!(Share::by_weight(2, &[7, 7, 0, 7]), Share::equal(2, 3));
    assert_eq!(stable(&fleet(&[7, 0, 7]), 11).iter().sum::<u64>(), 11);
    assert_eq!(Share::by_weight(1, &[1, 0]).in_windows(5).most(), 0);
    assert_eq!(Share::by_weight(0, &[1, 0]).in_windows(5).least(), 5);
}

#[test]
fn a_thousand_weighted_shares_grow_with_the_limit() {
    let weights: Vec<u64> = (0..1_000_u64).map(|index| 1 + index * index * 7_919 % 1_000_003).collect();
    let fleet = fleet(&weights);
    for window in [0, 1, 28_401_120] {
        let (mut last, mut last_stable) = (vec![0; 1_000], vec![0; 1_000]);
        for limit in (0..20).chain([500, 501, 999, 1_000, 12_345, 12_346, 2_000_000, u64::MAX - 1, u64::MAX]) {
            let (parts, same) = (windows(&fleet, limit, window), stable(&fleet, limit));
            assert_shares(&weights, limit, &parts, 4.0);
            assert_shares(&weights, limit, &same, 2.0);
            assert_nested(&last, &parts);
            assert_nested(&last_stable, &same);
            (last, last_stable) = (parts, same);
        }
    }
}

#[test]
fn a_limit_that_the_weights_divide_is_the_same_in_all_windows() {
    for share in [(0, 1), (1, 2), (2, 1)].map(|(index, weight)| (fleet(&[1, 2, 1])[index].in_windows(12), weight)) {
        let (shares, weight) = share;
        assert_eq!((shares.least(), shares.most()), (3 * weight, 3 * weight));
    }
    assert_eq!((fleet(&[1, 2])[0].in_windows(4).least(), fleet(&[1, 2])[0].in_windows(4).most()), (1, 2));
}

/// One window in a hundred has a unit, so a thousand take a hundred thousand.
#[test]
fn a_debt_beyond_the_search_is_paid_at_the_average() {
    for (units, windows) in [(1_000, 100_000), (5_000, 500_000)] {
        let (last, in_last) = fleet(&[1, 99])[0].in_windows(1).last_of(28_401_120, units).unwrap();
        let windows = windows..windows + windows / 40;
        assert!(windows.contains(&(last - 28_401_120)), "{units} units take {} windows", last - 28_401_120);
        assert_eq!(in_last, 1);
    }
}

/// The largest difference between the units that an instance had and its exact
/// part, at any time in `count` windows.
fn furthest(weights: &[u64], limit: u64, count: u64) -> f64 {
    let total: u64 = weights.iter().sum();
    let furthest = fleet(weights).into_iter().zip(weights).step_by(1 + weights.len() / 12).map(|(share, weight)| {
        let (shares, exact) = (share.in_windows(limit), limit as f64 * *weight as f64 / total as f64);
        let mut off = 0.0;
        let offs = (28_401_120..28_401_120 + count).map(|window| {
            off += shares.at(window) as f64 - exact;
            f64::abs(off)
        });
        offs.fold(0.0, f64::max)
    });
    furthest.fold(0.0, f64::max)
}

#[test]
fn in_the_long_run_shares_follow_the_weights() {
    for (weights, limit) in [
        (vec![1, 2], 1),
        (vec![1, 2, 0, 4], 10),
        (vec![1, 2, 3], 5),
        (vec![6, 6, 2], 11),
        (vec![618, 382], 1),
        (vec![1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 10], 3),
        ((1..=100).collect(), 10),
        ((1..=100).map(|weight| weight * weight).collect(), 997),
        ((0..1_000).map(|index| 1 + index % 17).collect(), 300),
    ] {
        let off = furthest(&weights, limit, 10_000);
        assert!(off < 100.0, "{limit} by {weights:?}: {off}");
    }
}

/// Small ones, and large ones as fractions give.
fn weights() -> impl Strategy<Value = Vec<u64>> {
    let weight = prop_oneof![1 => Just(0), 6 => 1u64..50, 2 => 1u64..1 << 44];
    prop::collection::vec(weight, 1..12)
        .prop_filter("one has a weight", |weights| weights.iter().any(|weight| *weight > 0))
}

fn limit() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0u64..40, 4 => 0u64..10_000, 1 => 0u64..u64::MAX / 4]
}

proptest! {
    #[test]
    fn shares_follow_the_weights_in_every_window(
        weights in weights(), limit in limit(), more in limit(), window in any::<u32>(),
    ) {
        let fleet = fleet(&weights);
        let window = u64::from(window);
        let mut last: Option<(Vec<u64>, Vec<u64>)> = None;
        for limit in [limit, limit + 1, limit + 2, limit + 2 + more] {
            let (parts, same) = (windows(&fleet, limit, window), stable(&fleet, limit));
            assert_shares(&weights, limit, &parts, 4.0);
            assert_shares(&weights, limit, &same, 2.0);
            for (share, part) in fleet.iter().zip(&parts) {
                let shares = share.in_windows(limit);
                prop_assert!((shares.least()..=shares.most()).contains(part));
            }
            if let Some((last, last_stable)) = &last {
                assert_nested(last, &parts);
                assert_nested(last_stable, &same);
            }
            last = Some((parts, same));
        }
    }

    #[test]
    fn in_the_long_run_random_weights_are_followed(weights in prop::collection::vec(1u64..1_000, 2..12), limit in 1u64..1_000) {
        // Equal shares are constant: what is left over goes to the lowest indexes.
        prop_assume!(weights.iter().any(|weight| *weight != weights[0]));
        let off = furthest(&weights, limit, 1_000);
        prop_assert!(off < 100.0, "{limit} by {weights:?}: {off}");
    }

    #[test]
    fn the_next_weighted_window_is_the_first_that_fits(
        weights in prop::collection::vec(1u64..50, 2..12), limit in 1u64..40, first in any::<u32>(), units in 1u64..20,
    ) {
        for share in fleet(&weights) {
            let shares = share.in_windows(limit);
            for window in u64::from(first)..u64::from(first) + 5 {
                for units in 0..=shares.most() + 1 {
                    let naive = (window..window + 2_000).find(|window| shares.at(*window) >= units);
                    prop_assert_eq!(shares.first_with(window, units).filter(|found| *found < window + 2_000), naive);
                }
            }
            let window = u64::from(first);
            if let Some((last, in_last)) = shares.last_of(window, units).filter(|_| shares.least() == 0) {
                let before: u64 = (window + 1..last).map(|window| shares.at(window)).sum();
                prop_assert!(shares.at(last) >= in_last && in_last > 0);
                prop_assert!(weights.iter().all(|weight| *weight == weights[0]) || before + in_last == units);
            }
        }
    }

    #[test]
    fn the_next_extra_unit_is_the_first(
        count in 1u64..200, limit in 0u64..400, window in any::<u32>(), index in any::<u64>(),
    ) {
        let shares = Share::equal(index % count, count).in_windows(limit);
        let window = u64::from(window);
        let naive = (window..=window + count).find(|window| shares.at(*window) > shares.least());
        prop_assert_eq!(shares.first_with(window, shares.least() + 1), naive);
        let third = naive.and_then(|_| {
            (window + 1..=window + 3 * count).filter(|window| shares.at(*window) > shares.least()).nth(2)
        });
        prop_assert_eq!(third.and(shares.last_of(window, 3)), third.map(|third| (third, 1)));
    }
}

#[test]
fn a_larger_stable_share_counts_after_a_whole_window() {
    let mut history = ShareHistory::new(Share::equal(0, 4));
    assert!(!history.change(Share::equal(0, 4), 5), "the same");
    assert!(history.change(Share::equal(0, 2), 100));
    let least = |history: &ShareHistory, now| history.least(100, now, 10);
    assert_eq!(least(&history, 109), (25, 110));
    assert_eq!(least(&history, 110), (50, u64::MAX));
    assert!(history.change(Share::equal(0, 10), 120));
    assert_eq!(least(&history, 121), (10, u64::MAX));
    for count in 1..100 {
        history.change(Share::equal(0, count), 120);
    }
    assert_eq!(history.recent().len(), MAX_REMEMBERED);
}

/// With a change each second, each older period is short for its age, and has the smallest
/// of its shares.
#[test]
fn older_periods_merge_into_longer_ones_of_the_smallest_share() {
    let count = |second: u64| 2 + (second * 7_919) % 97;
    let mut history = ShareHistory::new(Share::equal(0, 1));
    let now = 5_000;
    for second in 1..=now {
        history.change(Share::equal(0, count(second)), second);
    }
    let (past, recent) = (history.past(), history.recent());
    let lengths = (past.len() - recent.len(), recent.len(), past[0].since);
    assert_eq!(lengths, (MAX_REMEMBERED, MAX_REMEMBERED, 0));
    let ends = past.iter().skip(1).chain([history.current()]).map(|next| next.since);
    for (period, end) in past.iter().zip(ends).skip(1) {
        let counts = (period.since..end).map(count);
        assert_eq!(Some(period.share.count()), counts.max(), "from {} to {end}", period.since);
        assert!(end - period.since <= (now - period.since) / 2 + 1, "from {} to {end}", period.since);
    }
}
