//! The tenant that a request is counted for, owned or borrowed.
//!
//! It extracts no tenant from a request. The invariant: a name and an address
//! are never equal, whatever the name says.

use std::{
    borrow::Cow,
    fmt,
    hash::{Hash, Hasher},
    net::IpAddr,
    sync::Arc,
};

use super::limits::{OwnLimits, TenantLimits};
use crate::quota::Quota;

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
    limits: OwnLimits,
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
    id: Id<Name<'a>>,
    plan: Option<Cow<'a, str>>,
    limits: OwnLimits,
}

/// The name of a borrowed tenant.
#[derive(Clone)]
enum Name<'a> {
    Text(Cow<'a, str>),
    /// ASCII. A request that is decided by its key alone never reads it as text, and
    /// to check that it is UTF-8 took 95 instructions.
    Ascii(&'a [u8]),
}

impl<'a> Name<'a> {
    fn borrowed(text: &'a str) -> Self {
        Self::Text(Cow::Borrowed(text))
    }

    #[inline]
    fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Ascii(bytes) => bytes,
        }
    }
}

impl AsRef<str> for Name<'_> {
    #[inline]
    fn as_ref(&self) -> &str {
        match self {
            Self::Text(text) => text,
            Self::Ascii(bytes) => str::from_utf8(bytes).unwrap_or_default(),
        }
    }
}

impl fmt::Debug for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_ref().fmt(f)
    }
}

impl PartialEq for Name<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Name<'_> {}

impl Hash for Name<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
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
        Self { id: Id::Name(name.into()), plan: None, limits: OwnLimits::NONE }
    }

    /// A tenant identified by its address, which is not cut to a prefix.
    #[inline]
    pub fn address(address: IpAddr) -> Self {
        Self { id: Id::Address(address), plan: None, limits: OwnLimits::NONE }
    }

    /// The plan, which selects the quotas of rules that have quotas for it.
    #[inline]
    pub fn plan(mut self, plan: impl Into<Arc<str>>) -> Self {
        self.plan = Some(plan.into());
        self
    }

    /// The tenant's own tiers, such as those that a database or a token has for
    /// it. They replace the tiers of every rule that counts per tenant, and come
    /// before those that the policy has for this tenant and for its plan.
    ///
    /// A tenant keeps what it has used when its limits change: a tier's counter is
    /// named by algorithm and window. Each distinct set of quotas is compiled once
    /// for a rule, and up to 1,024 sets are kept for each.
    ///
    /// If the quotas are invalid, such as none, more than 32, or a window of zero,
    /// the request is rejected: see
    /// [`InvalidTiers`](crate::RateLimitedKind::InvalidTiers).
    ///
    /// ```
    /// use tower_ratelimit::{Descriptor, Quota, RateLimiter, Tenant};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_ratelimit::ConfigError> {
    /// let limiter = RateLimiter::new(Quota::per_minute(10))?;
    /// // As a row of a database says.
    /// let tenant = Tenant::new("acme").tiers([Quota::per_minute(500), Quota::per_day(20_000)]);
    /// let decision = limiter.check(&Descriptor::new("/").tenant(tenant)).await;
    /// assert_eq!((decision.limit(), decision.remaining()), (500, 499));
    /// # Ok(())
    /// # }
    /// ```
    pub fn tiers(mut self, tiers: impl IntoIterator<Item = Quota>) -> Self {
        self.limits.make_mut().set(tiers);
        self
    }

    /// The tenant's own tiers under the rule with this id, whatever that counts
    /// by: as [`tiers`](Self::tiers), and before those.
    pub fn tiers_for(mut self, rule: impl Into<Arc<str>>, tiers: impl IntoIterator<Item = Quota>) -> Self {
        self.limits.make_mut().set_for(rule.into(), tiers);
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
        let plan = self.plan.as_deref().map(Cow::Borrowed);
        TenantRef { id: self.id.map(Name::borrowed), plan, limits: self.limits.clone() }
    }
}

impl<'a> TenantRef<'a> {
    /// A tenant identified by its name.
    pub fn name(name: impl Into<Cow<'a, str>>) -> Self {
        Self { id: Id::Name(Name::Text(name.into())), plan: None, limits: OwnLimits::NONE }
    }

    /// A tenant identified by its address, which is not cut to a prefix.
    #[inline]
    pub fn address(address: IpAddr) -> Self {
        Self { id: Id::Address(address), plan: None, limits: OwnLimits::NONE }
    }

    /// A tenant identified by a name in ASCII; `None` if it is not.
    #[inline]
    pub(crate) fn ascii(name: &'a [u8]) -> Option<Self> {
        is_ascii(name).then(|| Self { id: Id::Name(Name::Ascii(name)), plan: None, limits: OwnLimits::NONE })
    }

    /// Its name has been read as text: reading it again costs nothing.
    pub(crate) fn as_text(&mut self) {
        if let Id::Name(Name::Ascii(bytes)) = self.id {
            self.id = Id::Name(Name::borrowed(str::from_utf8(bytes).unwrap_or_default()));
        }
    }

    /// The bytes of its name; `None` for an address.
    #[inline]
    pub(crate) fn name_bytes(&self) -> Option<&[u8]> {
        match &self.id {
            Id::Name(name) => Some(name.as_bytes()),
            Id::Address(_) => None,
        }
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
        Tenant { id: self.id.map(Arc::from), plan: self.plan.map(Into::into), limits: self.limits }
    }

    /// The tenant's own tiers: see [`Tenant::tiers`].
    pub fn tiers(mut self, tiers: impl IntoIterator<Item = Quota>) -> Self {
        self.limits.make_mut().set(tiers);
        self
    }

    /// The tenant's own tiers under one rule: see [`Tenant::tiers_for`].
    pub fn tiers_for(mut self, rule: impl Into<Arc<str>>, tiers: impl IntoIterator<Item = Quota>) -> Self {
        self.limits.make_mut().set_for(rule.into(), tiers);
        self
    }

    #[inline]
    pub(crate) fn limits(&self) -> Option<&TenantLimits> {
        self.limits.get()
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
            id: tenant.id.map(|name| Name::Text(Cow::Owned(name.into()))),
            plan: tenant.plan.map(|plan| Cow::Owned(plan.as_ref().into())),
            limits: tenant.limits,
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
