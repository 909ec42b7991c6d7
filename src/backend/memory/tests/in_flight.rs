//! Concurrency limits.

use std::{
    sync::{
        Barrier,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use proptest::prelude::*;

use super::*;
use crate::{policy::Rule, quota::Quota};

fn rule(tiers: &[Quota]) -> Policy {
    Policy::new()
        .rule(tiers.iter().fold(Rule::new("work").max_wait(Duration::from_secs(60)), |rule, tier| rule.tier(*tier)))
}

fn is_busy(answer: OutcomeKind) -> bool {
    matches!(answer, OutcomeKind::Busy { .. })
}

#[test]
fn units_are_free_after_their_release_and_not_before() {
    let bench = Bench::new(Quota::concurrent(3));
    let two = bench.take("acme", 2, NOW).unwrap();
    let one = bench.take("acme", 1, NOW).unwrap();
    assert!(two.holds_in_flight());
    assert!(is_busy(bench.answer("acme", 1, NOW + 1_000_000 * SECOND)), "time frees nothing");
    assert_eq!(bench.remaining("acme", NOW), 0);
    assert!(bench.take("globex", 3, NOW).is_some(), "each key has its own limit");

    bench.release(&one, NOW);
    assert_eq!(bench.remaining("acme", NOW), 1);
    bench.release(&one, NOW);
    bench.refund(&one, NOW);
    bench.release(&one.clone(), NOW);
    assert_eq!(bench.remaining("acme", NOW), 1, "a second release does nothing");
    bench.release(&two, NOW);
    assert_eq!(bench.remaining("acme", NOW), 3);
}

#[test]
fn a_key_with_nothing_in_flight_makes_way_for_others() {
    let bench = Bench::with(Engine::full(1), Quota::concurrent(1));
    for number in 0..100 {
        let now = NOW + number;
        let (outcome, receipt) = bench.ask(&Descriptor::new("/").tenant(format!("tenant {number}")), now, 0);
        assert!(!outcome.tiers[0].shared, "tenant {number} has no entry of its own");
        bench.release(&receipt.unwrap(), now);
    }
}

#[test]
fn a_cost_above_the_limit_is_never_admitted() {
    let bench = Bench::new(Quota::concurrent(3));
    assert_eq!(bench.answer("acme", 4, NOW), OutcomeKind::Rejected { retry_after: None });
    assert_eq!(bench.answer("acme", u64::MAX, NOW), OutcomeKind::Rejected { retry_after: None });
    assert_eq!(bench.answer("acme", 1, u64::MAX), OutcomeKind::Rejected { retry_after: None });
    let closed = Bench::new(Quota::concurrent(0));
    assert_eq!(closed.answer("acme", 0, NOW), OutcomeKind::Rejected { retry_after: None });
    let boundless = Bench::new(Quota::concurrent(u64::MAX));
    let most = boundless.take("acme", u64::MAX, NOW).unwrap();
    assert!(is_busy(boundless.answer("acme", u64::MAX, NOW)));
    boundless.release(&most, NOW);
    assert!(boundless.take("acme", u64::MAX, NOW).is_some());
}

#[test]
fn a_cost_of_zero_uses_no_units() {
    let bench = Bench::new(Quota::concurrent(1));
    let nothing = bench.take("acme", 0, NOW).unwrap();
    assert!(!nothing.holds_in_flight());
    let one = bench.take("acme", 1, NOW).unwrap();
    assert!(bench.take("acme", 0, NOW).is_some(), "admitted although no unit is free");
    bench.release(&nothing, NOW);
    assert!(is_busy(bench.answer("acme", 1, NOW)));
    bench.release(&one, NOW);
    assert!(bench.take("acme", 1, NOW).is_some());
}

#[test]
fn busy_names_the_full_counter_and_charges_nothing() {
    let bench = Bench::new(rule(&[Quota::per_second(10), Quota::concurrent(5), Quota::concurrent(1)]));
    let first = bench.take("acme", 1, NOW).unwrap();
    let tier = &first.charges().next().unwrap().tiers()[2];
    let expected = first.charges().next().unwrap().key.tier(tier.salt);
    for max_wait in [0, SECOND, u64::MAX] {
        let (outcome, receipt) = bench.ask(&Descriptor::new("/").tenant("acme"), NOW, max_wait);
        assert_eq!(outcome.answer, OutcomeKind::Busy { key: expected }, "with a wait of {max_wait}");
        assert!(receipt.is_none());
        let violated: Vec<_> = outcome.tiers.iter().map(|tier| (tier.remaining, tier.violated)).collect();
        assert_eq!(violated, [(9, false), (4, false), (0, true)]);
    }
}

#[test]
fn a_rate_that_rejects_takes_precedence_over_a_full_limit() {
    let bench = Bench::new(rule(&[Quota::per_second(1), Quota::concurrent(1)]));
    let held = bench.take("acme", 1, NOW).unwrap();
    let ask = |max_wait| bench.ask(&Descriptor::new("/").tenant("acme"), NOW, max_wait).0.answer;
    assert_eq!(ask(0), OutcomeKind::Rejected { retry_after: Some(SECOND) });
    assert_eq!(ask(SECOND - 1), OutcomeKind::Rejected { retry_after: Some(SECOND) });
    assert!(is_busy(ask(SECOND)), "the request could wait for the rate");
    assert!(is_busy(ask(u64::MAX)));
    let never = bench.ask(&Descriptor::new("/").tenant("acme").cost(2), NOW, u64::MAX).0.answer;
    assert_eq!(never, OutcomeKind::Rejected { retry_after: None });

    // A request that waits for the rate uses its unit from the start.
    bench.release(&held, NOW);
    let (outcome, waits) = bench.ask(&Descriptor::new("/").tenant("acme"), NOW, SECOND);
    assert_eq!(outcome.answer, OutcomeKind::Admitted { wait: SECOND });
    assert!(is_busy(ask(2 * SECOND)), "the waiting request uses the unit");
    // A refund frees both.
    bench.refund(&waits.unwrap(), NOW);
    assert_eq!(ask(SECOND), OutcomeKind::Admitted { wait: SECOND });
}

#[test]
fn a_release_refunds_no_rate() {
    let bench = Bench::new(rule(&[Quota::per_hour(10), Quota::concurrent(2)]));
    let held = bench.take("acme", 2, NOW).unwrap();
    bench.release(&held, NOW);
    assert_eq!(bench.remaining("acme", NOW), 8);
    bench.refund(&held, NOW);
    assert_eq!(bench.remaining("acme", NOW), 10, "a released receipt can still be refunded");
}

#[test]
fn a_lowered_limit_admits_none_until_enough_are_released() {
    let mut bench = Bench::new(Quota::concurrent(4));
    let mut held: Vec<_> = (0..4).map(|_| bench.take("acme", 1, NOW).unwrap()).collect();
    bench.reload(Quota::concurrent(2));
    for left in (2..=4).rev() {
        assert!(is_busy(bench.answer("acme", 1, NOW)), "{left} are in flight, of 2");
        assert_eq!(bench.remaining("acme", NOW), 0);
        bench.release(&held.pop().unwrap(), NOW);
    }
    held.push(bench.take("acme", 1, NOW).unwrap());
    assert!(is_busy(bench.answer("acme", 1, NOW)));
    bench.reload(Quota::concurrent(5));
    assert_eq!(bench.remaining("acme", NOW), 3);
    held.iter().for_each(|held| bench.release(held, NOW));
    assert_eq!(bench.remaining("acme", NOW), 5);
}

#[test]
fn a_receipt_outlives_its_tier() {
    let mut bench = Bench::new(Quota::concurrent(1));
    let held = bench.take("acme", 1, NOW).unwrap();
    bench.reload(Quota::per_second(1));
    assert!(bench.take("acme", 1, NOW).is_some());
    bench.release(&held, NOW);
    bench.reload(Quota::concurrent(1));
    assert!(bench.take("acme", 1, NOW).is_some());
}

#[test]
fn no_key_in_flight_is_dropped_to_make_room() {
    let bench = Bench::with(Engine::full(100), Quota::concurrent(1));
    let held: Vec<_> = (0..50).map(|tenant| bench.take(&format!("held-{tenant}"), 1, NOW).unwrap()).collect();
    let mut now = NOW;
    for newcomer in 0..5_000 {
        now += SECOND;
        let receipt = bench.take(&format!("passing-{newcomer}"), 1, now).unwrap();
        bench.release(&receipt, now);
    }
    assert!(bench.engine.usage().keys <= 100);
    for (tenant, receipt) in held.iter().enumerate() {
        assert!(is_busy(bench.answer(&format!("held-{tenant}"), 1, now)), "held-{tenant} was dropped");
        bench.release(receipt, now);
        assert!(bench.take(&format!("held-{tenant}"), 1, now).is_some());
    }
}

/// A full overflow counter is named by its own key, and its units are released
/// there.
#[test]
fn units_of_an_overflow_counter_are_released_there() {
    let bench = Bench::with(Engine::full(1), Quota::concurrent(2));
    let own = bench.take("own", 2, NOW).unwrap();
    let shared = bench.take("first", 1, NOW).unwrap();
    let also = bench.take("second", 1, NOW).unwrap();
    let OutcomeKind::Busy { key } = bench.answer("third", 1, NOW) else { panic!("two are in flight, of two") };
    let rule = &bench.policy.rules[0];
    assert_eq!(key, rule.overflow.tier(own.charges().next().unwrap().tiers[0].salt));
    assert_ne!(bench.answer("own", 1, NOW), OutcomeKind::Busy { key });

    bench.release(&shared, NOW);
    bench.release(&shared, NOW);
    assert_eq!(bench.answer("third", 2, NOW), OutcomeKind::Busy { key }, "one is in flight");
    bench.refund(&also, NOW);
    for round in 0..20 {
        let receipt = bench.take(&format!("round-{round}"), 2, NOW + round).expect("all are released");
        bench.release(&receipt, NOW + round);
    }
}

#[test]
fn eight_threads_never_exceed_the_limit_and_release_everything() {
    const LIMIT: u64 = 5;
    let tiers = [Quota::per_second(1_000_000), Quota::concurrent(LIMIT)];
    let bench = Bench::new(rule(&tiers));
    let (held, barrier) = (AtomicU64::new(0), Barrier::new(8));
    let taken = AtomicU64::new(0);
    thread::scope(|scope| {
        for thread in 0..8_u64 {
            let (bench, held, barrier, taken) = (&bench, &held, &barrier, &taken);
            scope.spawn(move || {
                barrier.wait();
                let mut mine = Vec::new();
                let mut random = thread + 1;
                for step in 0..20_000_u64 {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let (take, cost) = (random >> 63 == 0, 1 + (random >> 60) % 2);
                    let now = NOW + step * 1_000_000;
                    if take {
                        if let Some(receipt) = bench.take("acme", cost, now) {
                            let before = held.fetch_add(cost, Ordering::SeqCst);
                            assert!(before + cost <= LIMIT, "{} are in flight", before + cost);
                            taken.fetch_add(1, Ordering::SeqCst);
                            mine.push((receipt, cost));
                        }
                    } else if let Some((receipt, cost)) = mine.pop() {
                        held.fetch_sub(cost, Ordering::SeqCst);
                        if random >> 50 & 1 == 0 {
                            bench.release(&receipt, now)
                        } else {
                            bench.refund(&receipt, now)
                        }
                        // A second release has no effect.
                        bench.release(&receipt, now);
                    }
                }
                for (receipt, cost) in mine {
                    held.fetch_sub(cost, Ordering::SeqCst);
                    bench.release(&receipt, NOW);
                }
            });
        }
    });
    assert!(taken.load(Ordering::SeqCst) > 1_000, "too few were admitted to prove anything");
    let end = NOW + 100_000 * SECOND;
    assert!(bench.take("acme", LIMIT, end).is_some(), "all are released");
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Take { tenant: usize, cost: u64 },
    Release { index: usize, refund: bool },
    Limit(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..3_usize, 0..5_u64).prop_map(|(tenant, cost)| Step::Take { tenant, cost }),
        3 => (any::<usize>(), any::<bool>()).prop_map(|(index, refund)| Step::Release { index, refund }),
        1 => (0..6_u64).prop_map(Step::Limit),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Compared with a list of what is in flight.
    #[test]
    fn behaves_as_a_list_of_what_is_in_flight(steps in prop::collection::vec(step(), 1..120)) {
        let mut limit = 3;
        let mut bench = Bench::new(Quota::concurrent(limit));
        let mut held: [Vec<u64>; 3] = Default::default();
        let mut receipts = Vec::new();
        for (time, step) in steps.into_iter().enumerate() {
            let now = NOW + time as u64 * SECOND;
            match step {
                Step::Limit(new) => {
                    limit = new;
                    bench.reload(Quota::concurrent(limit));
                }
                Step::Release { index, refund } if !receipts.is_empty() => {
                    let (tenant, cost, receipt): (usize, u64, Receipt) = receipts.swap_remove(index % receipts.len());
                    if refund { bench.refund(&receipt, now) } else { bench.release(&receipt, now) }
                    let index = held[tenant].iter().position(|held| *held == cost).unwrap();
                    held[tenant].swap_remove(index);
                }
                Step::Release { .. } => {}
                Step::Take { tenant, cost } => {
                    let sum: u64 = held[tenant].iter().sum();
                    let (outcome, receipt) = bench.ask(&Descriptor::new("/").tenant(tenant.to_string()).cost(cost), now, 0);
                    match outcome.answer {
                        OutcomeKind::Admitted { wait: 0 } => {
                            prop_assert!(limit > 0 && (cost == 0 || sum + cost <= limit));
                            held[tenant].push(cost);
                            receipts.push((tenant, cost, receipt.unwrap()));
                        }
                        OutcomeKind::Busy { .. } => prop_assert!(cost > 0 && cost <= limit && sum + cost > limit),
                        OutcomeKind::Rejected { retry_after: None } => prop_assert!(cost > limit || limit == 0),
                        other => prop_assert!(false, "{:?}", other),
                    }
                    let sum: u64 = held[tenant].iter().sum();
                    prop_assert_eq!(outcome.tiers[0].remaining, limit.saturating_sub(sum));
                }
            }
        }
    }
}
