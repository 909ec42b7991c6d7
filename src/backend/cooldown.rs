//! Cooldowns that instances share through their backend: [`CooldownNotice`].
//!
//! It sends nothing: backends do. Invariant: a notice means the same to all instances.

use std::time::Duration;

use crate::{descriptor::TenantId, policy::charge::Charge};

/// A key that cools down because its upstream asked for it, as text, which
/// means the same to all instances.
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{backend::CooldownNotice, descriptor::TenantId};
///
/// let mut notice = CooldownNotice::new("api", Duration::from_secs(2));
/// notice.per_tenant = true;
/// notice.tenant = Some(TenantId::Name("api.example.com"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[doc(hidden)]
pub struct CooldownNotice<'a> {
    /// The rule's id.
    pub rule: &'a str,
    /// Whether the rule has a counter for each tenant.
    pub per_tenant: bool,
    /// The tenant. `None` is the anonymous tenant where the rule counts per
    /// tenant, and all tenants where it does not.
    pub tenant: Option<TenantId<'a>>,
    /// The path pattern; empty where the rule does not count per endpoint.
    pub endpoint: &'a str,
    /// The method; empty where the rule does not count per method, and for
    /// methods without a counter of their own.
    pub method: &'a str,
    /// The time left from now on, without jitter: each instance adds its own.
    pub time: Duration,
}

impl<'a> CooldownNotice<'a> {
    /// For the one key of a rule that all requests share. The other fields may
    /// be set.
    #[must_use]
    pub fn new(rule: &'a str, time: Duration) -> Self {
        Self { rule, per_tenant: false, tenant: None, endpoint: "", method: "", time }
    }

    pub(crate) fn of(charge: &Charge<'a>, time: Duration) -> Self {
        Self {
            rule: charge.rule(),
            per_tenant: charge.rule.is_per_tenant(),
            tenant: charge.tenant(),
            endpoint: charge.endpoint(),
            method: charge.method(),
            time,
        }
    }
}

/// What a limiter does with the cooldowns of other instances.
pub(crate) type CooldownListener = dyn Fn(&CooldownNotice<'_>) + Send + Sync;
