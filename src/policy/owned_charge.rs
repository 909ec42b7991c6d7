//! A charge that outlives its request: [`OwnedCharge`].
//!
//! It keeps the policy that it was made under, so that a reload changes no
//! charge that is waiting, in flight or to be settled.

use std::sync::Arc;

use super::{
    charge::Charge,
    compiled::CompiledPolicy,
    compiled_rule::CompiledRule,
    rule::{Override, Rule},
    rule_keys::Selection,
    tiers::OwnTiers,
};
use crate::{descriptor::Tenant, fingerprint::Fingerprint};

/// A [`Charge`] that outlives its request.
#[derive(Clone, Debug)]
pub(crate) struct OwnedCharge {
    policy: Arc<CompiledPolicy>,
    charged: ChargedRule,
    tenant: Option<Tenant>,
    /// The position of the charge's tiers in those of the selection, and their
    /// number, where they are a part of those.
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

    pub(crate) fn charge(&self) -> Charge<'_> {
        let charge = self.charged.charge(&self.policy);
        let part = self.part.and_then(|(start, len)| charge.tiers.get(start..start + len));
        let tenant = self.tenant.as_ref().map(Tenant::id);
        Charge { tiers: part.unwrap_or(charge.tiers), tenant, max_wait: self.max_wait, ..charge }
    }

    fn rule(&self) -> &CompiledRule {
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

    /// Counts it by the tiers of another selection from now on.
    pub(crate) fn select(&mut self, selection: Selection) {
        self.charged.selection = selection;
    }

    /// The request has waited so many nanoseconds.
    pub(crate) fn spend_wait(&mut self, time: u64) {
        self.max_wait = self.max_wait.saturating_sub(time);
    }

    /// The request has waited so many nanoseconds for another rule, which do
    /// not count towards this rule's bound.
    pub(crate) fn extend_wait(&mut self, time: u64) {
        self.max_wait = self.max_wait.saturating_add(time);
    }

    /// The same charge by the tiers of another policy's rule with the same id.
    /// `None` where that rule counts by other keys, or is in shadow mode where
    /// this one is not, or the other way round.
    pub(crate) fn under(&self, policy: &Arc<CompiledPolicy>) -> Option<Self> {
        let own = self.rule();
        let other = &policy.rules[policy.find_rule(own.id)? as usize];
        let (before, after) = (&self.policy.policy.rules[own.source], &policy.policy.rules[other.source]);
        if !have_same_selections(before, after) {
            return None;
        }
        let own = self.charged.own.as_ref().map(|own| policy.own_tiers(other, &own.quotas)).transpose().ok()?;
        let charged = ChargedRule { rule: other.index, own, ..self.charged.clone() };
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
    selection: Selection,
    rule: usize,
}

impl ChargedRule {
    pub(crate) fn new(charge: &Charge<'_>) -> Self {
        let Charge { rule, own, key, selection, cost, .. } = *charge;
        Self { key, cost, own: own.cloned(), selection, rule: rule.index }
    }

    /// The charge, under the policy that it was made under.
    pub(crate) fn charge<'p>(&'p self, policy: &'p CompiledPolicy) -> Charge<'p> {
        let rule = &policy.rules[self.rule];
        let own = self.own.as_ref();
        let tiers = own.map_or(&rule.tier_sets, |own| &own.sets).get(self.selection.tier_set);
        let Self { key, cost, selection, .. } = *self;
        Charge { rule, tiers, own, tenant: None, key, selection, cost, max_wait: 0 }
    }
}

/// Which tiers of its selection the charge has, if not all.
fn part_of(charge: &Charge<'_>) -> Option<(usize, usize)> {
    let (all, own) = (charge.selected(), charge.tiers);
    if all.len() == own.len() {
        return None;
    }
    let first = own.first()?;
    Some((all.iter().position(|tier| tier.salt == first.salt)?, own.len()))
}

/// Whether a selection in one of the rules means the same in the other.
fn have_same_selections(one: &Rule, other: &Rule) -> bool {
    fn exceptions(rule: &Rule) -> impl Iterator<Item = (&str, bool)> {
        rule.tenants.iter().map(|(tenant, exception)| (&**tenant, matches!(exception, Override::Tiers(_))))
    }
    one.shadow == other.shadow
        && one.adapt == other.adapt
        && (one.adapt.is_none() || one.local_share == other.local_share)
        && one.per == other.per
        && one.matches == other.matches
        && one.plans.keys().eq(other.plans.keys())
        && exceptions(one).eq(exceptions(other))
}
