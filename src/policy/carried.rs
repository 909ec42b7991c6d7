//! What a policy takes over from the one that it replaces, [`Carried`]: what operators set for
//! single tenants at run time, each for a while ([`Overrides`]), and what requests turn out to
//! cost ([`Estimates`]), of which one that does not know its cost reserves what suffices for
//! most.
//!
//! Not here: the exceptions that a rule makes for tenants, which its policy holds, and the
//! clock. Invariant: memory is bounded, whatever keys requests have: by the number of tenants
//! and the length of their names, and by the rules, as keys share classes of the latest costs.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{
        Arc, LazyLock, Mutex, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
};

use smallvec::SmallVec;

use crate::{
    descriptor::{Tenant, TenantId, TenantLimits},
    error::{ConfigError, ensure},
    fingerprint::{Fingerprint, Scope},
    sync::lock,
    time::Timestamp,
};

/// What a policy takes over from the one that it replaces.
#[derive(Clone, Debug, Default)]
pub(crate) struct Carried {
    /// What requests have cost.
    pub(crate) estimates: Arc<Estimates>,
    /// What operators have set for single tenants.
    pub(crate) overrides: Option<Arc<Overrides>>,
    /// When the first of them ends.
    pub(crate) first_end: Option<Timestamp>,
    /// Whether the requests of each rule are counted.
    #[cfg(feature = "admin")]
    pub(crate) counts_rules: bool,
}

impl Carried {
    /// The overrides that have not ended.
    pub(crate) fn overrides_at(&self, now: Timestamp) -> Overrides {
        let mut overrides = self.overrides.as_deref().cloned().unwrap_or_default();
        overrides.0.retain(|_, own| {
            own.tiers_until = own.tiers_until.filter(|until| *until > now);
            own.blocked_until = own.blocked_until.filter(|until| *until > now);
            own.ends().next().is_some()
        });
        overrides
    }

    pub(crate) fn with_overrides(self, overrides: Overrides) -> Self {
        let first_end = overrides.0.values().flat_map(TenantOverride::ends).min();
        let overrides = if overrides.0.is_empty() { None } else { Some(Arc::new(overrides)) };
        Self { overrides, first_end, ..self }
    }
}

/// What operators have set, by the fingerprint of the tenant.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overrides(HashMap<u128, TenantOverride>);

/// What is set for one tenant.
#[derive(Clone, Debug)]
pub(crate) struct TenantOverride {
    /// With its tiers, which may have ended.
    pub(crate) tenant: Tenant,
    pub(crate) tiers_until: Option<Timestamp>,
    pub(crate) blocked_until: Option<Timestamp>,
}

impl TenantOverride {
    /// The tiers that replace those of the rules.
    pub(crate) fn limits(&self) -> Option<&TenantLimits> {
        self.tiers_until.and(self.tenant.limits())
    }

    fn ends(&self) -> impl Iterator<Item = Timestamp> {
        [self.tiers_until, self.blocked_until].into_iter().flatten()
    }
}

const MAX_TENANTS: usize = 1_024;
const MAX_NAME: usize = 1_024;
/// The most rules for which one override has tiers of their own.
const MAX_RULES: usize = 64;

impl Overrides {
    /// Replaces the tenant's tiers.
    pub(crate) fn set_tiers(&mut self, tenant: Tenant, until: Timestamp) -> Result<(), ConfigError> {
        let rules = tenant.limits().map_or(0, |limits| limits.rules().count());
        ensure(rules <= MAX_RULES, "tiers", rules, format_args!("at most {MAX_RULES} rules have tiers of their own"))?;
        let entry = self.entry(&tenant)?;
        (entry.tenant, entry.tiers_until) = (tenant, Some(until));
        Ok(())
    }

    pub(crate) fn block(&mut self, tenant: &Tenant, until: Timestamp) -> Result<(), ConfigError> {
        self.entry(tenant)?.blocked_until = Some(until);
        Ok(())
    }

    fn entry(&mut self, tenant: &Tenant) -> Result<&mut TenantOverride, ConfigError> {
        let (key, id) = (key(tenant.id()), tenant.id());
        let length = if let TenantId::Name(name) = id { name.len() } else { 0 };
        ensure(length <= MAX_NAME, "tenant", length, format_args!("must have at most {MAX_NAME} bytes"))?;
        let is_full = self.0.len() >= MAX_TENANTS && !self.0.contains_key(&key);
        ensure(!is_full, "tenant", MAX_TENANTS, "so many tenants have overrides, which is the most")?;
        let new = || TenantOverride { tenant: id.into(), tiers_until: None, blocked_until: None };
        Ok(self.0.entry(key).or_insert_with(new))
    }

    /// Forgets all that was set for the tenant. Returns whether anything was.
    pub(crate) fn remove(&mut self, tenant: TenantId<'_>) -> bool {
        self.0.remove(&key(tenant)).is_some()
    }

    pub(crate) fn get(&self, tenant: TenantId<'_>) -> Option<&TenantOverride> {
        self.0.get(&key(tenant))
    }

    #[cfg(feature = "admin")]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &TenantOverride> {
        self.0.values()
    }
}

fn key(tenant: TenantId<'_>) -> u128 {
    static SCOPE: LazyLock<Scope> = LazyLock::new(|| Scope::new(&["overrides"]));
    SCOPE.key(Some(tenant)).to_u128()
}

/// The classes of a rule, which take up to 36 KB.
const CLASSES: usize = 64;

/// The costs that a class remembers.
const LATEST: usize = 64;

/// Of fewer costs than these, even the highest may be that of less than 95 of 100 requests.
const LEAST: usize = 20;

/// What requests have cost, by rule and class of keys. A rule has none until a request asks.
#[derive(Debug, Default)]
pub(crate) struct Estimates(RwLock<BTreeMap<&'static str, Vec<Class>>>);

/// What the latest requests of some keys have cost.
#[derive(Debug)]
struct Class {
    /// What 95 of 100 have cost at most; the largest number where too few are known.
    usual: AtomicU64,
    latest: Mutex<VecDeque<u64>>,
}

impl Default for Class {
    fn default() -> Self {
        Self { usual: AtomicU64::new(u64::MAX), latest: Mutex::default() }
    }
}

impl Class {
    fn learn(&self, cost: u64) {
        let mut latest = lock(&self.latest);
        if latest.len() == LATEST {
            latest.pop_front();
        }
        latest.push_back(cost);
        let mut known: SmallVec<[u64; LATEST]> = latest.iter().copied().collect();
        known.sort_unstable();
        if known.len() >= LEAST {
            self.usual.store(known[(known.len() * 95).div_ceil(100) - 1], Ordering::Relaxed);
        }
    }
}

impl Estimates {
    /// What most requests of this key have cost; the largest number where too few are known.
    pub(super) fn usual(&self, rule: &'static str, key: Fingerprint) -> u64 {
        let of_rule = |classes: &Vec<Class>| classes[class_of(key)].usual.load(Ordering::Relaxed);
        if let Some(usual) = self.0.read().unwrap_or_else(PoisonError::into_inner).get(rule).map(of_rule) {
            return usual;
        }
        let mut rules = self.0.write().unwrap_or_else(PoisonError::into_inner);
        of_rule(rules.entry(rule).or_insert_with(|| (0..CLASSES).map(|_| Class::default()).collect()))
    }

    /// A request of this key has cost so much.
    pub(crate) fn learn(&self, rule: &'static str, key: Fingerprint, cost: u64) {
        if let Some(classes) = self.0.read().unwrap_or_else(PoisonError::into_inner).get(rule) {
            classes[class_of(key)].learn(cost);
        }
    }
}

/// Keys are hashes already.
#[allow(clippy::cast_possible_truncation, reason = "a remainder")]
fn class_of(key: Fingerprint) -> usize {
    (key.to_u128() % CLASSES as u128) as usize
}

#[cfg(test)]
mod tests;
