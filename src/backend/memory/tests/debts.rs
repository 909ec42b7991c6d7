//! A debt is paid off, to the nanosecond, before any request is admitted.

use proptest::prelude::*;

use super::*;

/// All charges and debts, and what follows from them by definition. It counts
/// everything again for each question.
struct Ledger {
    quota: Quota,
    /// Times and units, in order of arrival. What does not fit into a window is
    /// in the next one; each unit of a log has the time from which it counts.
    entries: Vec<(u64, u64)>,
}

impl Ledger {
    fn new(quota: Quota) -> Self {
        Self { quota, entries: Vec::new() }
    }

    fn window(&self) -> u64 {
        nanos(self.quota.window())
    }

    fn last(&self) -> u64 {
        self.entries.iter().map(|(at, _)| *at).max().unwrap_or(0)
    }

    /// The start of the latest window that counts anything.
    fn latest_window(&self, now: u64) -> u64 {
        let window = self.window();
        match self.quota.counted_by() {
            Algorithm::AnchoredWindow => {
                let mut opened = None;
                for (at, _) in &self.entries {
                    opened = opened.filter(|start| *at < start + window).or(Some(*at));
                }
                opened.filter(|start| now < start + window).unwrap_or(now)
            }
            _ => (now - now % window).max(self.last() - self.last() % window),
        }
    }

    fn sum(&self, from: u64, to: u64) -> u64 {
        self.entries.iter().filter(|(at, _)| (from..to).contains(at)).map(|(_, units)| units).sum()
    }

    /// The bucket's arrival time, in parts of a nanosecond: one in L.
    fn arrival(&self, now: u64) -> u128 {
        let (limit, window) = (u128::from(self.quota.limit()), u128::from(self.window()));
        let step = |arrival: u128, (at, units): &(u64, u64)| {
            arrival.max(u128::from(*at) * limit) + u128::from(*units) * window
        };
        self.entries.iter().fold(0, step).max(u128::from(now) * limit)
    }

    fn conforms(&self, at: u64, cost: u64) -> bool {
        let (limit, window) = (self.quota.limit(), self.window());
        let start = self.latest_window(at);
        match self.quota.counted_by() {
            Algorithm::TokenBucket => {
                let backlog = self.arrival(at) - u128::from(at) * u128::from(limit);
                backlog + u128::from(cost) * u128::from(window)
                    <= u128::from(self.quota.burst_size()) * u128::from(window)
            }
            Algorithm::LeakyBucket => self.arrival(at) == u128::from(at) * u128::from(limit),
            Algorithm::FixedWindow | Algorithm::AnchoredWindow => {
                at >= start && self.sum(start, start + window) + cost <= limit
            }
            Algorithm::SlidingWindow => {
                let (current, previous) =
                    (self.sum(start, start + window), self.sum(start.saturating_sub(window), start));
                let used = u128::from(previous) * u128::from(start + window - at.max(start));
                at >= start
                    && used + u128::from(current + cost) * u128::from(window) <= u128::from(limit) * u128::from(window)
            }
            Algorithm::SlidingLog => {
                at >= self.last() && self.sum((at + 1).saturating_sub(window), at + 1) + cost <= limit
            }
            Algorithm::Concurrency => panic!("has no debts"),
        }
    }

    fn earliest(&self, now: u64, cost: u64) -> u64 {
        let (mut not_yet, mut conforms, mut step) = (now, now, 1);
        if self.conforms(now, cost) {
            return now;
        }
        while !self.conforms(conforms, cost) {
            (not_yet, conforms, step) = (conforms, conforms + step, step * 2);
        }
        while conforms - not_yet > 1 {
            let middle = not_yet + (conforms - not_yet) / 2;
            if self.conforms(middle, cost) { conforms = middle } else { not_yet = middle }
        }
        conforms
    }

    fn charge(&mut self, at: u64, units: u64) {
        if units > 0 {
            self.entries.push((at, units));
        }
    }

    fn add_debt(&mut self, now: u64, units: u64) {
        let (limit, window) = (self.quota.limit(), self.window());
        let mut rest = units;
        match self.quota.counted_by() {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => self.charge(now, units),
            Algorithm::SlidingLog => (0..units).for_each(|_| self.charge(self.earliest(now, 1), 1)),
            _ => {
                let mut start = self.latest_window(now);
                while rest > 0 {
                    let fitting = rest.min(limit.saturating_sub(self.sum(start, start + window)));
                    // The debt may have opened the first window.
                    self.charge(start.max(if start <= now { now } else { start }), fitting);
                    (rest, start) = (rest - fitting, start + window);
                }
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Pass(u64),
    Take(u64),
    Reserve(u64),
    Debt(u64),
}

/// Times are in hundredths of a window, some off by a little.
fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (0..150_u64).prop_map(Step::Pass),
        3 => (0..6_u64).prop_map(Step::Take),
        1 => (1..6_u64).prop_map(Step::Reserve),
        1 => (0..40_u64).prop_map(Step::Debt),
    ];
    prop::collection::vec(step, 1..40)
}

fn quota() -> impl Strategy<Value = Quota> {
    (1..12_u64, prop_oneof![Just(SECOND), Just(7_777_777), Just(100_000)], 1..12_u64, 0..6_usize).prop_map(
        |(limit, window, burst, algorithm)| {
            let quota = Quota::new(limit, Duration::from_nanos(window)).algorithm(Algorithm::WINDOWED[algorithm]);
            if Algorithm::WINDOWED[algorithm].has_burst() { quota.burst(burst) } else { quota }
        },
    )
}

fn agrees(quota: Quota, settle: bool, steps: &[Step]) -> Result<(), TestCaseError> {
    let bench = Bench::new(tier(quota, settle));
    let mut ledger = Ledger::new(quota);
    // The receipt of a request without cost, to add debts to.
    let debtor = bench.take("acme", 0, NOW).unwrap();
    let mut now = NOW;
    for step in steps {
        match *step {
            Step::Pass(hundredths) => now += ledger.window() * hundredths / 100 + hundredths % 3,
            Step::Debt(units) => {
                bench.add_debt(&debtor, units, now);
                ledger.add_debt(now, units);
            }
            Step::Take(cost) | Step::Reserve(cost) => {
                let wait = if let Step::Reserve(_) = step { u64::MAX } else { 0 };
                let answer = bench.ask(&Descriptor::new("/").tenant("acme").cost(cost), now, wait).0.answer;
                if cost > quota.capacity() {
                    prop_assert_eq!(answer, OutcomeKind::Rejected { retry_after: None });
                    continue;
                }
                let at = ledger.earliest(now, cost);
                let queue = match quota.counted_by() {
                    // At most the burst may queue for a leaky bucket. Departures
                    // are rounded up, and so is the queue.
                    Algorithm::LeakyBucket => (ledger.window() * quota.burst_size()).div_ceil(quota.limit()),
                    _ => u64::MAX,
                };
                let expected = match at == now || at - now <= wait.min(queue) {
                    true => OutcomeKind::Admitted { wait: at - now },
                    false => OutcomeKind::Rejected { retry_after: Some(at - now) },
                };
                prop_assert_eq!(answer, expected, "{:?} of {:?}, {} into it", step, quota, now - NOW);
                if let OutcomeKind::Admitted { .. } = answer {
                    ledger.charge(at, cost);
                }
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn a_debt_is_paid_off_exactly(quota in quota(), settle in any::<bool>(), steps in steps()) {
        agrees(quota, settle, &steps)?;
    }
}

/// A debt of many windows takes no step for each of them.
#[test]
fn a_large_debt_costs_no_more_time_or_memory_than_a_small_one() {
    for algorithm in Algorithm::WINDOWED {
        let bench = Bench::new(tier(Quota::per_second(100).algorithm(algorithm), true));
        let debtor = bench.take("acme", 1, NOW).unwrap();
        bench.add_debt(&debtor, 100_000_000_000, NOW);
        let passes = bench.earliest("acme", 1, NOW).unwrap() - NOW;
        assert!(passes.abs_diff(1_000_000_000 * SECOND) <= 2 * SECOND, "{algorithm}: {passes}");
        let reset = bench.ask(&Descriptor::new("/").tenant("acme").cost(0), NOW, 0).0.tiers[0];
        assert_eq!(reset.remaining, 0, "{algorithm}");
        assert!(reset.reset > 999_999_999 * SECOND, "{algorithm}: {}", reset.reset);
    }
}

/// No debt wraps around, panics or admits a request.
#[test]
fn a_debt_beyond_the_end_of_time_is_never_paid_off() {
    let second = Duration::from_secs(1);
    for algorithm in Algorithm::WINDOWED {
        for (limit, window) in [
            (1, second),
            (3, second),
            (60_000, Duration::from_nanos(7)),
            (1, Duration::MAX),
            (7, Duration::from_secs(u64::MAX / 5)),
            (65_536, Duration::from_nanos(1)),
        ] {
            for settle in [false, true] {
                for now in [NOW, 0, u64::MAX / 2] {
                    let quota = Quota::new(limit, window).algorithm(algorithm);
                    let bench = Bench::new(tier(quota, settle));
                    let what = format!("{quota:?}, {settle}, at {now}");
                    let debtor = bench.take("acme", 0, now).unwrap();
                    for units in [u64::MAX, u64::MAX - 1, u64::MAX, 1] {
                        bench.add_debt(&debtor, units, now);
                    }
                    // Paying it off takes longer than all time.
                    if nanos(window) >= limit {
                        assert_eq!(bench.earliest("acme", 1, now), None, "{what}");
                        for later in [now, now.saturating_add(1 << 40), u64::MAX - 1, u64::MAX] {
                            assert!(bench.take("acme", 1, later).is_none(), "{what}, asked at {later}");
                        }
                    }
                    for units in [1, u64::MAX / 2, u64::MAX, u64::MAX] {
                        bench.refund_units(&debtor, units, now);
                    }
                    bench.refund(&debtor, u64::MAX);
                    bench.add_debt(&debtor, u64::MAX, u64::MAX);
                    bench.add_debt(&debtor, 1, 0);
                    bench.refund(&debtor, 0);
                }
            }
        }
    }
}

#[test]
fn rules_multiply_debts_by_their_own_cost() {
    let rule = |id: &str, cost| Rule::new(id).cost(cost).settle(true).tier(Quota::per_day(1_000));
    let bench = Bench::new(Policy::new().rule(rule("calls", 1)).rule(rule("tokens", 10)).rule(rule("much", u64::MAX)));
    let left = |now| -> Vec<u64> {
        let outcome = bench.ask(&Descriptor::new("/").tenant("acme").cost(0), now, 0).0;
        outcome.tiers.iter().map(|tier| tier.remaining).collect()
    };
    let (_, receipt) = bench.ask(&Descriptor::new("/").tenant("acme").cost(0), NOW, 0);
    let receipt = receipt.unwrap();
    let two = receipt.clone().only(|charge| charge.rule() != "much").unwrap();
    assert_eq!(left(NOW), [1_000, 1_000, 1_000]);
    bench.add_debt(&two, 7, NOW);
    assert_eq!(left(NOW), [993, 930, 1_000]);
    bench.refund_units(&two, 2, NOW);
    assert_eq!(left(NOW), [995, 950, 1_000]);
    // The whole receipt shares the count of units left.
    bench.refund_units(&receipt, 100, NOW);
    assert_eq!(left(NOW), [1_000, 1_000, 1_000]);
    bench.refund_units(&two, 100, NOW);
    bench.add_debt(&receipt, 2, NOW);
    assert_eq!(left(NOW), [998, 980, 0]);
    assert!(receipt.only(|charge| charge.rule() == "another").is_none());
}

#[test]
fn in_flight_units_have_no_debts() {
    let rule = Rule::new("work").settle(true).tier(Quota::concurrent(2)).tier(Quota::per_day(10));
    let bench = Bench::new(Policy::new().rule(rule));
    let held = bench.take("acme", 1, NOW).unwrap();
    bench.add_debt(&held, 5, NOW);
    assert_eq!(bench.remaining("acme", NOW), 1);
    bench.refund_units(&held, 6, NOW);
    assert_eq!(bench.remaining("acme", NOW), 1, "in use until it is released");
    let day = bench.ask(&Descriptor::new("/").tenant("acme").cost(0), NOW, 0).0.tiers[1];
    assert_eq!(day.remaining, 10);
    bench.release(&held, NOW);
    assert_eq!(bench.remaining("acme", NOW), 2);
}

#[test]
fn a_debt_outlives_a_reload_and_an_idle_key() {
    let mut bench = Bench::new(tier(Quota::per_minute(60), true));
    let receipt = bench.take("acme", 1, NOW).unwrap();
    bench.add_debt(&receipt, 179, NOW);
    bench.reload(tier(Quota::per_minute(600), true));
    let later = NOW + 30 * SECOND;
    assert_eq!(bench.remaining("acme", later), 450, "30 have come back at the old rate");

    // The store has dropped the key by now, and creates it again.
    let bench = Bench::with(Engine::full(1), tier(Quota::per_minute(60), true));
    let receipt = bench.take("acme", 1, NOW).unwrap();
    let later = NOW + 3_600 * SECOND;
    assert!(bench.take("globex", 1, later).is_some());
    bench.add_debt(&receipt, 100, later);
    assert_eq!(bench.engine.usage().keys, 1);
    bench.refund_units(&receipt, 1_000, later);
    assert_eq!(bench.remaining("initech", later), 60, "the debt of the overflow counter was refunded there");
}

/// The nanosecond at which a window ends belongs to the next one.
#[test]
fn what_is_charged_at_the_border_counts_in_the_window_that_begins() {
    for algorithm in [Algorithm::FixedWindow, Algorithm::AnchoredWindow, Algorithm::SlidingWindow] {
        let bench = Bench::new(tier(Quota::per_second(10).algorithm(algorithm), true));
        let receipt = bench.take("acme", 1, NOW).unwrap();
        bench.add_debt(&receipt, 3, NOW + SECOND);
        let weighs = |units| if algorithm == Algorithm::SlidingWindow { units } else { 0 };
        assert_eq!(bench.remaining("acme", NOW + SECOND), 7 - weighs(1), "{algorithm}: a debt");
        assert!(bench.take("acme", 2, NOW + 2 * SECOND).is_some());
        assert_eq!(bench.remaining("acme", NOW + 2 * SECOND), 8 - weighs(3), "{algorithm}: a request");
        assert_eq!(bench.remaining("acme", NOW + 3 * SECOND), 10 - weighs(2), "{algorithm}: the next window");
    }
}
