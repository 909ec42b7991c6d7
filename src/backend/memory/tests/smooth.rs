//! A smooth rule spreads a window's units evenly, and loses none of them.

use std::{cmp::Reverse, collections::BinaryHeap};

use proptest::prelude::*;

use super::*;

const PACED: [Algorithm; 3] = [Algorithm::FixedWindow, Algorithm::AnchoredWindow, Algorithm::SlidingWindow];

fn rule(tiers: &[Quota], smooth: bool) -> Policy {
    let rule = Rule::new("work").max_wait(Duration::MAX).smooth(smooth);
    Policy::new().rule(tiers.iter().fold(rule, |rule, tier| rule.tier(*tier)))
}

/// The departures of `count` requests, each sent again as soon as it may be.
fn departures(bench: &Bench, count: u64, now: u64, max_wait: u64) -> Vec<u64> {
    let request = Descriptor::new("/").tenant("acme");
    let mut now = now;
    (0..count)
        .map(|_| {
            loop {
                match bench.ask(&request, now, max_wait).0.answer {
                    OutcomeKind::Admitted { wait } => return now + wait,
                    OutcomeKind::Rejected { retry_after } => now += retry_after.unwrap() - max_wait,
                    OutcomeKind::Busy { .. } => panic!("nothing is in flight"),
                }
            }
        })
        .collect()
}

#[test]
fn units_depart_evenly_at_exact_times() {
    for algorithm in [Algorithm::FixedWindow, Algorithm::AnchoredWindow] {
        for (limit, window) in [(100, SECOND), (7, SECOND), (1, SECOND), (3, 10), (1_000, 100)] {
            let quota = Quota::new(limit, Duration::from_nanos(window)).algorithm(algorithm);
            let start = NOW - NOW % window;
            let times = departures(&Bench::new(rule(&[quota], true)), 5 * limit, start, u64::MAX);
            for (position, time) in times.into_iter().enumerate() {
                let (nth, past) = (position as u64 % limit, position as u64 / limit);
                let pace = (nth * window).div_ceil(limit).min(window - 1);
                assert_eq!(time - start, past * window + pace, "{quota:?}: position {position}");
            }
        }
    }
}

/// With any wait, N windows admit N times L.
#[test]
fn no_throughput_is_lost() {
    const WINDOWS: u64 = 20;
    for algorithm in PACED {
        for limit in [1, 9, 10, 100, 333] {
            let quota = Quota::per_second(limit).algorithm(algorithm);
            let start = NOW - NOW % SECOND;
            let plain = departures(&Bench::new(rule(&[quota], false)), WINDOWS * limit, start, u64::MAX);
            for max_wait in [u64::MAX, SECOND, SECOND / 2, SECOND / 100, 1] {
                let smooth = departures(&Bench::new(rule(&[quota], true)), WINDOWS * limit, start, max_wait);
                let what = format!("{quota:?} with a wait of {max_wait}");
                if algorithm == Algorithm::SlidingWindow {
                    // It never quite fills, smooth or not.
                    assert!(smooth.last() <= plain.last(), "{what}");
                    continue;
                }
                for window in 0..WINDOWS {
                    let from = start + window * SECOND;
                    let within = |times: &[u64]| within(times, from, from + SECOND);
                    assert_eq!((within(&plain), within(&smooth)), (limit, limit), "{what}: window {window}");
                }
            }
        }
    }
}

fn within(times: &[u64], from: u64, to: u64) -> u64 {
    times.iter().filter(|time| (from..to).contains(*time)).count() as u64
}

/// The departures, in order, of clients that each send the next request as
/// soon as the last has departed, for `length`.
fn clients(bench: &Bench, clients: u64, start: u64, length: u64, max_wait: u64) -> Vec<u64> {
    let request = Descriptor::new("/").tenant("acme");
    let mut asks: BinaryHeap<_> = (0..clients).map(|client| Reverse((start + client, client))).collect();
    let mut times = Vec::new();
    while let Some(Reverse((now, client))) = asks.pop()
        && now < start + length
    {
        match bench.ask(&request, now, max_wait).0.answer {
            OutcomeKind::Admitted { wait } => {
                times.push(now + wait);
                asks.push(Reverse((now + wait + 1, client)));
            }
            OutcomeKind::Rejected { retry_after } => {
                asks.push(Reverse((now + retry_after.unwrap() - max_wait, client)))
            }
            OutcomeKind::Busy { .. } => panic!("nothing is in flight"),
        }
    }
    times.sort_unstable();
    times
}

/// While clients can wait for their pace, no tenth of a window admits more than
/// a tenth of L, rounded up, and every window admits L.
#[test]
fn no_tenth_of_a_window_gets_more_than_its_share() {
    const WINDOWS: u64 = 10;
    for algorithm in [Algorithm::FixedWindow, Algorithm::AnchoredWindow] {
        for limit in [10, 99, 300] {
            for (count, max_wait) in [(5, SECOND), (limit, 2 * SECOND), (2 * limit, 3 * SECOND)] {
                let quota = Quota::per_second(limit).algorithm(algorithm);
                let start = NOW - NOW % SECOND;
                let length = WINDOWS * SECOND;
                let what = format!("{quota:?}: {count} clients that wait up to {max_wait}");
                let times = clients(&Bench::new(rule(&[quota], true)), count, start, length, max_wait);
                for from in (start..start + length - SECOND).step_by(7_777_777) {
                    let share = within(&times, from, from + SECOND / 10);
                    assert!(share <= limit.div_ceil(10), "{what}: {share} within a tenth of a window");
                }
                for window in 0..WINDOWS {
                    let from = start + window * SECOND;
                    assert_eq!(within(&times, from, from + SECOND), limit, "{what}: window {window}");
                }
                // Without pacing, all depart at the start of a window.
                let burst = clients(&Bench::new(rule(&[quota], false)), count, start, length, max_wait);
                assert_eq!(within(&burst, start + SECOND, start + SECOND + SECOND / 10), limit);
            }
        }
    }
}

/// Twice the limit arrives, and each request has a bounded wait. Those that wait
/// for the next window do not all depart at its start.
#[test]
fn a_request_that_waits_anyway_departs_as_near_to_its_pace_as_allowed() {
    let quota = Quota::per_second(100).algorithm(Algorithm::FixedWindow);
    let half = SECOND / 2;
    let start = NOW - NOW % SECOND;
    // Twice the limit, evenly.
    let arrivals = (0..2_000).map(|position| start + position * SECOND / 200);
    let times = |smooth| -> Vec<u64> {
        let bench = Bench::new(rule(&[quota], smooth));
        let answer = |now| match bench.ask(&Descriptor::new("/").tenant("acme"), now, half).0.answer {
            OutcomeKind::Admitted { wait } => Some(now + wait),
            _ => None,
        };
        arrivals.clone().filter_map(answer).collect()
    };
    let (plain, smooth) = (times(false), times(true));
    for window in 1..9 {
        let from = start + window * SECOND;
        assert_eq!(within(&plain, from, from + SECOND), 100);
        assert_eq!(within(&smooth, from, from + SECOND), 100);
        assert_eq!(within(&plain, from, from + 1), 100, "all at once");
        assert!(within(&smooth, from, from + SECOND / 10) <= 21, "no faster than they arrived");
    }
    assert!(smooth.is_sorted(), "in order of arrival");
}

/// A sliding window spreads departures by itself, except in the first window.
/// With `smooth` also in the first.
#[test]
fn a_sliding_window_is_paced_from_the_first_window() {
    let quota = Quota::per_second(100).algorithm(Algorithm::SlidingWindow);
    let start = NOW - NOW % SECOND;
    let times = departures(&Bench::new(rule(&[quota], true)), 1_000, start, u64::MAX);
    assert!(times.is_sorted());
    for from in (start..start + 9 * SECOND).step_by(7_777_777) {
        let within = times.iter().filter(|time| (from..from + SECOND / 10).contains(*time)).count();
        assert!(within <= 11, "{within} within a tenth of a window");
    }
    let unpaced = departures(&Bench::new(rule(&[quota], false)), 1_000, start, u64::MAX);
    assert!(times.last() <= unpaced.last(), "slower than without: {:?}, not {:?}", times.last(), unpaced.last());
}

#[test]
fn late_requests_catch_up() {
    let quota = Quota::per_second(100).algorithm(Algorithm::FixedWindow);
    let bench = Bench::new(rule(&[quota], true));
    let late = NOW + SECOND / 2;
    let times = departures(&bench, 100, late, u64::MAX);
    assert_eq!(times.iter().filter(|time| **time == late).count(), 51, "as many as were due since the start");
    assert_eq!(times[51] - NOW, 510_000_000);
    assert_eq!(times[99] - NOW, 990_000_000);
}

#[test]
fn a_request_that_may_not_wait_departs_at_once_and_later_windows_are_paced() {
    let quota = Quota::per_second(10).algorithm(Algorithm::FixedWindow);
    let bench = Bench::new(rule(&[quota], true));
    let ask = |now, max_wait| bench.ask(&Descriptor::new("/").tenant("acme"), now, max_wait).0;
    for position in 0..5 {
        assert_eq!(ask(NOW, u64::MAX).answer, OutcomeKind::Admitted { wait: position * SECOND / 10 });
    }
    assert_eq!(ask(NOW, 499_999_999).answer, OutcomeKind::Admitted { wait: 0 }, "its pace is a nanosecond too far");
    assert_eq!(ask(NOW, 0).answer, OutcomeKind::Admitted { wait: 0 });
    let paced = ask(NOW, u64::MAX);
    assert_eq!(paced.answer, OutcomeKind::Admitted { wait: 700_000_000 });
    assert!(paced.tiers[0].violated, "it is what the request waits for");
    assert_eq!(ask(NOW + SECOND / 10, 0).answer, OutcomeKind::Admitted { wait: 0 });
    assert_eq!(ask(NOW + SECOND / 10, 0).answer, OutcomeKind::Admitted { wait: 0 });

    // Ten are charged. The next window has its own pace.
    assert_eq!(ask(NOW, 0).answer, OutcomeKind::Rejected { retry_after: Some(SECOND) });
    assert_eq!(ask(NOW, SECOND).answer, OutcomeKind::Admitted { wait: SECOND });
    assert_eq!(ask(NOW, u64::MAX).answer, OutcomeKind::Admitted { wait: 1_100_000_000 });
    assert_eq!(
        ask(NOW, 1_150_000_000).answer,
        OutcomeKind::Admitted { wait: 1_150_000_000 },
        "as near to its pace as allowed"
    );
}

#[test]
fn any_cost_is_paced_by_the_units_before_it() {
    let quota = Quota::per_second(10).algorithm(Algorithm::FixedWindow);
    let bench = Bench::new(rule(&[quota], true));
    let wait = |cost| match bench.ask(&Descriptor::new("/").tenant("acme").cost(cost), NOW, u64::MAX).0.answer {
        OutcomeKind::Admitted { wait } => wait,
        answer => panic!("{answer:?}"),
    };
    assert_eq!(wait(3), 0);
    assert_eq!(wait(0), 0);
    assert_eq!(wait(5), 300_000_000);
    assert_eq!(wait(3), SECOND, "it does not fit into this window");
    assert_eq!(wait(10), 2 * SECOND);
}

/// A wait for a pace is a reservation, and is refunded like one.
#[test]
fn a_dropped_wait_is_refunded() {
    let quota = Quota::per_second(10).algorithm(Algorithm::FixedWindow);
    let bench = Bench::new(rule(&[quota], true));
    let wait = || bench.ask(&Descriptor::new("/").tenant("acme"), NOW, u64::MAX).1.unwrap();
    let receipts: Vec<_> = (0..10).map(|_| wait()).collect();
    bench.refund(&receipts[4], NOW);
    assert_eq!(wait().at().as_nanos() - NOW, 900_000_000, "the unit is free, the last slot is left");
    assert_eq!(wait().at().as_nanos() - NOW, SECOND);
}

#[test]
fn other_tiers_are_charged_at_the_departure() {
    let window = Quota::per_second(10).algorithm(Algorithm::FixedWindow);
    let bench = Bench::new(rule(&[window, Quota::per_second(1_000).burst(1), Quota::concurrent(20)], true));
    let times = departures(&bench, 12, NOW, u64::MAX);
    let expected: Vec<u64> =
        (0..10).map(|position| position * SECOND / 10).chain([SECOND, SECOND + SECOND / 10]).collect();
    assert_eq!(times.iter().map(|time| time - NOW).collect::<Vec<_>>(), expected);

    // A pace may not carry a request over the border of another tier's window,
    // or open that window late: other requests would find it closed.
    let odd = Quota::new(100, Duration::from_millis(70)).algorithm(Algorithm::FixedWindow);
    let anchored = Quota::new(100, Duration::from_millis(70)).algorithm(Algorithm::AnchoredWindow);
    for other in [odd, anchored] {
        let [smooth, plain] = [true, false].map(|smooth| Bench::new(rule(&[window, other], smooth)));
        for step in 0..500 {
            let now = NOW + step * 3_333_333;
            let asked = [&smooth, &plain].map(|bench| {
                bench.ask(&Descriptor::new("/").tenant("acme"), now, SECOND);
                let status_of = bench.ask(&Descriptor::new("/").tenant("acme").cost(0), now, 0).0;
                status_of.tiers.iter().map(|tier| (tier.remaining, tier.reset)).collect::<Vec<_>>()
            });
            assert_eq!(asked[0], asked[1], "after {step}: a pace has moved a window");
        }
    }
}

/// A tier is violated if the request waits for it.
#[test]
fn only_the_tiers_that_a_request_waits_for_are_violated() {
    let bench =
        Bench::new(rule(&[Quota::per_minute(100).algorithm(Algorithm::FixedWindow), Quota::per_second(1)], true));
    bench.take("acme", 1, NOW - NOW % (60 * SECOND)).unwrap();
    let now = NOW - NOW % (60 * SECOND) + SECOND - 1;
    let (outcome, _) = bench.ask(&Descriptor::new("/").tenant("acme"), now, u64::MAX);
    assert_eq!(outcome.answer, OutcomeKind::Admitted { wait: 1 });
    assert_eq!([outcome.tiers[0].violated, outcome.tiers[1].violated], [false, true]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 1_000, ..ProptestConfig::default() })]

    /// Compared with a rule that is not smooth: the same requests are admitted,
    /// in the same windows and with the same status. Some depart later, as far
    /// as they may wait.
    #[test]
    fn smooth_changes_only_departures(
        (limit, window, algorithm) in (1..15_u64, prop_oneof![Just(SECOND), Just(7_777_777)], 0..3_usize),
        steps in prop::collection::vec((0..60_u64, 0..4_u64, 0..4_u64), 1..60),
    ) {
        let quota = Quota::new(limit, Duration::from_nanos(window)).algorithm(PACED[algorithm]);
        let (smooth, plain) = (Bench::new(rule(&[quota], true)), Bench::new(rule(&[quota], false)));
        let mut now = NOW;
        for (hundredths, cost, halves) in steps {
            now += window * hundredths / 100;
            let max_wait = halves * window / 2;
            let request = Descriptor::new("/").tenant("acme").cost(cost);
            let (paced, _) = smooth.ask(&request, now, max_wait);
            let (direct, _) = plain.ask(&request, now, max_wait);
            match (paced.answer, direct.answer) {
                (OutcomeKind::Admitted { wait: paced }, OutcomeKind::Admitted { wait: direct }) => {
                    prop_assert!(paced >= direct && paced <= max_wait.max(direct), "{} for {}", paced, direct);
                    let border = |wait| (now + wait) / window;
                    if quota.counted_by() != Algorithm::AnchoredWindow {
                        prop_assert_eq!(border(paced), border(direct), "another window");
                    }
                }
                (paced, direct) => prop_assert_eq!(paced, direct),
            }
            let status_of = |outcome: &Outcome| (outcome.tiers[0].remaining, outcome.tiers[0].reset);
            prop_assert_eq!(status_of(&paced), status_of(&direct));
        }
    }
}
