//! An adaptive rate: what an operator sets of it. [`Adapt`] is plain data.
//!
//! Not here: the control law (`limiter/adaptive`) and the steps of the rate
//! (`ladder`).

use crate::{quota::Quota, time::nanos};

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
/// is above that rate.
///
/// It grows only while at least 80 % of the rate is used. A key that was not used
/// for an hour starts again. So do the least used keys beyond 65,536.
///
/// The rate is one more tier of the rule, and all tiers must pass. It is a token
/// bucket of 5 ms of the rate, and of at least one request of the rule's own
/// [`cost`](crate::Rule::cost). A request that the caller declares many times as
/// expensive may never fit. Like any tier, it waits, reserves, refunds and is
/// shared through a store, and [`Decision::tiers`](crate::Decision::tiers) shows
/// the current rate. Its limit is a step of a ladder, whose steps are 1.5 % high,
/// or one unit.
///
/// The layer of a client reports the outcome of each request. Other callers
/// report it themselves:
/// [`Permit::report_success`](crate::Permit::report_success) and
/// [`RateLimiter::report_success`](crate::RateLimiter::report_success).
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{Adapt, Policy, Quota, RateLimiter, Rule};
///
/// let adapt = Adapt::between(Quota::per_second(1), Quota::per_second(1_000)).start(Quota::per_second(10));
/// let rule = Rule::new("upstream").adapt(adapt).max_wait(Duration::from_secs(10));
/// let limiter = RateLimiter::new(Policy::new().rule(rule))?;
/// # Ok::<_, tower_ratelimit::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use]
pub struct Adapt {
    pub(crate) floor: Quota,
    pub(crate) ceiling: Quota,
    /// `None`: the floor.
    pub(crate) start: Option<Quota>,
    pub(crate) increase: f64,
    pub(crate) decrease: f64,
}

impl Adapt {
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
        Self { floor, ceiling, start: None, increase: Self::INCREASE, decrease: Self::DECREASE }
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
        self.increase = share;
        self
    }

    /// The share of the rate that remains after a rejection: at least 0.1, and
    /// less than 1; 0.9 by default.
    pub const fn decrease(mut self, share: f64) -> Self {
        self.decrease = share;
        self
    }

    /// The lowest rate.
    pub const fn floor(&self) -> Quota {
        self.floor
    }

    /// The highest rate.
    pub const fn ceiling(&self) -> Quota {
        self.ceiling
    }

    pub(super) fn first(&self) -> Quota {
        self.start.unwrap_or(self.floor)
    }
}

/// Units per second.
#[allow(clippy::cast_precision_loss, reason = "a rate is approximate")]
pub(crate) fn per_second(quota: &Quota) -> f64 {
    quota.limit() as f64 * 1e9 / nanos(quota.window()).max(1) as f64
}
