//! The tiers that one rule may apply: a quota compiled for decisions ([`Tier`]), all
//! the sets of a rule ([`TierSets`]), and the sets that tenants bring with their
//! requests ([`OwnTiers`]).
//!
//! Not here: which set a tenant has (`exceptions`), and usage, which a backend counts. Invariant: reloads keep a tier's salt,
//! and so its counters, as long as its algorithm and window stay the same.

use std::{
    borrow::Cow,
    collections::{BTreeSet, HashMap},
    hash::BuildHasher,
    slice,
    sync::{Arc, LazyLock, PoisonError, RwLock},
};

use foldhash::fast::RandomState;

use super::{
    adaptive::{LimitSteps, RateSteps},
    exceptions::index,
    rule::Rule,
};
use crate::{
    algorithm::{Machine, MachineOptions},
    decision::{RuleName, TierNameStyle, TierStatus},
    descriptor::Priority,
    fingerprint::Scope,
    quota::Quota,
    unit::Unit,
};

/// One quota of a rule, compiled for decisions.
#[derive(Clone, Debug)]
pub struct Tier {
    pub(crate) rule: RuleName,
    pub(crate) unit: Unit,
    pub(crate) quota: Quota,
    pub(crate) naming: TierNameStyle,
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
            (1, _) => TierNameStyle::Alone,
            (_, 1) => TierNameStyle::ByWindow,
            _ => TierNameStyle::Nth(u8::try_from(nth + 1).unwrap_or(u8::MAX)),
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

/// What each step of a rule adds to all of its tier sets: a rule that adapts has steps, and any
/// other has one that adds nothing.
pub(super) fn steps(rule: &Rule) -> Vec<Option<Quota>> {
    match (&rule.adaptive_rate, LimitSteps::new(&rule.tiers)) {
        (Some(adapt), _) => RateSteps::new(adapt).quotas(rule.cost).map(Some).collect(),
        (None, Some(limits)) => limits.quotas().map(Some).collect(),
        (None, None) => vec![None],
    }
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
    of_share: u32,
    /// The number of sets of one step.
    of_step: u32,
    /// Distance from a set to the one of a priority; 0 where nothing is kept from it.
    to_priority: [u32; Priority::ALL.len()],
}

impl TierSets {
    /// `quotas` are those of the rule, of its plans and of its tenants.
    pub(super) fn new(id: RuleName, rule: &Rule, quotas: &[Vec<Quota>]) -> Self {
        let (reserved, unit) = (rule.reserved(), Unit::new(rule.unit_name()));
        let parts: BTreeSet<u32> = reserved.into_iter().collect();
        let shares = match rule.local_share {
            Some(share) if share < 1.0 => vec![1.0, share],
            _ => vec![1.0],
        };
        let options = MachineOptions { settled_late: rule.is_settled_late(), smooth: rule.smooth };
        let mut sets = Vec::new();
        for (step, share) in steps(rule).iter().flat_map(|step| shares.iter().map(move |share| (step, *share))) {
            for (part, quotas) in parts.iter().flat_map(|part| quotas.iter().map(move |quotas| (*part, quotas))) {
                let kept = |quota: &Quota| quota.without(part).scaled(share);
                let quotas: Vec<Quota> = quotas.iter().chain(step).map(kept).collect();
                sets.push(tier_set(id, unit, &quotas, options));
            }
        }
        let (own, of_share) = (quotas.len(), quotas.len() * parts.len());
        let place = |part| parts.iter().position(|known| *known == part).unwrap_or(0);
        Self {
            sets,
            own: index(own),
            of_share: index(of_share),
            of_step: index(of_share * shares.len()),
            to_priority: reserved.map(|part| index(place(part) * own)),
        }
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
        set - set % self.of_share + set % self.own
    }

    /// The set by which the fallback limiter counts, also of one that is such a set: its
    /// share is the last of each step.
    pub(super) fn for_fallback(&self, set: u32) -> u32 {
        set - set % self.of_step + self.of_step - self.of_share + set % self.of_share
    }

    /// The set of another step.
    pub(super) fn at_step(&self, set: u32, step: usize) -> u32 {
        set % self.of_step + index(step) * self.of_step
    }

    fn count_tiers(&self) -> usize {
        self.sets.iter().map(|set| set.len()).sum()
    }

    pub(super) fn has_in_flight(&self) -> bool {
        self.sets.iter().flatten().any(Tier::is_in_flight)
    }
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
    pub(super) fn new(id: RuleName, rule: &Rule, rule_version: u64) -> Self {
        static CONTENT: LazyLock<RandomState> = LazyLock::new(RandomState::default);
        let sets = TierSets::new(id, rule, slice::from_ref(&rule.tiers));
        let version = CONTENT.hash_one((rule_version, &rule.tiers));
        Self { quotas: rule.tiers.as_slice().into(), sets, version }
    }
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
