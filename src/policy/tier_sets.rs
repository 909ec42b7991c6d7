//! All the tiers that one rule may apply, and which of them a tenant has:
//! [`TierSets`].
//!
//! Every set is compiled when the policy is, so that choosing one is a lookup.
//! All sets of a rule count under the same keys.

use std::{collections::HashMap, net::IpAddr};

use foldhash::fast::RandomState;

use super::{
    ladder::Ladder,
    networks::{self, Networks},
    rule::{Override, Rule},
    tier::{Tier, tier_set},
};
use crate::{decision::RuleName, descriptor::TenantId, quota::Quota};

/// The tier sets of a rule.
///
/// The rule's own set is the first; those of plans and tenants follow. If the
/// fallback limiter has only a share of the limits, all of these are repeated,
/// scaled. If the rule adapts, all of these are repeated for each step.
#[derive(Debug)]
pub(super) struct TierSets {
    sets: Vec<Box<[Tier]>>,
    /// Distance from a set to its scaled one; 0 where there are none.
    to_fallback: u32,
    /// Distance from a set to that of the next step; 0 where there are none.
    to_next_step: u32,
    plans: HashMap<Box<str>, u32, RandomState>,
    tenants: HashMap<Box<str>, Exception, RandomState>,
    addresses: HashMap<IpAddr, Exception, RandomState>,
    networks: Networks<Exception>,
}

#[derive(Clone, Copy, Debug)]
enum Exception {
    TierSet(u32),
    Unlimited,
}

impl TierSets {
    /// `ignore_case` where the tenant is a part of a path that is matched
    /// without regard to case.
    pub(super) fn new(id: RuleName, rule: &Rule, ladder: Option<&Ladder>, ignore_case: bool) -> Self {
        let mut sets = Self {
            sets: Vec::new(),
            to_fallback: 0,
            to_next_step: 0,
            plans: HashMap::default(),
            tenants: HashMap::default(),
            addresses: HashMap::default(),
            networks: Networks::default(),
        };
        let mut quotas = sets.add_exceptions(rule, ignore_case);
        let full = quotas.len();
        if let Some(share) = rule.local_share.filter(|share| *share < 1.0) {
            sets.to_fallback = index(full);
            let scaled = |quotas: &Vec<Quota>| quotas.iter().map(|quota| quota.scaled(share)).collect();
            quotas.extend(quotas.iter().map(scaled).collect::<Vec<Vec<_>>>());
        }
        if let Some(ladder) = ladder {
            sets.to_next_step = index(quotas.len());
            let of_step = |step: Quota| {
                let share = |set: usize| if set < full { 1.0 } else { rule.local_share.unwrap_or(1.0) };
                let with_step =
                    move |(set, quotas): (usize, &Vec<Quota>)| [quotas, &[step.scaled(share(set))][..]].concat();
                quotas.iter().enumerate().map(with_step).collect::<Vec<_>>()
            };
            quotas = ladder.quotas(rule.options.cost).flat_map(of_step).collect();
        }
        sets.sets = quotas.iter().map(|quotas| tier_set(id, quotas, rule.options.machine_options())).collect();
        sets
    }

    /// Returns the quotas of the rule, of its plans and of its tenants.
    fn add_exceptions(&mut self, rule: &Rule, ignore_case: bool) -> Vec<Vec<Quota>> {
        let mut quotas = vec![rule.tiers.clone()];
        for (plan, tiers) in &rule.plans {
            self.plans.insert(plan.as_str().into(), index(quotas.len()));
            quotas.push(tiers.clone());
        }
        for (tenant, exception) in &rule.tenants {
            let exception = match exception {
                Override::Unlimited => Exception::Unlimited,
                Override::Tiers(tiers) => {
                    quotas.push(tiers.clone());
                    Exception::TierSet(index(quotas.len() - 1))
                }
            };
            // Written as an address or a network, it names those as well.
            if let Ok(Some(network)) = networks::parse(tenant) {
                self.networks.insert(network, exception);
            }
            if let Ok(address) = tenant.parse::<IpAddr>() {
                self.addresses.insert(address.to_canonical(), exception);
            }
            let tenant = if ignore_case { tenant.to_ascii_lowercase() } else { tenant.clone() };
            self.tenants.insert(tenant.into(), exception);
        }
        quotas
    }

    /// The set of a tenant with this plan; `None` where it is unlimited. `caller` is
    /// the caller's address, where the tenant does not say it.
    #[inline]
    pub(super) fn choose<'i, 'p>(
        &self,
        tenant: Option<TenantId<'i>>,
        caller: impl FnOnce() -> Option<TenantId<'i>>,
        plan: impl FnOnce() -> Option<&'p str>,
    ) -> Option<u32> {
        match self.tenants.is_empty() {
            true => self.set_of(None, plan),
            false => self.choose_any(tenant.into_iter().chain(caller()), plan),
        }
    }

    /// The same by the first of these that has an exception.
    pub(super) fn choose_any<'i, 'p>(
        &self,
        mut ids: impl Iterator<Item = TenantId<'i>>,
        plan: impl FnOnce() -> Option<&'p str>,
    ) -> Option<u32> {
        self.set_of(ids.find_map(|id| self.exception_of(id)), plan)
    }

    #[inline]
    fn set_of<'p>(&self, exception: Option<Exception>, plan: impl FnOnce() -> Option<&'p str>) -> Option<u32> {
        match exception {
            Some(Exception::Unlimited) => None,
            Some(Exception::TierSet(set)) => Some(set),
            None if self.plans.is_empty() => Some(0),
            None => Some(plan().and_then(|plan| self.plans.get(plan)).copied().unwrap_or(0)),
        }
    }

    #[inline]
    fn exception_of(&self, id: TenantId<'_>) -> Option<Exception> {
        match id {
            TenantId::Name(name) => self.tenants.get(name).copied(),
            TenantId::Address(address) => self.addresses.get(&address).copied().or_else(|| self.networks.get(address)),
        }
    }

    #[inline]
    pub(super) fn get(&self, set: u32) -> &[Tier] {
        &self.sets[set as usize]
    }

    /// The set by which the fallback limiter counts.
    pub(super) fn for_fallback(&self, set: u32) -> u32 {
        set + self.to_fallback
    }

    /// The set of another step of the ladder, where the rule adapts.
    pub(super) fn at_step(&self, set: u32, step: usize) -> u32 {
        set.checked_rem(self.to_next_step).map_or(set, |first| first + index(step) * self.to_next_step)
    }

    pub(super) fn count_tiers(&self) -> usize {
        self.sets.iter().map(|set| set.len()).sum()
    }

    pub(super) fn has_in_flight(&self) -> bool {
        self.sets.iter().flatten().any(Tier::is_in_flight)
    }

    /// The rule's own tiers, where no tenant has any other.
    pub(super) fn only(&self) -> Option<&[Tier]> {
        let has_exceptions = !self.plans.is_empty() || !self.tenants.is_empty();
        self.sets.first().map(|set| &**set).filter(|_| !has_exceptions && self.to_next_step == 0)
    }
}

/// Validation bounds the number of sets.
fn index(set: usize) -> u32 {
    u32::try_from(set).unwrap_or(u32::MAX)
}
