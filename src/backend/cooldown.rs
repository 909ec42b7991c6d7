//! Cooldowns that instances share through their backend: [`CooldownSharing`].
//!
//! Optional: a backend that does not implement it shares nothing.

use std::{fmt, sync::Weak, time::Duration};

use crate::{descriptor::TenantId, policy::charge::Charge};

/// Shares cooldowns with other instances.
pub trait CooldownSharing {
    /// Reports to the other instances that a key is cooling down: its upstream
    /// asked this instance to slow down. Best effort, in the background: must
    /// not block. The limiter calls it for every response that asks, so the
    /// backend should leave out what it has already reported.
    fn share_cooldown(&self, notice: &CooldownNotice<'_>);

    /// Reports other instances' cooldowns to `listener` from now on, and those
    /// from before that are not over yet. The listener may hear its own reports.
    ///
    /// A limiter calls this once, and only if it has an upstream: when a
    /// client's layer is made, or when a caller starts a cooldown or asks for
    /// one. Limiters of servers never do. Keep the listener weak: it owns the
    /// backend.
    fn subscribe_cooldowns(&self, listener: Weak<dyn CooldownListener>);
}

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

/// Receives other instances' cooldowns from a backend: a limiter.
pub trait CooldownListener: fmt::Debug + Send + Sync {
    /// Another instance reports that a key is cooling down. A report never
    /// shortens a cooldown that lasts longer. The limiter ignores a
    /// key that its own policy does not have, and no report counts for more
    /// than an hour. Does not block.
    fn on_cooldown(&self, notice: &CooldownNotice<'_>);
}
