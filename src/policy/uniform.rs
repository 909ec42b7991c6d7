//! The shortcut for policies under which requests differ only in their tenant:
//! [`Uniform`].
//!
//! It gives the keys, tiers and costs that the general way gives, without
//! reading path, method and plan.

use super::{charge::Target, compiled_rule::CompiledRule, tiers::Tier};
use crate::{
    descriptor::{Descriptor, MissingTenant},
    fingerprint::Scope,
};

/// The only rule of a policy: enforced, for every request, without exceptions.
#[derive(Debug)]
pub(super) struct Uniform {
    scope: Scope,
    cost: u64,
    tiers: Box<[Tier]>,
}

impl Uniform {
    /// `None` where a request's path, method or plan matters, or where the rule
    /// may need more than an immediate charge.
    pub(super) fn new(rule: &CompiledRule) -> Option<Self> {
        let scope = rule.keys.only_scope().filter(|_| rule.matches_all_paths)?;
        let tiers = rule.tier_sets.only().filter(|tiers| !tiers.is_empty())?;
        let has_more_to_charge = rule.is_settled_late() || rule.counts_messages() || rule.tier_sets.has_in_flight();
        let is_plain = !has_more_to_charge && !rule.options.shadow && !rule.options.smooth;
        is_plain.then(|| Self { scope, cost: rule.options.cost, tiers: tiers.into() })
    }

    /// `None` where the request names a rule, where the tenant brings its own tiers, or where the request has none
    /// and the rule does not charge the anonymous one.
    #[inline]
    pub(super) fn resolve(&self, descriptor: &Descriptor<'_>) -> Option<Target<'_>> {
        if descriptor.rule.is_some() {
            return None;
        }
        let key = match &descriptor.tenant {
            Some(tenant) if tenant.limits().is_some() => return None,
            Some(tenant) => self.scope.key(Some(tenant.id())),
            None if descriptor.missing_tenant != MissingTenant::Anonymous || descriptor.ambiguous_tenant => {
                return None;
            }
            None => self.scope.shared(),
        };
        let cost = self.cost.saturating_mul(descriptor.cost);
        Some(Target { key, tiers: &self.tiers, cost })
    }
}
