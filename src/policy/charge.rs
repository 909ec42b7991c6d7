//! What one rule takes of one key for one request: [`Charge`], which borrows from the
//! policy and from the request; and [`OwnedCharge`], which outlives the request.
//!
//! They decide nothing: the backend does. Invariants: two charges of one request never
//! share a key; an owned charge keeps the policy that it was made under, so that a reload
//! changes none that is waiting, in flight or to be settled.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use smallvec::SmallVec;

use super::{
    compiled::{CompiledPolicy, CompiledRule},
    rule::Rule,
    settings::{Consistency, Limits, Override},
    tiers::{OwnTiers, Tier, TierSets},
};
use crate::{
    descriptor::{Priority, Tenant, TenantId},
    fingerprint::Fingerprint,
    unit::Unit,
};

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
    /// The index of the tier set, of those of the rule or of the tenant.
    pub(crate) tier_set: u32,
    /// The index of the endpoint and the method.
    pub(crate) scope: u32,
    pub(crate) cost: u64,
    /// Nanoseconds.
    pub(crate) max_wait: u64,
    pub(crate) priority: Priority,
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
        self.rule.keys.endpoint(self.scope)
    }

    /// The method; empty where the rule does not count per method.
    #[must_use]
    pub fn method(&self) -> &'a str {
        self.rule.keys.method(self.scope)
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
        self.rule.options.sync_interval.unwrap_or(Rule::SYNC_INTERVAL)
    }

    /// The longest wait that the rule allows: zero where it sets none. A caller
    /// of [`acquire`](crate::RateLimiter::acquire) bounds the wait itself, so
    /// there a rule that sets none allows any wait.
    #[must_use]
    pub fn max_wait(&self) -> Duration {
        Duration::from_nanos(self.max_wait)
    }

    /// What its tiers count; `None` without any.
    pub(crate) fn unit(&self) -> Option<Unit> {
        self.tiers.first().map(|tier| tier.unit)
    }

    /// Whether a concurrency limit counts it.
    pub(crate) fn is_in_flight(&self) -> bool {
        self.cost > 0 && self.tiers.iter().any(Tier::is_in_flight)
    }

    /// Whether it is by an adaptive concurrency limit.
    pub(crate) fn is_adaptive(&self) -> bool {
        matches!(self.tiers, [tier] if tier.quota.is_adaptive())
    }

    /// The keys of a tier's own counter and of its overflow counter.
    pub(crate) fn counters(&self, tier: &Tier) -> [Fingerprint; 2] {
        [self.key, self.rule.overflow].map(|key| key.tier(tier.salt))
    }

    /// For a caller that bounds the wait itself: a rule that sets no bound
    /// allows any wait.
    pub(crate) fn allow_any_wait(&mut self) {
        self.max_wait = self.rule.max_wait.unwrap_or(u64::MAX);
    }

    /// With `max_wait` reduced by the nanoseconds already waited.
    pub(crate) fn after_waiting(self, waited: u64) -> Self {
        Self { max_wait: self.max_wait.saturating_sub(waited), ..self }
    }

    /// With the rule's whole `max_wait`, as for a request that arrives now.
    pub(crate) fn restarted(self) -> Self {
        Self { max_wait: self.rule.max_wait.unwrap_or(0), ..self }
    }

    /// With the tiers of another step, where the rule adapts.
    pub(crate) fn at_step(self, step: usize) -> Self {
        self.with_tier_set(self.tier_sets().at_step(self.tier_set, step))
    }

    /// Does the same in place.
    pub(crate) fn set_step(&mut self, step: usize) {
        *self = self.at_step(step);
    }

    /// With the tiers of the fallback limiter: its share of the limits.
    pub(crate) fn for_fallback(self) -> Self {
        let tier_set = self.tier_sets().for_fallback(self.tier_set);
        self.with_tier_set(tier_set).reduced_to(part_of(&self))
    }

    /// By the whole limits, whatever is reserved for higher priorities: what was charged is
    /// given back by them.
    pub(crate) fn unreserved(self) -> Self {
        let tier_set = self.tier_sets().unreserved(self.tier_set);
        self.with_tier_set(tier_set).reduced_to(part_of(&self))
    }

    fn tier_sets(&self) -> &'a TierSets {
        self.rule.tier_sets_of(self.own)
    }

    /// Differs for charges by different tiers, as far as two words can.
    #[cfg(feature = "redis")]
    pub(crate) fn tiers_version(&self) -> u128 {
        let version = self.own.map_or(self.rule.version, |own| own.version);
        let first = self.tiers.first().map_or(0, |tier| tier.salt);
        let part = u64::from(self.tier_set) << 8 ^ self.tiers.len() as u64 ^ first;
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
        Self { tiers: self.tier_sets().get(tier_set), tier_set, ..self }
    }

    /// With a part of its tiers, where they have that part.
    fn reduced_to(self, part: Option<(usize, usize)>) -> Self {
        let tiers = part.and_then(|(start, len)| self.tiers.get(start..start + len)).unwrap_or(self.tiers);
        Self { tiers, ..self }
    }
}

/// A [`Charge`] that outlives its request.
#[derive(Clone, Debug)]
pub(crate) struct OwnedCharge {
    policy: Arc<CompiledPolicy>,
    charged: ChargedRule,
    tenant: Option<Tenant>,
    /// The position of the charge's tiers in their tier set, and their number, where
    /// they are a part of it.
    part: Option<(usize, usize)>,
    max_wait: u64,
}

/// The part of a charge that belongs to one request: requests that are charged
/// the same differ in nothing else.
#[derive(Debug)]
pub(crate) struct ReservationOwner {
    /// Only of a rule that does not count by tenant.
    tenant: Option<Box<Tenant>>,
    max_wait: u64,
}

impl OwnedCharge {
    /// `policy` is the one that the charge was made under.
    pub(crate) fn new(charge: &Charge<'_>, policy: &Arc<CompiledPolicy>) -> Self {
        Self {
            policy: Arc::clone(policy),
            charged: ChargedRule::new(charge),
            tenant: charge.tenant.map(Tenant::from),
            part: part_of(charge),
            max_wait: charge.max_wait,
        }
    }

    /// `policy` is the one that the charges were made under.
    pub(crate) fn all(charges: &[Charge<'_>], policy: &Arc<CompiledPolicy>) -> Vec<Self> {
        charges.iter().map(|charge| Self::new(charge, policy)).collect()
    }

    pub(crate) fn policy(&self) -> &Arc<CompiledPolicy> {
        &self.policy
    }

    #[inline]
    pub(crate) fn charge(&self) -> Charge<'_> {
        let charge = self.charged.charge(&self.policy).reduced_to(self.part);
        Charge { tenant: self.tenant.as_ref().map(Tenant::id), max_wait: self.max_wait, ..charge }
    }

    pub(crate) fn rule(&self) -> &CompiledRule {
        &self.policy.rules[self.charged.rule]
    }

    pub(crate) fn owner(&self) -> ReservationOwner {
        let tenant = self.tenant.as_ref().filter(|_| !self.rule().is_per_tenant());
        ReservationOwner { tenant: tenant.cloned().map(Box::new), max_wait: self.max_wait }
    }

    /// Makes it the charge of another request that is charged the same.
    pub(crate) fn assign_to(&mut self, owner: ReservationOwner) {
        self.max_wait = owner.max_wait;
        if !self.rule().is_per_tenant() {
            self.tenant = owner.tenant.map(|tenant| *tenant);
        }
    }

    /// Counts it by another tier set from now on.
    pub(crate) fn set_tier_set(&mut self, tier_set: u32) {
        self.charged.tier_set = tier_set;
    }

    /// The request has waited so many nanoseconds.
    pub(crate) fn spend_wait(&mut self, time: u64) {
        self.max_wait = self.max_wait.saturating_sub(time);
    }

    /// The same charge by the tiers of another policy's rule with the same id.
    /// `None` where that rule counts by other keys, or is in shadow mode where
    /// this one is not, or the other way round.
    pub(crate) fn under(&self, policy: &Arc<CompiledPolicy>) -> Option<Self> {
        let own = self.rule();
        let other = &policy.rules[policy.find_rule(own.id)? as usize];
        let (before, after) = (&self.policy.policy.rules[own.source], &policy.policy.rules[other.source]);
        if !have_same_indices(before, after) {
            return None;
        }
        let own = self.charged.own.as_ref().map(|own| policy.own_tiers(other, &own.quotas)).transpose().ok()?;
        let first = self.rule().tier_sets_of(self.charged.own.as_ref()).first(self.charged.tier_set);
        let tier_set = other.tier_sets_of(own.as_ref()).for_priority(first, self.charged.priority);
        let charged = ChargedRule { rule: other.index, own, tier_set, ..self.charged.clone() };
        Some(Self { policy: Arc::clone(policy), charged, ..self.clone() })
    }
}

/// What was charged for one rule, of which nothing is left to do. Small, since every permit
/// has one. With the policy that it was charged under, it gives the same key, tiers and
/// cost again, but not the tenant.
#[derive(Clone, Debug)]
pub(crate) struct ChargedRule {
    key: Fingerprint,
    cost: u64,
    /// The tiers that the tenant brought.
    own: Option<Arc<OwnTiers>>,
    tier_set: u32,
    scope: u32,
    rule: usize,
    priority: Priority,
}

impl ChargedRule {
    pub(crate) fn new(charge: &Charge<'_>) -> Self {
        let Charge { rule, own, key, tier_set, scope, cost, priority, .. } = *charge;
        Self { key, cost, own: own.cloned(), tier_set, scope, rule: rule.index, priority }
    }

    /// The charge, under the policy that it was made under.
    pub(crate) fn charge<'p>(&'p self, policy: &'p CompiledPolicy) -> Charge<'p> {
        let rule = &policy.rules[self.rule];
        let own = self.own.as_ref();
        let tiers = rule.tier_sets_of(own).get(self.tier_set);
        let Self { key, cost, tier_set, scope, priority, .. } = *self;
        Charge { rule, tiers, own, tenant: None, key, tier_set, scope, cost, max_wait: 0, priority }
    }
}

/// Which tiers of its tier set the charge has, if not all.
fn part_of(charge: &Charge<'_>) -> Option<(usize, usize)> {
    let (all, own) = (charge.tier_sets().get(charge.tier_set), charge.tiers);
    if all.len() == own.len() {
        return None;
    }
    let first = own.first()?;
    Some((all.iter().position(|tier| tier.salt == first.salt)?, own.len()))
}

/// Whether the indices of a tier set and of a scope mean the same in both rules.
fn have_same_indices(one: &Rule, other: &Rule) -> bool {
    fn overrides(of: &BTreeMap<String, Override>) -> impl Iterator<Item = (&str, bool)> {
        of.iter().map(|(name, instead)| (&**name, matches!(instead.limits, Some(Limits::Tiers(_)))))
    }
    one.shadow == other.shadow
        && one.unit == other.unit
        && one.adaptive_rate == other.adaptive_rate
        && (one.adaptive_rate.is_none() || one.local_share == other.local_share)
        && one.per == other.per
        && one.matches == other.matches
        && overrides(&one.plans).eq(overrides(&other.plans))
        && overrides(&one.tenants).eq(overrides(&other.tenants))
}
