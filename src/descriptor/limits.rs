//! The limits that a tenant carries: [`TenantLimits`]. Not validated: the policy
//! does that, and counts by them.

use std::sync::Arc;

use crate::quota::Quota;

/// A tenant's own tiers, such as those from a database or a token.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct TenantLimits {
    /// For every rule that counts per tenant.
    everywhere: Option<Vec<Quota>>,
    /// For rules by their ids.
    by_rule: Vec<(Arc<str>, Vec<Quota>)>,
}

/// The limits that few tenants carry, shared by its clones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct OwnLimits(Option<Arc<TenantLimits>>);

impl OwnLimits {
    pub(super) const NONE: Self = Self(None);

    #[inline]
    pub(super) fn get(&self) -> Option<&TenantLimits> {
        self.0.as_deref()
    }

    pub(super) fn make_mut(&mut self) -> &mut TenantLimits {
        Arc::make_mut(self.0.get_or_insert_default())
    }
}

impl TenantLimits {
    pub(super) fn set(&mut self, tiers: impl IntoIterator<Item = Quota>) {
        self.everywhere = Some(tiers.into_iter().collect());
    }

    pub(super) fn set_for(&mut self, rule: Arc<str>, tiers: impl IntoIterator<Item = Quota>) {
        self.by_rule.retain(|(own, _)| *own != rule);
        self.by_rule.push((rule, tiers.into_iter().collect()));
    }

    /// The tiers for a rule, where it has its own.
    pub(crate) fn tiers_for(&self, rule: &str, counts_per_tenant: bool) -> Option<&[Quota]> {
        let named = self.by_rule.iter().find(|(own, _)| **own == *rule).map(|(_, tiers)| tiers);
        named.or_else(|| self.everywhere.as_ref().filter(|_| counts_per_tenant)).map(Vec::as_slice)
    }
}
