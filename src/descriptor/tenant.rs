//! The tenant of a request, [`Tenant`], or borrowed, as nearly always, [`TenantRef`]; what
//! identifies it, and the limits that it carries.
//!
//! It extracts no tenant from a request, and validates no limits: the policy
//! does.
//!
//! Invariant: a name and an address are never equal, whatever the name says. Equality and
//! hash of a [`TenantRef`] depend on id, plan, priority and limits, not on what holds them.

use std::{
    borrow::Cow,
    fmt,
    hash::{BuildHasher, Hash, Hasher, RandomState},
    net::IpAddr,
    sync::{Arc, LazyLock},
};

use super::priority::Priority;
use crate::quota::Quota;

/// The tenant that a request is counted for, and its plan. The layer finds a
/// tenant in a request's extensions.
///
/// A tenant is identified by a name or by an address. The two never share a counter, nor
/// an entry of the policy: a name that reads like an address is a name.
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
    id: Id,
    plan: Option<Arc<str>>,
    priority: Option<Priority>,
    /// Few tenants carry any.
    limits: Option<Arc<TenantLimits>>,
}

/// A tenant's name or address.
///
/// A name may be a secret, such as an API key. `Display` writes all of it, unescaped;
/// `Debug` writes its first four characters and a fingerprint, which is the same for the
/// same name as long as the process lives.
///
/// ```
/// use tower_ratelimit::descriptor::TenantId;
///
/// let key = TenantId::Name("sk-live-4f9a");
/// assert_eq!(key.to_string(), "sk-live-4f9a");
/// assert!(!format!("{key:?}").contains("4f9a"));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TenantId<'a> {
    /// Any text: an API key, an organization.
    Name(&'a str),
    /// A network address. A caller's address is cut to its prefix.
    Address(IpAddr),
}

impl TenantId<'_> {
    /// The same for the same name or address as long as the process lives.
    pub(crate) fn fingerprint(self) -> u64 {
        static FINGERPRINT: LazyLock<RandomState> = LazyLock::new(RandomState::default);
        match self {
            Self::Name(name) => FINGERPRINT.hash_one(name),
            Self::Address(address) => FINGERPRINT.hash_one(address),
        }
    }
}

impl fmt::Debug for TenantId<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => {
                let start: String = name.chars().take(4).collect();
                write!(f, "{start:?}..{:016x}", self.fingerprint())
            }
            Self::Address(address) => address.fmt(f),
        }
    }
}

/// What a [`TenantId`] borrows.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Id {
    Name(Arc<str>),
    Address(Address),
}

/// An address, and the network that it is counted as, by which alone it is compared.
#[derive(Clone, Copy, Debug)]
struct Address {
    whole: IpAddr,
    counted: IpAddr,
}

impl From<IpAddr> for Address {
    fn from(address: IpAddr) -> Self {
        Self { whole: address, counted: address }
    }
}

impl PartialEq for Address {
    fn eq(&self, other: &Self) -> bool {
        self.counted == other.counted
    }
}

impl Eq for Address {}

impl Hash for Address {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.counted.hash(state);
    }
}

impl Id {
    fn as_ref(&self) -> TenantId<'_> {
        match self {
            Self::Name(name) => TenantId::Name(name),
            Self::Address(address) => TenantId::Address(address.counted),
        }
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_ref().fmt(f)
    }
}

/// A tenant's own tiers, such as those from a database or a token.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct TenantLimits {
    /// For every rule that counts per tenant.
    everywhere: Option<Vec<Quota>>,
    /// For rules by their ids.
    by_rule: Vec<(Arc<str>, Vec<Quota>)>,
}

impl TenantLimits {
    /// All tiers, each with its rule.
    #[cfg(feature = "admin")]
    pub(crate) fn all(&self) -> impl Iterator<Item = (Option<&str>, &[Quota])> {
        let everywhere = self.everywhere.iter().map(|tiers| (None, tiers.as_slice()));
        everywhere.chain(self.by_rule.iter().map(|(rule, tiers)| (Some(&**rule), tiers.as_slice())))
    }

    /// The rules that have tiers of their own.
    pub(crate) fn rules(&self) -> impl Iterator<Item = &str> {
        self.by_rule.iter().map(|(rule, _)| &**rule)
    }

    /// The tiers for a rule, where it has its own.
    pub(crate) fn tiers_for(&self, rule: &str, counts_per_tenant: bool) -> Option<&[Quota]> {
        let named = self.by_rule.iter().find(|(own, _)| **own == *rule).map(|(_, tiers)| tiers);
        named.or_else(|| self.everywhere.as_ref().filter(|_| counts_per_tenant)).map(Vec::as_slice)
    }
}

impl Tenant {
    /// A tenant identified by its name.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self { id: Id::Name(name.into()), plan: None, priority: None, limits: None }
    }

    /// A tenant identified by its address, which is not cut to a prefix.
    pub fn address(address: IpAddr) -> Self {
        Self { id: Id::Address(address.into()), plan: None, priority: None, limits: None }
    }

    /// The plan, which selects the quotas of rules that have quotas for it.
    pub fn plan(mut self, plan: impl Into<Arc<str>>) -> Self {
        self.plan = Some(plan.into());
        self
    }

    /// How much the tenant's requests matter, unless they say so themselves.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = Some(priority);
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
    /// assert_eq!((decision.limit(), decision.remaining()), (Some(500), Some(499)));
    /// # Ok(())
    /// # }
    /// ```
    pub fn tiers(mut self, tiers: impl IntoIterator<Item = Quota>) -> Self {
        self.limits_mut().everywhere = Some(tiers.into_iter().collect());
        self
    }

    /// The tenant's own tiers under the rule with this id, whatever that counts
    /// by: as [`tiers`](Self::tiers), and before those.
    pub fn tiers_for(mut self, rule: impl Into<Arc<str>>, tiers: impl IntoIterator<Item = Quota>) -> Self {
        let rule = rule.into();
        let by_rule = &mut self.limits_mut().by_rule;
        by_rule.retain(|(own, _)| *own != rule);
        by_rule.push((rule, tiers.into_iter().collect()));
        self
    }

    pub(crate) fn limits(&self) -> Option<&TenantLimits> {
        self.limits.as_deref()
    }

    fn limits_mut(&mut self) -> &mut TenantLimits {
        Arc::make_mut(self.limits.get_or_insert_default())
    }

    /// The tenant's name or address.
    #[must_use]
    pub fn id(&self) -> TenantId<'_> {
        self.id.as_ref()
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
    Name(&'a str),
    Address(Address),
    Tenant(&'a Tenant),
    /// A tenant that was made for one request.
    Owned(Arc<Tenant>),
}

impl<'a> TenantRef<'a> {
    /// A tenant identified by its name.
    pub fn name(name: impl Into<Cow<'a, str>>) -> Self {
        match name.into() {
            Cow::Borrowed(name) => NameSource::Name(name).into(),
            Cow::Owned(name) => Tenant::new(name).into(),
        }
    }

    /// A tenant identified by its address, which is not cut to a prefix.
    pub fn address(address: IpAddr) -> Self {
        NameSource::Address(address.into()).into()
    }

    /// A tenant identified by its address, which is counted as the network `counted`.
    pub(crate) fn address_in(whole: IpAddr, counted: IpAddr) -> Self {
        NameSource::Address(Address { whole, counted }).into()
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
            NameSource::Name(name) => TenantId::Name(name),
            NameSource::Address(address) => TenantId::Address(address.counted),
            NameSource::Tenant(tenant) => tenant.id(),
            NameSource::Owned(tenant) => tenant.id(),
        }
    }

    /// As [`id`](Self::id), but an address is not cut to its network.
    pub(crate) fn whole_id(&self) -> TenantId<'_> {
        match (&self.source, self.tenant().map(|tenant| &tenant.id)) {
            (NameSource::Address(address), _) | (_, Some(Id::Address(address))) => TenantId::Address(address.whole),
            _ => self.id(),
        }
    }

    /// A copy that borrows nothing.
    pub fn into_owned(self) -> Tenant {
        let mut tenant = match &self.source {
            NameSource::Name(name) => Tenant::new(*name),
            NameSource::Address(address) => {
                Tenant { id: Id::Address(*address), plan: None, priority: None, limits: None }
            }
            NameSource::Tenant(tenant) => (*tenant).clone(),
            NameSource::Owned(tenant) => (**tenant).clone(),
        };
        if let Some(plan) = self.plan {
            tenant.plan = Some(plan.into());
        }
        tenant
    }

    /// How much the tenant's requests matter: see [`Tenant::priority`].
    pub fn priority(self, priority: Priority) -> Self {
        self.into_owned().priority(priority).into()
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
        self.tenant()?.limits()
    }

    pub(super) fn plan_name(&self) -> Option<&str> {
        self.plan.or_else(|| self.tenant()?.plan.as_deref())
    }

    pub(super) fn stated_priority(&self) -> Option<Priority> {
        self.tenant()?.priority
    }

    fn tenant(&self) -> Option<&Tenant> {
        match &self.source {
            NameSource::Tenant(tenant) => Some(tenant),
            NameSource::Owned(tenant) => Some(tenant),
            NameSource::Name(_) | NameSource::Address(_) => None,
        }
    }

    /// What identity depends on.
    fn parts(&self) -> (TenantId<'_>, Option<&str>, Option<Priority>, Option<&TenantLimits>) {
        (self.id(), self.plan_name(), self.stated_priority(), self.limits())
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
