//! From a request to what it is charged: [`CompiledPolicy::resolve`], and a
//! shortcut for policies under which requests differ only in their tenant.
//!
//! It finds the rules and computes keys; it decides nothing and counts nothing.
//! Both ways give the same keys, tiers and costs.

use smallvec::SmallVec;

use super::{
    charge::{Charge, Charges, Target},
    compiled::CompiledPolicy,
    compiled_rule::CompiledRule,
    matcher::PatternMatch,
    spelling::Spelling,
};
use crate::descriptor::{Descriptor, MissingTenant};

/// What a request is charged: one charge for each rule that applies.
#[derive(Debug, Default)]
pub(crate) struct Resolved<'a> {
    pub(crate) enforced: Charges<'a>,
    pub(crate) shadows: Charges<'a>,
    /// The first enforced rule that counts per tenant and rejects requests
    /// without one, as this one is.
    pub(crate) misses_tenant: Option<&'a CompiledRule>,
}

impl CompiledPolicy {
    /// Whether requests differ only in their tenant.
    #[inline]
    pub(crate) fn is_uniform(&self) -> bool {
        self.uniform.is_some()
    }

    /// What a request is charged, where its tenant alone says so.
    #[inline]
    pub(crate) fn resolve_uniform(&self, descriptor: &Descriptor<'_>) -> Option<Target<'_>> {
        self.uniform.as_ref()?.resolve(descriptor)
    }

    /// The spellings under which the path is looked up; none where no rule
    /// matches by path.
    pub(crate) fn spell<'p>(&self, descriptor: &Descriptor<'p>) -> Spelling<'p> {
        match self.matcher.is_empty() {
            true => Spelling::default(),
            false => Spelling::new(descriptor.path, self.policy.ignore_case),
        }
    }

    /// What a request is charged by all rules that apply, in the policy's
    /// order; `path` as [`Self::spell`] gives it.
    #[inline]
    pub(crate) fn resolve<'a>(
        &'a self,
        descriptor: &'a Descriptor<'_>,
        path: &'a Spelling<'_>,
        resolved: &mut Resolved<'a>,
    ) {
        for found in self.matching(descriptor, path) {
            let rule = &self.rules[found.rule as usize];
            match charge(rule, found, descriptor, path) {
                RuleMatch::Charged(charge) if rule.options.shadow => resolved.shadows.push(charge),
                RuleMatch::Charged(charge) => resolved.enforced.push(charge),
                RuleMatch::MissesTenant if !rule.options.shadow => _ = resolved.misses_tenant.get_or_insert(rule),
                RuleMatch::MissesTenant | RuleMatch::Unlimited => {}
            }
        }
    }

    /// Whether a rule that handlers may settle matches such requests, though it
    /// may not limit this one.
    #[cold]
    pub(crate) fn lets_settle(&self, descriptor: &Descriptor<'_>) -> bool {
        let path = self.spell(descriptor);
        self.matching(descriptor, &path).iter().any(|found| self.rules[found.rule as usize].options.settle)
    }

    /// The rules that apply, with one pattern each, in the policy's order.
    #[inline]
    fn matching(&self, descriptor: &Descriptor<'_>, path: &Spelling<'_>) -> SmallVec<[PatternMatch; 4]> {
        let mut found = SmallVec::new();
        found.extend(self.everywhere.iter().copied());
        if !self.matcher.is_empty() {
            self.matcher.find_spelled(path, &mut found);
        }
        if let Some(route) = descriptor.route
            && let Some(patterns) = self.routes.get(route)
        {
            found.extend(patterns.iter().copied());
        }
        let rule = |found: &PatternMatch| &self.rules[found.rule as usize];
        found.retain(|found| rule(found).keys.takes(descriptor.method));
        if found.len() > 1 {
            // Stable: of a rule's patterns the most specific stays first.
            found.sort_by_key(|found| found.rule);
            found.dedup_by_key(|found| found.rule);
        }
        if self.has_fallback && found.iter().any(|found| !rule(found).options.fallback && !rule(found).options.shadow) {
            found.retain(|found| !rule(found).options.fallback);
        }
        found
    }
}

/// What a rule that matches does with a request.
enum RuleMatch<'a> {
    Charged(Charge<'a>),
    Unlimited,
    /// The rule counts per tenant and rejects requests without one.
    MissesTenant,
}

#[inline]
fn charge<'a>(
    rule: &'a CompiledRule,
    found: PatternMatch,
    descriptor: &'a Descriptor<'_>,
    path: &'a Spelling<'_>,
) -> RuleMatch<'a> {
    let pattern = usize::from(found.pattern);
    let tenant = rule.tenant(pattern, descriptor, path.matched(found.resolved));
    if tenant.is_none() && rule.is_per_tenant() {
        match descriptor.missing_tenant {
            MissingTenant::Anonymous => {}
            MissingTenant::Allow => return RuleMatch::Unlimited,
            MissingTenant::Reject => return RuleMatch::MissesTenant,
        }
    }
    let Some(tier_set) = rule.tier_sets.choose(tenant, || descriptor.plan_name()) else { return RuleMatch::Unlimited };
    let selection = rule.keys.select(tier_set, pattern, descriptor.method);
    RuleMatch::Charged(Charge {
        rule,
        tiers: rule.tiers(selection),
        tenant: tenant.filter(|_| rule.is_per_tenant() || rule.options.fair),
        key: rule.keys.key(selection, tenant),
        selection,
        cost: rule.options.cost.saturating_mul(descriptor.cost),
        max_wait: rule.max_wait.unwrap_or(0),
    })
}
