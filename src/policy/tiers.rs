//! The tiers that one rule may apply: a quota compiled for decisions ([`Tier`]), all
//! the sets of a rule and which of them a tenant has ([`TierSets`]), and the sets
//! that tenants bring with their requests ([`OwnTiers`]).
//!
//! Not here: usage, which a backend counts. Invariant: reloads keep a tier's salt,
//! and so its counters, as long as its algorithm and window stay the same.

use std::{
    borrow::Cow,
    collections::{BTreeSet, HashMap},
    hash::BuildHasher,
    sync::{
        Arc, LazyLock, Mutex, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
};

use foldhash::fast::RandomState;

use super::{
    adaptive::RateSteps,
    exceptions::{Limits, Override},
    networks::{self, Networks},
    rule::Rule,
};
use crate::{
    algorithm::{Machine, MachineOptions},
    decision::{Naming, RuleName, TierStatus},
    descriptor::{Priority, TenantId},
    fingerprint::Scope,
    quota::Quota,
    sync::lock,
    unit::Unit,
};

/// One quota of a rule, compiled for decisions.
#[derive(Clone, Debug)]
pub struct Tier {
    pub(crate) rule: RuleName,
    pub(crate) unit: Unit,
    pub(crate) quota: Quota,
    pub(crate) naming: Naming,
    /// Distinguishes the tier's counter from the key's others. It depends only
    /// on the algorithm, the window and `twin`, so that a reload keeps usage.
    pub(crate) salt: u64,
    /// The number of earlier tiers of the rule with its algorithm and window.
    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "it names keys in a store"))]
    pub(crate) twin: u8,
    pub(crate) machine: Machine,
    /// Its address distinguishes the tier and its clones from all other tiers
    /// while it exists.
    pub(crate) identity: Arc<()>,
}

impl Tier {
    /// The quota.
    pub fn quota(&self) -> &Quota {
        &self.quota
    }

    /// Whether it is a concurrency limit (units are released, not refilled).
    pub(crate) fn is_in_flight(&self) -> bool {
        matches!(self.machine, Machine::InFlight(_))
    }

    /// The tier's name: `RULE` for a rule's only tier, else `RULE-WINDOW`. Tiers
    /// with the same window are numbered: `RULE-WINDOW-1`.
    #[must_use]
    pub fn name(&self) -> Cow<'static, str> {
        self.status(0, 0, false).name()
    }

    pub(crate) fn status(&self, remaining: u64, reset: u64, violated: bool) -> TierStatus {
        let Self { rule, quota, naming, unit, .. } = *self;
        TierStatus { rule, quota, remaining, reset, naming, violated, unit }
    }
}

/// Compiles the quotas of a rule into its tiers.
fn tier_set(rule: RuleName, unit: Unit, quotas: &[Quota], options: MachineOptions) -> Box<[Tier]> {
    let window = |quota: &Quota| (quota.window(), quota.is_month());
    let mut of_window = HashMap::<_, usize>::new();
    for quota in quotas {
        *of_window.entry(window(quota)).or_default() += 1;
    }
    let mut before = HashMap::<_, usize>::new();
    let mut count_before = |window, counter| {
        let count = before.entry((window, counter)).or_default();
        *count += 1;
        *count - 1
    };
    let tier = |quota: &Quota| {
        let (window, counter) = (window(quota), quota.counter());
        let (nth, twins) = (count_before(window, None), count_before(window, Some(counter)));
        let naming = match (quotas.len(), of_window[&window]) {
            (1, _) => Naming::Alone,
            (_, 1) => Naming::ByWindow,
            _ => Naming::Nth(u8::try_from(nth + 1).unwrap_or(u8::MAX)),
        };
        let identity = [&*format!("{counter:?}"), &twins.to_string()];
        Tier {
            rule,
            unit,
            quota: *quota,
            naming,
            salt: Scope::new(&identity).salt(),
            twin: u8::try_from(twins).unwrap_or(u8::MAX),
            machine: Machine::new(quota, options),
            identity: Arc::default(),
        }
    };
    quotas.iter().map(tier).collect()
}

/// Returns the rule's id as a name that lives as long as the process, so that a
/// decision can name the rule without counting references. Only policies add
/// ids, so requests cannot make this memory grow.
pub(super) fn intern(id: &str) -> RuleName {
    static IDS: LazyLock<Mutex<HashMap<String, RuleName>>> = LazyLock::new(Mutex::default);
    let mut ids = lock(&IDS);
    ids.entry(id.into()).or_insert_with(|| Box::leak(Box::new(&*Box::leak(id.into()))))
}

/// The tier sets of a rule.
///
/// The rule's own set is the first; those of plans and tenants follow. If a part is
/// reserved for some priorities, all of these are repeated, reduced, for each that
/// has less. If the fallback limiter has only a share of the limits, all of these
/// are repeated, scaled. If the rule adapts, all of these are repeated for each
/// step.
#[derive(Debug)]
pub(super) struct TierSets {
    sets: Vec<Box<[Tier]>>,
    /// The number of sets before any are repeated.
    own: u32,
    /// The number of sets of one share and step.
    count: u32,
    /// Distance from a set to the one of a priority; 0 where nothing is kept from it.
    to_priority: [u32; Priority::ALL.len()],
    /// Distance from a set to its scaled one; 0 where there are none.
    to_fallback: u32,
    /// Distance from a set to that of the next step; 0 where there are none.
    to_next_step: u32,
    plans: HashMap<Box<str>, Exception, RandomState>,
    tenants: HashMap<Box<str>, Exception, RandomState>,
    addresses: Networks<Exception>,
}

/// What is different for a plan or a tenant.
type Exception = Override<ExceptedSet>;

#[derive(Clone, Copy, Debug, PartialEq)]
struct ExceptedSet {
    index: u32,
    /// It may admit what the rule's own tiers reject.
    is_higher: bool,
}

/// What applies to one request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chosen {
    /// `None` where it is unlimited.
    pub(super) tier_set: Option<u32>,
    /// That of its tenant, or else of its plan.
    pub(super) priority: Option<Priority>,
}

impl TierSets {
    /// Whether the rule has tiers of its own, and no tenant has any other.
    pub(super) fn is_single(&self) -> bool {
        let has_exceptions = !self.plans.is_empty() || !self.tenants.is_empty() || !self.addresses.is_empty();
        !has_exceptions && !self.get(0).is_empty()
    }

    /// `ignore_case` where the tenant is a part of a path that is matched
    /// without regard to case.
    pub(super) fn new(id: RuleName, rule: &Rule, steps: &[Quota], ignore_case: bool) -> Self {
        let mut sets = Self {
            sets: Vec::new(),
            own: 0,
            count: 0,
            to_priority: [0; _],
            to_fallback: 0,
            to_next_step: 0,
            plans: HashMap::default(),
            tenants: HashMap::default(),
            addresses: Networks::default(),
        };
        let quotas = sets.add_exceptions(rule, ignore_case);
        let adapts = !steps.is_empty();
        let (reserved, unit) = (rule.reserved(), Unit::new(rule.unit_name()));
        let parts: BTreeSet<u32> = reserved.into_iter().chain([0]).collect();
        let place = |part| parts.iter().position(|known| *known == part).unwrap_or(0);
        sets.to_priority = reserved.map(|part| index(place(part) * quotas.len()));
        let shares = match rule.local_share {
            Some(share) if share < 1.0 => vec![1.0, share],
            _ => vec![1.0],
        };
        let count = quotas.len() * parts.len();
        (sets.own, sets.count) = (index(quotas.len()), index(count));
        sets.to_fallback = index(count * (shares.len() - 1));
        sets.to_next_step = if adapts { index(count * shares.len()) } else { 0 };
        let steps: Vec<Option<Quota>> = match adapts {
            true => steps.iter().copied().map(Some).collect(),
            false => vec![None],
        };
        for (step, share) in steps.iter().flat_map(|step| shares.iter().map(move |share| (step, *share))) {
            sets.sets.extend(parts.iter().flat_map(|part| quotas.iter().map(move |quotas| (part, quotas))).map(
                |(part, quotas)| {
                    let kept = |quota: &Quota| quota.without(*part).scaled(share);
                    let quotas: Vec<Quota> = quotas.iter().chain(step).map(kept).collect();
                    tier_set(id, unit, &quotas, rule.machine_options())
                },
            ));
        }
        sets
    }

    /// Returns the quotas of the rule, of its plans and of its tenants.
    fn add_exceptions(&mut self, rule: &Rule, ignore_case: bool) -> Vec<Vec<Quota>> {
        // The steps stand for an adaptive tier.
        let mut quotas = vec![rule.tiers.iter().filter(|tier| !tier.is_adaptive()).copied().collect::<Vec<_>>()];
        let mut exception = |instead: &Override| {
            let limits = instead.limits.as_ref().map(|limits| match limits {
                Limits::Unlimited => Limits::Unlimited,
                Limits::Tiers(tiers) => {
                    quotas.push(tiers.clone());
                    Limits::Tiers(ExceptedSet {
                        index: index(quotas.len() - 1),
                        is_higher: !is_within(tiers, &rule.tiers),
                    })
                }
            });
            Override { limits, priority: instead.priority }
        };
        for (plan, instead) in &rule.plans {
            self.plans.insert(plan.as_str().into(), exception(instead));
        }
        for (tenant, instead) in &rule.tenants {
            let exception = exception(instead);
            // An address or a network names no tenant: callers may choose their names.
            if let Some(network) = networks::addresses(tenant) {
                self.addresses.entry(network).or_insert(exception);
                continue;
            }
            let tenant = if ignore_case { tenant.to_ascii_lowercase() } else { tenant.clone() };
            self.tenants.insert(tenant.into(), exception);
        }
        quotas
    }

    /// What applies to a request: by the first of these that has an exception, else by its
    /// plan.
    pub(super) fn choose<'i, 'p, I: Iterator<Item = TenantId<'i>>>(
        &self,
        ids: impl FnOnce() -> I,
        plan: impl FnOnce() -> Option<&'p str>,
    ) -> Chosen {
        let has_none = self.tenants.is_empty() && self.addresses.is_empty();
        if has_none && self.plans.is_empty() {
            return Chosen { tier_set: Some(0), priority: None };
        }
        let of_tenant = if has_none { None } else { ids().find_map(|id| self.exception_of(id)) };
        let of_plan = if self.plans.is_empty() { None } else { plan().and_then(|plan| self.plans.get(plan)).copied() };
        let exceptions = || of_tenant.into_iter().chain(of_plan);
        let tier_set = match exceptions().find_map(|exception| exception.limits) {
            Some(Limits::Unlimited) => None,
            Some(Limits::Tiers(set)) => Some(set.index),
            None => Some(0),
        };
        Chosen { tier_set, priority: exceptions().find_map(|exception| exception.priority) }
    }

    /// The plans that have a priority.
    pub(super) fn plan_priorities(&self) -> impl Iterator<Item = (&str, Priority)> {
        self.plans.iter().filter_map(|(plan, exception)| Some((&**plan, exception.priority?)))
    }

    /// The tenants that have a priority, and are no addresses.
    pub(super) fn tenant_priorities(&self) -> impl Iterator<Item = (&str, Priority)> {
        self.tenants.iter().filter_map(|(tenant, exception)| Some((&**tenant, exception.priority?)))
    }

    fn exception_of(&self, id: TenantId<'_>) -> Option<Exception> {
        match id {
            TenantId::Name(name) => self.tenants.get(name).copied(),
            TenantId::Address(address) => self.addresses.all(address).next().copied(),
        }
    }

    pub(super) fn has_exception_of(&self, id: TenantId<'_>) -> bool {
        self.exception_of(id).is_some_and(|exception| exception.limits.is_some())
    }

    /// Whether this tenant's exception may admit what the rule's own tiers reject.
    pub(super) fn favors(&self, id: TenantId<'_>) -> bool {
        let limits = self.exception_of(id).and_then(|exception| exception.limits);
        matches!(limits, Some(Limits::Unlimited | Limits::Tiers(ExceptedSet { is_higher: true, .. })))
    }

    pub(super) fn get(&self, set: u32) -> &[Tier] {
        &self.sets[set as usize]
    }

    /// The set of requests of this priority.
    pub(super) fn for_priority(&self, set: u32, priority: Priority) -> u32 {
        set + self.to_priority[priority as usize]
    }

    /// The set of which this is a copy: for those from whom nothing is kept, in full, at the
    /// first step.
    pub(super) fn first(&self, set: u32) -> u32 {
        set % self.own
    }

    /// The set of the same share and step for those from whom nothing is kept.
    pub(super) fn unreserved(&self, set: u32) -> u32 {
        set - set % self.count + set % self.own
    }

    /// The set by which the fallback limiter counts, also of one that is such a set.
    pub(super) fn for_fallback(&self, set: u32) -> u32 {
        let is_scaled = self.to_fallback > 0 && set / self.count % 2 == 1;
        if is_scaled { set } else { set + self.to_fallback }
    }

    /// The set of another step, where the rule adapts.
    pub(super) fn at_step(&self, set: u32, step: usize) -> u32 {
        set.checked_rem(self.to_next_step).map_or(set, |first| first + index(step) * self.to_next_step)
    }

    pub(super) fn count_tiers(&self) -> usize {
        self.sets.iter().map(|set| set.len()).sum()
    }

    pub(super) fn has_in_flight(&self) -> bool {
        self.sets.iter().flatten().any(Tier::is_in_flight)
    }
}

/// Whether each of a rule's `own` tiers has a counterpart among `tiers` that is no
/// higher, so that those admit nothing more.
pub(super) fn is_within(tiers: &[Quota], own: &[Quota]) -> bool {
    let is_counterpart = |tier: &Quota, own: &Quota| {
        tier.counter() == own.counter() && tier.limit() <= own.limit() && tier.capacity() <= own.capacity()
    };
    !own.is_empty() && own.iter().all(|own| tiers.iter().any(|tier| is_counterpart(tier, own)))
}

/// Validation bounds the number of sets.
fn index(set: usize) -> u32 {
    u32::try_from(set).unwrap_or(u32::MAX)
}

/// A tenant's own tiers under one rule.
#[derive(Debug)]
pub(crate) struct OwnTiers {
    pub(super) quotas: Box<[Quota]>,
    pub(super) sets: TierSets,
    /// Differs from that of all other sets, and of all rules. A set that is compiled again
    /// for the same rule has the same version.
    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "it names tiers to a store"))]
    pub(crate) version: u64,
}

impl OwnTiers {
    /// Those of a rule of this version that has them as its own.
    pub(super) fn new(id: RuleName, rule: &Rule, steps: Option<&RateSteps>, rule_version: u64) -> Self {
        static CONTENT: LazyLock<RandomState> = LazyLock::new(RandomState::default);
        let steps: Vec<_> = steps.iter().flat_map(|steps| steps.quotas(rule.cost)).collect();
        let sets = TierSets::new(id, rule, &steps, false);
        let version = CONTENT.hash_one((rule_version, &rule.tiers));
        Self { quotas: rule.tiers.as_slice().into(), sets, version }
    }
}

/// A number that no other rule, or set of a tenant, of this process has.
pub(super) fn next_version() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The most sets that are kept for a rule.
const MAX_SETS: usize = 1_024;

/// The most tiers in all of a rule's sets. Of a rule that adapts, a set has a copy
/// for each step.
const MAX_TIERS: usize = 16 * 1_024;

/// The sets of one rule, by their quotas.
#[derive(Debug, Default)]
pub(super) struct OwnTierCache(RwLock<HashMap<Box<[Quota]>, Arc<OwnTiers>, RandomState>>);

impl OwnTierCache {
    pub(super) fn get(&self, quotas: &[Quota]) -> Option<Arc<OwnTiers>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(quotas).cloned()
    }

    pub(super) fn insert(&self, own: &Arc<OwnTiers>) {
        let mut sets = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let tiers = sets.values().chain([own]).map(|own| own.sets.count_tiers()).sum::<usize>();
        if sets.len() >= MAX_SETS || tiers > MAX_TIERS {
            sets.clear();
        }
        if own.sets.count_tiers() <= MAX_TIERS {
            sets.insert(own.quotas.clone(), Arc::clone(own));
        }
    }
}

#[cfg(test)]
mod tests;
