//! A rule's quotas, compiled for decisions. A tier holds no usage: a backend
//! does.
//!
//! Invariant: reloads keep a tier's salt, and so its counters, as long as its
//! algorithm and window stay the same.

use std::{
    borrow::Cow,
    collections::HashMap,
    sync::{Arc, LazyLock, Mutex, PoisonError},
};

use crate::{
    algorithm::{Machine, MachineOptions},
    decision::{Naming, RuleName, TierStatus},
    fingerprint::Scope,
    quota::Quota,
    time::nanos,
};

/// One quota of a rule, compiled for decisions.
#[derive(Clone, Debug)]
pub struct Tier {
    pub(crate) rule: RuleName,
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

/// The memory of a tier, with that of its identity.
pub(super) const BYTES: usize = size_of::<Tier>() + 32;

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
        TierStatus { rule: self.rule, quota: self.quota, remaining, reset, naming: self.naming, violated }
    }
}

/// Compiles the quotas of a rule into its tiers.
pub(super) fn tier_set(rule: RuleName, quotas: &[Quota], options: MachineOptions) -> Box<[Tier]> {
    let same_window = |quota: &Quota, others: &[Quota]| {
        others.iter().filter(|other| nanos(other.window()) == nanos(quota.window())).count()
    };
    let tier = |(index, quota): (usize, &Quota)| {
        let naming = match (quotas.len(), same_window(quota, quotas)) {
            (1, _) => Naming::Alone,
            (_, 1) => Naming::ByWindow,
            _ => Naming::Nth(u8::try_from(same_window(quota, &quotas[..=index])).unwrap_or(u8::MAX)),
        };
        let twins = quotas[..index]
            .iter()
            .filter(|other| nanos(other.window()) == nanos(quota.window()) && other.counted_by() == quota.counted_by())
            .count();
        let identity = [quota.counted_by().as_str(), &nanos(quota.window()).to_string(), &twins.to_string()];
        let machine = Machine::new(quota, options);
        let twin = u8::try_from(twins).unwrap_or(u8::MAX);
        Tier {
            rule,
            quota: *quota,
            naming,
            salt: Scope::new(&identity).salt(),
            twin,
            machine,
            identity: Arc::default(),
        }
    };
    quotas.iter().enumerate().map(tier).collect()
}

/// Returns the rule's id as a name that lives as long as the process, so that a
/// decision can name the rule without counting references. Only policies add
/// ids, so requests cannot make this memory grow.
pub(super) fn intern(id: &str) -> RuleName {
    static IDS: LazyLock<Mutex<HashMap<String, RuleName>>> = LazyLock::new(Mutex::default);
    let mut ids = IDS.lock().unwrap_or_else(PoisonError::into_inner);
    ids.entry(id.into()).or_insert_with(|| Box::leak(Box::new(&*Box::leak(id.into()))))
}
