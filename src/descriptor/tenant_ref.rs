//! The tenant of one request, nearly always borrowed: [`TenantRef`].
//!
//! Invariant: equality and hash depend on id, plan and limits, not on what holds them.

use std::{
    borrow::Cow,
    fmt,
    hash::{Hash, Hasher},
    net::IpAddr,
    sync::Arc,
};

use super::{
    limits::{OwnLimits, TenantLimits},
    tenant::{Id, Tenant, TenantId},
};
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
    held: Held<'a>,
    /// Comes before that of `held`.
    plan: Option<&'a str>,
}

/// What holds the tenant. The tag has a byte of its own, not an unused value of a field: one
/// comparison tells that there is nothing to drop.
#[derive(Clone)]
#[repr(u8)]
enum Held<'a> {
    Text(&'a str),
    /// A name in ASCII. A request that is decided by its key alone never reads it as text,
    /// and to check that it is UTF-8 took 95 instructions.
    Ascii(&'a [u8]),
    Address(IpAddr),
    Tenant(&'a Tenant),
    Owned(OwnedTenant),
}

/// A tenant that was made for one request. Dropped out of line: inlined, that makes every
/// descriptor slower that only borrows.
#[derive(Clone)]
struct OwnedTenant {
    id: Id<String>,
    plan: Option<String>,
    limits: OwnLimits,
}

impl Drop for OwnedTenant {
    #[inline]
    fn drop(&mut self) {
        drop_parts(self);
    }
}

/// Leaves nothing for the fields' own drops.
#[cold]
#[inline(never)]
fn drop_parts(owned: &mut OwnedTenant) {
    (owned.id, owned.plan, owned.limits) = (Id::Name(String::new()), None, OwnLimits::NONE);
}

/// Eight bytes at a time.
#[inline]
fn is_ascii(bytes: &[u8]) -> bool {
    const HIGH_BITS: u64 = 0x8080_8080_8080_8080;
    match bytes.last_chunk() {
        Some(last) => {
            let words = bytes.as_chunks().0;
            words.iter().chain([last]).all(|word| u64::from_ne_bytes(*word) & HIGH_BITS == 0)
        }
        None => bytes.iter().all(u8::is_ascii),
    }
}

impl<'a> TenantRef<'a> {
    /// A tenant identified by its name.
    #[inline]
    pub fn name(name: impl Into<Cow<'a, str>>) -> Self {
        match name.into() {
            Cow::Borrowed(name) => Held::Text(name).into(),
            Cow::Owned(name) => {
                Held::Owned(OwnedTenant { id: Id::Name(name), plan: None, limits: OwnLimits::NONE }).into()
            }
        }
    }

    /// A tenant identified by its address, which is not cut to a prefix.
    #[inline]
    pub fn address(address: IpAddr) -> Self {
        Held::Address(address).into()
    }

    /// A tenant identified by a name in ASCII; `None` if it is not.
    #[inline]
    pub(crate) fn ascii(name: &'a [u8]) -> Option<Self> {
        is_ascii(name).then(|| Held::Ascii(name).into())
    }

    /// Reads the name as text once, so that each rule need not.
    pub(crate) fn read_as_text(&mut self) {
        if let Held::Ascii(bytes) = self.held {
            self.held = Held::Text(text(bytes));
        }
    }

    /// The name's bytes, of a tenant that has no limits of its own: a policy of one rule
    /// looks no further. `None` for some of these too.
    #[inline]
    pub(crate) fn bare_name(&self) -> Option<&'a [u8]> {
        match self.held {
            Held::Text(name) => Some(name.as_bytes()),
            Held::Ascii(name) => Some(name),
            // These may have limits.
            Held::Tenant(_) | Held::Owned(_) => None,
            Held::Address(_) => None,
        }
    }

    /// The plan, which selects the quotas.
    #[inline]
    pub fn plan(mut self, plan: impl Into<Cow<'a, str>>) -> Self {
        match plan.into() {
            Cow::Borrowed(plan) => self.plan = Some(plan),
            Cow::Owned(plan) => return self.with_parts(|owned| owned.plan = Some(plan)),
        }
        self
    }

    /// The tenant's name or address.
    #[inline]
    #[must_use]
    pub fn id(&self) -> TenantId<'_> {
        match &self.held {
            Held::Text(name) => TenantId::Name(name),
            Held::Ascii(name) => TenantId::Name(text(name)),
            Held::Address(address) => TenantId::Address(*address),
            Held::Tenant(tenant) => tenant.id(),
            Held::Owned(owned) => owned.id.as_tenant_id(),
        }
    }

    /// A copy that borrows nothing.
    pub fn into_owned(self) -> Tenant {
        let id = match (&self.held, self.id()) {
            (Held::Tenant(tenant), _) => tenant.id.clone(),
            (_, TenantId::Name(name)) => Id::Name(name.into()),
            (_, TenantId::Address(address)) => Id::Address(address),
        };
        Tenant { id, plan: self.plan_name().map(Arc::from), limits: self.own_limits().cloned().unwrap_or_default() }
    }

    /// The tenant's own tiers: see [`Tenant::tiers`].
    pub fn tiers(self, tiers: impl IntoIterator<Item = Quota>) -> Self {
        self.with_parts(|owned| owned.limits.make_mut().set(tiers))
    }

    /// The tenant's own tiers under one rule: see [`Tenant::tiers_for`].
    pub fn tiers_for(self, rule: impl Into<Arc<str>>, tiers: impl IntoIterator<Item = Quota>) -> Self {
        self.with_parts(|owned| owned.limits.make_mut().set_for(rule.into(), tiers))
    }

    #[inline]
    pub(crate) fn limits(&self) -> Option<&TenantLimits> {
        self.own_limits()?.get()
    }

    #[inline]
    fn own_limits(&self) -> Option<&OwnLimits> {
        match &self.held {
            Held::Tenant(tenant) => Some(&tenant.limits),
            Held::Owned(owned) => Some(&owned.limits),
            Held::Text(_) | Held::Ascii(_) | Held::Address(_) => None,
        }
    }

    pub(super) fn plan_name(&self) -> Option<&str> {
        let own = match &self.held {
            Held::Tenant(tenant) => tenant.plan.as_deref(),
            Held::Owned(owned) => owned.plan.as_deref(),
            Held::Text(_) | Held::Ascii(_) | Held::Address(_) => None,
        };
        self.plan.or(own)
    }

    /// The same tenant, owned, with what `change` adds.
    fn with_parts(self, change: impl FnOnce(&mut OwnedTenant)) -> Self {
        let plan = self.plan_name().map(str::to_owned);
        let mut owned = match self.held {
            Held::Owned(owned) => owned,
            held => {
                let borrowed = Self { held, plan: None };
                let id = match borrowed.id() {
                    TenantId::Name(name) => Id::Name(name.to_owned()),
                    TenantId::Address(address) => Id::Address(address),
                };
                OwnedTenant { id, plan: None, limits: borrowed.own_limits().cloned().unwrap_or_default() }
            }
        };
        owned.plan = plan;
        change(&mut owned);
        Held::Owned(owned).into()
    }
}

impl Tenant {
    /// The tenant, borrowed.
    #[inline]
    pub fn as_ref(&self) -> TenantRef<'_> {
        TenantRef::from(self)
    }
}

/// A name that was checked to be ASCII: it is never replaced by the empty one.
fn text(name: &[u8]) -> &str {
    str::from_utf8(name).unwrap_or_default()
}

impl<'a> From<Held<'a>> for TenantRef<'a> {
    #[inline]
    fn from(held: Held<'a>) -> Self {
        Self { held, plan: None }
    }
}

impl PartialEq for TenantRef<'_> {
    fn eq(&self, other: &Self) -> bool {
        (self.id(), self.plan_name(), self.limits()) == (other.id(), other.plan_name(), other.limits())
    }
}

impl Eq for TenantRef<'_> {}

impl Hash for TenantRef<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.id(), self.plan_name(), self.limits()).hash(state);
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
    #[inline]
    fn from(tenant: &'a Tenant) -> Self {
        Held::Tenant(tenant).into()
    }
}

impl<'a> From<&'a str> for TenantRef<'a> {
    #[inline]
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
    fn from(Tenant { id, plan, limits }: Tenant) -> Self {
        let id = match id {
            Id::Name(name) => Id::Name((*name).into()),
            Id::Address(address) => Id::Address(address),
        };
        Held::Owned(OwnedTenant { id, plan: plan.as_deref().map(str::to_owned), limits }).into()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn what_says_the_same_is_equal() {
        let tenant = Tenant::new("acme").plan("pro");
        let same = [
            tenant.as_ref(),
            TenantRef::from(tenant.clone()),
            TenantRef::name("acme").plan("pro"),
            TenantRef::name(String::from("acme")).plan(String::from("pro")),
            TenantRef::ascii(b"acme").unwrap().plan("free").plan(String::from("pro")),
            Tenant::new("acme").plan("free").as_ref().plan("pro").into_owned().into(),
        ];
        assert_eq!(same.iter().collect::<HashSet<_>>().len(), 1, "{same:?}");
        assert!(same.into_iter().all(|same| same.into_owned() == tenant));

        let other = [
            TenantRef::name("acme"),
            TenantRef::name("acme").plan("free"),
            TenantRef::name("initech").plan("pro"),
            TenantRef::address([1, 2, 3, 4].into()).plan("pro"),
            tenant.as_ref().tiers([Quota::per_second(1)]),
        ];
        assert!(other.iter().all(|other| *other != tenant.as_ref()));
    }

    #[test]
    fn what_is_added_keeps_the_rest() {
        let quotas = || [Quota::per_second(7)];
        let tenant = Tenant::new("acme").plan("pro").tiers_for("jobs", quotas());
        let added = tenant.as_ref().tiers(quotas()).plan(String::from("free"));
        assert_eq!(added.clone().into_owned(), tenant.clone().tiers(quotas()).plan("free"));
        assert_eq!(added.plan("pro").into_owned(), tenant.clone().tiers(quotas()));
        let limits =
            |tenant: &TenantRef<'_>| tenant.limits().and_then(|limits| limits.tiers_for("jobs", true)).map(<[_]>::len);
        let everywhere =
            |tenant: &TenantRef<'_>| tenant.limits().and_then(|limits| limits.tiers_for("any", true)).map(<[_]>::len);
        assert_eq!((everywhere(&tenant.as_ref().tiers(quotas())), everywhere(&tenant.as_ref())), (Some(1), None));

        let address = Tenant::address([1, 2, 3, 4].into());
        let added = address.as_ref().tiers_for("jobs", quotas());
        assert_eq!(limits(&added), Some(1));
        assert_eq!(added.into_owned(), address.tiers_for("jobs", quotas()));
    }
}
