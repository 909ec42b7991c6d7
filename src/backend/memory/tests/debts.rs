//! What is owed is paid back, to the nanosecond, before anybody is admitted.

use proptest::prelude::*;

use super::*;

/// What was charged and is owed, and what follows from it by definition, all
/// counted anew for each question.
struct Ledger {
    quota: Quota,
    /// Times and units, in the order in which they came. Of a window what does
    /// not fit is in the next one, of a log each unit stands where it falls.
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

    /// Where the latest window starts that anything was counted in.
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

    /// The bucket's arrival time, in parts of a nanosecond: L to one.
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
            Algorithm::InFlight => panic!("has no debts"),
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

    fn owe(&mut self, now: u64, units: u64) {
        let (limit, window) = (self.quota.limit(), self.window());
        let mut rest = units;
        match self.quota.counted_by() {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => self.charge(now, units),
            Algorithm::SlidingLog => (0..units).for_each(|_| self.charge(self.earliest(now, 1), 1)),
            _ => {
                let mut start = self.latest_window(now);
                while rest > 0 {
                    let fitting = rest.min(limit.saturating_sub(self.sum(start, start + window)));
                    // The first window may have been opened by what is owed.
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
    Owe(u64),
}

/// In hundredths of a window, with some off by a little.
fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (0..150_u64).prop_map(Step::Pass),
        3 => (0..6_u64).prop_map(Step::Take),
        1 => (1..6_u64).prop_map(Step::Reserve),
        1 => (0..40_u64).prop_map(Step::Owe),
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
    let desk = Desk::new(tier(quota, settle));
    let mut ledger = Ledger::new(quota);
    // Whoever owes has a receipt, of nothing.
    let debtor = desk.take("acme", 0, NOW).unwrap();
    let mut now = NOW;
    for step in steps {
        match *step {
            Step::Pass(hundredths) => now += ledger.window() * hundredths / 100 + hundredths % 3,
            Step::Owe(units) => {
                desk.add(&debtor, units, now);
                ledger.owe(now, units);
            }
            Step::Take(cost) | Step::Reserve(cost) => {
                let wait = if let Step::Reserve(_) = step { u64::MAX } else { 0 };
                let answer = desk.ask(&Descriptor::new("/").tenant("acme").cost(cost), now, wait).0.answer;
                if cost > quota.capacity() {
                    prop_assert_eq!(answer, OutcomeKind::Rejected { retry_after: None });
                    continue;
                }
                let at = ledger.earliest(now, cost);
                let queue = match quota.counted_by() {
                    // No more than its burst may queue for a leaky bucket; its turn is
                    // rounded up, and so is the queue.
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
    fn a_debt_is_paid_back_exactly(quota in quota(), settle in any::<bool>(), steps in steps()) {
        agrees(quota, settle, &steps)?;
    }
}

/// A debt of many windows, without a step for each.
#[test]
fn a_large_debt_costs_no_more_time_or_memory_than_a_small_one() {
    for algorithm in Algorithm::WINDOWED {
        let desk = Desk::new(tier(Quota::per_second(100).algorithm(algorithm), true));
        let debtor = desk.take("acme", 1, NOW).unwrap();
        desk.add(&debtor, 100_000_000_000, NOW);
        let passes = desk.earliest("acme", 1, NOW).unwrap() - NOW;
        assert!(passes.abs_diff(1_000_000_000 * SECOND) <= 2 * SECOND, "{algorithm}: {passes}");
        let reset = desk.ask(&Descriptor::new("/").tenant("acme").cost(0), NOW, 0).0.tiers[0];
        assert_eq!(reset.remaining, 0, "{algorithm}");
        assert!(reset.reset > 999_999_999 * SECOND, "{algorithm}: {}", reset.reset);
    }
}

/// Nothing that is owed wraps around or panics, and nobody is admitted for it.
#[test]
fn a_debt_beyond_all_time_is_never_paid_back() {
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
                    let desk = Desk::new(tier(quota, settle));
                    let what = format!("{quota:?}, {settle}, at {now}");
                    let debtor = desk.take("acme", 0, now).unwrap();
                    for units in [u64::MAX, u64::MAX - 1, u64::MAX, 1] {
                        desk.add(&debtor, units, now);
                    }
                    // It takes longer than time goes on.
                    if nanos(window) >= limit {
                        assert_eq!(desk.earliest("acme", 1, now), None, "{what}");
                        for later in [now, now.saturating_add(1 << 40), u64::MAX - 1, u64::MAX] {
                            assert!(desk.take("acme", 1, later).is_none(), "{what}, asked at {later}");
                        }
                    }
                    for units in [1, u64::MAX / 2, u64::MAX, u64::MAX] {
                        desk.give_back(&debtor, units, now);
                    }
                    desk.refund(&debtor, u64::MAX);
                    desk.add(&debtor, u64::MAX, u64::MAX);
                    desk.add(&debtor, 1, 0);
                    desk.refund(&debtor, 0);
                }
            }
        }
    }
}

#[test]
fn rules_multiply_what_is_owed_by_their_own_cost() {
    let rule = |id: &str, cost| Rule::new(id).cost(cost).settle(true).tier(Quota::per_day(1_000));
    let desk = Desk::new(Policy::new().rule(rule("calls", 1)).rule(rule("tokens", 10)).rule(rule("much", u64::MAX)));
    let left = |now| -> Vec<u64> {
        let outcome = desk.ask(&Descriptor::new("/").tenant("acme").cost(0), now, 0).0;
        outcome.tiers.iter().map(|tier| tier.remaining).collect()
    };
    let (_, receipt) = desk.ask(&Descriptor::new("/").tenant("acme").cost(0), NOW, 0);
    let receipt = receipt.unwrap();
    let two = receipt.clone().only(|charge| charge.rule() != "much").unwrap();
    assert_eq!(left(NOW), [1_000, 1_000, 1_000]);
    desk.add(&two, 7, NOW);
    assert_eq!(left(NOW), [993, 930, 1_000]);
    desk.give_back(&two, 2, NOW);
    assert_eq!(left(NOW), [995, 950, 1_000]);
    // The whole has the same memory of what is left.
    desk.give_back(&receipt, 100, NOW);
    assert_eq!(left(NOW), [1_000, 1_000, 1_000]);
    desk.give_back(&two, 100, NOW);
    desk.add(&receipt, 2, NOW);
    assert_eq!(left(NOW), [998, 980, 0]);
    assert!(receipt.only(|charge| charge.rule() == "another").is_none());
}

#[test]
fn what_is_in_flight_has_no_debts() {
    let rule = Rule::new("work").settle(true).tier(Quota::concurrent(2)).tier(Quota::per_day(10));
    let desk = Desk::new(Policy::new().rule(rule));
    let held = desk.take("acme", 1, NOW).unwrap();
    desk.add(&held, 5, NOW);
    assert_eq!(desk.remaining("acme", NOW), 1);
    desk.give_back(&held, 6, NOW);
    assert_eq!(desk.remaining("acme", NOW), 1, "held until it is released");
    let day = desk.ask(&Descriptor::new("/").tenant("acme").cost(0), NOW, 0).0.tiers[1];
    assert_eq!(day.remaining, 10);
    desk.release(&held, NOW);
    assert_eq!(desk.remaining("acme", NOW), 2);
}

#[test]
fn a_debt_outlives_a_reload_and_an_idle_key() {
    let mut desk = Desk::new(tier(Quota::per_minute(60), true));
    let receipt = desk.take("acme", 1, NOW).unwrap();
    desk.add(&receipt, 179, NOW);
    desk.reload(tier(Quota::per_minute(600), true));
    let later = NOW + 30 * SECOND;
    assert_eq!(desk.remaining("acme", later), 450, "30 have come back as fast as they went");

    // Gone from the store by now, it is made anew.
    let desk = Desk::with(Engine::full(1), tier(Quota::per_minute(60), true));
    let receipt = desk.take("acme", 1, NOW).unwrap();
    let later = NOW + 3_600 * SECOND;
    assert!(desk.take("globex", 1, later).is_some());
    desk.add(&receipt, 100, later);
    assert_eq!(desk.engine.usage().keys, 1);
    desk.give_back(&receipt, 1_000, later);
    assert_eq!(desk.remaining("initech", later), 60, "what was owed to the shared counter was given back there");
}
