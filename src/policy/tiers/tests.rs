use super::*;
use crate::policy::{AdaptiveRate, CompiledPolicy, Policy, Rule};

fn policy(rule: Rule) -> CompiledPolicy {
    CompiledPolicy::new(Policy::new().rule(rule)).unwrap()
}

/// The sets that are kept for the first rule, and their tiers.
fn len(policy: &CompiledPolicy) -> (usize, usize) {
    let sets = policy.rules[0].own_tiers.sets.read().unwrap();
    (sets.by_quotas.len(), sets.tiers)
}

#[test]
fn a_set_is_compiled_once() {
    let policy = policy(Rule::new("r").tier(Quota::per_second(1)));
    let own = |limit| policy.own_tiers(&policy.rules[0], &[Quota::per_second(limit)]).unwrap();
    assert!(Arc::ptr_eq(&own(2), &own(2)));
    assert!(!Arc::ptr_eq(&own(2), &own(3)));
}

#[test]
fn the_cache_is_bounded() {
    let policy = policy(Rule::new("r").tier(Quota::per_second(1)));
    for limit in 0..10_000 {
        policy.own_tiers(&policy.rules[0], &[Quota::per_second(limit)]).unwrap();
        assert!(len(&policy).0 <= MAX_SETS);
    }
    assert!(len(&policy).0 >= MAX_SETS / 2);
}

#[test]
fn the_tiers_of_adaptive_rules_are_bounded() {
    let adapt = AdaptiveRate::between(Quota::per_second(1), Quota::per_second(1_000_000));
    let policy = policy(Rule::new("r").adaptive_rate(adapt));
    for limit in 0..200 {
        policy.own_tiers(&policy.rules[0], &[Quota::per_second(limit)]).unwrap();
        let (sets, tiers) = len(&policy);
        assert!(tiers <= MAX_TIERS && sets > 0, "{sets} {tiers}");
    }
}
