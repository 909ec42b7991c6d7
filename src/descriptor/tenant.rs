//! The tenant that a request is counted for, owned or borrowed.
//!
//! It extracts no tenant from a request. The invariant: a name and an address
//! are never equal, whatever the name says.

use std::{borrow::Cow, fmt, net::IpAddr, sync::Arc};

/// The tenant that a request is counted for, and its plan. The layer finds a
/// tenant in a request's extensions.
///
/// A tenant is identified by a name or by an address; the two never share a
/// counter.
///
/// ```
/// use tower_ratelimit::Tenant;
///
/// let tenant = Tenant::new("acme").plan("pro");
/// let caller = Tenant::address([192, 0, 2, 7].into());
/// assert_ne!(tenant, caller);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub struct Tenant {
    id: Id<Arc<str>>,
    plan: Option<Arc<str>>,
}

/// A tenant's name or address.
///
/// `Display` writes it unescaped. A name may be a secret, such as an API key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TenantId<'a> {
    /// Any text: an API key, an organization.
    Name(&'a str),
    /// A network address. A caller's address is cut to its prefix.
    Address(IpAddr),
}

/// A borrowed [`Tenant`].
///
/// ```
/// use tower_ratelimit::descriptor::TenantRef;
///
/// let tenant = TenantRef::name("acme").plan("pro");
/// assert_eq!(tenant.into_owned(), tower_ratelimit::Tenant::new("acme").plan("pro"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub struct TenantRef<'a> {
    id: Id<Cow<'a, str>>,
    plan: Option<Cow<'a, str>>,
}

/// A name or an address, whatever holds the name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Id<N> {
    Name(N),
    Address(IpAddr),
}

impl<N: AsRef<str>> Id<N> {
    #[inline]
    fn as_tenant_id(&self) -> TenantId<'_> {
        match self {
            Self::Name(name) => TenantId::Name(name.as_ref()),
            Self::Address(address) => TenantId::Address(*address),
        }
    }

    #[inline]
    fn map<'a, M>(&'a self, name: impl FnOnce(&'a str) -> M) -> Id<M> {
        match self.as_tenant_id() {
            TenantId::Name(text) => Id::Name(name(text)),
            TenantId::Address(address) => Id::Address(address),
        }
    }
}

impl Tenant {
    /// A tenant identified by its name.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self { id: Id::Name(name.into()), plan: None }
    }

    /// A tenant identified by its address, which is not cut to a prefix.
    #[inline]
    pub fn address(address: IpAddr) -> Self {
        Self { id: Id::Address(address), plan: None }
    }

    /// The plan, which selects the quotas of rules that have quotas for it.
    #[inline]
    pub fn plan(mut self, plan: impl Into<Arc<str>>) -> Self {
        self.plan = Some(plan.into());
        self
    }

    /// The tenant's name or address.
    #[inline]
    #[must_use]
    pub fn id(&self) -> TenantId<'_> {
        self.id.as_tenant_id()
    }

    /// The tenant, borrowed.
    #[inline]
    pub fn as_ref(&self) -> TenantRef<'_> {
        TenantRef { id: self.id.map(Cow::Borrowed), plan: self.plan.as_deref().map(Cow::Borrowed) }
    }
}

impl<'a> TenantRef<'a> {
    /// A tenant identified by its name.
    pub fn name(name: impl Into<Cow<'a, str>>) -> Self {
        Self { id: Id::Name(name.into()), plan: None }
    }

    /// A tenant identified by its address, which is not cut to a prefix.
    #[inline]
    pub fn address(address: IpAddr) -> Self {
        Self { id: Id::Address(address), plan: None }
    }

    /// The plan, which selects the quotas.
    #[inline]
    pub fn plan(mut self, plan: impl Into<Cow<'a, str>>) -> Self {
        self.plan = Some(plan.into());
        self
    }

    /// The tenant's name or address.
    #[inline]
    #[must_use]
    pub fn id(&self) -> TenantId<'_> {
        self.id.as_tenant_id()
    }

    /// A copy that borrows nothing.
    #[inline]
    pub fn into_owned(self) -> Tenant {
        Tenant { id: self.id.map(Arc::from), plan: self.plan.map(Into::into) }
    }

    pub(super) fn plan_name(&self) -> Option<&str> {
        self.plan.as_deref()
    }
}

impl fmt::Display for TenantId<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.pad(name),
            Self::Address(address) => address.fmt(f),
        }
    }
}

impl From<&str> for Tenant {
    fn from(name: &str) -> Self {
        Self::new(name)
    }
}

impl From<String> for Tenant {
    fn from(name: String) -> Self {
        Self::new(name)
    }
}

impl From<IpAddr> for Tenant {
    fn from(address: IpAddr) -> Self {
        Self::address(address)
    }
}

impl From<TenantId<'_>> for Tenant {
    fn from(id: TenantId<'_>) -> Self {
        match id {
            TenantId::Name(name) => Self::new(name),
            TenantId::Address(address) => Self::address(address),
        }
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
        Self {
            id: tenant.id.map(|name| Cow::Owned(name.into())),
            plan: tenant.plan.map(|plan| Cow::Owned(plan.as_ref().into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_displayed_unescaped() {
        assert_eq!(Tenant::new("acme").id().to_string(), "acme");
        assert_eq!(Tenant::address([192, 0, 2, 7].into()).id().to_string(), "192.0.2.7");
    }
}
