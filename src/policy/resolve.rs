//! From a request to what it is charged: [`CompiledPolicy::resolve`].
//!
//! It finds the rules and computes keys; it decides nothing. Invariant: a request
//! has at most one charge for each rule, and no two charges share a key.

use std::sync::Arc;

use super::{
    charge::{Charge, Charges, Target},
    compiled::{CompiledPolicy, CompiledRule},
    identity::{MissingIdentity, combine},
    matcher::{PatternMatch, PatternMatches},
    pattern,
    spelling::Spelling,
    tiers::OwnTiers,
};
use crate::{
    decision::RateLimitedKind,
    descriptor::{Descriptor, MissingTenant, TenantId},
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

impl CompiledPolicy {
    /// What a request is charged, where its tenant alone says so, as [`resolve`](Self::resolve)
    /// finds it. `None` as well where the request names a rule, where its tenant brings tiers,
    /// or where it has none and the rule does not charge the anonymous one.
    #[inline]
    pub(crate) fn resolve_uniform(&self, descriptor: &Descriptor<'_>) -> Option<Target<'_>> {
        let (scope, rule) = (self.uniform?, self.rules.first()?);
        let is_anonymous = descriptor.missing_tenant == MissingTenant::Anonymous && !descriptor.ambiguous_tenant;
        let key = match &descriptor.tenant {
            _ if descriptor.rule.is_some() => return None,
            Some(tenant) if tenant.limits().is_none() => scope.key(Some(tenant.id())),
            None if is_anonymous => scope.shared(),
            _ => return None,
        };
        Some(Target { key, tiers: rule.tier_sets.get(0), cost: rule.options.cost.saturating_mul(descriptor.cost) })
    }

    /// Calls `with` with what a request is charged by all rules that apply, in the
    /// policy's order.
    pub(crate) fn resolve<R>(&self, descriptor: &Descriptor<'_>, with: impl FnOnce(&mut Resolved<'_>) -> R) -> R {
        if descriptor.exempt {
            return with(&mut Resolved::default());
        }
        let lookup = Lookup::new(self, descriptor);
        let matching = lookup.matching();
        let extra = Extra::new(&lookup, &matching);
        let mut resolved = Resolved::default();
        for found in matching {
            let rule = lookup.rule(found);
            let charges = if rule.options.shadow { &mut resolved.shadows } else { &mut resolved.enforced };
            match lookup.charge(found, &extra) {
                Ok(charge) => charges.push(charge),
                Err(MissingIdentity::Rejected(kind)) if !rule.options.shadow => {
                    let error = || extra.own_tiers(rule)?.err();
                    resolved.unidentified.get_or_insert_with(|| Unidentified { rule, kind, error: error() });
                }
                Err(_) => {}
            }
        }
        with(&mut resolved)
    }

    /// The rules that match, each with who the request is to it: the tenant and the
    /// other keys by which exceptions are chosen.
    pub(crate) fn identify(
        &self,
        descriptor: &Descriptor<'_>,
        mut with: impl FnMut(&CompiledRule, &mut dyn Iterator<Item = TenantId<'_>>),
    ) {
        let lookup = Lookup::new(self, descriptor);
        for found in lookup.matching() {
            let rule = lookup.rule(found);
            with(rule, &mut rule.identities(lookup.tenant(found), descriptor));
        }
    }

    /// An enforced rule that matches and counts by keys of which none is one of these,
    /// and the first of its keys.
    pub(crate) fn key_beside<'a>(
        &'a self,
        known: &[&str],
        descriptor: &Descriptor<'_>,
    ) -> Option<(&'a CompiledRule, &'a str)> {
        let lookup = Lookup::new(self, descriptor);
        lookup.matching().into_iter().find_map(|found| {
            let rule = &self.rules[found.rule as usize];
            let is_known = |name: &Arc<str>| known.contains(&&**name);
            let has_none = !rule.keys.counts_tenant && !rule.keys.names.iter().any(is_known);
            let key = rule.keys.names.first().filter(|_| has_none && !rule.options.shadow)?;
            Some((rule, &**key))
        })
    }

    /// Whether a rule that handlers may settle matches such requests, though it
    /// may not limit this one.
    pub(crate) fn lets_settle(&self, descriptor: &Descriptor<'_>) -> bool {
        let lookup = Lookup::new(self, descriptor);
        lookup.matching().into_iter().any(|found| lookup.rule(found).options.settle)
    }
}

/// A request beside the policy that it is charged by.
#[derive(Debug)]
struct Lookup<'a> {
    policy: &'a CompiledPolicy,
    descriptor: &'a Descriptor<'a>,
    spelling: Spelling<'a>,
}

impl<'a> Lookup<'a> {
    fn new(policy: &'a CompiledPolicy, descriptor: &'a Descriptor<'a>) -> Self {
        // Where no rule matches by path, nothing reads the other spellings.
        let spelling = match policy.matcher.is_empty() {
            true => Spelling::only(&descriptor.path),
            false => Spelling::new(&descriptor.path, policy.policy.ignore_case),
        };
        Self { policy, descriptor, spelling }
    }

    fn rule(&self, found: PatternMatch) -> &'a CompiledRule {
        &self.policy.rules[found.rule as usize]
    }

    /// The rules that apply, with one pattern each, in the policy's order.
    fn matching(&self) -> PatternMatches {
        if let Some(id) = self.descriptor.rule {
            return self.named(id).into_iter().collect();
        }
        let mut found = self.find();
        found.retain(|found| self.rule(*found).keys.takes(self.descriptor.method));
        if found.iter().any(|found| self.rule(*found).options.exempt && self.is_as_sent(*found)) {
            found.clear();
        }
        found.retain(|found| !self.rule(*found).options.exempt);
        let replaces_fallback = |found: &PatternMatch| {
            let options = &self.rule(*found).options;
            !options.fallback && !options.shadow && self.is_as_sent(*found)
        };
        if found.iter().any(replaces_fallback) {
            found.retain(|found| !self.rule(*found).options.fallback);
        }
        // Stable: of a rule's patterns the most specific stays first.
        found.sort_by_key(|found| found.rule);
        found.dedup_by_key(|found| found.rule);
        found
    }

    /// The rule that the request names, whatever it matches, with the pattern that
    /// the path matches. `None` if there is no such rule, or if it exempts.
    fn named(&self, id: &str) -> Option<PatternMatch> {
        let rule = self.policy.find_rule(id)?;
        let matched = self.find().into_iter().find(|found| found.rule == rule);
        let found = matched.unwrap_or(PatternMatch { rule, pattern: PatternMatch::NONE, resolved: false });
        (!self.rule(found).options.exempt).then_some(found)
    }

    /// All rules whose path or route matches; each with all such patterns.
    fn find(&self) -> PatternMatches {
        let (matcher, mut found) = (&self.policy.matcher, PatternMatches::new());
        matcher.find_everywhere(&mut found);
        if !matcher.is_empty() {
            matcher.find_spelled(&self.spelling, &mut found);
        }
        if let Some(route) = self.descriptor.route {
            matcher.find_route(route, &mut found);
        }
        found
    }

    /// Whether a match is one of the path as a router sees it, so that it may take a charge
    /// away. Any spelling adds one. A path with dots never is: a server behind this one may
    /// resolve them.
    fn is_as_sent(&self, found: PatternMatch) -> bool {
        match self.rule(found).options.matches.paths.get(usize::from(found.pattern)) {
            Some(pattern) if !self.spelling.is_only() => {
                self.spelling.resolved().is_none() && pattern::matches_as_sent(pattern, &self.descriptor.path)
            }
            // A route is the router's own answer.
            _ => true,
        }
    }

    /// The tenant of the request under a rule.
    #[inline]
    fn tenant(&self, found: PatternMatch) -> Option<TenantId<'_>> {
        let path = self.spelling.matched(found.resolved);
        self.rule(found).tenant(found.pattern.into(), self.descriptor, path)
    }

    /// The tenant for which the rule may make an exception. One that a router does not see
    /// in the path has none that favors it.
    fn excepted<'i>(&self, found: PatternMatch, tenant: Option<TenantId<'i>>) -> Option<TenantId<'i>> {
        let rule = self.rule(found);
        let is_certain = rule.options.tenant_param.is_none() || self.is_as_sent(found);
        tenant.filter(|id| is_certain || !rule.tier_sets.favors(*id))
    }

    /// The charge of a rule that matches. `Err` if it charges nothing: the request is
    /// unlimited, or rejected. The tiers that a tenant brings come before an exception for
    /// the tenant, and that before one for any of the keys.
    fn charge<'c>(&'c self, found: PatternMatch, extra: &'c Extra) -> Result<Charge<'c>, MissingIdentity> {
        let (rule, descriptor, tenant) = (self.rule(found), self.descriptor, self.tenant(found));
        let counted = rule.identify(tenant, descriptor, || extra.name(rule))?;
        let own = match extra.own_tiers(rule) {
            Some(Err(_)) => return Err(MissingIdentity::Rejected(RateLimitedKind::InvalidTiers)),
            own => own.and_then(Result::ok),
        };
        let ids = || rule.identities(self.excepted(found, tenant), descriptor);
        let tier_set = match own {
            Some(_) => 0,
            None => rule.tier_sets.choose(ids, || descriptor.plan_name()).ok_or(MissingIdentity::Unlimited)?,
        };
        let selection = rule.keys.select(tier_set, found.pattern.into(), descriptor.method);
        Ok(Charge {
            rule,
            tiers: own.map_or_else(|| rule.tiers(selection), |own| own.sets.get(tier_set)),
            own,
            tenant: if rule.is_per_tenant() || rule.options.fair { counted } else { None },
            key: rule.keys.key(selection, counted),
            selection,
            cost: rule.options.cost.saturating_mul(descriptor.cost),
            max_wait: rule.max_wait.unwrap_or(0),
        })
    }
}

/// What charges of few requests borrow, with the index of its rule: names of several keys
/// together, and the tiers that tenants bring.
#[derive(Debug, Default)]
struct Extra {
    names: Vec<(usize, String)>,
    own: Vec<(usize, Result<Arc<OwnTiers>, ConfigError>)>,
}

impl Extra {
    fn new(lookup: &Lookup<'_>, matching: &[PatternMatch]) -> Self {
        let (mut extra, limits) = (Self::default(), lookup.descriptor.tenant_limits());
        for found in matching {
            let rule = lookup.rule(*found);
            if rule.keys.has_several() {
                let name = combine(&rule.keys, lookup.tenant(*found), lookup.descriptor);
                extra.names.extend(name.map(|name| (rule.index, name)));
            }
            if let Some(quotas) = limits.and_then(|limits| limits.tiers_for(rule.id, rule.keys.counts_tenant)) {
                extra.own.push((rule.index, lookup.policy.own_tiers(rule, quotas)));
            }
        }
        extra
    }

    fn name(&self, rule: &CompiledRule) -> Option<TenantId<'_>> {
        self.names.iter().find(|(index, _)| *index == rule.index).map(|(_, name)| TenantId::Name(name))
    }

    /// The tiers that the tenant brings for a rule.
    fn own_tiers(&self, rule: &CompiledRule) -> Option<Result<&Arc<OwnTiers>, &ConfigError>> {
        self.own.iter().find(|(index, _)| *index == rule.index).map(|(_, own)| own.as_ref())
    }
}
