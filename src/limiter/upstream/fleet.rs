//! Cooldowns of a fleet: what instances report to each other through their
//! backend. Reports carry a rule's name and the time left, never a time of day,
//! so the instances' clocks need not agree.

use std::{sync::Arc, time::Duration};

use super::super::{
    observe,
    state::{Inner, RateLimiter},
};
use crate::backend::{Charge, CooldownNotice};

/// The longest cooldown that is taken over from another instance. One that
/// lasts longer is reported again by the upstream's next response.
const LONGEST_REPORTED: Duration = Duration::from_secs(3_600);

impl RateLimiter {
    /// Subscribes to other instances' cooldowns. The backend may keep a
    /// connection for it, so only limiters that have an upstream subscribe.
    pub(crate) fn subscribe_cooldowns(&self) {
        self.inner.cooldowns.subscription.get_or_init(|| {
            // Weak, since the limiter owns the backend, and keeps the listener.
            let limiter = Arc::downgrade(&self.inner);
            let listener = Arc::new(move |notice: &CooldownNotice<'_>| {
                limiter.upgrade().iter().for_each(|limiter| limiter.on_cooldown(notice));
            });
            let weak = Arc::downgrade(&listener);
            self.inner.backend.subscribe_cooldowns(weak);
            listener
        });
    }

    pub(super) fn share_cooldown(&self, charge: &Charge<'_>, time: Duration) {
        self.inner.backend.share_cooldown(&CooldownNotice::of(charge, time));
    }
}

impl Inner {
    /// Applies the report by this instance's policy, which may be another one.
    fn on_cooldown(&self, notice: &CooldownNotice<'_>) {
        let policy = self.current.policy();
        let named = policy.rules.iter().find(|rule| rule.options.upstream_feedback && **rule.id == *notice.rule);
        let time = notice.time.min(LONGEST_REPORTED);
        if let Some(rule) = named.filter(|_| !time.is_zero())
            && let Some(key) = rule.keys.find(notice.per_tenant, notice.tenant, notice.endpoint, notice.method)
        {
            observe::cooldown_received(rule, time);
            self.cooldowns.start_reported(key.to_u128(), time, self.clock.now());
        }
    }
}
