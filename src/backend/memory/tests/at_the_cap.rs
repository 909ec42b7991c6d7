//! Keys that are dropped and created again, and keys that share the overflow
//! counter.

use super::*;

fn log_of_one() -> Policy {
    tier(Quota::per_second(1).algorithm(Algorithm::SlidingLog), true)
}

impl Bench {
    /// What remains for keys that have no entry and get none, when that is less than
    /// `all`.
    fn remaining_on_overflow(&self, all: u64, now: u64) -> u64 {
        let (outcome, receipt) = self.ask(&Descriptor::new("/").tenant("hooli").cost(all), now, 0);
        assert!(outcome.tiers[0].shared && receipt.is_none());
        outcome.tiers[0].remaining
    }
}

#[test]
fn an_old_claim_refunds_nothing_of_a_new_log() {
    let bench = Bench::with(Engine::full(1), log_of_one());
    let old = bench.take("acme", 1, NOW).unwrap();
    // Uses the only entry.
    bench.take("initech", 1, NOW + 2 * SECOND).unwrap();
    let now = NOW + 4 * SECOND;
    let new = bench.take("acme", 1, now).unwrap();
    bench.refund(&old, now);
    assert!(bench.take("acme", 1, now).is_none(), "two in a window of one");
    bench.refund(&new, now);
    assert!(bench.take("acme", 1, now).is_some(), "the latest charge is refunded");
}

#[test]
fn an_old_claim_cannot_be_extended_on_a_new_log() {
    let bench = Bench::with(Engine::full(1), log_of_one());
    let old = bench.take("acme", 1, NOW).unwrap();
    bench.take("initech", 1, NOW + 2 * SECOND).unwrap();
    let now = NOW + 4 * SECOND;
    let _new = bench.take("acme", 1, now).unwrap();
    bench.add_debt(&old, 1, now);
    bench.refund_units(&old, 2, now);
    assert_eq!(bench.earliest("acme", 1, now), Some(now + SECOND), "only the units that it added are refunded");
}

#[test]
fn a_large_store_drops_idle_logs_as_well() {
    let bench = Bench::new(log_of_one());
    let old = bench.take("acme", 1, NOW).unwrap();
    let now = NOW + 20 * SECOND;
    for other in 0..20_000 {
        bench.take(&format!("other-{other}"), 1, now).unwrap();
    }
    let _new = bench.take("acme", 1, now).unwrap();
    bench.refund(&old, now);
    assert!(bench.take("acme", 1, now).is_none(), "two in a window of one");
}

#[test]
fn one_debt_does_not_lock_out_the_others_on_an_overflow_counter() {
    use Algorithm::*;
    for algorithm in [TokenBucket, LeakyBucket, FixedWindow, AnchoredWindow, SlidingWindow, SlidingLog] {
        let bench = Bench::with(Engine::full(0), tier(Quota::per_second(10).algorithm(algorithm), true));
        let receipt = bench.take("acme", 1, NOW).unwrap();
        bench.add_debt(&receipt, u64::MAX, NOW);
        assert!(bench.take("initech", 1, NOW).is_none(), "{algorithm:?}: the debt counts");
        // Eleven of ten are used, and come back at ten a second.
        let free = bench.earliest("initech", 1, NOW).unwrap();
        assert!(free <= NOW + 2 * SECOND, "{algorithm:?}: {}", free - NOW);
        bench.add_debt(&receipt, 3, free);
        bench.refund_units(&receipt, u64::MAX, free);
        assert!(bench.earliest("initech", 10, free).unwrap() <= free + 2 * SECOND, "{algorithm:?}");
    }
}

/// A request that another rule rejects takes no entry for its own key.
#[test]
fn a_rejection_takes_no_entry() {
    let all = Rule::new("all").per([]).tier(Quota::per_day(1));
    let policy = Policy::new().rule(all).rule(Rule::new("each").tier(Quota::per_day(5)));
    let bench = Bench::with(Engine::full(1_000), policy);
    bench.take("first", 1, NOW).unwrap();
    let used = bench.engine.usage().keys;
    for number in 0..2_000 {
        assert!(bench.take(&format!("tenant {number}"), 1, NOW).is_none());
    }
    assert_eq!(bench.engine.usage().keys, used);
}

/// Debts on the overflow counter are refunded there, and nothing of the key's own.
#[test]
fn debts_that_move_to_the_overflow_counter_are_refunded_whole() {
    for algorithm in Algorithm::WINDOWED.into_iter().filter(|algorithm| *algorithm != Algorithm::LeakyBucket) {
        let bench = Bench::with(Engine::full(1), tier(Quota::per_hour(60).algorithm(algorithm), true));
        let receipt = bench.take("acme", 1, NOW).unwrap();
        // Its entry is another's by now, who is in debt and so keeps it.
        let later = NOW + 3 * 3_600 * SECOND;
        let debtor = bench.take("globex", 60, later).unwrap();
        bench.add_debt(&debtor, 600, later);
        assert!(bench.take("initech", 5, later).is_some());
        for (debt, remaining) in [(20, 35), (30, 5)] {
            bench.add_debt(&receipt, debt, later);
            assert_eq!(bench.remaining_on_overflow(60, later), remaining, "{algorithm}");
        }
        bench.refund_units(&receipt, 1_000, later);
        assert_eq!(bench.remaining_on_overflow(60, later), 55, "{algorithm}: five are the other's");
    }
}

/// A caller that waits for units of an overflow counter asks for its key first.
#[test]
fn asking_for_overflow_counters_takes_no_entry() {
    let bench = Bench::with(Engine::full(3), Quota::concurrent(1));
    let overflow = |tenant: &str| {
        let request = Descriptor::new("/").tenant(tenant);
        bench.with_charges(&request, |charges| {
            bench.engine.overflow_in_flight(&Request::new(charges, Timestamp::from_nanos(NOW), Duration::ZERO))
        })
    };
    (0..10).for_each(|number| assert!(overflow(&format!("tenant {number}")).is_empty()));
    let _held: Vec<_> = (0..3).map(|number| bench.take(&format!("tenant {number}"), 1, NOW).unwrap()).collect();
    assert_eq!(bench.engine.usage().overflowed, 0, "each has an entry of its own");
    assert_eq!(overflow("tenant 4").len(), 1);
    assert!(overflow("tenant 0").is_empty());
}
