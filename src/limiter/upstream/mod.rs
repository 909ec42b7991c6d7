//! What a limiter learns from an upstream, for each key that a request is charged to, and what
//! it does with that. It neither counts nor decides requests.
//!
//! | a key has | from | until |
//! |---|---|---|
//! | a cooldown | the upstream, this instance's caller or another instance | its end |
//! | a resume schedule | a response with nothing left, or a rejection | a minute after it delays nothing |
//! | an adaptive rate | each answer, where the rule adapts | an hour without an answer |
//!
//! A cooldown is a time and not a charge, kept beside the counters: its requests wait or are
//! rejected until it ends. A backend in this process reserves slots behind it, in order and at
//! the rules' rates ([`Request::not_before`](crate::backend::Request::not_before)); other
//! backends are asked when it is over. A request that waits already sees a new cooldown when
//! its slot comes. Instances report cooldowns to each other through their backend: by a rule's
//! name and the time left, never by a time of day, so their clocks need not agree.
//!
//! Invariant: nothing that is learned admits a request earlier than the rules do.

mod aimd;
pub(super) mod keys;
mod resume;

use std::{iter, sync::Arc, time::Duration};

pub(super) use self::keys::Postponement;
use self::{
    aimd::{KeyRate, Times},
    keys::{MOST_JITTER, end},
    resume::{ResumeSchedule, rate},
};
use super::{
    adaptive_limit::limits::KeyLimit,
    lease::Lease,
    observe,
    queue::rate_queue,
    state::{Inner, RateLimiter},
};
use crate::{
    backend::{Charge, CooldownNotice},
    decision::Decision,
    descriptor::{Descriptor, TenantRef},
    fingerprint::Scope,
    policy::{RateBounds, Resolved, charge::Charges},
    time::{Timestamp, nanos},
    unit::Unit,
};

/// What an upstream's response says about its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Feedback {
    /// Neither a rejection nor a failure.
    Success,
    /// A failure that says nothing about a limit.
    Failure,
    /// Not a rejection, but nothing is left for this time.
    Exhausted(Pause),
    /// A rejection that asks for a cooldown.
    RejectedFor(Pause),
    /// A rejection without a time.
    Rejected,
    /// The service is unavailable, and says nothing about a limit: its endpoint
    /// cools down, for the time that it asks for.
    Unavailable(Option<Pause>),
}

/// The time that an upstream asks for, between two bounds: many upstreams round
/// it up to whole seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pause {
    pub(crate) least: Duration,
    pub(crate) most: Duration,
}

impl Pause {
    pub(crate) const fn exactly(time: Duration) -> Self {
        Self { least: time, most: time }
    }
}

/// The longest cooldown that is taken over from another instance. One that
/// lasts longer is reported again by the upstream's next response.
const LONGEST_REPORTED: Duration = Duration::from_secs(3_600);

/// A pause that is shorter delays requests, in order. From this one on, it is a
/// cooldown: it rejects requests that may not wait as long, and other instances
/// learn of it.
const SHORTEST_COOLDOWN: Duration = Duration::from_secs(1);

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
        self.with_charges(descriptor, |charges| self.cool_down_all(charges, time));
    }

    /// How long the keys of such a request still cool down; `None` where no
    /// key does.
    #[must_use]
    pub fn cooldown(&self, descriptor: &Descriptor<'_>) -> Option<Duration> {
        self.subscribe_cooldowns();
        let now = self.now();
        self.with_charges(descriptor, |charges| self.inner.cooldowns.until(charges, now))
            .max(self.endpoint_cooling_until(descriptor, now))
            .map(|until| until.saturating_since(now))
    }

    /// The adaptive rates ([`Rule::adaptive_rate`](crate::Rule::adaptive_rate)) that such a
    /// request is subject to: one for each enforced rule that adapts and
    /// applies.
    #[must_use]
    pub fn adaptive_rates(&self, descriptor: &Descriptor<'_>) -> Vec<AdaptiveRateStatus> {
        let now = self.now();
        self.with_charges(descriptor, |charges| {
            let found = charges.iter().filter_map(|charge| {
                let bounds = charge.rule.rate_steps.as_ref()?.bounds;
                let KeyRate { state, .. } = self.inner.cooldowns.rate_of(charge.fingerprint(), &bounds, now);
                let RateBounds { floor, ceiling, .. } = bounds;
                let (rate, rejections) = (state.rate(), state.rejections());
                Some(AdaptiveRateStatus { rule: charge.rule.id, rate, floor, ceiling, rejections })
            });
            found.collect()
        })
    }

    /// Reports to adaptive rates that the upstream answered a request, and did
    /// not reject it for its rate. For callers that [`check`](Self::check) and
    /// are no HTTP clients; with a [`Permit`](crate::Permit), call
    /// [`Permit::report_success`](crate::Permit::report_success).
    ///
    /// `descriptor` and `decision` are those of the request. Any answer but a
    /// rejection for its rate counts as a success, also an error. Without an
    /// answer, report nothing.
    ///
    /// ```
    /// use tower_ratelimit::{AdaptiveRate, Descriptor, Policy, Quota, RateLimiter, Rule};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let adapt = AdaptiveRate::between(Quota::per_second(10), Quota::per_second(500)).start(Quota::per_second(100));
    /// let limiter = RateLimiter::new(Policy::new().rule(Rule::new("upstream").adaptive_rate(adapt))).unwrap();
    ///
    /// let request = Descriptor::new("/v1/items");
    /// let decision = limiter.check(&request).await;
    /// if decision.is_allowed() {
    ///     // The request was sent, and the upstream answered 429.
    ///     limiter.report_rejection(&request, &decision);
    /// }
    /// assert!(limiter.adaptive_rates(&request)[0].rate() < 100.0);
    /// # }
    /// ```
    pub fn report_success(&self, descriptor: &Descriptor<'_>, decision: &Decision) {
        self.report(descriptor, decision, Feedback::Success);
    }

    /// Reports to adaptive rates that the upstream rejected a request for its
    /// rate. Otherwise like [`report_success`](Self::report_success).
    pub fn report_rejection(&self, descriptor: &Descriptor<'_>, decision: &Decision) {
        self.report(descriptor, decision, Feedback::Rejected);
    }
}

/// The adaptive rate of a key: see [`RateLimiter::adaptive_rates`].
///
/// ```
/// use tower_ratelimit::{AdaptiveRate, Descriptor, Policy, Quota, RateLimiter, Rule};
///
/// let adapt = AdaptiveRate::between(Quota::per_second(5), Quota::per_second(500));
/// let limiter = RateLimiter::new(Policy::new().rule(Rule::new("upstream").adaptive_rate(adapt)))?;
///
/// let found = limiter.adaptive_rates(&Descriptor::new("/v1/items").tenant("acme"));
/// assert_eq!((found[0].rule(), found[0].rate(), found[0].rejections()), ("upstream", 5.0, 0));
/// # Ok::<_, tower_ratelimit::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdaptiveRateStatus {
    rule: &'static str,
    rate: f64,
    floor: f64,
    ceiling: f64,
    rejections: u64,
}

impl AdaptiveRateStatus {
    /// The rule's id.
    #[must_use]
    pub fn rule(&self) -> &str {
        self.rule
    }

    /// The rate, in units per second. The tier's limit is the next lower step:
    /// less by up to 1.5 %, or by one unit.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.rate
    }

    /// The floor of the rate, in units per second.
    #[must_use]
    pub fn floor(&self) -> f64 {
        self.floor
    }

    /// The ceiling of the rate, in units per second.
    #[must_use]
    pub fn ceiling(&self) -> f64 {
        self.ceiling
    }

    /// How often the upstream rejected requests for the key, as long as the key
    /// has been known.
    #[must_use]
    pub fn rejections(&self) -> u64 {
        self.rejections
    }
}

impl Lease {
    /// Follows the response to the request: what it says of the rules of this unit, or of all.
    pub(crate) fn follow(&self, feedback: Feedback, unit: Option<Unit>, endpoint: u128) {
        let concerns = |charge: &Charge<'_>| unit.is_none() || charge.unit() == unit;
        self.report_answer(feedback, concerns);
        let follows = |charge: &Charge<'_>| charge.rule.options.upstream_feedback && concerns(charge);
        let mut charges: Charges<'_> = self.receipt().charges().filter(follows).collect();
        let (limiter, sent, now) = (&self.limiter, self.sent(), self.limiter.now());
        let cooldowns = &limiter.inner.cooldowns;
        if let (Feedback::Unavailable(Some(pause)), Some(charge)) = (feedback, charges.first()) {
            // This instance's: another one may reach a server that is well.
            cooldowns.start(endpoint, end(now, pause.most, MOST_JITTER), now.as_nanos());
            observe::cooldown_started(charge.rule, pause.most, now);
        }
        for charge in &mut charges {
            // An adaptive rate may have changed since.
            limiter.adapt(charge, now);
            if let Feedback::Success | Feedback::Exhausted(_) = feedback {
                cooldowns.admitted(charge, sent);
            }
            // What is rejected without a time lowers an adaptive rate instead.
            let adapts = charge.rule.rate_steps.is_some();
            match feedback {
                Feedback::Success | Feedback::Failure | Feedback::Unavailable(Some(_)) => {}
                Feedback::Exhausted(pause) => limiter.exhausted(charge, pause, now),
                Feedback::RejectedFor(pause) => limiter.rejected_for(charge, pause, sent, now),
                Feedback::Rejected | Feedback::Unavailable(None) if adapts => {}
                Feedback::Rejected | Feedback::Unavailable(None) => {
                    let pause = limiter.rejected_without_time(charge, sent, now);
                    // No cooldown starts where the service was unavailable.
                    if feedback == Feedback::Rejected && pause >= SHORTEST_COOLDOWN {
                        limiter.pause(charge, pause, MOST_JITTER, now);
                    }
                }
            }
        }
    }

    /// Reports the upstream's response to the adaptive rates of rules that it concerns.
    pub(super) fn report_answer(&self, feedback: Feedback, concerns: impl Fn(&Charge<'_>) -> bool) {
        let charges: Charges<'_> = self.receipt().charges().filter(concerns).collect();
        let decided = self.receipt().decided();
        let decided = self.put_off.map_or(decided, |put_off| put_off.claimed.max(decided));
        self.limiter.learn(&charges, Times { decided, sent: self.sent() }, feedback);
    }
}

/// What a response does to one key, after [`Lease::follow`].
impl RateLimiter {
    /// Nothing is left for this time. The next unit comes one interval of the
    /// rule after the least that it can be.
    fn exhausted(&self, charge: &Charge<'_>, Pause { least, most }: Pause, now: Timestamp) {
        if least.is_zero() {
            let exhausted = |schedule: &mut ResumeSchedule| schedule.exhausted(now.as_nanos(), nanos(most));
            self.inner.cooldowns.change_schedule(charge, now, exhausted);
        } else {
            let interval = rate(charge).map_or(0, |(interval, _)| interval);
            self.pause(charge, least.saturating_add(Duration::from_nanos(interval)), interval, now);
        }
    }

    /// A request that was sent at `sent` was rejected for this time.
    fn rejected_for(&self, charge: &Charge<'_>, Pause { least, most }: Pause, sent: Timestamp, now: Timestamp) {
        let bounds = (nanos(least), nanos(most));
        let rejected = |schedule: &mut ResumeSchedule| schedule.rejected_for(sent.as_nanos(), now.as_nanos(), bounds);
        let pauses = self.inner.cooldowns.change_schedule(charge, now, rejected).unwrap_or(true);
        // An adaptive rate would shrink again for each probe that is rejected.
        if pauses || charge.rule.rate_steps.is_some() {
            self.pause(charge, most, MOST_JITTER, now);
        }
    }

    /// A request that was sent at `sent` was rejected without a time: requests of
    /// this instance resume one by one. Returns for how long none is sent.
    fn rejected_without_time(&self, charge: &Charge<'_>, sent: Timestamp, now: Timestamp) -> Duration {
        let rejected = |schedule: &mut ResumeSchedule| schedule.rejected_without_time(sent.as_nanos(), now.as_nanos());
        let pause = self.inner.cooldowns.change_schedule(charge, now, rejected).unwrap_or(Some(SHORTEST_COOLDOWN));
        pause.unwrap_or_default()
    }

    /// Starts a cooldown of at least `time`. After it, requests resume one by
    /// one.
    fn pause(&self, charge: &Charge<'_>, time: Duration, most_jitter: u64, now: Timestamp) {
        if !time.is_zero() {
            let until = end(now, time, most_jitter);
            self.inner.cooldowns.change_schedule(charge, now, |schedule| schedule.pause_until(until));
            self.cool_down_one(charge, time, (until, now));
        }
    }
}

/// Cooldowns.
impl RateLimiter {
    /// The upstream asked for a cooldown of these keys.
    pub(super) fn cool_down_all(&self, charges: &[Charge<'_>], time: Duration) {
        if !time.is_zero() {
            let now = self.now();
            let until = end(now, time, MOST_JITTER);
            let follows = |charge: &&Charge<'_>| charge.rule.options.upstream_feedback;
            charges.iter().filter(follows).for_each(|charge| self.cool_down_one(charge, time, (until, now)));
        }
    }

    /// Starts a cooldown of one key, for that time and until then.
    fn cool_down_one(&self, charge: &Charge<'_>, time: Duration, (until, now): (u64, Timestamp)) {
        self.subscribe_cooldowns();
        self.inner.cooldowns.start(charge.fingerprint(), until, now.as_nanos());
        observe::cooldown_started(charge.rule, time, now);
        self.inner.backend.share_cooldown(&CooldownNotice::of(charge, time));
    }

    /// Stands for the request's endpoint in cooldowns: its tenant and its path.
    pub(crate) fn endpoint_key(&self, descriptor: &Descriptor<'_>) -> u128 {
        let tenant = descriptor.tenant.as_ref().map(TenantRef::id);
        Scope::new(&["endpoint", descriptor.path()]).key(tenant).to_u128()
    }

    /// When the cooldown of the request's endpoint ends, if it has not ended.
    pub(super) fn endpoint_cooling_until(&self, descriptor: &Descriptor<'_>, now: Timestamp) -> Option<Timestamp> {
        let key = iter::once_with(|| self.endpoint_key(descriptor));
        self.inner.cooldowns.latest_of(key, now)
    }

    /// Until when the backend must not be asked for these charges.
    ///
    /// A backend in this process knows of the cooldown and reserves behind it,
    /// but only where all keys of the request cool down for as long: a slot far
    /// ahead must not be charged to a key that other requests go on using.
    pub(super) fn cooling_until(&self, charges: &[Charge<'_>], now: Timestamp) -> Option<Timestamp> {
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

/// Adaptive rates (AIMD): one for each key of a rule that adapts.
impl RateLimiter {
    /// Reports the response to a request of these charges.
    pub(super) fn learn(&self, charges: &[Charge<'_>], times: Times, feedback: Feedback) {
        let (keys, now) = (&self.inner.cooldowns, self.now());
        for charge in charges {
            let Some(rate_steps) = &charge.rule.rate_steps else { continue };
            let key = charge.fingerprint();
            match feedback {
                Feedback::Failure => {}
                Feedback::Success | Feedback::Exhausted(_) if charge.cost == 0 => {}
                Feedback::Success | Feedback::Exhausted(_) => {
                    let units = (charge.cost, feedback == Feedback::Success);
                    if keys.adapt(key, &rate_steps.bounds, now, |rate| rate.succeeded(rate_steps, times, units, now)) {
                        // A waiter may be admitted sooner.
                        rate_queue(charge).into_iter().flatten().for_each(|key| self.inner.queues.call(key));
                    }
                }
                Feedback::Rejected | Feedback::RejectedFor(_) | Feedback::Unavailable(_) => {
                    let rejected = |rate: &mut KeyRate| rate.rejected(rate_steps, times.decided, now);
                    observe::upstream_rejected(charge.rule, keys.adapt(key, &rate_steps.bounds, now, rejected));
                }
            }
        }
    }

    /// Sets the charge to its key's current rate or concurrency limit, if its rule adapts. Returns
    /// the latter, which learns from the request.
    pub(super) fn adapt(&self, charge: &mut Charge<'_>, now: Timestamp) -> Option<Arc<KeyLimit>> {
        let Some(rate_steps) = &charge.rule.rate_steps else { return self.adapt_limit(charge, now) };
        let rate = self.inner.cooldowns.rate_of(charge.fingerprint(), &rate_steps.bounds, now);
        charge.set_step(rate_steps.step(rate.applied));
        None
    }

    fn report(&self, descriptor: &Descriptor<'_>, decision: &Decision, feedback: Feedback) {
        if !decision.is_allowed() {
            return;
        }
        let decided = decision.decided_at();
        let times = Times { decided, sent: decided.saturating_add(decision.wait()) };
        self.with_charges(descriptor, |charges| self.learn(charges, times, feedback));
    }

    /// Passes on what the enforced rules would charge such a request.
    pub(super) fn with_charges<R>(&self, descriptor: &Descriptor<'_>, act: impl FnOnce(&[Charge<'_>]) -> R) -> R {
        self.inner
            .current
            .with(|snapshot| snapshot.policy.resolve(descriptor, |Resolved { enforced, .. }| act(enforced)))
    }
}
