//! Adaptive rates by key.

use std::time::Duration;

use super::super::{
    super::aimd::{KNOWN_FOR, Times},
    MOST_KEYS, UpstreamKeys,
};
use crate::{
    backend::{Charge, Engine, FullQuota, MAX_KEYS, OutcomeKind, Request},
    descriptor::Descriptor,
    policy::{AdaptiveRate, CompiledPolicy, Policy, RateSteps, Resolved, Rule, per_second},
    quota::Quota,
    time::Timestamp,
};

fn adapting() -> CompiledPolicy {
    let adapt = AdaptiveRate::between(Quota::per_second(10), Quota::per_second(1_000));
    CompiledPolicy::new(Policy::new().rule(Rule::new("rule").adaptive_rate(adapt))).unwrap()
}

fn with_charge(policy: &CompiledPolicy, descriptor: &Descriptor<'_>, act: impl FnOnce(Charge<'_>)) {
    policy.resolve(descriptor, |Resolved { enforced, .. }| act(enforced[0]));
}

fn passes(engine: &Engine<FullQuota>, charge: Charge<'_>, now: u64) -> bool {
    let outcome = engine.charge(&Request::new(&[charge], at(now), Duration::ZERO));
    matches!(outcome.answer, OutcomeKind::Admitted { .. })
}

fn at(nanos: u64) -> Timestamp {
    Timestamp::from_nanos(nanos)
}

fn found(rates: &UpstreamKeys, key: u128, rate_steps: &RateSteps, now: Timestamp) -> (f64, u64) {
    let state = rates.rate_of(key, &rate_steps.bounds, now).state;
    (state.rate(), state.rejections())
}

/// A request of one unit that was sent as soon as it was decided.
fn succeeded(rates: &UpstreamKeys, key: u128, rate_steps: &RateSteps, sent: Timestamp, now: Timestamp) {
    let times = Times { decided: sent, sent };
    rates.adapt(key, &rate_steps.bounds, now, |rate| rate.succeeded(rate_steps, times, (1, true), now));
}

fn rejected(
    rates: &UpstreamKeys,
    key: u128,
    rate_steps: &RateSteps,
    decided: Timestamp,
    now: Timestamp,
) -> Option<f64> {
    rates.adapt(key, &rate_steps.bounds, now, |rate| rate.rejected(rate_steps, decided, now))
}

#[test]
fn the_keys_with_the_oldest_feedback_are_dropped() {
    let policy = adapting();
    let rate_steps = policy.rules[0].rate_steps.as_ref().unwrap();
    let rates = UpstreamKeys::default();
    let key = |number: u64| u128::from(number) << 64;
    let known = |number, now| found(&rates, key(number), rate_steps, at(now)).1 > 0;
    let most = MOST_KEYS as u64;
    for number in 0..most + 1_000 {
        rejected(&rates, key(number), rate_steps, at(number), at(number + 1));
        assert!(rates.lock().len() <= MOST_KEYS);
    }
    assert!(rates.lock().len() >= MOST_KEYS * 7 / 8);
    let now = most + 1_001;
    assert!((0..1_000).all(|number| !known(number, now)));
    assert!((most / 4..most + 1_000).all(|number| known(number, now)));
    assert!(known(most, most + KNOWN_FOR) && !known(most, most + KNOWN_FOR + 2));
    // It starts again at the start rate.
    succeeded(&rates, key(most), rate_steps, at(3 * KNOWN_FOR), at(3 * KNOWN_FOR));
    assert_eq!(found(&rates, key(most), rate_steps, at(3 * KNOWN_FOR)), (10.0, 0));
}

/// Else the first rejection under a lower ceiling would leave the rate there.
#[test]
fn a_rate_above_a_new_ceiling_is_lowered_from_there() {
    let rate_steps = |ceiling| {
        let adapt =
            AdaptiveRate::between(Quota::per_second(10), Quota::per_second(ceiling)).start(Quota::per_second(ceiling));
        CompiledPolicy::new(Policy::new().rule(Rule::new("rule").adaptive_rate(adapt))).unwrap()
    };
    let (high, low) = (rate_steps(1_000), rate_steps(100));
    let [high, low] = [&high, &low].map(|policy| policy.rules[0].rate_steps.as_ref().unwrap());
    let (rates, key) = (UpstreamKeys::default(), 1 << 64);
    succeeded(&rates, key, high, at(1), at(2));
    assert_eq!(found(&rates, key, high, at(2)).0, 1_000.0);
    let rate = rejected(&rates, key, low, at(3), at(4)).unwrap();
    assert!(rate < 100.0, "{rate}");
}

/// Also where all had feedback at the same time.
#[test]
fn an_eighth_of_the_keys_is_dropped_at_a_time() {
    let policy = adapting();
    let rate_steps = policy.rules[0].rate_steps.as_ref().unwrap();
    let rates = UpstreamKeys::default();
    for number in 0..=MOST_KEYS as u64 {
        rejected(&rates, u128::from(number) << 64, rate_steps, at(1), at(2));
    }
    assert_eq!(rates.lock().len(), MOST_KEYS + 1 - MOST_KEYS / 8);
}

/// Each unit takes as long as it should at the rate that admitted it,
/// however often the rate changes in between.
#[test]
fn a_step_that_changes_again_and_again_neither_loses_nor_gains() {
    let policy = adapting();
    let descriptor = Descriptor::new("/");
    with_charge(&policy, &descriptor, |charge| {
        let rate_steps = charge.rule.rate_steps.as_ref().unwrap();
        let steps = [20.0, 21.0, 150.0, 155.0].map(|rate| rate_steps.step(rate));
        for change in [1, 5, 20, 400] {
            let local = Engine::full(MAX_KEYS);
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
        let local = Engine::full(MAX_KEYS);
        let rate_steps = charge.rule.rate_steps.as_ref().unwrap();
        let mut now = 1_000_000_000_000;
        let at_rate = |rate: f64, now| passes(&local, charge.at_step(rate_steps.step(rate)), now);
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
