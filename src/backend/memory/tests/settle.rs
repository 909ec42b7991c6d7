//! Refunded units are available again, and never admit more than the bound.

use std::{sync::Barrier, thread};

use proptest::prelude::*;

use super::*;

/// A charge, less what was refunded of it.
#[derive(Clone, Debug)]
struct Net {
    at: u64,
    units: u64,
    receipt: usize,
}

/// How the charges break the bound at `at`, for which a request was just
/// admitted; `None` if they keep it. Charges are in the order of decisions.
fn broken_bound(quota: &Quota, net: &[Net], at: u64, debts: bool) -> Option<String> {
    let (limit, window) = (u128::from(quota.limit()), u128::from(nanos(quota.window())));
    let (time, burst) = (u128::from(at), u128::from(quota.burst_size()));
    let sum = |from: u128, to: u128| -> u128 {
        let within = net.iter().filter(|net| (from..to).contains(&u128::from(net.at)));
        within.map(|net| u128::from(net.units)).sum()
    };
    let start = time - time % window;
    let arrival = |net: &[Net]| {
        // A charge without units leaves no trace.
        net.iter()
            .filter(|net| net.units > 0)
            .fold(0, |arrival: u128, net| arrival.max(u128::from(net.at) * limit) + u128::from(net.units) * window)
    };
    match quota.counted_by() {
        Algorithm::TokenBucket => (arrival(net) > time * limit + burst * window).then(|| "over the burst".into()),
        Algorithm::LeakyBucket => {
            let before = net.split_last().map_or(&[][..], |(_, before)| before);
            (arrival(before) > time * limit).then(|| "too early".into())
        }
        Algorithm::AnchoredWindow => None,
        Algorithm::SlidingLog => (1..50_u128).find_map(|windows| {
            let counted = sum((time + 1).saturating_sub(windows * window), time + 1);
            (counted > windows * limit).then(|| format!("{counted} in {windows} windows"))
        }),
        // Units charged since the start of a window count in it, or in later ones.
        Algorithm::FixedWindow | Algorithm::SlidingWindow => {
            let weighted = sum(start - window, start) * (start + window - time) + sum(start, time + 1) * window;
            if quota.counted_by() == Algorithm::SlidingWindow && !debts && weighted > limit * window {
                return Some(format!("{} parts of a window's {limit}", weighted / window));
            }
            (1..50_u128).find_map(|windows| {
                let counted = sum(start.saturating_sub((windows - 1) * window), start + window);
                (counted > windows * limit).then(|| format!("{counted} in {windows} windows"))
            })
        }
        Algorithm::Concurrency => None,
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Pass(u64),
    Take { cost: u64, wait: bool },
    Add { receipt: usize, units: u64 },
    RefundUnits { receipt: usize, units: u64 },
    Refund { receipt: usize },
}

fn steps(debts: bool) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..120_u64).prop_map(Step::Pass),
        5 => (0..6_u64, any::<bool>()).prop_map(|(cost, wait)| Step::Take { cost, wait }),
        3 => (0..8_usize, 1..6_u64).prop_map(|(receipt, units)| Step::RefundUnits { receipt, units }),
        2 => (0..8_usize).prop_map(|receipt| Step::Refund { receipt }),
        if debts { 2 } else { 0 } => (0..8_usize, 1..25_u64).prop_map(|(receipt, units)| Step::Add { receipt, units }),
    ];
    prop::collection::vec(step, 1..60)
}

pub(super) fn quota() -> impl Strategy<Value = Quota> {
    (1..10_u64, prop_oneof![Just(SECOND), Just(7_777_777)], 1..10_u64, 0..6_usize).prop_map(
        |(limit, window, burst, algorithm)| {
            let algorithm = Algorithm::WINDOWED[algorithm];
            let quota = Quota::new(limit, Duration::from_nanos(window)).algorithm(algorithm);
            if algorithm.has_burst() { quota.burst(burst) } else { quota }
        },
    )
}

/// Refunds take the latest charges first.
fn take_down(net: &mut [Net], receipt: usize, units: u64) {
    let mut rest = units;
    for own in net.iter_mut().rev().filter(|net| net.receipt == receipt) {
        let given = rest.min(own.units);
        own.units -= given;
        rest -= given;
    }
}

fn keeps_the_bound(quota: Quota, settle: bool, debts: bool, steps: &[Step]) -> Result<(), TestCaseError> {
    let bench = Bench::new(tier(quota, settle));
    let (mut net, mut receipts): (Vec<Net>, Vec<Receipt>) = Default::default();
    let mut now = NOW;
    for step in steps {
        match *step {
            Step::Pass(hundredths) => now += nanos(quota.window()) * hundredths / 100 + hundredths % 2,
            Step::Take { cost, wait } => {
                let max_wait = if wait { u64::MAX } else { 0 };
                let request = Descriptor::new("/").tenant("acme").cost(cost);
                if let (_, Some(receipt)) = bench.ask(&request, now, max_wait) {
                    let at = receipt.at().as_nanos();
                    net.push(Net { at, units: cost, receipt: receipts.len() });
                    receipts.push(receipt);
                    if cost > 0 {
                        let broken = broken_bound(&quota, &net, at, debts);
                        prop_assert_eq!(broken, None, "{:?} at {}: {:?}", quota, at - NOW, net);
                    }
                }
            }
            Step::RefundUnits { receipt, units } if receipt < receipts.len() => {
                let receipt = receipts.len() - 1 - receipt;
                bench.refund_units(&receipts[receipt], units, now);
                take_down(&mut net, receipt, units);
            }
            Step::Refund { receipt } if receipt < receipts.len() => {
                let receipt = receipts.len() - 1 - receipt;
                bench.refund(&receipts[receipt], now);
                take_down(&mut net, receipt, u64::MAX);
            }
            Step::Add { receipt, units } if receipt < receipts.len() => {
                let receipt = receipts.len() - 1 - receipt;
                bench.add_debt(&receipts[receipt], units, now);
                net.push(Net { at: now, units, receipt });
            }
            _ => {}
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 3_000, ..ProptestConfig::default() })]

    #[test]
    fn refunds_keep_the_bound(quota in quota(), settle in any::<bool>(), steps in steps(false)) {
        keeps_the_bound(quota, settle, false, &steps)?;
    }

    #[test]
    fn with_debts_the_bound_holds_until_they_are_paid(
        quota in quota(),
        settle in any::<bool>(),
        steps in steps(true),
    ) {
        keeps_the_bound(quota, settle, true, &steps)?;
    }

    /// A charge that is refunded before the next request leaves no trace.
    #[test]
    fn an_immediate_refund_leaves_no_trace(
        quota in quota(),
        settle in any::<bool>(),
        before in prop::collection::vec((0..120_u64, 0..6_u64), 0..20),
        (cost, added, parts) in (0..6_u64, 0..60_u64, 1..4_u64),
        after in prop::collection::vec((0..120_u64, 0..6_u64), 1..10),
    ) {
        let (bench, twin) = (Bench::new(tier(quota, settle)), Bench::new(tier(quota, settle)));
        let mut now = NOW;
        let pass = |hundredths: u64| nanos(quota.window()) * hundredths / 100 + hundredths % 2;
        for (hundredths, cost) in before {
            now += pass(hundredths);
            for bench in [&bench, &twin] {
                let _ = bench.ask(&Descriptor::new("/").tenant("acme").cost(cost), now, u64::MAX);
            }
        }
        if let Some(receipt) = bench.take("acme", cost, now) {
            bench.add_debt(&receipt, added, now);
            for part in 1..=parts {
                bench.refund_units(&receipt, if part < parts { added / parts } else { u64::MAX }, now);
            }
        }
        for (hundredths, cost) in after {
            // A cost of 0 is admitted in a full sliding window, but waits in
            // one that was opened for a debt.
            let cost = if quota.counted_by() == Algorithm::SlidingWindow { cost.max(1) } else { cost };
            let [ours, theirs] = [&bench, &twin].map(|bench| {
                let (outcome, _) = bench.ask(&Descriptor::new("/").tenant("acme").cost(cost), now, u64::MAX);
                (outcome.answer, outcome.tiers[0].remaining, outcome.tiers[0].violated)
            });
            prop_assert_eq!(ours, theirs, "{:?} at {}", quota, now - NOW);
            now += pass(hundredths);
        }
    }
}

/// In every order of refunds.
#[test]
fn a_bucket_that_is_settled_late_is_full_after_all_refunds() {
    const ORDERS: [[usize; 4]; 6] =
        [[0, 1, 2, 3], [3, 2, 1, 0], [1, 0, 3, 2], [2, 0, 3, 1], [1, 3, 0, 2], [3, 0, 2, 1]];
    for algorithm in [Algorithm::TokenBucket, Algorithm::LeakyBucket] {
        for (limit, order) in [4, 3, 7, 1_000].into_iter().flat_map(|limit| ORDERS.map(|order| (limit, order))) {
            let quota = Quota::per_second(limit).burst(1_000).algorithm(algorithm);
            let bench = Bench::new(tier(quota, true));
            let take = || bench.ask(&Descriptor::new("/").tenant("acme"), NOW, u64::MAX).1.unwrap();
            let receipts: Vec<_> = (0..4).map(|_| take()).collect();
            let later = NOW + 1_000;
            for index in order {
                bench.refund_units(&receipts[index], 1, later);
            }
            let expected = if algorithm == Algorithm::LeakyBucket { 1 } else { 1_000 };
            // The refunds forfeit what has come back by then, and one unit of
            // rates that do not divide a nanosecond.
            let left = bench.remaining("acme", later + 5_000);
            // Other reservations keep their times: a queue refunds only its end.
            if algorithm == Algorithm::TokenBucket || order == [3, 2, 1, 0] {
                assert_eq!(left, expected, "{quota:?}, refunded in the order {order:?}");
            }
        }
    }
}

/// The units that a debt reuses come to stand before a reservation: taken back from
/// the end, they would be that reservation's.
#[test]
fn a_debt_before_a_reservation_of_a_log_is_not_refunded() {
    let bench = Bench::new(tier(Quota::per_second(2).algorithm(Algorithm::SlidingLog), true));
    let take = |cost| bench.ask(&Descriptor::new("/").tenant("acme").cost(cost), NOW, u64::MAX).1.expect("it may wait");
    let [first, second, third] = [2, 2, 1].map(take);
    assert_eq!(third.at().as_nanos(), NOW + 2 * SECOND);
    bench.refund(&second, NOW);
    bench.add_debt(&first, 1, NOW);
    bench.refund_units(&first, 1, NOW);
    assert_eq!(take(2).at().as_nanos(), NOW + 3 * SECOND);
}

/// A tenant uses its whole quota, and a tenth of its requests is refunded late
/// and in random order. It can use that tenth again.
#[test]
fn refunded_units_can_be_used_again() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingWindow, Algorithm::SlidingLog] {
        let quota = Quota::per_second(1_000).algorithm(algorithm);
        let bench = Bench::new(tier(quota, true));
        let mut random = Random(7);
        let mut running: Vec<(u64, bool, Receipt)> = Vec::new();
        let mut kept = 0;
        const SECONDS: u64 = 20;
        for milliseconds in 0..SECONDS * 1_000 {
            let now = NOW + milliseconds * 1_000_000;
            while let Some(receipt) = bench.take("acme", 1, now) {
                let is_refunded = random.below(10) == 0;
                kept += u64::from(!is_refunded);
                running.push((now + 20_000_000 + random.below(60_000_000), is_refunded, receipt));
            }
            running.retain(|(until, is_refunded, receipt)| {
                if *until <= now && *is_refunded {
                    bench.refund_units(receipt, 1, now);
                }
                *until > now
            });
        }
        // The bucket has its burst in addition; a sliding window never quite fills.
        let burst = if algorithm == Algorithm::TokenBucket { 1_000 } else { 0 };
        assert!(kept <= SECONDS * 1_000 + burst, "{algorithm}: {kept} were kept");
        assert!(kept >= SECONDS * 990 + burst, "{algorithm}: only {kept} were kept: some units were lost");
    }
}

#[test]
fn refunds_never_exceed_the_charge() {
    for algorithm in Algorithm::WINDOWED.into_iter().filter(|algorithm| *algorithm != Algorithm::LeakyBucket) {
        for settle in [false, true] {
            let bench = Bench::new(tier(Quota::per_day(100).algorithm(algorithm), settle));
            let _others = bench.take("acme", 50, NOW).unwrap();
            let receipt = bench.take("acme", 10, NOW).unwrap();
            for (units, left) in [(3, 43), (0, 43), (4, 47), (8, 50), (1, 50), (u64::MAX, 50)] {
                bench.refund_units(&receipt, units, NOW);
                assert_eq!(bench.remaining("acme", NOW), left, "{algorithm}, {settle}: after {units}");
            }
            bench.refund(&receipt, NOW);
            bench.refund(&receipt.clone(), NOW);
            assert_eq!(bench.remaining("acme", NOW), 50, "{algorithm}, {settle}");
            // Units that are added can be refunded as well.
            bench.add_debt(&receipt, 5, NOW);
            assert_eq!(bench.remaining("acme", NOW), 45, "{algorithm}, {settle}");
            bench.refund(&receipt, NOW);
            assert_eq!(bench.remaining("acme", NOW), 50, "{algorithm}, {settle}");
        }
    }
}

#[test]
fn threads_that_settle_one_receipt_refund_exactly_the_charge() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingWindow, Algorithm::SlidingLog] {
        let bench = Bench::new(tier(Quota::per_day(10_000).algorithm(algorithm), true));
        let _others = bench.take("acme", 5_000, NOW).unwrap();
        let (receipt, barrier) = (bench.take("acme", 100, NOW).unwrap(), Barrier::new(8));
        thread::scope(|scope| {
            for thread in 0..8 {
                let (bench, receipt, barrier) = (&bench, &receipt, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    for step in 0..500 {
                        match (thread + step) % 4 {
                            0 => bench.add_debt(receipt, 2, NOW),
                            _ => bench.refund_units(receipt, 1, NOW),
                        }
                    }
                    bench.refund_units(receipt, 1_000, NOW);
                });
            }
        });
        bench.refund(&receipt, NOW);
        assert_eq!(bench.remaining("acme", NOW), 5_000, "{algorithm}");
    }
}

/// The first waiter leaves. The others keep their times, and no newcomer gets
/// the same time as one of them.
#[test]
fn a_slot_before_later_reservations_is_not_reused() {
    for settle in [false, true] {
        let bench = Bench::new(tier(Quota::per_second(1), settle));
        let wait = || bench.ask(&Descriptor::new("/").tenant("acme"), NOW, u64::MAX).1.unwrap();
        let first = wait();
        let held = [wait(), wait()];
        bench.refund(&first, NOW);
        let newcomer = wait();
        assert_eq!(held.map(|receipt| receipt.at().as_nanos()), [NOW + SECOND, NOW + 2 * SECOND]);
        assert_eq!(newcomer.at().as_nanos(), NOW + 3 * SECOND, "settled late: {settle}");
    }
}

/// Receipts from another limit or algorithm do no harm.
#[test]
fn charges_under_another_policy_are_refunded_without_excess() {
    let mut random = Random(11);
    for _ in 0..300 {
        let quota = |random: &mut Random| {
            let algorithm = Algorithm::WINDOWED[random.below(Algorithm::WINDOWED.len() as u64) as usize];
            Quota::per_second(1 + random.below(12)).algorithm(algorithm)
        };
        let mut limit = quota(&mut random);
        let mut bench = Bench::new(tier(limit, true));
        let (mut now, mut receipts) = (NOW, Vec::new());
        for _ in 0..60 {
            now += random.below(SECOND / 2);
            let cost = random.below(4);
            match random.below(8) {
                0 => {
                    limit = Quota::per_second(1 + random.below(12)).algorithm(limit.counted_by());
                    bench.reload(tier(limit, random.below(4) > 0));
                }
                1 if random.below(8) == 0 => {
                    limit = quota(&mut random);
                    bench.reload(tier(limit, true));
                }
                2 | 3 if !receipts.is_empty() => {
                    let receipt: &Receipt = &receipts[random.below(receipts.len() as u64) as usize];
                    bench.refund_units(receipt, cost, now);
                }
                4 if !receipts.is_empty() => {
                    let receipt = &receipts[random.below(receipts.len() as u64) as usize];
                    bench.add_debt(receipt, cost * 3, now);
                }
                _ => receipts.extend(
                    bench.ask(&Descriptor::new("/").tenant("acme").cost(cost), now, random.below(3) * SECOND).1,
                ),
            }
            assert!(bench.remaining("acme", now) <= limit.limit(), "{limit:?}");
        }
        // In the end exactly the whole quota is available.
        let later = now + 1_000 * SECOND;
        let expected = if limit.counted_by() == Algorithm::LeakyBucket { 1 } else { limit.limit() };
        assert_eq!(bench.remaining("acme", later), expected, "{limit:?}");
    }
}
