//! What a rule adapts: a rate ([`AdaptiveRate`], as an operator sets it), and a concurrency
//! limit; and the limits that each steps through, [`RateSteps`] and [`LimitSteps`].
//!
//! Not here: the control laws, and the current rate or limit of a key (`limiter`). Invariant:
//! all steps have the same window, so that one counter serves them.

use std::{iter, time::Duration};

#[cfg(feature = "serde")]
use super::forms;
use crate::{
    error::{ConfigError, ensure},
    quota::{Algorithm, Quota},
    time::nanos,
};

/// An adaptive rate (AIMD): a client finds the limit of its upstream. The rate
/// rises while requests succeed and falls when one is rejected.
///
/// Each key of the rule has its own rate, between a floor and a ceiling. It
/// starts at the floor, or at [`start`](Self::start), and grows by as much as
/// succeeds: up to some 2.7-fold a second until the first rejection.
///
/// A rejection lowers it to [`decrease`](Self::decrease) of what it was, at most
/// once in a round trip and in 200 ms. The first one lowers it to 0.7, since the
/// rate has overshot. Then it recovers by a tenth of itself a second until it is
/// near the rate at which it was rejected. From there it grows by
/// [`increase`](Self::increase), so that rejections are rare, and faster once it
/// is above that rate. After a dip of some seconds it is at the last good rate again
/// within seconds. Clients that share an upstream and start at different rates need not
/// share it fairly.
///
/// It grows only while at least 80 % of the rate is used. A key that was not used
/// for an hour starts again. So do the least used keys beyond 65,536, a bound that
/// cooldowns share.
///
/// The rate is one more tier of the rule, and all tiers must pass. It is a token
/// bucket of 5 ms of the rate, and of at least one request of the rule's own
/// [`cost`](crate::Rule::cost). A request that the caller declares many times as
/// expensive may never fit. Like any tier, it waits, reserves, refunds and is
/// shared through a store, and [`Decision::tiers`](crate::Decision::tiers) shows
/// the current rate. Its limit rises and falls in steps of 1.5 %, or of one unit.
///
/// The layer of a client reports the outcome of each request. Other callers
/// report it themselves:
/// [`Permit::report_success`](crate::Permit::report_success) and
/// [`RateLimiter::report_success`](crate::RateLimiter::report_success).
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{AdaptiveRate, Policy, Quota, RateLimiter, Rule};
///
/// let adapt = AdaptiveRate::between(Quota::per_second(1), Quota::per_second(1_000)).start(Quota::per_second(10));
/// let rule = Rule::new("upstream").adaptive_rate(adapt).max_wait(Duration::from_secs(10));
/// let limiter = RateLimiter::new(Policy::new().rule(rule))?;
/// # Ok::<_, tower_ratelimit::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields), schemars(rename = "adaptive_rate"))]
pub struct AdaptiveRate {
    #[cfg_attr(feature = "serde", serde(deserialize_with = "forms::rate"), schemars(with = "forms::Rate"))]
    pub(crate) floor: Quota,
    #[cfg_attr(feature = "serde", serde(deserialize_with = "forms::rate"), schemars(with = "forms::Rate"))]
    pub(crate) ceiling: Quota,
    /// `None`: the floor.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "forms::is_default"))]
    #[cfg_attr(feature = "serde", serde(deserialize_with = "forms::rate"), schemars(with = "forms::Rate"))]
    pub(crate) start: Option<Quota>,
    /// `None`: [`Self::INCREASE`].
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "forms::is_default"))]
    increase: Option<f64>,
    /// `None`: [`Self::DECREASE`].
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "forms::is_default"))]
    decrease: Option<f64>,
}

impl AdaptiveRate {
    /// The default of [`increase`](Self::increase).
    pub const INCREASE: f64 = 0.001;

    /// The default of [`decrease`](Self::decrease).
    pub const DECREASE: f64 = 0.9;

    /// The largest ratio of a ceiling to its floor.
    pub const WIDEST: u64 = 1_000_000;

    /// A rate from `floor` to `ceiling`, each as a number of units in a window. A
    /// burst or another algorithm has no meaning here.
    ///
    /// Errors when the policy is built: a floor of 0, or of less than a unit in
    /// two days; a ceiling below the floor, or above [`WIDEST`](Self::WIDEST)
    /// times the floor.
    pub const fn between(floor: Quota, ceiling: Quota) -> Self {
        Self { floor, ceiling, start: None, increase: None, decrease: None }
    }

    /// The rate at which a key starts; the floor by default. It little more than
    /// doubles in a second, so from far below the limit it takes some seconds.
    pub const fn start(mut self, start: Quota) -> Self {
        self.start = Some(start);
        self
    }

    /// The growth in a second near the rate at which it was rejected, as a share
    /// of that rate: more than 0, and at most 1; 0.001 by default.
    ///
    /// A larger share finds a higher limit sooner, and is rejected more often:
    /// about once in 30 s at 0.001, and in 7 s at 0.005.
    pub const fn increase(mut self, share: f64) -> Self {
        self.increase = Some(share);
        self
    }

    /// The share of the rate that remains after a rejection: at least 0.1, and
    /// less than 1; 0.9 by default.
    pub const fn decrease(mut self, share: f64) -> Self {
        self.decrease = Some(share);
        self
    }

    fn bounds(&self) -> RateBounds {
        RateBounds {
            floor: per_second(&self.floor),
            ceiling: per_second(&self.ceiling),
            start: per_second(&self.first()),
            increase: self.increase.unwrap_or(Self::INCREASE),
            decrease: self.decrease.unwrap_or(Self::DECREASE),
        }
    }

    fn first(&self) -> Quota {
        self.start.unwrap_or(self.floor)
    }

    /// Whether a rate can adapt so. The key in an error is one of an adaptive rate.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let Self { floor, ceiling, .. } = self;
        let start = self.first();
        for (key, quota) in [("floor", floor), ("ceiling", ceiling), ("start", &start)] {
            check_rate(quota).map_err(|error| error.under(key))?;
        }
        let RateBounds { floor: lowest, ceiling: highest, start: first, increase, decrease } = self.bounds();
        ensure(highest >= lowest, "ceiling", words(ceiling), "must not be below the floor")?;
        #[allow(clippy::cast_precision_loss, reason = "a million")]
        let max = lowest * Self::WIDEST as f64 * 1.000_000_1;
        let reason = format_args!("must be at most {} times the floor", Self::WIDEST);
        ensure(highest <= max, "ceiling", words(ceiling), reason)?;
        let is_between = (lowest..=highest).contains(&first);
        ensure(is_between, "start", words(&start), "must be between the floor and the ceiling")?;
        // Both are false for NaN.
        ensure(increase > 0.0 && increase <= 1.0, "increase", increase, "must be more than 0, and at most 1")?;
        ensure((0.1..1.0).contains(&decrease), "decrease", decrease, "must be at least 0.1, and less than 1")
    }
}

/// The longest that one unit may take, in seconds.
const MAX_SECONDS_PER_UNIT: f64 = 2.0 * 86_400.0;

/// The most units a second that the steps count.
const MAX_RATE: f64 = 1e9;

fn check_rate(quota: &Quota) -> Result<(), ConfigError> {
    const MEANINGLESS: &str = "has no meaning for an adaptive rate";
    let algorithm = quota.counted_by();
    ensure(algorithm == Algorithm::TokenBucket, "algorithm", algorithm, MEANINGLESS)?;
    ensure(!quota.is_month(), "window", "month", MEANINGLESS)?;
    let offset = quota.explicit_offset();
    ensure(offset.is_none(), "offset", format!("{:?}", offset.unwrap_or_default()), MEANINGLESS)?;
    let burst = quota.explicit_burst();
    ensure(burst.is_none(), "burst", burst.unwrap_or_default(), MEANINGLESS)?;
    ensure(!quota.window().is_zero(), "window", "0s", "must be longer than zero")?;
    ensure(quota.limit() > 0, "limit", 0, "must be at least 1")?;
    let reason = "is too long: an adaptive rate has at least one unit in two days";
    ensure(per_second(quota) * MAX_SECONDS_PER_UNIT >= 1.0, "window", words(quota), reason)?;
    let reason = "is too much: an adaptive rate has at most a thousand million a second";
    ensure(per_second(quota) <= MAX_RATE, "limit", words(quota), reason)
}

/// A rate as a value in an error.
fn words(quota: &Quota) -> String {
    format!("{} in {:?}", quota.limit(), quota.window())
}

/// Units per second.
#[allow(clippy::cast_precision_loss, reason = "a rate is approximate")]
pub(crate) fn per_second(quota: &Quota) -> f64 {
    quota.limit() as f64 * 1e9 / nanos(quota.window()).max(1) as f64
}

/// The limits that an adaptive rate can have.
#[derive(Debug)]
pub(crate) struct RateSteps {
    /// Units per window, ascending.
    limits: Box<[u64]>,
    /// In seconds.
    window: f64,
    pub(crate) bounds: RateBounds,
}

/// The bounds and speed of an adaptive rate. Rates are in units per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RateBounds {
    pub(crate) floor: f64,
    pub(crate) ceiling: f64,
    pub(crate) start: f64,
    /// Growth per second near the rate at which it was rejected, as a share of
    /// that rate.
    pub(crate) increase: f64,
    /// The factor after a rejection.
    pub(crate) decrease: f64,
}

/// The fewest units in a window, so that even a step of one unit raises the
/// limit by at most 2 %.
const FEWEST: f64 = 50.0;

/// The largest ratio of a step to the one below, unless they differ by one unit.
const STEP: f64 = 1.015;

/// Windows that operators recognize, in seconds. The steps take the shortest
/// in which the floor has [`FEWEST`] units. Each is at most ten times the one
/// before, so that the largest limit fits into 32 bits.
const WINDOWS: [f64; 11] = [1.0, 10.0, 60.0, 600.0, 3_600.0, 21_600.0, 86_400.0, 604_800.0, 2.592e6, 8.64e6, YEAR];

/// In seconds.
const YEAR: f64 = 31_536_000.0;

/// Absorbs rounding errors: a rate that is a whole number of units in a window
/// stays one.
const ROUNDING: f64 = 1e-6;

/// The burst, in seconds of the rate.
const BURST: f64 = 0.005;

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "validation bounds limits to 32 bits, and windows to a year"
)]
impl RateSteps {
    pub(super) fn new(adapt: &AdaptiveRate) -> Self {
        let bounds = adapt.bounds();
        let RateBounds { floor, ceiling, .. } = bounds;
        let window = WINDOWS.into_iter().find(|window| floor * window >= FEWEST - ROUNDING).unwrap_or(YEAR);
        let highest = ((ceiling * window + ROUNDING) as u64).max(1);
        let lowest = ((floor * window - ROUNDING).ceil() as u64).clamp(1, highest);
        Self { limits: ascending(lowest, highest), window, bounds }
    }

    /// The quotas, from the floor to the ceiling, for requests that cost `cost`
    /// units each. The burst fits one of them, unless it exceeds the limit.
    pub(super) fn quotas(&self, cost: u64) -> impl Iterator<Item = Quota> + '_ {
        self.limits.iter().map(move |&limit| {
            let burst = (limit as f64 / self.window * BURST).floor() as u64;
            Quota::new(limit, Duration::from_secs(self.window as u64)).burst(burst.max(cost.clamp(1, limit)))
        })
    }

    /// The index of the highest step that is at most `rate`, or 0, the floor.
    pub(crate) fn step(&self, rate: f64) -> usize {
        let units = rate * self.window + ROUNDING;
        self.limits.partition_point(|&limit| limit as f64 <= units).saturating_sub(1)
    }
}

/// The bounds of an adaptive concurrency limit, in units in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct LimitBounds {
    pub(crate) min: f64,
    pub(crate) max: f64,
    pub(crate) start: f64,
}

/// The limits that an adaptive concurrency limit can have.
#[derive(Debug)]
pub(crate) struct LimitSteps {
    /// Ascending.
    limits: Box<[u64]>,
    pub(crate) bounds: LimitBounds,
}

impl LimitSteps {
    /// `None` where a rule's tiers have no such tier.
    #[allow(clippy::cast_precision_loss, reason = "validation bounds the maximum")]
    pub(super) fn new(tiers: &[Quota]) -> Option<Self> {
        let (min, max, start) = tiers.iter().find_map(Quota::adaptive_bounds)?;
        let bounds = LimitBounds { min: min as f64, max: max as f64, start: start as f64 };
        Some(Self { limits: ascending(min, max), bounds })
    }

    /// The quotas, from the minimum to the maximum.
    pub(super) fn quotas(&self) -> impl Iterator<Item = Quota> + '_ {
        self.limits.iter().map(|&limit| Quota::adaptive(limit, limit, limit))
    }

    /// The index of the highest step that is at most `limit`, or 0.
    pub(crate) fn step(&self, limit: u64) -> usize {
        self.limits.partition_point(|&step| step <= limit).saturating_sub(1)
    }
}

/// The steps from one limit to another.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "validation bounds limits to 32 bits"
)]
fn ascending(lowest: u64, highest: u64) -> Box<[u64]> {
    let above = |limit: u64| ((limit as f64 * STEP) as u64).max(limit + 1).min(highest);
    iter::successors(Some(lowest), |&limit| (limit < highest).then(|| above(limit))).collect()
}

#[cfg(test)]
mod tests;
