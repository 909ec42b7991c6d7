//! Cooldowns: an upstream asked for a pause, and requests for its keys wait or
//! are rejected until the cooldown ends.
//!
//! A cooldown is a time and not a charge, kept beside the counters. A backend
//! in this process reserves slots behind it, in order and at the rules' rates
//! ([`Request::not_before`](crate::backend::Request::not_before)); other backends are asked when it is over.
//! A request that waits already sees a new cooldown when its slot comes.
//!
//! Instances report cooldowns to each other through their backend: by a rule's name and the
//! time left, never by a time of day, so their clocks need not agree.

use std::{iter, sync::Arc, time::Duration};

use super::{
    super::{
        observe,
        state::{Inner, RateLimiter},
    },
    keys::{MOST_JITTER, end},
};
use crate::{
    backend::{Charge, CooldownNotice},
    descriptor::{Descriptor, TenantRef},
    fingerprint::Scope,
    policy::{CompiledRule, Resolved},
    time::Timestamp,
};

/// The longest cooldown that is taken over from another instance. One that
/// lasts longer is reported again by the upstream's next response.
const LONGEST_REPORTED: Duration = Duration::from_secs(3_600);

impl RateLimiter {
    /// Starts a cooldown of a request's keys: until it ends, no request for
    /// them is sent. It covers every rule that applies, except those with
    /// [`upstream_feedback(false)`](crate::Rule::upstream_feedback).
    ///
    /// A client calls it when its upstream asks it to slow down;
    /// [`RateLimitLayer::client`](crate::RateLimitLayer::client) does so
    /// automatically. During a cooldown, a request waits in order if it may
    /// wait that long, and otherwise is rejected with the exact
    /// [`retry_after`](crate::RateLimited::retry_after). Requests in flight continue.
    ///
    /// The end is put off at random by up to a quarter of `time`, and by at
    /// most ten seconds, so that the instances of a fleet do not resume at
    /// once. A cooldown never ends earlier than was asked for: a shorter one
    /// does not replace a longer one. At most 65,536 keys have a cooldown or an
    /// adaptive rate at once.
    ///
    /// Where instances share a backend that can broadcast
    /// ([`share_cooldown`](crate::backend::Backend::share_cooldown), such as
    /// `backend::Redis`), a cooldown applies to all of them, for up to an hour.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{Descriptor, Quota, RateLimiter};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let limiter = RateLimiter::new(Quota::per_second(100)).unwrap();
    /// let call = Descriptor::new("/v1/charges").tenant("api.example.com");
    /// limiter.cool_down(&call, Duration::from_secs(2));
    ///
    /// let decision = limiter.check(&call).await;
    /// let after = decision.retry_after().unwrap();
    /// assert!(after > Duration::from_millis(1_900) && after <= Duration::from_millis(2_500));
    /// assert!(limiter.check(&call.clone().tenant("api.example.net")).await.is_allowed());
    /// # }
    /// ```
    pub fn cool_down(&self, descriptor: &Descriptor<'_>, time: Duration) {
        self.with_charges(descriptor, |_| true, |charges| self.cool_down_all(charges, time));
    }

    /// How long the keys of such a request still cool down; `None` where no
    /// key does.
    #[must_use]
    pub fn cooldown(&self, descriptor: &Descriptor<'_>) -> Option<Duration> {
        self.subscribe_cooldowns();
        let now = self.now();
        self.with_charges(descriptor, |_| true, |charges| self.inner.cooldowns.until(charges, now))
            .max(self.endpoint_cooling_until(descriptor, now))
            .map(|until| until.saturating_since(now))
    }

    /// Stands for the request's endpoint in cooldowns: its tenant and its path.
    pub(crate) fn endpoint_key(&self, descriptor: &Descriptor<'_>) -> u128 {
        let tenant = descriptor.tenant.as_ref().map(TenantRef::id);
        Scope::new(&["endpoint", descriptor.path()]).key(tenant).to_u128()
    }

    /// When the cooldown of the request's endpoint ends, if it has not ended.
    pub(in crate::limiter) fn endpoint_cooling_until(
        &self,
        descriptor: &Descriptor<'_>,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let key = iter::once_with(|| self.endpoint_key(descriptor));
        self.inner.cooldowns.latest_of(key, now)
    }

    /// Passes on what the enforced rules that are selected would charge.
    pub(in crate::limiter) fn with_charges<R>(
        &self,
        descriptor: &Descriptor<'_>,
        which: impl Fn(&CompiledRule) -> bool,
        act: impl FnOnce(&[Charge<'_>]) -> R,
    ) -> R {
        self.inner.current.with(|snapshot| {
            snapshot.policy.resolve(descriptor, |Resolved { enforced, .. }| {
                enforced.retain(|charge| which(charge.rule));
                act(enforced)
            })
        })
    }

    /// The upstream asked for a cooldown of these keys.
    pub(in crate::limiter) fn cool_down_all(&self, charges: &[Charge<'_>], time: Duration) {
        if !time.is_zero() {
            let now = self.now();
            let until = end(now, time, MOST_JITTER);
            let follows = |charge: &&Charge<'_>| charge.rule.options.upstream_feedback;
            charges.iter().filter(follows).for_each(|charge| self.cool_down_one(charge, time, (until, now)));
        }
    }

    /// Starts a cooldown of one key, for that time and until then.
    pub(super) fn cool_down_one(&self, charge: &Charge<'_>, time: Duration, (until, now): (u64, Timestamp)) {
        self.subscribe_cooldowns();
        self.inner.cooldowns.start(charge.fingerprint(), until, now.as_nanos());
        observe::cooldown_started(charge.rule, time, now);
        self.inner.backend.share_cooldown(&CooldownNotice::of(charge, time));
    }

    /// Until when the backend must not be asked for these charges.
    ///
    /// A backend in this process knows of the cooldown and reserves behind it,
    /// but only where all keys of the request cool down for as long: a slot far
    /// ahead must not be charged to a key that other requests go on using.
    pub(in crate::limiter) fn cooling_until(&self, charges: &[Charge<'_>], now: Timestamp) -> Option<Timestamp> {
        let until = self.inner.cooldowns.until(charges, now)?;
        let reserves = self.inner.engine.is_some() && self.inner.cooldowns.all_end_at(charges, until);
        (!reserves).then_some(until)
    }

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
