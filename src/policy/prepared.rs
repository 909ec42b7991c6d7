//! What is made of a request before its rules are resolved: [`Prepared`].
//!
//! Charges borrow from it. Most requests need nothing but the spellings of their
//! path.

use std::sync::Arc;

use super::{
    compiled::{CompiledPolicy, CompiledRule},
    identity::Combined,
    spelling::Spelling,
    tiers::OwnTiers,
};
use crate::{descriptor::Descriptor, error::ConfigError};

/// The other spellings of a request's path, and what few requests have beside them.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(super) spelling: Spelling,
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
    pub(super) fn own_tiers(&self, rule: &CompiledRule) -> Option<Result<&Arc<OwnTiers>, &ConfigError>> {
        self.own.iter().find(|(index, _)| *index == rule.index).map(|(_, own)| own.as_ref())
    }
}

impl Prepared {
    /// Why the tiers that the tenant brings for a rule are invalid.
    pub(crate) fn invalid_tiers(&self, rule: &CompiledRule) -> Option<&ConfigError> {
        self.extra.as_ref()?.own_tiers(rule)?.err()
    }
}

impl CompiledPolicy {
    /// Prepares a request to be [resolved](Self::resolve).
    #[inline]
    pub(crate) fn prepare(&self, descriptor: &Descriptor<'_>) -> Prepared {
        let spelling = self.spell(descriptor);
        let needs_more = self.combines_keys || descriptor.tenant_limits().is_some();
        let extra = if needs_more { Some(Extra::new(self, descriptor, &spelling)) } else { None };
        Prepared { spelling, extra }
    }

    /// The other spellings of the path. Where no rule matches by path, nothing reads them.
    #[inline]
    pub(super) fn spell(&self, descriptor: &Descriptor<'_>) -> Spelling {
        match self.matcher.is_empty() {
            true => Spelling::default(),
            false => Spelling::new(descriptor.path, self.policy.ignore_case),
        }
    }
}
