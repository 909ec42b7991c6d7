//! What instances tell each other of keys that are held back.

use std::{fmt, time::Duration};

use super::Charge;
use crate::descriptor::TenantId;

/// A key that is to be left alone for a while, because whoever provides what
/// it limits has asked for it: as text, which means the same to all instances.
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
    /// Whether the rule counts each tenant by itself.
    pub per_tenant: bool,
    /// Who is held back. `None` is the anonymous tenant, where the rule counts
    /// per tenant, and everybody where it does not.
    pub tenant: Option<TenantId<'a>>,
    /// The path pattern; empty where the rule does not count per endpoint.
    pub endpoint: &'a str,
    /// The method; empty where the rule does not count per method, and for
    /// methods that it does not count apart.
    pub method: &'a str,
    /// For how long from now on, without any jitter: whoever hears of it adds
    /// its own.
    pub time: Duration,
}

impl<'a> CooldownNotice<'a> {
    /// Of the rule's one key, which all requests share; the other fields may
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

/// Whom a backend tells what other instances have said: a limiter.
pub trait CooldownListener: fmt::Debug + Send + Sync {
    /// Another instance says that a key is held back. Whatever is said only
    /// slows: a hold that lasts longer already stays as it is. What this
    /// instance's policy knows nothing of is ignored, and no hold lasts for
    /// more than an hour from when it is told. Does not block.
    fn on_cooldown(&self, notice: &CooldownNotice<'_>);
}
