//! From a request to what it is charged: [`CompiledPolicy::resolve`].
//!
//! It finds the rules and computes keys; it decides nothing. Invariant: a request
//! has at most one charge for each rule, and no two charges share a key.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{
    carried::Overrides,
    charge::{Charge, Charges},
    compiled::{CompiledPolicy, CompiledRule},
    exceptions::is_within,
    keys::MissingIdentity,
    matcher::{PatternMatch, PatternMatches},
    pattern::{self, Spelling},
    tiers::{OwnTiers, Tier},
};
use crate::{
    decision::RateLimitedKind,
    descriptor::{Descriptor, Key, MissingTenant, Priority, TenantId, TenantRef},
    error::ConfigError,
    fingerprint::Fingerprint,
    quota::Quota,
    time::Timestamp,
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
    pub(crate) priority: Priority,
    /// Why the tenant has no tiers, where that is why.
    pub(crate) reason: Option<&'a UnusableTiers>,
}

/// Why a rule rejects a tenant whatever was used.
#[derive(Debug)]
pub(crate) enum UnusableTiers {
    /// The tiers that the tenant brings are invalid.
    Invalid(ConfigError),
    /// An operator has blocked the tenant until then.
    Blocked(Timestamp),
}

impl UnusableTiers {
    fn kind(&self) -> RateLimitedKind {
        match self {
            Self::Invalid(_) => RateLimitedKind::InvalidTiers,
            Self::Blocked(_) => RateLimitedKind::Blocked,
        }
    }
}

impl CompiledPolicy {
    /// The only rule, and the key that a request is counted by, where its tenant alone says
    /// what it is charged, as [`resolve`](Self::resolve) finds it. `None` as well where the
    /// request names a rule, where its tenant brings tiers, or where it has none and the rule
    /// does not charge the anonymous one.
    #[inline]
    pub(crate) fn uniform(&self, descriptor: &Descriptor<'_>) -> Option<(&CompiledRule, Fingerprint)> {
        let (scope, rule) = (self.uniform?, self.rules.first()?);
        let is_identified = match &descriptor.tenant {
            Some(tenant) => tenant.limits().is_none(),
            None => descriptor.on_missing.unwrap_or_default() == MissingTenant::Anonymous,
        };
        if descriptor.rule.is_some() || descriptor.exempt || descriptor.ambiguous_tenant || !is_identified {
            return None;
        }
        let tenant = || descriptor.tenant.as_ref().map(TenantRef::id);
        Some((rule, if rule.is_per_tenant() { scope.key(tenant()) } else { scope.shared() }))
    }

    /// Calls `with` with what a request is charged by all rules that apply, in the
    /// policy's order.
    pub(crate) fn resolve<R>(&self, descriptor: &Descriptor<'_>, with: impl FnOnce(&mut Resolved<'_>) -> R) -> R {
        if descriptor.exempt {
            return with(&mut Resolved::default());
        }
        let lookup = Lookup::new(self, descriptor);
        let mut found = PatternMatches::new();
        let matching = lookup.matching(&mut found);
        let extra = Extra::new(&lookup, matching);
        let mut resolved = Resolved::default();
        for found in matching {
            let rule = lookup.rule(*found);
            let charges = if rule.options.shadow { &mut resolved.shadows } else { &mut resolved.enforced };
            match lookup.charge(rule, *found, &extra, charges) {
                Ok(()) => {}
                Err(MissingIdentity::Rejected(kind)) if !rule.options.shadow => {
                    resolved.unidentified.get_or_insert_with(|| Unidentified {
                        rule,
                        kind,
                        priority: lookup.priority(rule, *found),
                        reason: extra.own_tiers(rule).and_then(Result::err),
                    });
                }
                Err(_) => {}
            }
        }
        with(&mut resolved)
    }

    /// Lowers what a request is charged at most, where it does not know its cost, to what
    /// most requests cost. All rules of a unit charge what the first one finds, so that they
    /// settle the same difference.
    pub(crate) fn estimate<'c, 'p: 'c>(
        &self,
        descriptor: &Descriptor<'_>,
        charges: impl Iterator<Item = &'c mut Charge<'p>>,
    ) {
        let mut found = SmallVec::<[(&str, u64); 2]>::new();
        for charge in charges {
            let options = &charge.rule.options;
            let Some(most) = descriptor.most_in(options.unit_name()) else { continue };
            let known = found.iter().find(|(unit, _)| *unit == options.unit_name()).map(|(_, usual)| *usual);
            let usual = known.unwrap_or_else(|| {
                let usual = self.carried.estimates.usual(charge.rule.id, charge.key);
                found.push((options.unit_name(), usual));
                usual
            });
            charge.cost = options.cost.saturating_mul(usual.min(most));
        }
    }

    /// Whether an exempt rule matches the request, unless a layer names another rule.
    pub(crate) fn exempts(&self, descriptor: &Descriptor<'_>) -> bool {
        if !self.has_exempt || descriptor.rule.is_some() {
            return false;
        }
        let (lookup, mut found) = (Lookup::new(self, descriptor), PatternMatches::new());
        lookup.find(&mut found);
        found.iter().any(|found| lookup.exempts(*found))
    }

    /// The rules that match, each with who the request is to it: the tenant and the
    /// other keys by which exceptions are chosen.
    pub(crate) fn identify(
        &self,
        descriptor: &Descriptor<'_>,
        mut with: impl FnMut(&CompiledRule, &mut dyn Iterator<Item = TenantId<'_>>),
    ) {
        let lookup = Lookup::new(self, descriptor);
        for found in lookup.matching(&mut PatternMatches::new()) {
            let rule = lookup.rule(*found);
            with(rule, &mut rule.keys.identities(lookup.tenant(rule, *found), descriptor));
        }
    }

    /// The keys by which enforced rules that match count: each with its rule, and whether
    /// the request has it.
    pub(crate) fn keys_asked(&self, descriptor: &Descriptor<'_>, mut with: impl FnMut(&CompiledRule, &str, bool)) {
        self.identify(descriptor, |rule, _| {
            for key in rule.keys.names.iter().filter(|_| !rule.options.shadow) {
                with(rule, key, descriptor.find_key(key) != Key::Missing);
            }
        });
    }

    /// Whether a rule that handlers may settle matches such requests, though it
    /// may not limit this one.
    pub(crate) fn lets_settle(&self, descriptor: &Descriptor<'_>) -> bool {
        let lookup = Lookup::new(self, descriptor);
        lookup.matching(&mut PatternMatches::new()).iter().any(|found| lookup.rule(*found).options.settle)
    }
}

impl CompiledRule {
    /// The tiers of every request of a [uniform](CompiledPolicy::uniform) policy.
    pub(crate) fn uniform_tiers(&self) -> &[Tier] {
        self.tier_sets.get(0)
    }

    /// What a request is charged by the rule of a [uniform](CompiledPolicy::uniform) policy.
    pub(crate) fn uniform_charge<'c>(&'c self, key: Fingerprint, descriptor: &'c Descriptor<'_>) -> Charge<'c> {
        let tenant = descriptor.tenant.as_ref().filter(|_| self.is_per_tenant() || self.options.fair);
        Charge {
            rule: self,
            tiers: self.uniform_tiers(),
            own: None,
            tenant: tenant.map(TenantRef::id),
            key,
            tier_set: 0,
            scope: 0,
            cost: self.cost_of(descriptor),
            max_wait: self.max_wait.unwrap_or(0),
            priority: descriptor.stated_priority().unwrap_or_default(),
        }
    }
}

/// A request beside the policy that it is charged by.
#[derive(Debug)]
pub(super) struct Lookup<'a> {
    pub(super) policy: &'a CompiledPolicy,
    pub(super) descriptor: &'a Descriptor<'a>,
    spelling: Spelling<'a>,
}

impl<'a> Lookup<'a> {
    pub(super) fn new(policy: &'a CompiledPolicy, descriptor: &'a Descriptor<'a>) -> Self {
        // Where no rule matches by path, nothing reads the other spellings.
        let spelling = match policy.matcher.is_empty() {
            true => Spelling::only(descriptor.path()),
            false => Spelling::new(descriptor.path(), policy.policy.ignore_case),
        };
        Self { policy, descriptor, spelling }
    }

    pub(super) fn rule(&self, found: PatternMatch) -> &'a CompiledRule {
        &self.policy.rules[found.rule as usize]
    }

    /// The rules that apply, with one pattern each, in the policy's order. `found` holds
    /// them where they differ from request to request.
    pub(super) fn matching<'f>(&'f self, found: &'f mut PatternMatches) -> &'f [PatternMatch] {
        if let Some(id) = self.descriptor.rule {
            found.extend(self.named(id));
            return found;
        }
        if self.policy.is_plain && self.policy.matcher.is_everywhere() {
            return self.policy.matcher.everywhere();
        }
        self.find(found);
        if !self.policy.is_plain {
            self.exclude(found);
        }
        if found.len() > 1 {
            // Stable: of a rule's patterns the most specific stays first.
            found.sort_by_key(|found| found.rule);
            found.dedup_by_key(|found| found.rule);
        }
        found
    }

    /// Keeps the rules that take the request's method, headers and priority. An exempt rule takes all
    /// others away, and a rule that is no fallback takes the fallbacks away.
    fn exclude(&self, found: &mut PatternMatches) {
        found.retain(|found| self.takes(*found));
        if found.iter().any(|found| self.exempts(*found)) {
            found.clear();
        }
        found.retain(|found| !self.rule(*found).options.exempt);
        let replaces_fallback = |found: &PatternMatch| {
            let options = &self.rule(*found).options;
            let is_skipped = || self.rule(*found).keys.is_skipped(self.descriptor);
            !options.fallback && !options.shadow && self.is_as_sent(*found) && !is_skipped()
        };
        if found.iter().any(replaces_fallback) {
            found.retain(|found| !self.rule(*found).options.fallback);
        }
    }

    pub(super) fn exempts(&self, found: PatternMatch) -> bool {
        self.rule(found).options.exempt && self.takes(found) && self.is_as_sent(found)
    }

    /// Whether the rule is for requests of this method, priority and these headers.
    pub(super) fn takes(&self, found: PatternMatch) -> bool {
        let rule = self.rule(found);
        let priorities = &rule.options.matches.priorities;
        rule.keys.takes(self.descriptor.method)
            && rule.options.matches.takes_headers(self.descriptor.headers)
            && (priorities.is_empty() || priorities.contains(&self.priority(rule, found)))
    }

    /// How much the request matters under the rule.
    fn priority(&self, rule: &CompiledRule, found: PatternMatch) -> Priority {
        let ids = || rule.keys.identities(self.excepted(found, self.tenant(rule, found)), self.descriptor);
        let of_rule = || rule.exceptions.choose(ids, || self.descriptor.plan_name()).priority;
        self.descriptor.stated_priority().or_else(of_rule).unwrap_or_default()
    }

    /// The rule that the request names, whatever it matches, with the pattern that
    /// the path matches. `None` if there is no such rule, or if it exempts.
    fn named(&self, id: &str) -> Option<PatternMatch> {
        let rule = self.policy.find_rule(id)?;
        let mut all = PatternMatches::new();
        self.find(&mut all);
        let matched = all.into_iter().find(|found| found.rule == rule);
        let found = matched.unwrap_or(PatternMatch { rule, pattern: PatternMatch::NONE, resolved: false });
        (!self.rule(found).options.exempt).then_some(found)
    }

    /// Adds all rules whose path or route matches; each with all such patterns.
    pub(super) fn find(&self, found: &mut PatternMatches) {
        let matcher = &self.policy.matcher;
        matcher.everywhere().iter().for_each(|everywhere| found.push(*everywhere));
        if !matcher.is_empty() {
            matcher.find_spelled(&self.spelling, found);
        }
        if let Some(route) = self.descriptor.matched_route() {
            matcher.find_route(route, found);
        }
    }

    /// Whether a match is one of the path as a router sees it, so that it may take a charge
    /// away. Any spelling adds one. A path with dots never is: a server behind this one may
    /// resolve them.
    pub(super) fn is_as_sent(&self, found: PatternMatch) -> bool {
        match self.rule(found).options.matches.paths.get(usize::from(found.pattern)) {
            Some(pattern) if self.policy.policy.ignore_case || !self.spelling.is_only() => {
                self.spelling.resolved().is_none() && pattern::matches_as_sent(pattern, self.descriptor.path())
            }
            // A route is the router's own answer.
            _ => true,
        }
    }

    /// The tenant of the request under a rule.
    #[inline]
    pub(super) fn tenant(&self, rule: &CompiledRule, found: PatternMatch) -> Option<TenantId<'_>> {
        match rule.tenant_parameters.get(usize::from(found.pattern)) {
            None => self.descriptor.tenant.as_ref().map(TenantRef::id),
            Some(parameter) => parameter.value(self.spelling.matched(found.resolved)).map(TenantId::Name),
        }
    }

    /// The tenant for which the rule may make an exception. One that a router does not see
    /// in the path has none that favors it.
    pub(super) fn excepted<'i>(&self, found: PatternMatch, tenant: Option<TenantId<'i>>) -> Option<TenantId<'i>> {
        tenant.filter(|id| self.is_certain(found) || !self.rule(found).exceptions.favors(*id))
    }

    /// Whether a router sees the same tenant.
    fn is_certain(&self, found: PatternMatch) -> bool {
        self.rule(found).options.tenant_param.is_none() || self.is_as_sent(found)
    }

    /// The tiers that an operator has set for the request's tenant under a rule, or that the
    /// tenant is blocked. Tiers that favor it need a tenant that a router sees, too.
    pub(super) fn overridden<'o>(
        &self,
        overrides: &'o Overrides,
        found: PatternMatch,
    ) -> Option<Result<&'o [Quota], UnusableTiers>> {
        let rule = self.rule(found);
        let own = overrides.get(self.tenant(rule, found)?)?;
        if let Some(until) = own.blocked_until {
            return Some(Err(UnusableTiers::Blocked(until)));
        }
        let quotas = own.limits()?.tiers_for(rule.id, rule.keys.counts_tenant)?;
        (self.is_certain(found) || is_within(quotas, &rule.options.tiers)).then_some(Ok(quotas))
    }

    /// Adds the charge of a rule that matches. `Err` if it charges nothing: the request is
    /// unlimited, or rejected. The tiers that a tenant brings come before an exception for
    /// the tenant, and that before one for any of the keys.
    #[inline]
    pub(super) fn charge<'c>(
        &'c self,
        rule: &'c CompiledRule,
        found: PatternMatch,
        extra: &'c Extra,
        charges: &mut Charges<'c>,
    ) -> Result<(), MissingIdentity> {
        let (descriptor, tenant) = (self.descriptor, self.tenant(rule, found));
        let counted = rule.keys.identify(tenant, descriptor, || extra.name(rule))?;
        let own = match extra.own_tiers(rule) {
            Some(Err(reason)) => return Err(MissingIdentity::Rejected(reason.kind())),
            own => own.and_then(Result::ok),
        };
        let ids = || rule.keys.identities(self.excepted(found, tenant), descriptor);
        let chosen = rule.exceptions.choose(ids, || descriptor.plan_name());
        let tier_set = match own {
            Some(_) => 0,
            None => chosen.tier_set.ok_or(MissingIdentity::Unlimited)?,
        };
        let priority = descriptor.stated_priority().or(chosen.priority).unwrap_or_default();
        let sets = rule.tier_sets_of(own);
        let tier_set = sets.for_priority(tier_set, priority);
        let scope = rule.keys.scope(found.pattern.into(), descriptor.method);
        charges.push(Charge {
            rule,
            tiers: sets.get(tier_set),
            own,
            tenant: if rule.is_per_tenant() || rule.options.fair { counted } else { None },
            key: rule.keys.key(scope, counted),
            tier_set,
            scope,
            cost: rule.cost_of(descriptor),
            max_wait: rule.max_wait.unwrap_or(0),
            priority,
        });
        Ok(())
    }
}

/// What charges of few requests borrow, with the index of its rule: names of several keys
/// together, and the tiers that tenants bring.
#[derive(Debug, Default)]
pub(super) struct Extra {
    names: Vec<(usize, String)>,
    own: Vec<(usize, Result<Arc<OwnTiers>, UnusableTiers>)>,
}

impl Extra {
    pub(super) fn new(lookup: &Lookup<'_>, matching: &[PatternMatch]) -> Self {
        let (mut extra, limits) = (Self::default(), lookup.descriptor.tenant.as_ref().and_then(TenantRef::limits));
        let overrides = lookup.policy.carried.overrides.as_deref();
        if limits.is_none() && overrides.is_none() && !lookup.policy.combines_keys {
            return extra;
        }
        for found in matching {
            let rule = lookup.rule(*found);
            if rule.keys.has_several() {
                let name = rule.keys.combine(lookup.tenant(rule, *found), lookup.descriptor);
                extra.names.extend(name.map(|name| (rule.index, name)));
            }
            let overridden = overrides.and_then(|overrides| lookup.overridden(overrides, *found));
            let brought = || limits?.tiers_for(rule.id, rule.keys.counts_tenant).map(Ok);
            let compile = |quotas| lookup.policy.own_tiers(rule, quotas).map_err(UnusableTiers::Invalid);
            let own = overridden.or_else(brought).map(|quotas| quotas.and_then(compile));
            extra.own.extend(own.map(|own| (rule.index, own)));
        }
        extra
    }

    fn name(&self, rule: &CompiledRule) -> Option<TenantId<'_>> {
        self.names.iter().find(|(index, _)| *index == rule.index).map(|(_, name)| TenantId::Name(name))
    }

    /// The tiers that the tenant brings for a rule.
    fn own_tiers(&self, rule: &CompiledRule) -> Option<Result<&Arc<OwnTiers>, &UnusableTiers>> {
        self.own.iter().find(|(index, _)| *index == rule.index).map(|(_, own)| own.as_ref())
    }
}
