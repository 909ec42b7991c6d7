use std::{sync::Arc, time::Duration};

use crate::{
    descriptor::{Tenant, TenantId},
    fingerprint::Fingerprint,
    policy::{AppliedRule, CompiledPolicy, Override, Place, Rule, Tier},
};

/// What one rule takes of one key.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    pub(crate) applied: AppliedRule<'a>,
    pub(crate) cost: u64,
    /// Nanoseconds.
    pub(crate) max_wait: u64,
}

impl<'a> Charge<'a> {
    #[inline]
    pub(crate) fn new(applied: AppliedRule<'a>, cost: u64) -> Self {
        let max_wait = applied.rule.max_wait.unwrap_or(0);
        Self { cost: applied.rule.cost.saturating_mul(cost), applied, max_wait }
    }

    /// The same, of a caller who says how long it waits where the rule does
    /// not.
    pub(crate) fn patient(self) -> Self {
        Self { max_wait: self.applied.rule.max_wait.unwrap_or(u64::MAX), ..self }
    }

    /// The same of a request that has waited for so many nanoseconds.
    pub(crate) fn having_waited(self, waited: u64) -> Self {
        Self { max_wait: self.max_wait.saturating_sub(waited), ..self }
    }

    /// The same of a request that comes now.
    pub(crate) fn anew(self) -> Self {
        Self { max_wait: self.applied.rule.max_wait.unwrap_or(0), ..self }
    }

    /// The rule's id.
    #[must_use]
    pub fn rule(&self) -> &'a str {
        self.applied.rule.id
    }

    /// Who pays; `None` for the anonymous tenant, or where the rule does not
    /// count per tenant.
    #[must_use]
    pub fn tenant(&self) -> Option<TenantId<'a>> {
        self.applied.tenant.filter(|_| self.applied.rule.is_per_tenant())
    }

    /// The path pattern; empty where the rule does not count per endpoint.
    #[must_use]
    pub fn endpoint(&self) -> &'a str {
        self.applied.rule.endpoint(self.applied.place)
    }

    /// The method; empty where the rule does not count per method.
    #[must_use]
    pub fn method(&self) -> &'a str {
        self.applied.rule.method(self.applied.place)
    }

    /// Whether each tenant is counted by itself.
    #[cfg(feature = "redis")]
    pub(crate) fn is_per_tenant(&self) -> bool {
        self.applied.rule.is_per_tenant()
    }

    /// 128 bits that stand for rule, tenant, endpoint and method. Keyed at
    /// random for each process: of no use to any other.
    #[must_use]
    pub fn fingerprint(&self) -> u128 {
        self.applied.key.to_u128()
    }

    /// The tiers, all of which must pass.
    #[must_use]
    pub fn tiers(&self) -> &'a [Tier] {
        self.applied.tiers
    }

    /// Units to take.
    #[must_use]
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// Whether the rule wants its windows' units let out evenly, by delays
    /// within [`max_wait`](Self::max_wait): see
    /// [`Rule::smooth`](crate::Rule::smooth).
    #[must_use]
    pub fn is_smooth(&self) -> bool {
        self.applied.rule.smooth
    }

    /// A copy that outlives the request; `policy` is the one that the charge
    /// was made under.
    pub(crate) fn keep(&self, policy: &Arc<CompiledPolicy>) -> OwnedCharge {
        OwnedCharge {
            policy: Arc::clone(policy),
            rule: self.applied.rule.index,
            tenant: self.applied.tenant.map(Tenant::from),
            key: self.applied.key,
            place: self.applied.place,
            cost: self.cost,
            max_wait: self.max_wait,
        }
    }

    /// The longest wait that the rule allows: zero where it sets none, unless
    /// the caller waits by [`acquire`](crate::RateLimiter::acquire), which
    /// such a rule does not bound.
    #[must_use]
    pub fn max_wait(&self) -> Duration {
        Duration::from_nanos(self.max_wait)
    }
}

/// A [`Charge`] that outlives its request.
#[derive(Clone, Debug)]
pub(crate) struct OwnedCharge {
    policy: Arc<CompiledPolicy>,
    rule: usize,
    tenant: Option<Tenant>,
    key: Fingerprint,
    place: Place,
    cost: u64,
    max_wait: u64,
}

/// What a charge has of its request, where others are charged the same.
#[derive(Debug)]
pub(crate) struct ReservationOwner {
    tenant: Option<Tenant>,
    max_wait: u64,
}

impl OwnedCharge {
    /// Copies that outlive the request; `policy` is the one that the charges
    /// were made under.
    pub(crate) fn all(charges: &[Charge<'_>], policy: &Arc<CompiledPolicy>) -> Vec<Self> {
        charges.iter().map(|charge| charge.keep(policy)).collect()
    }

    pub(crate) fn policy(&self) -> &Arc<CompiledPolicy> {
        &self.policy
    }

    pub(crate) fn charge(&self) -> Charge<'_> {
        let rule = &self.policy.rules[self.rule];
        let tenant = self.tenant.as_ref().map(Tenant::id);
        let applied = AppliedRule { rule, tiers: rule.tiers(self.place), tenant, key: self.key, place: self.place };
        Charge { applied, cost: self.cost, max_wait: self.max_wait }
    }

    /// Whose it is.
    pub(crate) fn bearer(&self) -> ReservationOwner {
        ReservationOwner { tenant: self.tenant.clone(), max_wait: self.max_wait }
    }

    /// From here on it is another request's, which is charged the same.
    pub(crate) fn pass_to(&mut self, bearer: ReservationOwner) {
        (self.tenant, self.max_wait) = (bearer.tenant, bearer.max_wait);
    }

    /// From here on it is by the tiers of this place.
    pub(crate) fn stand_at(&mut self, place: Place) {
        self.place = place;
    }

    /// It has waited for so many nanoseconds.
    pub(crate) fn spend_wait(&mut self, time: u64) {
        self.max_wait = self.max_wait.saturating_sub(time);
    }

    /// It has waited for so many nanoseconds on another rule's account.
    pub(crate) fn may_wait_longer(&mut self, time: u64) {
        self.max_wait = self.max_wait.saturating_add(time);
    }

    /// The same charge by the tiers of another policy: of the rule with the
    /// same id, if it counts the same things apart, and is enforced where this
    /// one is.
    pub(crate) fn under(&self, policy: &Arc<CompiledPolicy>) -> Option<Self> {
        let own = &self.policy.rules[self.rule];
        let other = policy.rules.iter().find(|rule| rule.id == own.id)?;
        let written = |policy: &'_ CompiledPolicy| policy.policy.rules.iter().position(|rule| rule.id == *own.id);
        let (before, after) = (written(&self.policy)?, written(policy)?);
        places_alike(&self.policy.policy.rules[before], &policy.policy.rules[after]).then(|| Self {
            policy: Arc::clone(policy),
            rule: other.index,
            ..self.clone()
        })
    }
}

/// Whether a place in one of the rules means the same in the other.
fn places_alike(one: &Rule, other: &Rule) -> bool {
    fn exceptions(rule: &Rule) -> impl Iterator<Item = (&str, bool)> {
        rule.tenants.iter().map(|(tenant, exception)| (&**tenant, matches!(exception, Override::Tiers(_))))
    }
    one.shadow == other.shadow
        && one.adapt == other.adapt
        && (one.adapt.is_none() || one.local_share == other.local_share)
        && one.per == other.per
        && (&one.paths, &one.routes, &one.methods) == (&other.paths, &other.routes, &other.methods)
        && one.plans.keys().eq(other.plans.keys())
        && exceptions(one).eq(exceptions(other))
}
