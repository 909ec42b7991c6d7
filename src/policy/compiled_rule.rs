//! A rule made ready for deciding: [`CompiledRule`].
//!
//! It says whether a request matches and what the rule charges it. It holds no
//! counters. It is immutable, except for what operators see of the rule.

use std::collections::BTreeMap;

use http::StatusCode;

use super::{
    adaptive_rate::RateSteps,
    choices::{FailureMode, Messages},
    pattern::ParameterPosition,
    rule::{Policy, Rule},
    rule_keys::{RuleKeys, Selection},
    statuses::Statuses,
    tiers::{OwnTierCache, Tier, TierSets, intern, next_version},
};
use crate::{
    decision::RuleName,
    descriptor::{Descriptor, TenantId, TenantRef},
    error::BackendErrorKind,
    fingerprint::{Fingerprint, Scope},
    observe::RuleReports,
    time::nanos,
};

/// A rule made ready for deciding.
#[derive(Debug)]
pub(crate) struct CompiledRule {
    pub(crate) id: RuleName,
    /// Its index among the enabled rules.
    pub(crate) index: usize,
    /// Its index among all rules.
    pub(super) source: usize,
    /// Differs for every rule of every policy of this process. A policy that is divided
    /// among another number of instances keeps it.
    pub(crate) version: u64,
    /// The tiers that tenants carry.
    pub(super) own_tiers: OwnTierCache,
    pub(crate) keys: RuleKeys,
    pub(super) tier_sets: TierSets,
    /// Whether the rule is for every path.
    pub(super) matches_all_paths: bool,
    /// For each path pattern, where the tenant stands in it.
    tenant_parameters: Vec<Option<ParameterPosition>>,
    pub(crate) ladder: Option<RateSteps>,
    /// The key of the overflow counter.
    pub(crate) overflow: Fingerprint,
    /// Nanoseconds, where the rule sets a bound.
    pub(crate) max_wait: Option<u64>,
    /// The rule as it is written, without its plans and tenants.
    pub(crate) options: Rule,
    #[cfg_attr(not(any(feature = "metrics", feature = "tracing")), allow(dead_code, reason = "it is empty"))]
    pub(crate) reports: RuleReports,
}

impl CompiledRule {
    /// `source` is the rule's index in its policy.
    pub(super) fn new(index: usize, source: usize, policy: &Policy) -> Self {
        let (rule, ignore_case) = (&policy.rules[source], policy.ignore_case);
        let id = intern(&rule.id);
        let ladder = rule.adapt.as_ref().map(RateSteps::new);
        let tenant_parameters =
            |name: &String| rule.matches.paths.iter().map(|path| ParameterPosition::find(path, name)).collect();
        // A tenant that is a part of a path is spelled as paths are.
        let ignore_tenant_case = ignore_case && rule.tenant_param.is_some();
        Self {
            id,
            index,
            source,
            version: next_version(),
            own_tiers: OwnTierCache::default(),
            keys: RuleKeys::new(id, rule),
            tier_sets: TierSets::new(id, rule, ladder.as_ref(), ignore_tenant_case),
            matches_all_paths: rule.matches.is_everywhere(),
            tenant_parameters: rule.tenant_param.as_ref().map_or_else(Vec::new, tenant_parameters),
            ladder,
            overflow: Scope::new(&[id, "", "", "overflow"]).shared(),
            max_wait: rule.max_wait.map(nanos),
            options: Rule { plans: BTreeMap::new(), tenants: BTreeMap::new(), ..rule.clone() },
            reports: RuleReports::default(),
        }
    }

    /// The tenant of a request that matched this pattern.
    #[inline]
    pub(super) fn tenant<'a>(
        &self,
        pattern: usize,
        descriptor: &'a Descriptor<'_>,
        path: &'a str,
    ) -> Option<TenantId<'a>> {
        match self.tenant_parameters.get(pattern) {
            None => descriptor.tenant.as_ref().map(TenantRef::id),
            Some(parameter) => parameter.and_then(|parameter| parameter.value(path)).map(TenantId::Name),
        }
    }

    /// Whether the cost of a request may be settled after it was admitted.
    pub(crate) fn is_settled_late(&self) -> bool {
        self.options.is_settled_late()
    }

    /// Whether a response of this status is charged.
    pub(crate) fn keeps(&self, status: StatusCode) -> bool {
        let contains = |statuses: &Statuses| statuses.contains(status);
        self.options.charge_on.as_ref().is_none_or(contains) && !self.options.refund_on.as_ref().is_some_and(contains)
    }

    /// Whether such messages are charged one by one.
    pub(crate) fn counts(&self, messages: Messages) -> bool {
        self.options.per_message.is_some_and(|counted| counted.include(messages))
    }

    /// Whether any messages are charged one by one.
    pub(crate) fn counts_messages(&self) -> bool {
        self.options.per_message.is_some()
    }

    /// What happens to a request when the backend fails in this way.
    pub(crate) fn failure_mode(&self, error: BackendErrorKind) -> FailureMode {
        // Callers may invent tenants, and so fill a store.
        let default = match error {
            BackendErrorKind::OutOfMemory if self.is_per_tenant() => FailureMode::Local,
            _ => FailureMode::default(),
        };
        self.options.on_backend_failure.unwrap_or(default)
    }

    /// Whether each tenant, or each caller by another key, has its own counter.
    #[inline]
    pub(crate) fn is_per_tenant(&self) -> bool {
        self.keys.per_tenant
    }

    #[inline]
    pub(crate) fn tiers(&self, selection: Selection) -> &[Tier] {
        self.tier_sets.get(selection.tier_set)
    }
}
