//! From a request to what it is charged: [`CompiledPolicy::resolve`].
//!
//! It finds the rules and computes keys; it decides nothing. Invariant: a request
//! has at most one charge for each rule, and no two charges share a key.

use std::sync::Arc;

use super::{
    charge::{Charge, Charges, Target},
    compiled::CompiledPolicy,
    compiled_rule::CompiledRule,
    identity::{Combined, MissingIdentity, missing_identity},
    matcher::{PatternMatch, PatternMatches},
    pattern,
    spelling::Spelling,
    tiers::OwnTiers,
};
use crate::{
    decision::RateLimitedKind,
    descriptor::{Descriptor, TenantId},
    error::ConfigError,
};

/// What a request is charged: one charge for each rule that applies.
#[derive(Debug, Default)]
pub(crate) struct Resolved<'a> {
    pub(crate) enforced: Charges<'a>,
    pub(crate) shadows: Charges<'a>,
    pub(crate) unidentified: Option<Unidentified<'a>>,
}

/// The first enforced rule that rejects a request whatever was used: it has no
/// tenant, or one whose own tiers are invalid.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unidentified<'a> {
    pub(crate) rule: &'a CompiledRule,
    pub(crate) kind: RateLimitedKind,
    /// Why the tenant's own tiers are invalid.
    pub(crate) error: Option<&'a ConfigError>,
}

/// What charges borrow beside the request: the other spellings of its path, and what
/// few requests have.
#[derive(Debug)]
struct Prepared {
    spelling: Spelling,
    extra: Option<Box<Extra>>,
}

/// What few requests have.
#[derive(Debug)]
struct Extra {
    combined: Combined,
    /// The tiers that the tenant brings for rules that match, by their index.
    own: Vec<(usize, Result<Arc<OwnTiers>, ConfigError>)>,
}

impl Extra {
    #[cold]
    fn new(policy: &CompiledPolicy, descriptor: &Descriptor<'_>, spelling: &Spelling) -> Box<Self> {
        let combined = Combined::new(policy, descriptor, spelling);
        let own = descriptor.tenant_limits().map_or_else(Vec::new, |limits| {
            let of_rule = |rule: &CompiledRule| {
                let quotas = limits.tiers_for(rule.id, rule.keys.counts_tenant)?;
                Some((rule.index, policy.own_tiers(rule, quotas)))
            };
            let matching = policy.matching(descriptor, spelling);
            matching.iter().filter_map(|found| of_rule(&policy.rules[found.rule as usize])).collect()
        });
        Box::new(Self { combined, own })
    }

    /// The tiers that the tenant brings for a rule.
    fn own_tiers(&self, rule: &CompiledRule) -> Option<Result<&Arc<OwnTiers>, &ConfigError>> {
        self.own.iter().find(|(index, _)| *index == rule.index).map(|(_, own)| own.as_ref())
    }
}

impl CompiledPolicy {
    /// What a request is charged, where its tenant alone says so.
    #[inline]
    pub(crate) fn resolve_uniform(&self, descriptor: &Descriptor<'_>) -> Option<Target<'_>> {
        self.uniform.as_ref()?.resolve(descriptor)
    }

    /// Calls `with` with what a request is charged by all rules that apply, in the
    /// policy's order.
    #[inline]
    pub(crate) fn resolve<R>(&self, descriptor: &Descriptor<'_>, with: impl FnOnce(&mut Resolved<'_>) -> R) -> R {
        if descriptor.exempt {
            return with(&mut Resolved::default());
        }
        let spelling = self.spell(descriptor);
        let needs_more = self.combines_keys || descriptor.tenant_limits().is_some();
        let extra = if needs_more { Some(Extra::new(self, descriptor, &spelling)) } else { None };
        let prepared = Prepared { spelling, extra };
        let mut resolved = Resolved::default();
        for found in &self.matching(descriptor, &prepared.spelling) {
            let rule = &self.rules[found.rule as usize];
            let charges = if rule.options.shadow { &mut resolved.shadows } else { &mut resolved.enforced };
            if let Err(MissingIdentity::Rejected(kind)) = charge(rule, *found, descriptor, &prepared, charges)
                && !rule.options.shadow
            {
                let error = || prepared.extra.as_ref()?.own_tiers(rule)?.err();
                resolved.unidentified.get_or_insert_with(|| Unidentified { rule, kind, error: error() });
            }
        }
        with(&mut resolved)
    }

    /// The other spellings of the path. Where no rule matches by path, nothing reads them.
    #[inline]
    fn spell(&self, descriptor: &Descriptor<'_>) -> Spelling {
        match self.matcher.is_empty() {
            true => Spelling::default(),
            false => Spelling::new(&descriptor.path, self.policy.ignore_case),
        }
    }

    /// The rules that match, each with who the request is to it: the tenant and the
    /// other keys by which exceptions are chosen.
    #[cold]
    pub(crate) fn identify(
        &self,
        descriptor: &Descriptor<'_>,
        mut with: impl FnMut(&CompiledRule, &mut dyn Iterator<Item = TenantId<'_>>),
    ) {
        let spelling = self.spell(descriptor);
        for found in self.matching(descriptor, &spelling) {
            let rule = &self.rules[found.rule as usize];
            let path = spelling.matched(&descriptor.path, found.resolved);
            let tenant = rule.tenant(found.pattern.into(), descriptor, path);
            with(rule, &mut rule.identities(tenant, descriptor));
        }
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
        self.matcher.find_everywhere(found);
        if !self.matcher.is_empty() {
            self.matcher.find_spelled(&descriptor.path, spelling, found);
        }
        if let Some(route) = descriptor.route {
            self.matcher.find_route(route, found);
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
        if let Some(id) = descriptor.rule {
            found.extend(self.named(id, descriptor, spelling));
            return found;
        }
        self.find(descriptor, spelling, &mut found);
        let rule = |found: &PatternMatch| &self.rules[found.rule as usize];
        let is_as_sent = |found: &PatternMatch| is_as_sent(rule(found), *found, &descriptor.path, spelling);
        found.retain(|found| rule(found).keys.takes(descriptor.method));
        if found.iter().any(|found| rule(found).options.exempt && is_as_sent(found)) {
            found.clear();
        }
        found.retain(|found| !rule(found).options.exempt);
        let replaces_fallback = |found: &PatternMatch| {
            let options = &rule(found).options;
            !options.fallback && !options.shadow && is_as_sent(found)
        };
        if found.iter().any(replaces_fallback) {
            found.retain(|found| !rule(found).options.fallback);
        }
        if found.len() > 1 {
            // Stable: of a rule's patterns the most specific stays first.
            found.sort_by_key(|found| found.rule);
            found.dedup_by_key(|found| found.rule);
        }
        found
    }
}

/// Whether a match is one of the path as a router sees it, so that it may take a charge
/// away. Any spelling adds one. A path with dots never is: a server behind this one may
/// resolve them.
fn is_as_sent(rule: &CompiledRule, found: PatternMatch, path: &str, spelling: &Spelling) -> bool {
    match rule.options.matches.paths.get(usize::from(found.pattern)) {
        Some(pattern) if !spelling.is_only() => {
            spelling.resolved().is_none() && pattern::matches_as_sent(pattern, path)
        }
        // A route is the router's own answer.
        _ => true,
    }
}

/// The tenant of a path, for which the rule may make an exception. One that a router does
/// not see in the path has none that favors it.
fn excepted<'a>(
    rule: &CompiledRule,
    found: PatternMatch,
    tenant: Option<TenantId<'a>>,
    path: &str,
    spelling: &Spelling,
) -> Option<TenantId<'a>> {
    let is_certain = rule.options.tenant_param.is_none() || is_as_sent(rule, found, path, spelling);
    tenant.filter(|id| is_certain || !rule.tier_sets.favors(*id))
}

/// Adds the charge of a rule that matches. `Err` if it charges nothing: the request is
/// unlimited, or rejected.
#[inline]
fn charge<'a>(
    rule: &'a CompiledRule,
    found: PatternMatch,
    descriptor: &'a Descriptor<'_>,
    prepared: &'a Prepared,
    charges: &mut Charges<'a>,
) -> Result<(), MissingIdentity> {
    let pattern = usize::from(found.pattern);
    let tenant = rule.tenant(pattern, descriptor, prepared.spelling.matched(&descriptor.path, found.resolved));
    let of_path = excepted(rule, found, tenant, &descriptor.path, &prepared.spelling);
    let extra = prepared.extra.as_deref();
    let (counted, tier_set, own) = match rule.keys.names.is_empty() && extra.is_none() {
        true => (tenant, choose(rule, tenant, of_path, descriptor)?, None),
        false => choose_specially(rule, tenant, of_path, descriptor, extra)?,
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
fn choose(
    rule: &CompiledRule,
    tenant: Option<TenantId<'_>>,
    of_path: Option<TenantId<'_>>,
    descriptor: &Descriptor<'_>,
) -> Result<u32, MissingIdentity> {
    if tenant.is_none()
        && rule.is_per_tenant()
        && let Some(missing_identity) = missing_identity(descriptor, descriptor.ambiguous_tenant)
    {
        return Err(missing_identity);
    }
    let ids = || rule.identities(of_path, descriptor);
    rule.tier_sets.choose(ids, || descriptor.plan_name()).ok_or(MissingIdentity::Unlimited)
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
    of_path: Option<TenantId<'a>>,
    descriptor: &'a Descriptor<'_>,
    extra: Option<&'a Extra>,
) -> Result<Chosen<'a>, MissingIdentity> {
    let counted = match rule.keys.names.is_empty() {
        true => tenant,
        false => rule.identify(tenant, descriptor, extra.map(|extra| &extra.combined))?,
    };
    if let Some(own) = extra.and_then(|extra| extra.own_tiers(rule)) {
        if tenant.is_none()
            && rule.keys.counts_tenant
            && let Some(missing_identity) = missing_identity(descriptor, descriptor.ambiguous_tenant)
        {
            return Err(missing_identity);
        }
        let own = own.map_err(|_| MissingIdentity::Rejected(RateLimitedKind::InvalidTiers))?;
        return Ok((counted, 0, Some(own)));
    }
    if rule.keys.names.is_empty() {
        return choose(rule, tenant, of_path, descriptor).map(|tier_set| (tenant, tier_set, None));
    }
    let ids = || rule.identities(of_path, descriptor);
    let tier_set = rule.tier_sets.choose(ids, || descriptor.plan_name()).ok_or(MissingIdentity::Unlimited)?;
    Ok((counted, tier_set, None))
}
