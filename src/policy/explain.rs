//! Why each rule of a policy applies to a request, or does not, in words for operators:
//! [`CompiledPolicy::explain`].
//!
//! It decides nothing and reads no counter. Invariant: a rule is charged here exactly where
//! `resolve` charges it, since both ask the same [`Lookup`].

use super::{
    charge::Charges,
    compiled::CompiledPolicy,
    exceptions::addresses,
    keys::MissingIdentity,
    matcher::{PatternMatch, PatternMatches},
    resolve::{Extra, Lookup},
    rule::Rule,
};
use crate::{
    decision::{RateLimitedKind, TierStatus},
    descriptor::{Descriptor, TenantId},
};

/// What one rule does with a request: it charges it, or there is a reason why it does not.
#[derive(Clone, Debug)]
pub(crate) struct RuleExplanation {
    pub(crate) rule: String,
    pub(crate) is_shadow: bool,
    pub(crate) charge: Result<ChargeExplanation, String>,
}

/// What a rule charges, and where.
#[derive(Clone, Debug)]
pub(crate) struct ChargeExplanation {
    /// The path pattern or the route; `None` for a rule that matches everywhere.
    pub(crate) pattern: Option<String>,
    pub(crate) cost: u64,
    /// What its counter is counted by, such as `tenant` and `acme`.
    pub(crate) counter: Vec<(String, String)>,
    pub(crate) tiers_from: String,
    /// Without what is left of them, which counters know.
    pub(crate) tiers: Vec<TierStatus>,
}

impl CompiledPolicy {
    /// All rules in the policy's order, disabled ones included.
    pub(crate) fn explain(&self, descriptor: &Descriptor<'_>) -> Vec<RuleExplanation> {
        let lookup = Lookup::new(self, descriptor);
        let mut found = PatternMatches::new();
        let matching = if descriptor.exempt { &[] } else { lookup.matching(&mut found) };
        let extra = Extra::new(&lookup, matching);
        let explain = |rule: &Rule| {
            let applying = matching.iter().find(|found| **lookup.rule(**found).id == *rule.id);
            let charge = match applying {
                Some(found) => lookup.explain_charge(*found, &extra),
                None => Err(lookup.why_not(rule, matching)),
            };
            RuleExplanation { rule: rule.id.clone(), is_shadow: rule.shadow, charge }
        };
        self.policy.rules.iter().map(explain).collect()
    }
}

impl Lookup<'_> {
    /// Why a rule is not among those that apply. The checks are those of
    /// [`matching`](Self::matching), in its order.
    fn why_not(&self, rule: &Rule, applying: &[PatternMatch]) -> String {
        if !rule.enabled {
            return "is disabled".into();
        }
        if self.descriptor.exempt {
            return "does not apply: the request is exempt".into();
        }
        if let Some(named) = self.descriptor.rule {
            let is_named = named == rule.id;
            return if is_named {
                "exempts the request".into()
            } else {
                format!("is not the rule `{named}`, which the request names")
            };
        }
        let mut matched = PatternMatches::new();
        self.find(&mut matched);
        let own = || matched.iter().filter(|found| **self.rule(**found).id == *rule.id);
        let Some(found) = own().next() else {
            let patterns: Vec<_> = rule.matches.patterns().collect();
            let what = if rule.matches.paths.is_empty() { "route" } else { "path" };
            return format!("does not match the {what}: it is for {}", patterns.join(", "));
        };
        if !self.rule(*found).keys.takes(self.descriptor.method) {
            let methods: Vec<_> = rule.matches.methods.iter().map(|method| method.as_str()).collect();
            return format!("does not match the method: it is for {}", methods.join(", "));
        }
        if !rule.matches.takes_headers(self.descriptor.headers) {
            let headers = rule.matches.headers.iter().map(|(name, values)| format!("`{name}`: {}", values.join(", ")));
            return format!("does not match the headers: it is for {}", headers.collect::<Vec<_>>().join("; "));
        }
        if !self.takes(*found) {
            let priorities: Vec<_> = rule.matches.priorities.iter().map(|priority| priority.as_str()).collect();
            return format!("does not match the priority: it is for {}", priorities.join(", "));
        }
        if rule.exempt {
            return match own().any(|found| self.is_as_sent(*found)) {
                true => "exempts the request: no rule charges it".into(),
                false => "exempts no other spelling of its paths than the one that the policy has".into(),
            };
        }
        if let Some(exempting) = matched.iter().find(|found| self.exempts(**found)) {
            return format!("does not apply: rule `{}` exempts the request", self.rule(*exempting).id);
        }
        let others = applying
            .iter()
            .map(|found| self.rule(*found))
            .filter(|rule| !rule.options.shadow && !rule.keys.is_skipped(self.descriptor));
        let others: Vec<_> = others.map(|rule| format!("`{}`", rule.id)).collect();
        format!("is a fallback, and other rules apply: {}", others.join(", "))
    }

    fn explain_charge(&self, found: PatternMatch, extra: &Extra) -> Result<ChargeExplanation, String> {
        let rule = self.rule(found);
        let mut charges = Charges::new();
        self.charge(rule, found, extra, &mut charges).map_err(|missing| match missing {
            MissingIdentity::Unlimited if rule.keys.is_skipped(self.descriptor) => {
                let keys: Vec<_> = rule.keys.names.iter().map(|key| format!("`{key}`")).collect();
                format!("does not apply: the request lacks a key of {}", keys.join(", "))
            }
            MissingIdentity::Unlimited => match self.exception(found) {
                Some(by) => format!("does not limit {by}"),
                None => "does not limit requests that lack a tenant or a key".into(),
            },
            MissingIdentity::Rejected(kind) => {
                let reason = match kind {
                    RateLimitedKind::AmbiguousTenant => "its tenant or a key is ambiguous",
                    RateLimitedKind::InvalidTiers => "its tenant's tiers are invalid",
                    RateLimitedKind::Blocked => "an operator has blocked its tenant",
                    _ => "it lacks a tenant or a key",
                };
                format!("rejects the request: {reason}")
            }
        })?;
        let Some(charge) = charges.first() else { return Err("charges nothing".into()) };
        let overrides = self.policy.carried.overrides.as_deref();
        let is_overridden = overrides.is_some_and(|overrides| self.overridden(overrides, found).is_some());
        let source = if is_overridden { "an override by an operator" } else { "the tenant itself" };
        let own = charge.own.map(|_| source.into());
        Ok(ChargeExplanation {
            pattern: rule.options.matches.patterns().nth(found.pattern.into()).map(str::to_owned),
            cost: charge.cost,
            counter: self.counter(found, charge.endpoint(), charge.method()),
            tiers_from: own.or_else(|| self.exception(found)).unwrap_or_else(|| "the rule".into()),
            tiers: charge.tiers.iter().map(|tier| tier.status(0, 0, false)).collect(),
        })
    }

    /// What tells the counter of this request from others of the rule.
    fn counter(&self, found: PatternMatch, endpoint: &str, method: &str) -> Vec<(String, String)> {
        let keys = &self.rule(found).keys;
        let name = |id: Option<TenantId<'_>>| id.map_or_else(|| "anonymous".to_owned(), |id| id.to_string());
        let tenant = keys.counts_tenant.then(|| ("tenant".to_owned(), name(self.tenant(self.rule(found), found))));
        let others = keys.names.iter().map(|key| (key.to_string(), name(self.descriptor.find_key(key).id())));
        let texts = [("endpoint", endpoint), ("method", method)].into_iter().filter(|(_, text)| !text.is_empty());
        let texts = texts.map(|(name, text)| (name.to_owned(), text.to_owned()));
        tenant.into_iter().chain(others).chain(texts).collect()
    }

    /// Whose exception the rule makes for the request.
    fn exception(&self, found: PatternMatch) -> Option<String> {
        let rule = self.rule(found);
        let source = &self.policy.policy.rules[rule.source];
        let tenant = self.excepted(found, self.tenant(rule, found));
        let by = rule.keys.identities(tenant, self.descriptor).find(|id| rule.exceptions.has_exception_of(*id));
        match by {
            Some(TenantId::Name(name)) => Some(format!("tenant `{name}`")),
            Some(TenantId::Address(address)) => {
                let networks = source.tenants.keys().filter_map(|name| Some((addresses(name)?, name)));
                let smallest = networks.filter(|(network, _)| network.contains(&address));
                let smallest = smallest.max_by_key(|(network, _)| network.prefix_len());
                smallest.map(|(_, name)| format!("network `{name}`"))
            }
            None => {
                let has_limits = |plan: &&str| source.plans.get(*plan).is_some_and(|instead| instead.limits.is_some());
                let plan = self.descriptor.plan_name().filter(has_limits);
                plan.map(|plan| format!("plan `{plan}`"))
            }
        }
    }
}
