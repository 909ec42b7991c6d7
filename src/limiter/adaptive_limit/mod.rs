//! Adaptive concurrency limits, one for each key of a rule that has such a tier: looks up the
//! limit to decide by, and measures what is in flight when a request is admitted, and how long
//! it takes. Decides nothing.
//!
//! A limit is one of the copies of the tier that [`LimitSteps`] lists, as an adaptive rate is;
//! the backend decides by it as by any other.
//!
//! Invariants: all copies share one counter, so that a change of the limit loses no unit in
//! flight. Only the work of admitted requests is measured, and each once.

pub(super) mod limits;

use std::{sync::Arc, time::Duration};

use http::StatusCode;

use self::limits::{FoundLimits, KeyLimit, LimitSummary};
use super::{lease::Lease, observe, state::RateLimiter};
use crate::{
    backend::{Backend, Charge, Decide, Request, TierState, tiers},
    descriptor::Descriptor,
    policy::LimitSteps,
    time::{Timestamp, nanos},
};

/// Whether the charge is by an adaptive limit. A tenant may have brought other tiers.
fn steps_of<'a>(charge: &Charge<'a>) -> Option<&'a LimitSteps> {
    charge.rule.limits.as_ref().filter(|_| charge.cost > 0 && charge.own.is_none())
}

impl RateLimiter {
    /// Sets the charge to its key's current limit, if its rule has an adaptive one.
    pub(super) fn adapt_limit(&self, charge: &mut Charge<'_>, now: Timestamp) -> Option<Arc<KeyLimit>> {
        let steps = steps_of(charge)?;
        let limit = self.inner.adaptive_limits.of(charge, steps, now);
        charge.set_step(limit.step(steps));
        Some(limit)
    }

    /// The adaptive concurrency limits
    /// ([`Quota::adaptive_concurrency`](crate::Quota::adaptive_concurrency)) that such a request
    /// is subject to.
    ///
    /// ```
    /// use tower_ratelimit::{Descriptor, Quota, RateLimiter};
    ///
    /// let limiter = RateLimiter::new(Quota::adaptive_concurrency(10..=500).start(50))?;
    /// let found = limiter.adaptive_limits(&Descriptor::new("/"));
    /// assert_eq!((found[0].limit(), found[0].in_flight(), found[0].baseline()), (50, 0, None));
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    #[must_use]
    pub fn adaptive_limits(&self, descriptor: &Descriptor<'_>) -> Vec<AdaptiveLimitStatus> {
        let (now, backend) = (self.now(), &self.inner.backend);
        self.with_charges(descriptor, |charges| {
            let found = charges.iter().filter_map(|charge| {
                let steps = steps_of(charge)?;
                let found = self.inner.adaptive_limits.of(charge, steps, now);
                let charge = charge.unreserved().at_step(found.step(steps));
                let limit = charge.tiers().first()?.quota().limit();
                let Decide::Now(Ok(outcome)) = backend.peek(&Request::new(&[charge], now, Duration::ZERO)) else {
                    return None;
                };
                let in_flight = limit.saturating_sub(outcome.tiers.first()?.remaining);
                Some(AdaptiveLimitStatus { rule: charge.rule.id, limit, in_flight, state: found.summary() })
            });
            found.collect()
        })
    }

    /// These charges were admitted, and left their tiers so. Returns the limits that learn
    /// how long the request takes: those that each charge was just set to, or else looked up.
    pub(super) fn found_in_flight(
        &self,
        charges: &[Charge<'_>],
        states: &[TierState],
        known: FoundLimits,
        now: Timestamp,
    ) -> FoundLimits {
        let mut known = known.into_iter();
        let found = tiers(charges).zip(states).filter_map(|((charge, tier), state)| {
            let (steps, most) = (steps_of(charge)?, tier.quota().limit());
            let limit = known.next().unwrap_or_else(|| self.inner.adaptive_limits.of(charge, steps, now));
            limit.admitted(&steps.bounds, charge.cost, most.saturating_sub(state.remaining), most);
            Some(limit)
        });
        found.collect()
    }
}

impl Lease {
    /// The head of the response has come, or the work has ended: adaptive limits learn how
    /// long it took. Nothing is measured of a response by which an inner service rejects or
    /// sheds the request, nor after a refund.
    pub(crate) fn measure(&self, status: Option<StatusCode>) {
        let rejects = |status| matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
        if self.grant.limits.is_empty() || self.is_released() || status.is_some_and(rejects) {
            return;
        }
        let now = self.limiter.now();
        let latency = nanos(now.saturating_since(self.sent()));
        for limit in &self.grant.limits {
            if let Some((window, summary)) = limit.answered(latency, now) {
                observe::adaptive_limit(limit.rule, &window, &summary);
                // The limit may have grown.
                self.limiter.call_next(self.receipt());
            }
        }
    }
}

/// The adaptive concurrency limit of a key: see [`RateLimiter::adaptive_limits`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdaptiveLimitStatus {
    rule: &'static str,
    limit: u64,
    in_flight: u64,
    state: LimitSummary,
}

impl AdaptiveLimitStatus {
    /// The rule's id.
    #[must_use]
    pub fn rule(&self) -> &str {
        self.rule
    }

    /// The limit now, in units in flight.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// The units in flight, at most the limit.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// The mean latency without a queue; `None` until the first window of
    /// measurements has ended.
    #[must_use]
    pub fn baseline(&self) -> Option<Duration> {
        (self.state.baseline > 0.0).then(|| Duration::from_secs_f64(self.state.baseline / 1e9))
    }

    /// The latencies that were measured.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.state.samples
    }
}
