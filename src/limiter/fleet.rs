//! What instances tell each other of keys that are held back.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use super::{Backing, Inner, RateLimiter, report};
use crate::backend::{Backend, Charge, CooldownListener, CooldownNotice};

/// No longer than that is anything held back that another instance tells of:
/// who must not go even then is told so by its own response.
const LONGEST_TOLD: Duration = Duration::from_secs(3_600);

impl RateLimiter {
    /// From now on hears what other instances are told: their backend may keep
    /// a connection for it, so only who has to do with a provider does.
    #[inline]
    pub(crate) fn subscribe_cooldowns(&self) {
        if let Backing::Other(backend) = &self.inner.backend
            && !self.inner.cooldowns.hears()
        {
            self.begin_to_hear(&**backend);
        }
    }

    #[cold]
    fn begin_to_hear(&self, backend: &dyn Backend) {
        if !self.inner.cooldowns.begins_to_hear() {
            // Weak, since this owns the backend.
            let listener: Weak<Inner> = Arc::downgrade(&self.inner);
            backend.subscribe_cooldowns(listener);
        }
    }

    /// Tells other instances what a provider has said to this one.
    pub(super) fn share_cooldown(&self, charge: &Charge<'_>, time: Duration) {
        if let Backing::Other(backend) = &self.inner.backend {
            backend.share_cooldown(&CooldownNotice::of(charge, time));
        }
    }
}

impl CooldownListener for Inner {
    /// By the policy in force: the instance that tells may have another one.
    fn on_cooldown(&self, notice: &CooldownNotice<'_>) {
        let policy = self.current.policy();
        let named = policy.rules.iter().find(|rule| rule.upstream_feedback && **rule.id == *notice.rule);
        let time = notice.time.min(LONGEST_TOLD);
        if let Some(rule) = named.filter(|_| !time.is_zero())
            && let Some(key) = rule.key_named((notice.per_tenant, notice.tenant), notice.endpoint, notice.method)
        {
            report::cooldown_received(rule, time);
            self.cooldowns.hold_for(key.to_u128(), time, self.clock.now());
        }
    }
}
