mod simulation;

use proptest::prelude::*;

use super::law::Law;
use crate::policy::RateBounds;

const SECOND: u64 = 1_000_000_000;
const BOUNDS: RateBounds = RateBounds { floor: 2.0, ceiling: 500.0, start: 10.0, increase: 0.001, decrease: 0.9 };

proptest! {
    /// Whatever answers arrive, in whatever order.
    #[test]
    fn it_stays_within_its_bounds(
        answers in prop::collection::vec((0..20 * SECOND, 0..20 * SECOND, 0.0..50.0_f64, any::<bool>()), 1..400),
        (floor, widest, start) in (0.000_01..100.0_f64, 1.0..10_000.0_f64, 0.0..1.0_f64),
        (increase, decrease) in (0.000_1..1.0_f64, 0.1..0.999_f64),
    ) {
        let ceiling = floor * widest;
        let bounds = RateBounds { floor, ceiling, start: floor + (ceiling - floor) * start, increase, decrease };
        let mut law = Law::new(&bounds);
        for (decided, now, units, rejected) in answers {
            let before = law.rate();
            if rejected {
                let changed = law.rejected(&bounds, decided, now);
                prop_assert!(law.rate() <= before && (changed || law.rate() == before));
            } else {
                law.succeeded(&bounds, (decided, now), units);
                prop_assert!(law.rate() >= before);
                // Never more than a second's worth at once.
                prop_assert!(law.rate() <= before * 2.72);
            }
            prop_assert!((bounds.floor..=bounds.ceiling).contains(&law.rate()), "{}", law.rate());
        }
    }
}

/// Sends at a share of its rate for so long.
fn send(law: &mut Law, from: u64, seconds: u64, share: f64) -> u64 {
    let mut at = from;
    while at < from + seconds * SECOND {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let gap = (1e9 / (law.rate() * share)) as u64;
        at += gap.max(1);
        law.succeeded(&BOUNDS, (at, at), 1.0);
    }
    at
}

#[test]
fn a_rate_starts_at_its_start_and_reaches_the_ceiling_in_seconds() {
    let mut law = Law::new(&BOUNDS);
    assert_eq!(law.rate(), 10.0);
    send(&mut law, 0, 5, 1.0);
    assert_eq!(law.rate(), 500.0);
}

#[test]
fn a_client_that_uses_half_of_its_rate_does_not_grow() {
    let mut law = Law::new(&BOUNDS);
    let at = send(&mut law, 0, 60, 0.5);
    assert_eq!(law.rate(), 10.0);
    // Nor does one that is alone now and then.
    law.succeeded(&BOUNDS, (at + 9 * SECOND, at + 9 * SECOND), 1.0);
    assert_eq!(law.rate(), 10.0);
    send(&mut law, at + 20 * SECOND, 2, 1.0);
    assert!(law.rate() > 30.0);
}

#[test]
fn requests_in_flight_at_a_decrease_change_nothing() {
    let mut law = Law::new(&BOUNDS);
    let now = send(&mut law, 0, 6, 1.0);
    assert!(law.rejected(&BOUNDS, now - 1, now));
    let lowered = law.rate();
    assert_eq!(lowered, 350.0);
    for decided in [0, now - 1, now, now + SECOND / 5] {
        assert!(!law.rejected(&BOUNDS, decided, now + SECOND));
        law.succeeded(&BOUNDS, (decided, decided), 1.0);
        law.succeeded(&BOUNDS, (decided, decided), 1.0);
    }
    assert_eq!((law.rate(), law.rejections()), (lowered, 5));
    assert!(law.rejected(&BOUNDS, now + SECOND, now + SECOND));
    assert_eq!(law.rate(), 315.0);
}

#[test]
fn a_rate_recovers_fast_and_then_grows_slowly() {
    let mut law = Law::new(&BOUNDS);
    send(&mut law, 0, 3, 1.0);
    law.rejected(&BOUNDS, 4 * SECOND, 4 * SECOND);
    // Where it was rejected for the first time it had overshot.
    let near = law.rate() / 0.7 * 0.95 * 0.97;
    let at = send(&mut law, 5 * SECOND, 4, 1.0);
    assert!(law.rate() >= near && law.rate() < near * 1.002, "{} {near}", law.rate());
    send(&mut law, at, 20, 1.0);
    let grown = law.rate() / near;
    assert!((1.018..1.024).contains(&grown), "{grown}");
}

/// As after a restart, where the client before it has used the upstream up.
#[test]
fn a_rejection_before_any_success_does_not_end_the_fast_growth() {
    let mut law = Law::new(&BOUNDS);
    assert!(law.rejected(&BOUNDS, SECOND, SECOND));
    assert!(law.rejected(&BOUNDS, 2 * SECOND, 2 * SECOND));
    assert_eq!(law.rate(), 10.0 * 0.7 * 0.7);
    let at = send(&mut law, 3 * SECOND, 6, 1.0);
    assert_eq!(law.rate(), 500.0);
    // The first that follows a success lowers it like any first one.
    assert!(law.rejected(&BOUNDS, at, at));
    assert_eq!(law.rate(), 350.0);
    send(&mut law, at + SECOND, 6, 1.0);
    assert!(law.rate() < 500.0 * 0.95, "{}", law.rate());
}

#[test]
fn a_rate_below_one_a_second_grows_by_successes_only() {
    let bounds = RateBounds { floor: 1.0 / 3_600.0, ceiling: 1.0, start: 1.0 / 60.0, ..BOUNDS };
    let mut law = Law::new(&bounds);
    law.succeeded(&bounds, (0, 0), 1.0);
    law.succeeded(&bounds, (60 * SECOND, 60 * SECOND), 1.0);
    assert!((law.rate() * 60.0 - 1_f64.exp()).abs() < 0.001, "{}", law.rate());
}

mod keys {
    use std::time::Duration;

    use super::super::{
        Times,
        rates::{KNOWN_FOR, MOST, Rates, SHARDS},
    };
    use crate::{
        backend::{AcquireRequest, Charge, InProcess, OutcomeKind},
        descriptor::Descriptor,
        policy::{Adapt, CompiledPolicy, Policy, Resolved, Rule, per_second},
        quota::Quota,
        time::Timestamp,
    };

    fn adapting() -> CompiledPolicy {
        let adapt = Adapt::between(Quota::per_second(10), Quota::per_second(1_000));
        CompiledPolicy::new(Policy::new().rule(Rule::new("rule").adapt(adapt))).unwrap()
    }

    fn with_charge(policy: &CompiledPolicy, descriptor: &Descriptor<'_>, act: impl FnOnce(Charge<'_>)) {
        let prepared = policy.prepare(descriptor);
        let mut resolved = Resolved::default();
        policy.resolve(descriptor, &prepared, &mut resolved);
        act(resolved.enforced[0]);
    }

    fn passes(engine: &InProcess, charge: Charge<'_>, now: u64) -> bool {
        let outcome = engine.decide(&AcquireRequest::new(&[charge], at(now), Duration::ZERO));
        matches!(outcome.answer, OutcomeKind::Admitted { .. })
    }

    fn at(nanos: u64) -> Timestamp {
        Timestamp::from_nanos(nanos)
    }

    fn times(now: Timestamp) -> Times {
        Times { decided: now, sent: now }
    }

    #[test]
    fn the_keys_with_the_oldest_feedback_are_dropped() {
        let policy = adapting();
        let ladder = policy.rules[0].ladder.as_ref().unwrap();
        let rates = Rates::default();
        let key = |number: u64| u128::from(number) << 64;
        let known = |number, now| rates.look(key(number), &ladder.bounds, at(now)).1 > 0;
        let most = MOST as u64;
        for number in 0..most + 1_000 {
            rates.rejected(key(number), ladder, times(at(number)), at(number + 1));
            assert!(rates.len() <= MOST);
        }
        assert!(rates.len() >= MOST * 7 / 8);
        let now = most + 1_001;
        assert!((0..1_000).all(|number| !known(number, now)));
        assert!((most / 4..most + 1_000).all(|number| known(number, now)));
        assert!(known(most, most + KNOWN_FOR) && !known(most, most + KNOWN_FOR + 2));
        // It starts again at the start rate.
        rates.succeeded(key(most), ladder, times(at(3 * KNOWN_FOR)), (1, true), at(3 * KNOWN_FOR));
        assert_eq!(rates.look(key(most), &ladder.bounds, at(3 * KNOWN_FOR)), (10.0, 0));
    }

    /// Else the first rejection under a lower ceiling would leave the rate there.
    #[test]
    fn a_rate_above_a_new_ceiling_is_lowered_from_there() {
        let ladder = |ceiling| {
            let adapt =
                Adapt::between(Quota::per_second(10), Quota::per_second(ceiling)).start(Quota::per_second(ceiling));
            CompiledPolicy::new(Policy::new().rule(Rule::new("rule").adapt(adapt))).unwrap()
        };
        let (high, low) = (ladder(1_000), ladder(100));
        let [high, low] = [&high, &low].map(|policy| policy.rules[0].ladder.as_ref().unwrap());
        let (rates, key) = (Rates::default(), 1 << 64);
        rates.succeeded(key, high, times(at(1)), (1, true), at(2));
        assert_eq!(rates.look(key, &high.bounds, at(2)).0, 1_000.0);
        let rate = rates.rejected(key, low, times(at(3)), at(4)).unwrap();
        assert!(rate < 100.0, "{rate}");
    }

    /// Also where all had feedback at the same time.
    #[test]
    fn an_eighth_of_a_shard_is_dropped_at_a_time() {
        let policy = adapting();
        let ladder = policy.rules[0].ladder.as_ref().unwrap();
        let rates = Rates::default();
        for number in 0..=MOST as u64 {
            rates.rejected(u128::from(number) << 64, ladder, times(at(1)), at(2));
        }
        let of_shard = MOST / SHARDS;
        assert_eq!(rates.len(), MOST + 1 - of_shard / 8);
    }

    /// Each unit takes as long as it should at the rate that admitted it,
    /// however often the rate changes in between.
    #[test]
    fn a_step_that_changes_again_and_again_neither_loses_nor_gains() {
        let policy = adapting();
        let descriptor = Descriptor::new("/");
        with_charge(&policy, &descriptor, |charge| {
            let ladder = charge.rule.ladder.as_ref().unwrap();
            let steps = [20.0, 21.0, 150.0, 155.0].map(|rate| ladder.step(rate));
            for change in [1, 5, 20, 400] {
                let local = InProcess::default();
                let (mut admitted, mut paid) = (0.0, 0.0);
                for ms in 0..60_000_u64 {
                    let step = steps[usize::try_from(ms / change % 4).unwrap()];
                    let charge = charge.at_step(step);
                    if passes(&local, charge, 1_000_000_000_000 + ms * 1_000_000) {
                        admitted += 1.0;
                        paid += 1.0 / per_second(charge.tiers[0].quota());
                    }
                }
                // The last one is paid for after the end.
                assert!(paid <= 60.0 + 0.05, "{paid} s in changes of {change} ms");
                // It is asked once in a millisecond.
                assert!(paid >= 60.0 - admitted * 0.001, "{paid} s for {admitted} in changes of {change} ms");
            }
        });
    }

    #[test]
    fn steps_that_are_only_looked_at_change_nothing() {
        let policy = adapting();
        let descriptor = Descriptor::new("/");
        with_charge(&policy, &descriptor, |charge| {
            let local = InProcess::default();
            let ladder = charge.rule.ladder.as_ref().unwrap();
            let mut now = 1_000_000_000_000;
            let at_rate = |rate: f64, now| passes(&local, charge.at_step(ladder.step(rate)), now);
            // The burst of 5 ms.
            for _ in 0..5 {
                assert!(at_rate(1_000.0, now));
            }
            for step in 0..10_000 {
                let rate = 10.0 + f64::from(step % 900);
                assert!(!at_rate(rate, now), "{rate}");
            }
            now += 1_000_000;
            assert!(at_rate(1_000.0, now));
            assert!(!at_rate(1_000.0, now));
        });
    }
}
