//! The tenant of one request, nearly always borrowed: [`TenantRef`].
//!
//! It owns a tenant only where one was made for the request. Invariant: equality
//! and hash depend on id, plan and limits, not on what holds them.

use std::{
    borrow::Cow,
    fmt,
    hash::{Hash, Hasher},
    net::IpAddr,
    sync::Arc,
};

use super::tenant::{Tenant, TenantId, TenantLimits};
use crate::quota::Quota;

/// A [`Tenant`] that is usually borrowed.
///
/// ```
/// use tower_ratelimit::descriptor::TenantRef;
///
/// let tenant = TenantRef::name("acme").plan("pro");
/// assert_eq!(tenant.into_owned(), tower_ratelimit::Tenant::new("acme").plan("pro"));
/// ```
#[derive(Clone)]
#[must_use]
pub struct TenantRef<'a> {
    source: NameSource<'a>,
    /// Comes before that of `source`.
    plan: Option<&'a str>,
}

/// What holds the tenant.
#[derive(Clone)]
enum NameSource<'a> {
    Id(TenantId<'a>),
    Tenant(&'a Tenant),
    /// A tenant that was made for one request.
    Owned(Arc<Tenant>),
}

impl<'a> TenantRef<'a> {
    /// A tenant identified by its name.
    pub fn name(name: impl Into<Cow<'a, str>>) -> Self {
        match name.into() {
            Cow::Borrowed(name) => NameSource::Id(TenantId::Name(name)).into(),
            Cow::Owned(name) => Tenant::new(name).into(),
        }
    }

    /// A tenant identified by its address, which is not cut to a prefix.
    pub fn address(address: IpAddr) -> Self {
        NameSource::Id(TenantId::Address(address)).into()
    }

    /// The plan, which selects the quotas.
    pub fn plan(mut self, plan: impl Into<Cow<'a, str>>) -> Self {
        match plan.into() {
            Cow::Borrowed(plan) => self.plan = Some(plan),
            Cow::Owned(plan) => return self.into_owned().plan(plan).into(),
        }
        self
    }

    /// The tenant's name or address.
    #[must_use]
    pub fn id(&self) -> TenantId<'_> {
        match &self.source {
            NameSource::Id(id) => *id,
            NameSource::Tenant(tenant) => tenant.id(),
            NameSource::Owned(tenant) => tenant.id(),
        }
    }

    /// A copy that borrows nothing.
    pub fn into_owned(self) -> Tenant {
        let mut tenant = self.tenant().cloned().unwrap_or_else(|| self.id().into());
        if let Some(plan) = self.plan {
            tenant.plan = Some(plan.into());
        }
        tenant
    }

    /// The tenant's own tiers: see [`Tenant::tiers`].
    pub fn tiers(self, tiers: impl IntoIterator<Item = Quota>) -> Self {
        self.into_owned().tiers(tiers).into()
    }

    /// The tenant's own tiers under one rule: see [`Tenant::tiers_for`].
    pub fn tiers_for(self, rule: impl Into<Arc<str>>, tiers: impl IntoIterator<Item = Quota>) -> Self {
        self.into_owned().tiers_for(rule, tiers).into()
    }

    pub(crate) fn limits(&self) -> Option<&TenantLimits> {
        self.tenant()?.limits.as_deref()
    }

    pub(super) fn plan_name(&self) -> Option<&str> {
        self.plan.or_else(|| self.tenant()?.plan.as_deref())
    }

    fn tenant(&self) -> Option<&Tenant> {
        match &self.source {
            NameSource::Tenant(tenant) => Some(tenant),
            NameSource::Owned(tenant) => Some(tenant),
            NameSource::Id(_) => None,
        }
    }

    /// What identity depends on.
    fn parts(&self) -> (TenantId<'_>, Option<&str>, Option<&TenantLimits>) {
        (self.id(), self.plan_name(), self.limits())
    }
}

impl Tenant {
    /// The tenant, borrowed.
    pub fn as_ref(&self) -> TenantRef<'_> {
        TenantRef::from(self)
    }
}

impl<'a> From<NameSource<'a>> for TenantRef<'a> {
    fn from(source: NameSource<'a>) -> Self {
        Self { source, plan: None }
    }
}

impl PartialEq for TenantRef<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

impl Eq for TenantRef<'_> {}

impl Hash for TenantRef<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.parts().hash(state);
    }
}

impl fmt::Debug for TenantRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TenantRef")
            .field("id", &self.id())
            .field("plan", &self.plan_name())
            .field("limits", &self.limits())
            .finish()
    }
}

impl<'a> From<&'a Tenant> for TenantRef<'a> {
    fn from(tenant: &'a Tenant) -> Self {
        NameSource::Tenant(tenant).into()
    }
}

impl<'a> From<&'a str> for TenantRef<'a> {
    fn from(name: &'a str) -> Self {
        Self::name(name)
    }
}

impl From<String> for TenantRef<'_> {
    fn from(name: String) -> Self {
        Self::name(name)
    }
}

impl From<IpAddr> for TenantRef<'_> {
    fn from(address: IpAddr) -> Self {
        Self::address(address)
    }
}

impl From<Tenant> for TenantRef<'_> {
    fn from(tenant: Tenant) -> Self {
        NameSource::Owned(Arc::new(tenant)).into()
    }
}

#[cfg(test)]
mod tests;
