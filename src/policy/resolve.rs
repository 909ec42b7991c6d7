//! From a request to what it is charged: [`CompiledPolicy::resolve`], and a
//! shortcut for policies under which requests differ only in their tenant.
//!
//! It finds the rules and computes keys; it decides nothing and counts nothing.
//! Both ways give the same keys, tiers and costs.

use std::sync::Arc;

use super::{
    charge::{Charge, Charges, Target},
    compiled::{CompiledPolicy, CompiledRule},
    identity::{Lacking, lacking},
    matcher::{PatternMatch, PatternMatches},
    prepared::{Extra, Prepared},
    rule_keys::Selection,
    spelling::Spelling,
    tiers::OwnTiers,
};
use crate::{
    decision::RateLimitedKind,
    descriptor::{Descriptor, TenantId},
};

/// What a request is charged: one charge for each rule that applies.
#[derive(Debug, Default)]
pub(crate) struct Resolved<'a> {
    pub(crate) enforced: Charges<'a>,
    pub(crate) shadows: Charges<'a>,
    /// The first enforced rule that rejects the request whatever was used: it has
    /// no tenant, or one whose own tiers are invalid.
    pub(crate) unidentified: Option<(&'a CompiledRule, RateLimitedKind)>,
}

impl CompiledPolicy {
    /// Whether requests differ only in their tenant.
    #[inline]
    pub(crate) fn is_uniform(&self) -> bool {
        self.uniform.is_some()
    }

    /// What a request is charged, where its tenant alone says so.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "as `Uniform::resolve`")]
    pub(crate) fn resolve_uniform(&self, descriptor: &Descriptor<'_>) -> Option<Target<'_>> {
        self.uniform.as_ref()?.resolve(descriptor)
    }

    /// The whole charge, of which the target is a part. `tenant` may be left out for a
    /// request that may not wait: no counter depends on it.
    #[inline]
    pub(crate) fn uniform_charge<'a>(&'a self, target: &Target<'a>, tenant: Option<TenantId<'a>>) -> Charge<'a> {
        let Target { key, tiers, cost } = *target;
        let rule = &self.rules[0];
        let max_wait = rule.max_wait.unwrap_or(0);
        Charge { rule, tiers, own: None, tenant, key, selection: Selection::ONLY, cost, max_wait }
    }

    /// What a request is charged by all rules that apply, in the policy's
    /// order; `prepared` as [`Self::prepare`] gives it for this descriptor.
    #[inline]
    pub(crate) fn resolve<'a>(
        &'a self,
        descriptor: &'a Descriptor<'_>,
        prepared: &'a Prepared,
        resolved: &mut Resolved<'a>,
    ) {
        let mut matching = PatternMatches::new();
        self.find_matching(descriptor, &prepared.spelling, &mut matching);
        for found in &matching {
            let rule = &self.rules[found.rule as usize];
            let charges = if rule.options.shadow { &mut resolved.shadows } else { &mut resolved.enforced };
            if let Err(Lacking::Rejected(kind)) = charge(rule, *found, descriptor, prepared, charges)
                && !rule.options.shadow
            {
                resolved.unidentified.get_or_insert((rule, kind));
            }
        }
    }

    /// The rules that match, each with who the request is to it: the tenant and the
    /// other keys by which exceptions are chosen.
    #[cold]
    pub(crate) fn identify<'a>(
        &'a self,
        descriptor: &'a Descriptor<'_>,
        prepared: &'a Prepared,
    ) -> impl Iterator<Item = (&'a CompiledRule, impl Iterator<Item = TenantId<'a>>)> {
        self.matching(descriptor, &prepared.spelling).into_iter().map(move |found| {
            let rule = &self.rules[found.rule as usize];
            let tenant = rule.tenant(
                found.pattern.into(),
                descriptor,
                prepared.spelling.matched(descriptor.path, found.resolved),
            );
            (rule, tenant.into_iter().chain(rule.keys_of(descriptor)).chain(rule.caller(descriptor)))
        })
    }

    /// An enforced rule that matches and counts by keys of which none is one of these,
    /// and the first of its keys.
    #[cold]
    pub(crate) fn key_beside<'a>(
        &'a self,
        known: &[&str],
        descriptor: &Descriptor<'_>,
    ) -> Option<(&'a CompiledRule, &'a str)> {
        let spelling = self.spell(descriptor);
        self.matching(descriptor, &spelling).into_iter().find_map(|found| {
            let rule = &self.rules[found.rule as usize];
            let is_known = |name: &Arc<str>| known.contains(&&**name);
            let has_none = !rule.keys.counts_tenant && !rule.keys.names.iter().any(is_known);
            let key = rule.keys.names.first().filter(|_| has_none && !rule.options.shadow)?;
            Some((rule, &**key))
        })
    }

    /// Whether a rule that handlers may settle matches such requests, though it
    /// may not limit this one.
    #[cold]
    pub(crate) fn lets_settle(&self, descriptor: &Descriptor<'_>) -> bool {
        let spelling = self.spell(descriptor);
        self.matching(descriptor, &spelling).iter().any(|found| self.rules[found.rule as usize].options.settle)
    }

    /// All rules whose path or route matches; each with all such patterns.
    #[inline]
    fn find(&self, descriptor: &Descriptor<'_>, spelling: &Spelling, found: &mut PatternMatches) {
        self.everywhere.iter().for_each(|pattern| found.push(*pattern));
        if !self.matcher.is_empty() {
            self.matcher.find_spelled(descriptor.path, spelling, found);
        }
        if let Some(route) = descriptor.route
            && let Some(patterns) = self.routes.get(route)
        {
            found.extend(patterns.iter().copied());
        }
    }

    /// The rule that the request names, whatever it matches, with the pattern that
    /// the path matches. `None` if there is no such rule, or if it exempts.
    #[cold]
    fn named(&self, id: &str, descriptor: &Descriptor<'_>, spelling: &Spelling) -> Option<PatternMatch> {
        let rule = self.find_rule(id)?;
        let mut found = PatternMatches::new();
        self.find(descriptor, spelling, &mut found);
        let matched = found.into_iter().find(|found| found.rule == rule);
        let found = matched.unwrap_or(PatternMatch { rule, pattern: PatternMatch::NONE, resolved: false });
        (!self.rules[rule as usize].options.exempt).then_some(found)
    }

    /// The rules that apply, with one pattern each, in the policy's order.
    #[inline]
    pub(super) fn matching(&self, descriptor: &Descriptor<'_>, spelling: &Spelling) -> PatternMatches {
        let mut found = PatternMatches::new();
        self.find_matching(descriptor, spelling, &mut found);
        found
    }

    /// The same, in `found`, which must be empty.
    #[inline]
    fn find_matching(&self, descriptor: &Descriptor<'_>, spelling: &Spelling, found: &mut PatternMatches) {
        if let Some(id) = descriptor.rule {
            return found.extend(self.named(id, descriptor, spelling));
        }
        self.find(descriptor, spelling, found);
        let rule = |found: &PatternMatch| &self.rules[found.rule as usize];
        match &found[..] {
            [only] if rule(only).keys.takes(descriptor.method) => {}
            [] | [_] => found.clear(),
            _ => {
                found.retain(|found| rule(found).keys.takes(descriptor.method));
                // Stable: of a rule's patterns the most specific stays first.
                found.sort_by_key(|found| found.rule);
                found.dedup_by_key(|found| found.rule);
            }
        }
        if self.has_exempt && found.iter().any(|found| rule(found).options.exempt) {
            found.clear();
        }
        if self.has_fallback && found.iter().any(|found| !rule(found).options.fallback && !rule(found).options.shadow) {
            found.retain(|found| !rule(found).options.fallback);
        }
    }
}

/// Adds the charge of a rule that matches. `Err` if it charges nothing: the request is
/// unlimited, or rejected. Out of line: inlined, the loop over rules spills what it reads of
/// the request.
#[inline(never)]
fn charge<'a>(
    rule: &'a CompiledRule,
    found: PatternMatch,
    descriptor: &'a Descriptor<'_>,
    prepared: &'a Prepared,
    charges: &mut Charges<'a>,
) -> Result<(), Lacking> {
    let pattern = usize::from(found.pattern);
    let tenant = rule.tenant(pattern, descriptor, prepared.spelling.matched(descriptor.path, found.resolved));
    let extra = prepared.extra.as_deref();
    let (counted, tier_set, own) = match rule.keys.names.is_empty() && extra.is_none() {
        true => (tenant, choose(rule, tenant, descriptor)?, None),
        false => choose_specially(rule, tenant, descriptor, extra)?,
    };
    let selection = rule.keys.select(tier_set, pattern, descriptor.method);
    let key = rule.keys.key(selection, counted);
    charges.push(Charge {
        rule,
        tiers: own.map_or_else(|| rule.tiers(selection), |own| own.sets.get(tier_set)),
        own,
        tenant: if rule.is_per_tenant() || rule.options.fair { counted } else { None },
        key,
        selection,
        cost: rule.options.cost.saturating_mul(descriptor.cost),
        max_wait: rule.max_wait.unwrap_or(0),
    });
    Ok(())
}

/// The tier set of a tenant.
#[inline]
fn choose(rule: &CompiledRule, tenant: Option<TenantId<'_>>, descriptor: &Descriptor<'_>) -> Result<u32, Lacking> {
    if tenant.is_none()
        && rule.is_per_tenant()
        && let Some(lacking) = lacking(descriptor, descriptor.ambiguous_tenant)
    {
        return Err(lacking);
    }
    rule.tier_sets.choose(tenant, || rule.caller(descriptor), || descriptor.plan_name()).ok_or(Lacking::Unlimited)
}

/// Who the request is counted as, and by which tiers.
type Chosen<'a> = (Option<TenantId<'a>>, u32, Option<&'a Arc<OwnTiers>>);

/// By a rule that counts by other keys than the tenant, or for a tenant that
/// brings its own tiers. Those come before an exception for the tenant, and that
/// before one for any of the keys.
#[cold]
fn choose_specially<'a>(
    rule: &'a CompiledRule,
    tenant: Option<TenantId<'a>>,
    descriptor: &'a Descriptor<'_>,
    extra: Option<&'a Extra>,
) -> Result<Chosen<'a>, Lacking> {
    let counted = match rule.keys.names.is_empty() {
        true => tenant,
        false => rule.identify(tenant, descriptor, extra.map(|extra| &extra.combined))?,
    };
    if let Some(own) = extra.and_then(|extra| extra.own_tiers(rule)) {
        if tenant.is_none()
            && rule.keys.counts_tenant
            && let Some(lacking) = lacking(descriptor, descriptor.ambiguous_tenant)
        {
            return Err(lacking);
        }
        let own = own.map_err(|_| Lacking::Rejected(RateLimitedKind::InvalidTiers))?;
        return Ok((counted, 0, Some(own)));
    }
    if rule.keys.names.is_empty() {
        return choose(rule, tenant, descriptor).map(|tier_set| (tenant, tier_set, None));
    }
    let ids = tenant.into_iter().chain(rule.keys_of(descriptor)).chain(rule.caller(descriptor));
    let tier_set = rule.tier_sets.choose_any(ids, || descriptor.plan_name()).ok_or(Lacking::Unlimited)?;
    Ok((counted, tier_set, None))
}
