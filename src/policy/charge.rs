//! What one rule takes of one key for one request: [`Charge`].
//!
//! It borrows from the policy and from the request. It decides nothing: the
//! backend does. Two charges of one request never share a key.

use std::{sync::Arc, time::Duration};

use smallvec::SmallVec;

use super::{
    choices::Consistency, compiled_rule::CompiledRule, rule_keys::Selection, tiers::OwnTiers, tiers::Tier,
    tiers::TierSets,
};
use crate::{descriptor::TenantId, fingerprint::Fingerprint};

/// What one rule takes of one key.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    pub(crate) rule: &'a CompiledRule,
    pub(crate) tiers: &'a [Tier],
    /// Those that the tenant brought, if these are of them.
    pub(crate) own: Option<&'a Arc<OwnTiers>>,
    /// The tenant, where the rule counts per tenant or is `fair`.
    pub(crate) tenant: Option<TenantId<'a>>,
    pub(crate) key: Fingerprint,
    pub(crate) selection: Selection,
    pub(crate) cost: u64,
    /// Nanoseconds.
    pub(crate) max_wait: u64,
}

/// The charges of one request.
pub(crate) type Charges<'a> = SmallVec<[Charge<'a>; 2]>;

impl<'a> Charge<'a> {
    /// The rule's id.
    #[must_use]
    pub fn rule(&self) -> &'a str {
        self.rule.id
    }

    /// The tenant that is charged; `None` for the anonymous tenant, or where
    /// the rule does not count per tenant. Where it counts by [another
    /// key](crate::Dimension::Key), that key; where by several together, a name
    /// that combines them: `acme&ip=@192.0.2.7`.
    #[must_use]
    pub fn tenant(&self) -> Option<TenantId<'a>> {
        self.tenant.filter(|_| self.rule.is_per_tenant())
    }

    /// The path pattern; empty where the rule does not count per endpoint.
    #[must_use]
    pub fn endpoint(&self) -> &'a str {
        self.rule.keys.endpoint(self.selection)
    }

    /// The method; empty where the rule does not count per method.
    #[must_use]
    pub fn method(&self) -> &'a str {
        self.rule.keys.method(self.selection)
    }

    /// 128 bits that stand for rule, tenant, endpoint and method. The hash is
    /// keyed at random for each process, so other processes cannot use it.
    #[must_use]
    pub fn fingerprint(&self) -> u128 {
        self.key.to_u128()
    }

    /// The tiers, all of which must pass.
    #[must_use]
    pub fn tiers(&self) -> &'a [Tier] {
        self.tiers
    }

    /// Units to take.
    #[must_use]
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// Whether the rule spreads a window's units evenly over the window, by
    /// delays within [`max_wait`](Self::max_wait): see
    /// [`Rule::smooth`](crate::Rule::smooth).
    #[must_use]
    pub fn is_smooth(&self) -> bool {
        self.rule.options.smooth
    }

    /// How exactly the rule's limit holds for a whole fleet: see
    /// [`Rule::consistency`](crate::Rule::consistency).
    #[must_use]
    pub fn consistency(&self) -> Consistency {
        self.rule.options.consistency
    }

    /// How often this instance and the store exchange units, where the rule is
    /// not exact.
    #[must_use]
    pub fn sync_interval(&self) -> Duration {
        self.rule.options.store_interval()
    }

    /// The longest wait that the rule allows: zero where it sets none. A caller
    /// of [`acquire`](crate::RateLimiter::acquire) bounds the wait itself, so
    /// there a rule that sets none allows any wait.
    #[must_use]
    pub fn max_wait(&self) -> Duration {
        Duration::from_nanos(self.max_wait)
    }

    /// The keys of a tier's own counter and of its overflow counter.
    pub(crate) fn counters(&self, tier: &Tier) -> [Fingerprint; 2] {
        [self.key, self.rule.overflow].map(|key| key.tier(tier.salt))
    }

    /// For a caller that bounds the wait itself: a rule that sets no bound
    /// allows any wait.
    pub(crate) fn bounded_by_caller(self) -> Self {
        Self { max_wait: self.rule.max_wait.unwrap_or(u64::MAX), ..self }
    }

    /// With `max_wait` reduced by the nanoseconds already waited.
    pub(crate) fn after_waiting(self, waited: u64) -> Self {
        Self { max_wait: self.max_wait.saturating_sub(waited), ..self }
    }

    /// With the rule's whole `max_wait`, as for a request that arrives now.
    pub(crate) fn restarted(self) -> Self {
        Self { max_wait: self.rule.max_wait.unwrap_or(0), ..self }
    }

    /// With the tiers of another step of the ladder, where the rule adapts.
    pub(crate) fn at_step(self, step: usize) -> Self {
        self.with_tier_set(self.tier_sets().at_step(self.selection.tier_set, step))
    }

    /// With the tiers of the fallback limiter: its share of the limits.
    pub(crate) fn for_fallback(self) -> Self {
        self.with_tier_set(self.tier_sets().for_fallback(self.selection.tier_set))
    }

    /// All tiers of the selection, of which the charge may have a part.
    pub(super) fn selected(&self) -> &'a [Tier] {
        self.tier_sets().get(self.selection.tier_set)
    }

    fn tier_sets(&self) -> &'a TierSets {
        self.own.map_or(&self.rule.tier_sets, |own| &own.sets)
    }

    /// Differs for charges by different tiers, as far as two words can.
    #[cfg(feature = "redis")]
    pub(crate) fn tiers_version(&self) -> u128 {
        let version = self.own.map_or(self.rule.version, |own| own.version);
        let first = self.tiers.first().map_or(0, |tier| tier.salt);
        let part = u64::from(self.selection.tier_set) << 8 ^ self.tiers.len() as u64 ^ first;
        u128::from(part) ^ u128::from(version) << 64
    }

    /// The same in one word, for what this process keeps of a charge.
    #[cfg(feature = "redis")]
    #[allow(clippy::cast_possible_truncation, reason = "folds two words")]
    pub(crate) fn local_version(&self) -> u64 {
        let version = self.tiers_version();
        ((version >> 64) as u64).rotate_left(32) ^ version as u64
    }

    fn with_tier_set(self, tier_set: u32) -> Self {
        Self { tiers: self.tier_sets().get(tier_set), selection: Selection { tier_set, ..self.selection }, ..self }
    }
}
