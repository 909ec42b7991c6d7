//! A policy made ready for deciding: [`CompiledPolicy`].
//!
//! It indexes rules by path and route, and knows what its rules may ask of a
//! limiter, so that a decision skips what none of them needs. Immutable: a
//! reload makes another one.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use foldhash::fast::RandomState;

use super::{
    choices::FailureMode,
    compiled_rule::CompiledRule,
    matcher::Matcher,
    rule::{Policy, Rule},
    tiers::OwnTiers,
    validate::{check_own_tiers, validate},
};
use crate::{error::ConfigError, fingerprint::Scope, quota::Quota};

/// A policy made ready for deciding.
#[derive(Debug)]
pub(crate) struct CompiledPolicy {
    pub(crate) policy: Arc<Policy>,
    pub(crate) rules: Vec<CompiledRule>,
    pub(super) matcher: Matcher,
    by_id: HashMap<&'static str, u32, RandomState>,
    /// The scope of the only rule, where requests differ in nothing but their tenant.
    pub(super) uniform: Option<Scope>,
    /// Whether any rule counts by several keys together.
    pub(super) combines_keys: bool,
    /// Whether any rule adapts its rate.
    pub(crate) adapts: bool,
    /// Whether any rule delays requests in a layer.
    pub(crate) lets_wait: bool,
    /// Whether a charge may have to be known after its request was admitted.
    keeps_receipts: AtomicBool,
    /// Whether any enforced rule fails to the fallback limiter.
    pub(crate) fails_locally: bool,
    /// Whether handlers may settle any rule.
    pub(crate) settles: bool,
    /// The instances among which limits are divided that no `local_share` divides; `None`
    /// where there are none.
    pub(crate) divided_by: Option<u64>,
}

impl CompiledPolicy {
    pub(crate) fn new(policy: Policy) -> Result<Self, ConfigError> {
        validate(&policy, |index| format!("rules[{index}]"))?;
        let enabled = || policy.rules.iter().filter(|rule| rule.enabled);
        let sources = (0..policy.rules.len()).filter(|source| policy.rules[*source].enabled);
        let rules: Vec<_> =
            sources.enumerate().map(|(index, source)| CompiledRule::new(index, source, &policy)).collect();
        let mut matcher = Matcher::default();
        enabled().zip(0..).for_each(|(rule, index)| matcher.insert_rule(index, &rule.matches, policy.ignore_case));
        let has_in_flight = rules.iter().any(|rule| rule.tier_sets.has_in_flight());
        let adapts = enabled().any(|rule| rule.adapt.is_some());
        let has_more_to_charge = |rule: &CompiledRule| rule.is_settled_late() || rule.counts_messages();
        Ok(Self {
            matcher,
            by_id: rules.iter().zip(0..).map(|(rule, index)| (*rule.id, index)).collect(),
            uniform: if let [rule] = &*rules { rule.uniform_scope() } else { None },
            combines_keys: rules.iter().any(|rule| rule.keys.has_several()),
            adapts,
            lets_wait: enabled().any(|rule| rule.max_wait.is_some_and(|max_wait| !max_wait.is_zero())),
            keeps_receipts: AtomicBool::new(has_in_flight || adapts || rules.iter().any(has_more_to_charge)),
            fails_locally: enabled().any(|rule| rule.on_backend_failure == Some(FailureMode::Local) && !rule.shadow),
            settles: enabled().any(|rule| rule.settle),
            divided_by: enabled().any(Rule::follows_instances).then_some(1),
            rules,
            policy: Arc::new(policy),
        })
    }

    /// The same policy for a fleet of so many instances: rules that fall back to the
    /// local limiter, and whose backend knows the number, enforce a share there. What is
    /// kept of their charges stays valid.
    pub(crate) fn divided_by(&self, instances: u64) -> Result<Self, ConfigError> {
        let mut divided = (*self.policy).clone();
        #[allow(clippy::cast_precision_loss, reason = "a share")]
        let share = 1.0 / instances.max(1) as f64;
        let following = divided.rules.iter_mut().filter(|rule| rule.follows_instances());
        following.for_each(|rule| rule.local_share = Some(share));
        let mut compiled = Self::new(divided)?;
        compiled.rules.iter_mut().zip(&self.rules).for_each(|(rule, own)| rule.version = own.version);
        Ok(Self { policy: Arc::clone(&self.policy), divided_by: Some(instances), ..compiled })
    }

    /// The index of the enabled rule with this id.
    pub(crate) fn find_rule(&self, id: &str) -> Option<u32> {
        self.by_id.get(id).copied()
    }

    /// Whether a charge may have to be known after its request was admitted.
    pub(crate) fn keeps_receipts(&self) -> bool {
        self.keeps_receipts.load(Ordering::Relaxed)
    }

    /// The tiers of a tenant that brings these quotas with its request.
    pub(super) fn own_tiers(&self, rule: &CompiledRule, quotas: &[Quota]) -> Result<Arc<OwnTiers>, ConfigError> {
        if let Some(own) = rule.own_tiers.get(quotas) {
            return Ok(own);
        }
        let source = Rule { tiers: quotas.to_vec(), ..rule.options.clone() };
        check_own_tiers(&source).map_err(|error| error.of_rule(*rule.id))?;
        let own = Arc::new(OwnTiers::new(rule.id, &source, rule.ladder.as_ref(), rule.version));
        if own.sets.has_in_flight() {
            // The request that brings it sees this on its own thread.
            self.keeps_receipts.store(true, Ordering::Relaxed);
        }
        rule.own_tiers.insert(&own);
        Ok(own)
    }
}
