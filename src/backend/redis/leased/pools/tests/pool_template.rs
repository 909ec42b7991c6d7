//! What pools share gives the names and definitions of their counters again.

use super::*;
use crate::{
    backend::redis::plan::PlanContext,
    descriptor::Descriptor,
    policy::{CompiledPolicy, Dimension, Policy, Resolved, Rule},
    time::Timestamp,
};

/// The charge set of a request that every rule of the policy charges.
fn charge_set_of(context: &PlanContext, policy: &CompiledPolicy, descriptor: &Descriptor<'_>) -> ChargeSet {
    let split = |Resolved { enforced, .. }: &mut Resolved<'_>| {
        let request = Request::new(enforced, Timestamp::from_nanos(WINDOW), Duration::ZERO);
        ChargeSet::split(context, &request, 0).unwrap()
    };
    let mut sets = policy.resolve(descriptor, split);
    assert_eq!(sets.len(), 1);
    sets.pop().unwrap()
}

/// Shares the template of a charge set. Panics unless it can be had again.
fn share(shared: &mut Templates, prefix: &str, set: &ChargeSet) -> Arc<PoolTemplate> {
    let (template, tag) = shared.share(set, prefix, INTERVAL, 3);
    let again = template.charge_set(tag, set.now);
    let counters =
        |set: &ChargeSet| set.tiers.iter().map(|tier| (tier.key.clone(), tier.definition)).collect::<Vec<_>>();
    assert_eq!((counters(&again), &again.hash_tag, again.now), (counters(set), &set.hash_tag, set.now));
    template
}

fn compiled(rules: impl IntoIterator<Item = Rule>) -> CompiledPolicy {
    CompiledPolicy::new(rules.into_iter().fold(Policy::new(), Policy::rule)).unwrap()
}

#[test]
fn all_tenants_of_a_rule_share_its_terms() {
    let (second, minute) = (Quota::per_second(10), Quota::per_minute(100).algorithm(Algorithm::FixedWindow));
    let rules = [Rule::new("a{b}").tier(second).tier(minute), Rule::new("both").tier(minute)];
    let policy = compiled(rules);
    let long = "x".repeat(300);
    for (prefix, is_single_slot) in [("rl", true), ("a{b}:c", true), ("rl", false)] {
        let context = PlanContext { prefix: prefix.into(), is_single_slot, ..context(false) };
        let mut shared = Templates::default();
        let mut share =
            |descriptor: &Descriptor<'_>| share(&mut shared, prefix, &charge_set_of(&context, &policy, descriptor));
        let first = share(&Descriptor::new("/").tenant("acme"));
        for tenant in ["", "{}:{", "another", "ü}", &long] {
            assert!(Arc::ptr_eq(&first, &share(&Descriptor::new("/").tenant(tenant))), "{tenant}");
        }
        assert!(Arc::ptr_eq(&first, &share(&Descriptor::new("/"))), "the anonymous tenant");
        let expensive = share(&Descriptor::new("/").tenant("acme").cost(2));
        assert!(!Arc::ptr_eq(&first, &expensive), "another cost");
    }
}

/// A request that is charged by tenant and by address.
#[test]
fn counters_of_different_tags_keep_their_names() {
    let by_address = Rule::new("address").per([Dimension::key("ip")]).tier(Quota::per_second(10));
    let policy = compiled([by_address, Rule::new("tenant").tier(Quota::per_second(10))]);
    let context = context(false);
    let set = charge_set_of(&context, &policy, &Descriptor::new("/").tenant("acme").key("ip", "192.0.2.7"));
    let (template, tag) = Templates::default().share(&set, "rl", INTERVAL, 3);
    assert_eq!(tag, "");
    assert_eq!(template.charge_set(tag, None).tiers[1].key, set.tiers[1].key);
}

#[test]
fn terms_that_no_pool_has_are_dropped() {
    let (mut shared, context) = (Templates::default(), context(false));
    let kept = charge_set(Algorithm::FixedWindow);
    let (kept, _) = shared.share(&kept, "rl", INTERVAL, 3);
    for limit in 1..1_000 {
        let policy = compiled([Rule::new("all").tier(Quota::per_second(limit))]);
        shared.share(&charge_set_of(&context, &policy, &Descriptor::new("/")), "rl", INTERVAL, 3);
    }
    assert_eq!(shared.drop_unused(), 1);
    assert!(Arc::ptr_eq(&kept, &shared.share(&charge_set(Algorithm::FixedWindow), "rl", INTERVAL, 3).0));
}
