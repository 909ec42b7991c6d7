//! The tenant of one request, nearly always borrowed: [`TenantRef`].
//!
//! Invariant: it equals another one that says the same, whatever either is read from.

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

/// A borrowed [`Tenant`].
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
    source: Source<'a>,
    /// It comes before the source's.
    plan: Option<&'a str>,
}

/// What a tenant is read from. One comparison of a byte tells that there is nothing to
/// drop, and another that there is a name to hash.
#[derive(Clone)]
#[repr(u8)]
enum Source<'a> {
    Text(&'a str),
    /// A name in ASCII. A request that is decided by its key alone never reads it as text,
    /// and to check that it is UTF-8 took 95 instructions.
    Ascii(&'a [u8]),
    Address(IpAddr),
    Tenant(&'a Tenant),
    Owned(Owned),
}

/// A tenant that was made for one request. Dropped out of line: inlined, that makes every
/// descriptor slower that only borrows.
#[derive(Clone)]
struct Owned {
    id: Id<String>,
    plan: Option<String>,
    limits: OwnLimits,
}

impl Drop for Owned {
    #[inline]
    fn drop(&mut self) {
        drop_parts(self);
    }
}

#[cold]
#[inline(never)]
fn drop_parts(owned: &mut Owned) {
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
            Cow::Borrowed(name) => Source::Text(name).into(),
            Cow::Owned(name) => Source::Owned(Owned { id: Id::Name(name), plan: None, limits: OwnLimits::NONE }).into(),
        }
    }

    /// A tenant identified by its address, which is not cut to a prefix.
    #[inline]
    pub fn address(address: IpAddr) -> Self {
        Source::Address(address).into()
    }

    /// A tenant identified by a name in ASCII; `None` if it is not.
    #[inline]
    pub(crate) fn ascii(name: &'a [u8]) -> Option<Self> {
        is_ascii(name).then(|| Source::Ascii(name).into())
    }

    /// Its name has been read as text: reading it again costs nothing.
    pub(crate) fn as_text(&mut self) {
        if let Source::Ascii(bytes) = self.source {
            self.source = Source::Text(text(bytes));
        }
    }

    /// The bytes of its name, if that is only borrowed.
    #[inline]
    pub(crate) fn name_bytes(&self) -> Option<&'a [u8]> {
        match self.source {
            Source::Text(name) => Some(name.as_bytes()),
            Source::Ascii(name) => Some(name),
            _ => None,
        }
    }

    /// The plan, which selects the quotas.
    #[inline]
    pub fn plan(mut self, plan: impl Into<Cow<'a, str>>) -> Self {
        match plan.into() {
            Cow::Borrowed(plan) => self.plan = Some(plan),
            Cow::Owned(plan) => {
                let mut owned = self.to_parts();
                owned.plan = Some(plan);
                return Source::Owned(owned).into();
            }
        }
        self
    }

    /// The tenant's name or address.
    #[inline]
    #[must_use]
    pub fn id(&self) -> TenantId<'_> {
        match &self.source {
            Source::Text(name) => TenantId::Name(name),
            Source::Ascii(name) => TenantId::Name(text(name)),
            Source::Address(address) => TenantId::Address(*address),
            Source::Tenant(tenant) => tenant.id(),
            Source::Owned(owned) => owned.id.as_tenant_id(),
        }
    }

    /// A copy that borrows nothing.
    pub fn into_owned(self) -> Tenant {
        let id = match (&self.source, self.id()) {
            (Source::Tenant(tenant), _) => tenant.id.clone(),
            (_, TenantId::Name(name)) => Id::Name(name.into()),
            (_, TenantId::Address(address)) => Id::Address(address),
        };
        Tenant { id, plan: self.plan_name().map(Arc::from), limits: self.own_limits().cloned().unwrap_or_default() }
    }

    /// The tenant's own tiers: see [`Tenant::tiers`].
    pub fn tiers(self, tiers: impl IntoIterator<Item = Quota>) -> Self {
        let mut owned = self.to_parts();
        owned.limits.make_mut().set(tiers);
        Source::Owned(owned).into()
    }

    /// The tenant's own tiers under one rule: see [`Tenant::tiers_for`].
    pub fn tiers_for(self, rule: impl Into<Arc<str>>, tiers: impl IntoIterator<Item = Quota>) -> Self {
        let mut owned = self.to_parts();
        owned.limits.make_mut().set_for(rule.into(), tiers);
        Source::Owned(owned).into()
    }

    #[inline]
    pub(crate) fn limits(&self) -> Option<&TenantLimits> {
        self.own_limits()?.get()
    }

    #[inline]
    fn own_limits(&self) -> Option<&OwnLimits> {
        match &self.source {
            Source::Tenant(tenant) => Some(&tenant.limits),
            Source::Owned(owned) => Some(&owned.limits),
            Source::Text(_) | Source::Ascii(_) | Source::Address(_) => None,
        }
    }

    pub(super) fn plan_name(&self) -> Option<&str> {
        let own = match &self.source {
            Source::Tenant(tenant) => tenant.plan.as_deref(),
            Source::Owned(owned) => owned.plan.as_deref(),
            Source::Text(_) | Source::Ascii(_) | Source::Address(_) => None,
        };
        self.plan.or(own)
    }

    /// A copy of what it says, to which more can be added.
    fn to_parts(&self) -> Owned {
        let id = match self.id() {
            TenantId::Name(name) => Id::Name(name.to_owned()),
            TenantId::Address(address) => Id::Address(address),
        };
        let limits = self.own_limits().cloned().unwrap_or_default();
        Owned { id, plan: self.plan_name().map(str::to_owned), limits }
    }
}

/// A name that is ASCII.
fn text(name: &[u8]) -> &str {
    str::from_utf8(name).unwrap_or_default()
}

impl<'a> From<Source<'a>> for TenantRef<'a> {
    #[inline]
    fn from(source: Source<'a>) -> Self {
        Self { source, plan: None }
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
        Source::Tenant(tenant).into()
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
        Source::Owned(Owned { id, plan: plan.as_deref().map(str::to_owned), limits }).into()
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
        assert_eq!(limits(&tenant.as_ref()), Some(1), "what was borrowed is as before");

        let address = Tenant::address([1, 2, 3, 4].into());
        let added = address.as_ref().tiers_for("jobs", quotas());
        assert_eq!(limits(&added), Some(1));
        assert_eq!(added.into_owned(), address.tiers_for("jobs", quotas()));
    }
}
