//! An owned tenant, what identifies it, and the limits that it carries:
//! [`Tenant`], [`TenantId`], [`TenantLimits`].
//!
//! It extracts no tenant from a request, and validates no limits: the policy
//! does. The invariant: a name and an address are never equal, whatever the name
//! says.

use std::{fmt, net::IpAddr, sync::Arc};

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
    pub(super) id: Id,
    pub(super) plan: Option<Arc<str>>,
    /// Few tenants carry any.
    pub(super) limits: Option<Arc<TenantLimits>>,
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

/// What a [`TenantId`] borrows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Id {
    Name(Arc<str>),
    Address(IpAddr),
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
    /// The tiers for a rule, where it has its own.
    pub(crate) fn tiers_for(&self, rule: &str, counts_per_tenant: bool) -> Option<&[Quota]> {
        let named = self.by_rule.iter().find(|(own, _)| **own == *rule).map(|(_, tiers)| tiers);
        named.or_else(|| self.everywhere.as_ref().filter(|_| counts_per_tenant)).map(Vec::as_slice)
    }
}

impl Tenant {
    /// A tenant identified by its name.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self { id: Id::Name(name.into()), plan: None, limits: None }
    }

    /// A tenant identified by its address, which is not cut to a prefix.
    pub fn address(address: IpAddr) -> Self {
        Self { id: Id::Address(address), plan: None, limits: None }
    }

    /// The plan, which selects the quotas of rules that have quotas for it.
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

    fn limits_mut(&mut self) -> &mut TenantLimits {
        Arc::make_mut(self.limits.get_or_insert_default())
    }

    /// The tenant's name or address.
    #[must_use]
    pub fn id(&self) -> TenantId<'_> {
        match &self.id {
            Id::Name(name) => TenantId::Name(name),
            Id::Address(address) => TenantId::Address(*address),
        }
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

#[cfg(test)]
mod tests;
