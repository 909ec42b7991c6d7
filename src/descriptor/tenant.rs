//! An owned tenant, and what identifies it: [`Tenant`], [`TenantId`].
//!
//! It extracts no tenant from a request. The invariant: a name and an address
//! are never equal, whatever the name says.

use std::{fmt, net::IpAddr, sync::Arc};

use super::limits::OwnLimits;
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
    pub(super) id: Id<Arc<str>>,
    pub(super) plan: Option<Arc<str>>,
    pub(super) limits: OwnLimits,
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

/// A name or an address, whatever holds the name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Id<N> {
    Name(N),
    Address(IpAddr),
}

impl<N: AsRef<str>> Id<N> {
    #[inline]
    pub(super) fn as_tenant_id(&self) -> TenantId<'_> {
        match self {
            Self::Name(name) => TenantId::Name(name.as_ref()),
            Self::Address(address) => TenantId::Address(*address),
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
mod tests {
    use super::*;

    #[test]
    fn an_id_is_displayed_unescaped() {
        assert_eq!(Tenant::new("acme").id().to_string(), "acme");
        assert_eq!(Tenant::address([192, 0, 2, 7].into()).id().to_string(), "192.0.2.7");
    }
}
