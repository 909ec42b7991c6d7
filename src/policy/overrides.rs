//! What operators set for single tenants at run time, each for a while: other tiers, or a
//! block ([`Overrides`]).
//!
//! Not here: the exceptions that a rule makes for tenants, which its policy holds, and the
//! clock. Invariant: memory is bounded, by the number of tenants and the length of their names.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock},
};

use crate::{
    descriptor::{Tenant, TenantId, TenantLimits},
    error::{ConfigError, ensure},
    fingerprint::Scope,
    time::Timestamp,
};

const MAX_TENANTS: usize = 1_024;
const MAX_NAME: usize = 1_024;
/// The most rules for which one override has tiers of their own.
const MAX_RULES: usize = 64;

/// By the fingerprint of the tenant.
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

fn key(tenant: TenantId<'_>) -> u128 {
    static SCOPE: LazyLock<Scope> = LazyLock::new(|| Scope::new(&["overrides"]));
    SCOPE.key(Some(tenant)).to_u128()
}

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

    pub(super) fn remove_expired(&mut self, now: Timestamp) {
        self.0.retain(|_, own| {
            own.tiers_until = own.tiers_until.filter(|until| *until > now);
            own.blocked_until = own.blocked_until.filter(|until| *until > now);
            own.ends().next().is_some()
        });
    }

    /// When the first of them ends.
    pub(super) fn first_end(&self) -> Option<Timestamp> {
        self.0.values().flat_map(TenantOverride::ends).min()
    }

    /// `None` if there are none.
    pub(super) fn shared(self) -> Option<Arc<Self>> {
        (!self.0.is_empty()).then(|| Arc::new(self))
    }

    pub(crate) fn get(&self, tenant: TenantId<'_>) -> Option<&TenantOverride> {
        self.0.get(&key(tenant))
    }

    #[cfg(feature = "admin")]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &TenantOverride> {
        self.0.values()
    }
}
