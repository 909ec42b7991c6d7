//! Adaptive rates (AIMD): one for each key of a rule that adapts. This file
//! reports upstream answers to them, and looks up the rate to decide by.

use std::sync::Arc;

use super::{
    super::{adaptive_limit::limits::KeyLimit, observe, queue::rate_queue, state::RateLimiter},
    aimd::{KeyRate, Times},
    response::Feedback,
};
use crate::{backend::Charge, decision::Decision, descriptor::Descriptor, policy::RateBounds, time::Timestamp};

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

impl RateLimiter {
    /// The adaptive rates ([`Rule::adaptive_rate`](crate::Rule::adaptive_rate)) that such a
    /// request is subject to: one for each enforced rule that adapts and
    /// applies.
    #[must_use]
    pub fn adaptive_rates(&self, descriptor: &Descriptor<'_>) -> Vec<AdaptiveRateStatus> {
        let now = self.now();
        let mut found = Vec::new();
        self.with_adapting(descriptor, |charges| {
            found.extend(charges.iter().filter_map(|charge| {
                let bounds = charge.rule.ladder.as_ref()?.bounds;
                let KeyRate { state, .. } = self.inner.cooldowns.rate_of(charge.fingerprint(), &bounds, now);
                let RateBounds { floor, ceiling, .. } = bounds;
                let (rate, rejections) = (state.rate(), state.rejections());
                Some(AdaptiveRateStatus { rule: charge.rule.id, rate, floor, ceiling, rejections })
            }));
        });
        found
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

    fn report(&self, descriptor: &Descriptor<'_>, decision: &Decision, feedback: Feedback) {
        if !decision.is_allowed() {
            return;
        }
        let decided = decision.decided_at();
        let times = Times { decided, sent: decided.saturating_add(decision.wait()) };
        self.with_adapting(descriptor, |charges| self.learn(charges, times, feedback));
    }

    /// Reports the response to a request of these charges.
    pub(in crate::limiter) fn learn(&self, charges: &[Charge<'_>], times: Times, feedback: Feedback) {
        let (keys, now) = (&self.inner.cooldowns, self.now());
        for charge in charges {
            let Some(ladder) = &charge.rule.ladder else { continue };
            let key = charge.fingerprint();
            match feedback {
                Feedback::Failure => {}
                Feedback::Success | Feedback::Exhausted(_) if charge.cost == 0 => {}
                Feedback::Success | Feedback::Exhausted(_) => {
                    let units = (charge.cost, feedback == Feedback::Success);
                    if keys.adapt(key, &ladder.bounds, now, |rate| rate.succeeded(ladder, times, units, now)) {
                        // A waiter may be admitted sooner.
                        rate_queue(charge).into_iter().flatten().for_each(|key| self.inner.queues.call(key));
                    }
                }
                Feedback::Rejected | Feedback::RejectedFor(_) | Feedback::Unavailable(_) => {
                    let rejected = |rate: &mut KeyRate| rate.rejected(ladder, times.decided, now);
                    observe::upstream_rejected(charge.rule, keys.adapt(key, &ladder.bounds, now, rejected));
                }
            }
        }
    }

    /// Sets the charge to its key's current rate or concurrency limit, if its rule adapts. Returns
    /// the latter, which learns from the request.
    pub(in crate::limiter) fn adapt(&self, charge: &mut Charge<'_>, now: Timestamp) -> Option<Arc<KeyLimit>> {
        let Some(ladder) = &charge.rule.ladder else { return self.adapt_limit(charge, now) };
        let rate = self.inner.cooldowns.rate_of(charge.fingerprint(), &ladder.bounds, now);
        charge.set_step(ladder.step(rate.applied));
        None
    }

    /// Passes on what enforced rules that adapt would charge such a request.
    fn with_adapting(&self, descriptor: &Descriptor<'_>, with: impl FnOnce(&[Charge<'_>])) {
        self.with_charges(descriptor, |rule| rule.ladder.is_some(), with);
    }
}
