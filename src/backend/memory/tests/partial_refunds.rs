//! A refund leaves what a smaller charge would have left, and is told apart from one
//! that does not.

use proptest::prelude::*;

use super::{settle::quota, *};

/// Hundredths of a window, some off by a nanosecond.
fn pass(quota: &Quota, hundredths: u64) -> u64 {
    nanos(quota.window()) * hundredths / 100 + hundredths % 2
}

/// When a request of `cost` departs; `None` if it never does.
fn departure(bench: &Bench, cost: u64, now: u64) -> Option<u64> {
    bench.ask(&Descriptor::new("/").tenant("acme").cost(cost), now, u64::MAX).1.map(|receipt| receipt.at().as_nanos())
}

/// A bench after these requests, each of which may wait, and the time of the last one.
fn after(quota: Quota, settle: bool, requests: &[(u64, u64)]) -> (Bench, u64) {
    let bench = Bench::new(tier(quota, settle));
    let mut now = NOW;
    for (hundredths, cost) in requests {
        now += pass(&quota, *hundredths);
        departure(&bench, *cost, now);
    }
    (bench, now)
}

fn requests(cost: std::ops::Range<u64>, most: usize) -> impl Strategy<Value = Vec<(u64, u64)>> {
    prop::collection::vec((0..120_u64, cost), 0..most)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 1_000, ..ProptestConfig::default() })]

    /// Exactly so if the refund comes at once. A later one may forfeit what has come
    /// back meanwhile, and never admits a request earlier.
    #[test]
    fn a_debt_that_is_refunded_in_part_is_a_smaller_debt(
        (quota, settle) in (quota(), any::<bool>()),
        before in requests(0..6, 10),
        (cost, debt, part) in (0..6_u64, 0..60_u64, 0..60_u64),
        later in prop_oneof![Just(0), 0..400_u64],
        following in requests(1..6, 10),
    ) {
        let ((ours, now), (smaller, _)) = (after(quota, settle, &before), after(quota, settle, &before));
        let part = part.min(debt);
        let (Some(receipt), Some(other)) = (ours.take("acme", cost, now), smaller.take("acme", cost, now)) else {
            return Ok(());
        };
        ours.add_debt(&receipt, debt, now);
        smaller.add_debt(&other, debt - part, now);
        let mut now = now + pass(&quota, later);
        ours.refund_units(&receipt, part, now);
        if later > 0 {
            let left = [&ours, &smaller].map(|bench| bench.remaining("acme", now));
            prop_assert!(left[0] <= left[1], "{:?} left after {}: {:?}", left, later, quota);
            prop_assert!(departure(&ours, 1, now) >= departure(&smaller, 1, now), "{:?} after {}", quota, later);
            return Ok(());
        }
        for (hundredths, cost) in following {
            prop_assert_eq!(departure(&ours, cost, now), departure(&smaller, cost, now), "{:?}", quota);
            now += pass(&quota, hundredths);
        }
    }

    /// Whatever their order.
    #[test]
    fn debts_and_refunds_at_one_time_are_their_sum(
        (quota, settle) in (quota(), any::<bool>()),
        before in requests(0..6, 10),
        cost in 0..6_u64,
        changes in prop::collection::vec((0..30_u64, 0..30_u64), 1..4),
        following in requests(1..6, 10),
    ) {
        let ((ours, now), (summed, _)) = (after(quota, settle, &before), after(quota, settle, &before));
        let (Some(receipt), Some(other)) = (ours.take("acme", cost, now), summed.take("acme", cost, now)) else {
            return Ok(());
        };
        let mut debt = 0;
        for (more, less) in changes {
            ours.add_debt(&receipt, more, now);
            let less = less.min(debt + more);
            ours.refund_units(&receipt, less, now);
            debt = debt + more - less;
        }
        summed.add_debt(&other, debt, now);
        let mut now = now;
        for (hundredths, cost) in following {
            prop_assert_eq!(departure(&ours, cost, now), departure(&summed, cost, now), "{:?}", quota);
            now += pass(&quota, hundredths);
        }
    }

    /// However late the refund comes, in however many parts.
    #[test]
    fn a_debt_that_nothing_follows_leaves_no_trace(
        (quota, settle) in (quota(), any::<bool>()),
        before in requests(0..6, 10),
        (cost, debts) in (0..6_u64, prop::collection::vec(0..40_u64, 1..3)),
        (later, parts) in (0..500_u64, prop::collection::vec(1..40_u64, 0..3)),
        following in requests(1..6, 10),
    ) {
        let ((ours, now), (without, _)) = (after(quota, settle, &before), after(quota, settle, &before));
        let Some(receipt) = ours.take("acme", cost, now) else { return Ok(()) };
        debts.iter().for_each(|debt| ours.add_debt(&receipt, *debt, now));
        let mut now = now + pass(&quota, later);
        parts.iter().chain([&u64::MAX]).for_each(|part| ours.refund_units(&receipt, *part, now));
        for (hundredths, cost) in following {
            prop_assert_eq!(departure(&ours, cost, now), departure(&without, cost, now), "{:?}", quota);
            now += pass(&quota, hundredths);
        }
    }

    /// Where a receipt is told to be the last, its slot is free again after a refund:
    /// the next request gets the same.
    #[test]
    fn the_last_slot_is_available_again_after_a_refund(
        (quota, settle) in (quota(), any::<bool>()),
        before in requests(0..6, 10),
        cost in 1..6_u64,
        following in requests(0..3, 4),
    ) {
        let (bench, mut now) = after(quota, settle, &before);
        let Some(receipt) = bench.ask(&Descriptor::new("/").tenant("acme").cost(cost), now, u64::MAX).1 else {
            return Ok(());
        };
        prop_assert!(bench.engine.is_last(&receipt, Timestamp::from_nanos(now)), "nothing follows it: {:?}", quota);
        for (hundredths, cost) in following {
            departure(&bench, cost, now);
            now += pass(&quota, hundredths / 10);
        }
        let at = receipt.at().as_nanos();
        if now <= at && bench.engine.is_last(&receipt, Timestamp::from_nanos(now)) {
            bench.refund(&receipt, now);
            let next = departure(&bench, cost, now).unwrap();
            // A departure is rounded up to a nanosecond, and so is what a refund leaves.
            prop_assert!(next == at || next == at + 1, "{} instead of {}: {:?}", next, at, quota);
        }
    }
}

/// As far as it still weighs.
#[test]
fn a_debt_of_a_sliding_window_that_has_ended_is_refunded() {
    let bench = Bench::new(tier(Quota::per_second(10).algorithm(Algorithm::SlidingWindow), true));
    let _other = bench.take("acme", 2, NOW).unwrap();
    let receipt = bench.take("acme", 1, NOW).unwrap();
    // Eight units in the first window, and five in the next one.
    bench.add_debt(&receipt, 12, NOW);
    let later = NOW + SECOND * 3 / 2;
    assert_eq!(bench.remaining("acme", later), 0);
    for (units, remaining) in [(5, 5), (4, 7), (100, 9), (100, 9)] {
        bench.refund_units(&receipt, units, later);
        assert_eq!(bench.remaining("acme", later), remaining, "after {units}");
    }
}

/// Another request has a part of the window in between.
#[test]
fn a_debt_around_the_units_of_others_is_refunded_without_theirs() {
    for algorithm in [Algorithm::FixedWindow, Algorithm::AnchoredWindow] {
        let bench = Bench::new(tier(Quota::per_second(10).algorithm(algorithm), true));
        let receipt = bench.take("acme", 3, NOW).unwrap();
        // It fills the first window, and takes five units of the next one.
        bench.add_debt(&receipt, 12, NOW);
        assert_eq!(departure(&bench, 2, NOW), Some(NOW + SECOND), "{algorithm}");
        // It takes the other three, and five of the one after that.
        bench.add_debt(&receipt, 8, NOW);
        bench.refund(&receipt, NOW);
        assert_eq!(departure(&bench, 8, NOW), Some(NOW + SECOND), "{algorithm}: beside the other request");
        assert_eq!(departure(&bench, 1, NOW), Some(NOW + 2 * SECOND), "{algorithm}: the window is full");
    }
}

#[test]
fn a_limit_of_nothing_has_nothing_left() {
    for algorithm in Algorithm::WINDOWED {
        for settle in [false, true] {
            let bench = Bench::new(tier(Quota::per_second(0).algorithm(algorithm), settle));
            assert_eq!(bench.answer("acme", 1, NOW), OutcomeKind::Rejected { retry_after: None }, "{algorithm}");
            assert_eq!(bench.remaining("acme", NOW), 0, "{algorithm}, settled late: {settle}");
        }
    }
}
