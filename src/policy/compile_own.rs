//! Compiles the tiers that come with a request: [`CompiledPolicy::own_tiers`]. It
//! checks them as those of a policy; `own_tiers` keeps them.

use std::sync::Arc;

use super::{
    compiled::CompiledPolicy, compiled_rule::CompiledRule, own_tiers::OwnTiers, rule::Rule, tier_sets::TierSets,
    validate::check_own_tiers,
};
use crate::{error::ConfigError, quota::Quota};

impl CompiledPolicy {
    /// The tiers of a tenant with these quotas under one of the rules.
    pub(super) fn own_tiers(&self, rule: &CompiledRule, quotas: &[Quota]) -> Result<Arc<OwnTiers>, ConfigError> {
        let cache = &rule.own_tiers;
        if let Some(own) = cache.get(quotas) {
            return Ok(own);
        }
        let source = self.policy.rules.iter().find(|source| source.enabled && source.id == **rule.id);
        let own = Arc::new(compile(rule, source, quotas)?);
        if own.sets.has_in_flight() {
            self.keep_receipts();
        }
        cache.insert(&own);
        Ok(own)
    }
}

/// A rule with these tiers, as far as they are concerned.
fn compile(rule: &CompiledRule, source: Option<&Rule>, quotas: &[Quota]) -> Result<OwnTiers, ConfigError> {
    let mut own = Rule::new(*rule.id);
    own.tiers = quotas.to_vec();
    own.options = rule.options.clone();
    if let Some(source) = source {
        own.adapt.clone_from(&source.adapt);
        own.per.clone_from(&source.per);
        (own.local_share, own.max_wait) = (source.local_share, source.max_wait);
    }
    check_own_tiers(&own).map_err(|error| error.of_rule(*rule.id))?;
    let sets = TierSets::new(rule.id, &own, rule.ladder.as_ref(), false);
    Ok(OwnTiers { quotas: quotas.into(), sets, version: super::compiled_rule::next_version() })
}
