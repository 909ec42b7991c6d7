//! Tiers that come with a request, compiled: [`OwnTiers`].
//!
//! A tenant carries quotas that stand in for a rule's own. Each distinct set of
//! quotas is compiled once for a rule, and kept as long as there is room: an
//! evicted set is compiled again, and loses no usage, since a counter is named by
//! its algorithm and window. Invariant: the memory of a rule's sets is bounded.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
};

use foldhash::fast::RandomState;

use super::tier_sets::TierSets;
use crate::quota::Quota;

/// A tenant's own tiers under one rule.
#[derive(Debug)]
pub(crate) struct OwnTiers {
    pub(super) quotas: Box<[Quota]>,
    pub(super) sets: TierSets,
    /// Differs from that of all other sets, and of all rules.
    pub(crate) version: u64,
}

/// The most sets that are kept for a rule.
const MAX_SETS: usize = 1_024;

/// The most tiers in all of a rule's sets. Of a rule that adapts, a set has a copy
/// for each step.
const MAX_TIERS: usize = 16 * 1_024;

/// The sets of one rule.
#[derive(Debug, Default)]
pub(super) struct OwnTierCache {
    sets: RwLock<Sets>,
}

#[derive(Debug, Default)]
struct Sets {
    by_quotas: HashMap<Box<[Quota]>, Arc<OwnTiers>, RandomState>,
    /// The number of tiers in all of them.
    tiers: usize,
}

impl OwnTierCache {
    pub(super) fn get(&self, quotas: &[Quota]) -> Option<Arc<OwnTiers>> {
        let sets = self.sets.read().unwrap_or_else(PoisonError::into_inner);
        sets.by_quotas.get(quotas).cloned()
    }

    pub(super) fn insert(&self, own: &Arc<OwnTiers>) {
        let mut sets = self.sets.write().unwrap_or_else(PoisonError::into_inner);
        let Sets { by_quotas, tiers } = &mut *sets;
        let added = own.sets.count_tiers();
        if by_quotas.len() >= MAX_SETS || *tiers + added > MAX_TIERS {
            // Every second one, so that one eviction makes room for many sets.
            let mut is_kept = false;
            by_quotas.retain(|_, own| {
                is_kept = !is_kept && *tiers + added <= 2 * MAX_TIERS;
                *tiers -= if is_kept { 0 } else { own.sets.count_tiers() };
                is_kept
            });
        }
        if *tiers + added <= MAX_TIERS && by_quotas.insert(own.quotas.clone(), Arc::clone(own)).is_none() {
            *tiers += added;
        }
    }

    #[cfg(test)]
    fn len(&self) -> (usize, usize) {
        let sets = self.sets.read().unwrap();
        (sets.by_quotas.len(), sets.tiers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Adapt, CompiledPolicy, Policy, Rule};

    fn policy(rule: Rule) -> CompiledPolicy {
        CompiledPolicy::new(Policy::new().rule(rule)).unwrap()
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
            assert!(policy.rules[0].own_tiers.len().0 <= MAX_SETS);
        }
        assert!(policy.rules[0].own_tiers.len().0 >= MAX_SETS / 2);
    }

    #[test]
    fn the_tiers_of_adaptive_rules_are_bounded() {
        let adapt = Adapt::between(Quota::per_second(1), Quota::per_second(1_000_000));
        let policy = policy(Rule::new("r").adapt(adapt));
        for limit in 0..200 {
            policy.own_tiers(&policy.rules[0], &[Quota::per_second(limit)]).unwrap();
            let (sets, tiers) = policy.rules[0].own_tiers.len();
            assert!(tiers <= MAX_TIERS && sets > 0, "{sets} {tiers}");
        }
    }
}
