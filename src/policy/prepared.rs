//! What is made of a request before its rules are resolved: [`Prepared`].
//!
//! Charges borrow from it. Most requests need nothing but the spellings of their
//! path.

use std::sync::Arc;

use super::{
    compiled::CompiledPolicy, compiled_rule::CompiledRule, identity::Combined, own_tiers::OwnTiers, spelling::Spelling,
};
use crate::{descriptor::Descriptor, error::ConfigError};

/// The spellings of a request's path, and what few requests have beside it.
#[derive(Debug)]
pub(crate) struct Prepared<'p> {
    pub(super) path: Spelling<'p>,
    pub(super) extra: Option<Box<Extra>>,
}

/// What few requests have.
#[derive(Debug)]
pub(super) struct Extra {
    pub(super) combined: Combined,
    /// The tiers that the tenant brings for rules that match, by their index.
    own: Vec<(usize, Result<Arc<OwnTiers>, ConfigError>)>,
}

impl Extra {
    #[cold]
    fn new(policy: &CompiledPolicy, descriptor: &Descriptor<'_>, path: &Spelling<'_>) -> Box<Self> {
        let combined = Combined::new(policy, descriptor, path);
        let own = descriptor.tenant_limits().map_or_else(Vec::new, |limits| {
            let of_rule = |rule: &CompiledRule| {
                let quotas = limits.tiers_for(rule.id, rule.keys.counts_tenant)?;
                Some((rule.index, policy.own_tiers(rule, quotas)))
            };
            let matching = policy.matching(descriptor, path);
            matching.iter().filter_map(|found| of_rule(&policy.rules[found.rule as usize])).collect()
        });
        Box::new(Self { combined, own })
    }

    /// The tiers that the tenant brings for a rule.
    pub(super) fn own_tiers(&self, rule: &CompiledRule) -> Option<Result<&Arc<OwnTiers>, &ConfigError>> {
        self.own.iter().find(|(index, _)| *index == rule.index).map(|(_, own)| own.as_ref())
    }
}

impl Prepared<'_> {
    /// Why the tiers that the tenant brings for a rule are invalid.
    pub(crate) fn invalid_tiers(&self, rule: &CompiledRule) -> Option<&ConfigError> {
        self.extra.as_ref()?.own_tiers(rule)?.err()
    }
}

impl CompiledPolicy {
    /// Prepares a request to be [resolved](Self::resolve).
    #[inline]
    pub(crate) fn prepare<'p>(&self, descriptor: &Descriptor<'p>) -> Prepared<'p> {
        // Built in place: moving a value that was just written stalls on store forwarding.
        let mut prepared = Prepared { path: self.spell(descriptor), extra: None };
        if self.combines_keys || descriptor.tenant_limits().is_some() {
            prepared.extra = Some(Extra::new(self, descriptor, &prepared.path));
        }
        prepared
    }

    /// The spellings under which the path is looked up; none where no rule
    /// matches by path.
    pub(super) fn spell<'p>(&self, descriptor: &Descriptor<'p>) -> Spelling<'p> {
        match self.matcher.is_empty() {
            true => Spelling::default(),
            false => Spelling::new(descriptor.path, self.policy.ignore_case),
        }
    }
}
