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
fn what_is_held_is_free_again_when_it_is_released_and_not_before() {
    let desk = Desk::new(Quota::concurrent(3));
    let two = desk.take("acme", 2, NOW).unwrap();
    let one = desk.take("acme", 1, NOW).unwrap();
    assert!(two.holds_in_flight());
    assert!(is_busy(desk.answer("acme", 1, NOW + 1_000_000 * SECOND)), "time frees nothing");
    assert_eq!(desk.remaining("acme", NOW), 0);
    assert!(desk.take("globex", 3, NOW).is_some(), "each key by itself");

    desk.release(&one, NOW);
    assert_eq!(desk.remaining("acme", NOW), 1);
    desk.release(&one, NOW);
    desk.refund(&one, NOW);
    desk.release(&one.clone(), NOW);
    assert_eq!(desk.remaining("acme", NOW), 1, "once is all");
    desk.release(&two, NOW);
    assert_eq!(desk.remaining("acme", NOW), 3);
}

#[test]
fn a_limit_that_no_wait_can_pass_is_never() {
    let desk = Desk::new(Quota::concurrent(3));
    assert_eq!(desk.answer("acme", 4, NOW), OutcomeKind::Rejected { retry_after: None });
    assert_eq!(desk.answer("acme", u64::MAX, NOW), OutcomeKind::Rejected { retry_after: None });
    assert_eq!(desk.answer("acme", 1, u64::MAX), OutcomeKind::Rejected { retry_after: None });
    let closed = Desk::new(Quota::concurrent(0));
    assert_eq!(closed.answer("acme", 0, NOW), OutcomeKind::Rejected { retry_after: None });
    let boundless = Desk::new(Quota::concurrent(u64::MAX));
    let most = boundless.take("acme", u64::MAX, NOW).unwrap();
    assert!(is_busy(boundless.answer("acme", u64::MAX, NOW)));
    boundless.release(&most, NOW);
    assert!(boundless.take("acme", u64::MAX, NOW).is_some());
}

#[test]
fn a_cost_of_nothing_holds_nothing() {
    let desk = Desk::new(Quota::concurrent(1));
    let nothing = desk.take("acme", 0, NOW).unwrap();
    assert!(!nothing.holds_in_flight());
    let one = desk.take("acme", 1, NOW).unwrap();
    assert!(desk.take("acme", 0, NOW).is_some(), "passes where all is held");
    desk.release(&nothing, NOW);
    assert!(is_busy(desk.answer("acme", 1, NOW)));
    desk.release(&one, NOW);
    assert!(desk.take("acme", 1, NOW).is_some());
}

#[test]
fn busy_is_said_by_the_counter_that_is_full_and_charges_nothing() {
    let desk = Desk::new(rule(&[Quota::per_second(10), Quota::concurrent(5), Quota::concurrent(1)]));
    let first = desk.take("acme", 1, NOW).unwrap();
    let tier = &first.charges().next().unwrap().tiers()[2];
    let expected = first.charges().next().unwrap().key.tier(tier.salt);
    for max_wait in [0, SECOND, u64::MAX] {
        let (outcome, receipt) = desk.ask(&Descriptor::new("/").tenant("acme"), NOW, max_wait);
        assert_eq!(outcome.answer, OutcomeKind::Busy { key: expected }, "with a wait of {max_wait}");
        assert!(receipt.is_none());
        let violated: Vec<_> = outcome.tiers.iter().map(|tier| (tier.remaining, tier.violated)).collect();
        assert_eq!(violated, [(9, false), (4, false), (0, true)]);
    }
}

#[test]
fn a_rate_that_rejects_has_the_word_and_one_that_lets_wait_has_not() {
    let desk = Desk::new(rule(&[Quota::per_second(1), Quota::concurrent(1)]));
    let held = desk.take("acme", 1, NOW).unwrap();
    let ask = |max_wait| desk.ask(&Descriptor::new("/").tenant("acme"), NOW, max_wait).0.answer;
    assert_eq!(ask(0), OutcomeKind::Rejected { retry_after: Some(SECOND) });
    assert_eq!(ask(SECOND - 1), OutcomeKind::Rejected { retry_after: Some(SECOND) });
    assert!(is_busy(ask(SECOND)), "the rate alone would have been waited for");
    assert!(is_busy(ask(u64::MAX)));
    let never = desk.ask(&Descriptor::new("/").tenant("acme").cost(2), NOW, u64::MAX).0.answer;
    assert_eq!(never, OutcomeKind::Rejected { retry_after: None });

    // A wait for the rate holds the unit meanwhile.
    desk.release(&held, NOW);
    let (outcome, waits) = desk.ask(&Descriptor::new("/").tenant("acme"), NOW, SECOND);
    assert_eq!(outcome.answer, OutcomeKind::Admitted { wait: SECOND });
    assert!(is_busy(ask(2 * SECOND)), "the unit is held meanwhile");
    // Dropped, it frees both.
    desk.refund(&waits.unwrap(), NOW);
    assert_eq!(ask(SECOND), OutcomeKind::Admitted { wait: SECOND });
}

#[test]
fn releasing_leaves_what_rates_have_charged() {
    let desk = Desk::new(rule(&[Quota::per_hour(10), Quota::concurrent(2)]));
    let held = desk.take("acme", 2, NOW).unwrap();
    desk.release(&held, NOW);
    assert_eq!(desk.remaining("acme", NOW), 8);
    desk.refund(&held, NOW);
    assert_eq!(desk.remaining("acme", NOW), 10, "what was released can be given back all the same");
}

#[test]
fn a_lowered_limit_lets_nobody_in_until_enough_have_left() {
    let mut desk = Desk::new(Quota::concurrent(4));
    let mut held: Vec<_> = (0..4).map(|_| desk.take("acme", 1, NOW).unwrap()).collect();
    desk.reload(Quota::concurrent(2));
    for left in (2..=4).rev() {
        assert!(is_busy(desk.answer("acme", 1, NOW)), "{left} are held of 2");
        assert_eq!(desk.remaining("acme", NOW), 0);
        desk.release(&held.pop().unwrap(), NOW);
    }
    held.push(desk.take("acme", 1, NOW).unwrap());
    assert!(is_busy(desk.answer("acme", 1, NOW)));
    desk.reload(Quota::concurrent(5));
    assert_eq!(desk.remaining("acme", NOW), 3);
    held.iter().for_each(|held| desk.release(held, NOW));
    assert_eq!(desk.remaining("acme", NOW), 5);
}

#[test]
fn a_receipt_outlives_its_tier() {
    let mut desk = Desk::new(Quota::concurrent(1));
    let held = desk.take("acme", 1, NOW).unwrap();
    desk.reload(Quota::per_second(1));
    assert!(desk.take("acme", 1, NOW).is_some());
    desk.release(&held, NOW);
    desk.reload(Quota::concurrent(1));
    assert!(desk.take("acme", 1, NOW).is_some());
}

#[test]
fn nothing_that_is_held_is_dropped_to_make_room() {
    let desk = Desk::with(Engine::full(100), Quota::concurrent(1));
    let held: Vec<_> = (0..50).map(|tenant| desk.take(&format!("held-{tenant}"), 1, NOW).unwrap()).collect();
    let mut now = NOW;
    for newcomer in 0..5_000 {
        now += SECOND;
        let receipt = desk.take(&format!("passing-{newcomer}"), 1, now).unwrap();
        desk.release(&receipt, now);
    }
    assert!(desk.engine.usage().keys <= 100);
    for (tenant, receipt) in held.iter().enumerate() {
        assert!(is_busy(desk.answer(&format!("held-{tenant}"), 1, now)), "held-{tenant} was dropped");
        desk.release(receipt, now);
        assert!(desk.take(&format!("held-{tenant}"), 1, now).is_some());
    }
}

/// The shared counter is that of the rule: full, it says so by its own key,
/// and what is held there is freed there.
#[test]
fn what_is_held_of_a_shared_counter_is_released_there() {
    let desk = Desk::with(Engine::full(1), Quota::concurrent(2));
    let own = desk.take("own", 2, NOW).unwrap();
    let shared = desk.take("first", 1, NOW).unwrap();
    let also = desk.take("second", 1, NOW).unwrap();
    let OutcomeKind::Busy { key } = desk.answer("third", 1, NOW) else { panic!("two are held of two") };
    let rule = &desk.policy.rules[0];
    assert_eq!(key, rule.overflow.tier(rule.tiers(own.charges().next().unwrap().selection)[0].salt));
    assert_ne!(desk.answer("own", 1, NOW), OutcomeKind::Busy { key });

    desk.release(&own, NOW);
    assert_eq!(desk.answer("third", 1, NOW), OutcomeKind::Busy { key }, "there is no other place yet");
    desk.release(&shared, NOW);
    desk.release(&shared, NOW);
    desk.refund(&also, NOW);
    for round in 0..20 {
        let receipt = desk.take(&format!("round-{round}"), 2, NOW + round).expect("none is held any more");
        desk.release(&receipt, NOW + round);
    }
}

#[test]
fn eight_threads_never_hold_one_too_many_and_none_in_the_end() {
    const LIMIT: u64 = 5;
    let tiers = [Quota::per_second(1_000_000), Quota::concurrent(LIMIT)];
    let desk = Desk::new(rule(&tiers));
    let (held, barrier) = (AtomicU64::new(0), Barrier::new(8));
    let taken = AtomicU64::new(0);
    thread::scope(|scope| {
        for thread in 0..8_u64 {
            let (desk, held, barrier, taken) = (&desk, &held, &barrier, &taken);
            scope.spawn(move || {
                barrier.wait();
                let mut mine = Vec::new();
                let mut random = thread + 1;
                for step in 0..20_000_u64 {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let (take, cost) = (random >> 63 == 0, 1 + (random >> 60) % 2);
                    let now = NOW + step * 1_000_000;
                    if take {
                        if let Some(receipt) = desk.take("acme", cost, now) {
                            let before = held.fetch_add(cost, Ordering::SeqCst);
                            assert!(before + cost <= LIMIT, "{} are held", before + cost);
                            taken.fetch_add(1, Ordering::SeqCst);
                            mine.push((receipt, cost));
                        }
                    } else if let Some((receipt, cost)) = mine.pop() {
                        held.fetch_sub(cost, Ordering::SeqCst);
                        if random >> 50 & 1 == 0 {
                            desk.release(&receipt, now)
                        } else {
                            desk.refund(&receipt, now)
                        }
                        // Again, to no effect.
                        desk.release(&receipt, now);
                    }
                }
                for (receipt, cost) in mine {
                    held.fetch_sub(cost, Ordering::SeqCst);
                    desk.release(&receipt, NOW);
                }
            });
        }
    });
    assert!(taken.load(Ordering::SeqCst) > 1_000, "it was tried");
    let end = NOW + 100_000 * SECOND;
    assert!(desk.take("acme", LIMIT, end).is_some(), "none is held any more");
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

    /// Against lists of what is held.
    #[test]
    fn behaves_as_a_list_of_what_is_held(steps in prop::collection::vec(step(), 1..120)) {
        let mut limit = 3;
        let mut desk = Desk::new(Quota::concurrent(limit));
        let mut held: [Vec<u64>; 3] = Default::default();
        let mut receipts = Vec::new();
        for (time, step) in steps.into_iter().enumerate() {
            let now = NOW + time as u64 * SECOND;
            match step {
                Step::Limit(new) => {
                    limit = new;
                    desk.reload(Quota::concurrent(limit));
                }
                Step::Release { index, refund } if !receipts.is_empty() => {
                    let (tenant, cost, receipt): (usize, u64, Receipt) = receipts.swap_remove(index % receipts.len());
                    if refund { desk.refund(&receipt, now) } else { desk.release(&receipt, now) }
                    let place = held[tenant].iter().position(|held| *held == cost).unwrap();
                    held[tenant].swap_remove(place);
                }
                Step::Release { .. } => {}
                Step::Take { tenant, cost } => {
                    let sum: u64 = held[tenant].iter().sum();
                    let (outcome, receipt) = desk.ask(&Descriptor::new("/").tenant(tenant.to_string()).cost(cost), now, 0);
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
