use crate::{
    error::ConfigError,
    quota::{Algorithm, Quota},
    time::nanos,
};

/// A limit that nobody states, and that a client finds by itself: it goes
/// faster while it is let, and slower when it is rejected.
///
/// Each key of the rule has a rate of its own, between a floor and a ceiling.
/// It starts at the floor, or where [`start`](Self::start) says, and grows
/// with what succeeds, by as much as succeeds: so it goes up to some 2.7-fold
/// a second until it is first rejected. A rejection lowers it to
/// [`decrease`](Self::decrease) of what it was (the first one to 0.7, as it has
/// overshot), at most once in a round trip and in a fifth of a second. It then comes back by a tenth of itself a
/// second until it is near the rate at which it was rejected, and goes on from
/// there by [`increase`](Self::increase), so that it is seldom rejected again;
/// and faster once it is above it.
///
/// It grows only while the rate is used: by 80 % at the least. A key that
/// nobody has used for an hour starts anew, and so do those that were used
/// least where there are more than 65,536.
///
/// The rate is kept by a tier of the rule's, beside those that it has
/// already, and all must pass: a token bucket of 5 ms of its rate, and at
/// least one request of the rule's own [`cost`](crate::Rule::cost). One that
/// costs many times as much, by what its caller says, may never fit. So it waits, reserves, gives back and is shared through a
/// store as any other tier, and [`Decision::tiers`](crate::Decision::tiers)
/// says what the rate is by now. Its limit is one of a ladder's, whose steps
/// are 1.5 % high, or a unit.
///
/// Who tells it what came of a request is the layer of a client, or the
/// caller: see [`Permit::report_success`](crate::Permit::report_success) and
/// [`RateLimiter::report_success`](crate::RateLimiter::report_success).
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{Adapt, Policy, Quota, RateLimiter, Rule};
///
/// let adapt = Adapt::between(Quota::per_second(1), Quota::per_second(1_000)).start(Quota::per_second(10));
/// let rule = Rule::new("provider").adapt(adapt).max_wait(Duration::from_secs(10));
/// let limiter = RateLimiter::new(Policy::new().rule(rule))?;
/// # Ok::<_, tower_ratelimit::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adapt {
    pub(crate) floor: Quota,
    pub(crate) ceiling: Quota,
    /// `None`: the floor.
    pub(crate) start: Option<Quota>,
    pub(crate) increase: f64,
    pub(crate) decrease: f64,
}

impl Adapt {
    /// What [`increase`](Self::increase) is unless it is set.
    pub const INCREASE: f64 = 0.001;

    /// What [`decrease`](Self::decrease) is unless it is set.
    pub const DECREASE: f64 = 0.9;

    /// The most that a ceiling may be of its floor.
    pub const WIDEST: u64 = 1_000_000;

    /// A rate from `floor` to `ceiling`, each as so many units in so much
    /// time; a burst or another algorithm has no meaning here.
    ///
    /// What cannot be is an error when the policy is built: a floor of
    /// nothing, or of less than a unit in two days; a ceiling below the floor,
    /// or above [`WIDEST`](Self::WIDEST) times as much.
    #[must_use]
    pub const fn between(floor: Quota, ceiling: Quota) -> Self {
        Self { floor, ceiling, start: None, increase: Self::INCREASE, decrease: Self::DECREASE }
    }

    /// Where it starts; the floor by default. Within a second it has not much
    /// more than doubled, so a start far below the limit takes some seconds.
    #[must_use]
    pub const fn start(mut self, start: Quota) -> Self {
        self.start = Some(start);
        self
    }

    /// What it grows by in a second near the rate at which it was rejected, as
    /// a share of that rate: more than 0, and at most 1; 0.001 by default.
    ///
    /// The larger, the sooner it finds that there is more, and the more often
    /// it is rejected: at 0.001 about once in 30 s, at 0.005 in 7.
    #[must_use]
    pub const fn increase(mut self, share: f64) -> Self {
        self.increase = share;
        self
    }

    /// What is left of the rate after a rejection, as a share of it: at least
    /// 0.1, and less than 1; 0.9 by default.
    #[must_use]
    pub const fn decrease(mut self, share: f64) -> Self {
        self.decrease = share;
        self
    }

    /// The rate that it never goes below.
    #[must_use]
    pub const fn floor(&self) -> Quota {
        self.floor
    }

    /// The rate that it never goes above.
    #[must_use]
    pub const fn ceiling(&self) -> Quota {
        self.ceiling
    }

    pub(super) fn first(&self) -> Quota {
        self.start.unwrap_or(self.floor)
    }

    /// What of it cannot be, by the key below `adapt`.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        for (key, quota) in [("floor", self.floor), ("ceiling", self.ceiling), ("start", self.first())] {
            check_rate(key, &quota)?;
        }
        let error = |key: &str, reason: String, value: Quota| {
            Err(ConfigError::new(format!("adapt.{key}"), reason).with_value(in_words(&value)))
        };
        if per_second(&self.ceiling) < per_second(&self.floor) {
            return error("ceiling", "must not be below the floor".into(), self.ceiling);
        }
        #[allow(clippy::cast_precision_loss, reason = "a million")]
        if per_second(&self.ceiling) > per_second(&self.floor) * Self::WIDEST as f64 * 1.000_000_1 {
            let reason = format!("must be at most {} times the floor", Self::WIDEST);
            return error("ceiling", reason, self.ceiling);
        }
        if self.start.is_some() && !self.holds(&self.first()) {
            return error("start", "must be between the floor and the ceiling".into(), self.first());
        }
        let share = |key: &str, value: f64, reason: &str| {
            Err(ConfigError::new(format!("adapt.{key}"), reason).with_value(value))
        };
        // A number that is none is in no range.
        if !(self.increase > 0.0 && self.increase <= 1.0) {
            return share("increase", self.increase, "must be more than 0, and at most 1");
        }
        if !(self.decrease >= 0.1 && self.decrease < 1.0) {
            return share("decrease", self.decrease, "must be at least 0.1, and less than 1");
        }
        Ok(())
    }

    fn holds(&self, quota: &Quota) -> bool {
        (per_second(&self.floor)..=per_second(&self.ceiling)).contains(&per_second(quota))
    }
}

/// The longest that a unit may take.
const LONGEST_UNIT: f64 = 2.0 * 86_400.0;

/// The most units a second that a ladder counts.
const FASTEST: f64 = 1e9;

fn check_rate(key: &str, quota: &Quota) -> Result<(), ConfigError> {
    let error = |field: &str, reason: &str, value: &dyn std::fmt::Display| {
        Err(ConfigError::new(format!("adapt.{key}.{field}"), reason).with_value(value))
    };
    if quota.counted_by() != Algorithm::TokenBucket {
        return error("algorithm", "has no meaning for a rate that adapts", &quota.counted_by());
    }
    if let Some(burst) = quota.explicit_burst() {
        return error("burst", "has no meaning for a rate that adapts", &burst);
    }
    if quota.window().is_zero() {
        return error("window", "must be longer than zero", &"0s");
    }
    if quota.limit() == 0 {
        return error("limit", "must be at least 1", &0);
    }
    if per_second(quota) * LONGEST_UNIT < 1.0 {
        return error(
            "window",
            "is too long: a rate that adapts has a unit in two days at the least",
            &in_words(quota),
        );
    }
    if per_second(quota) > FASTEST {
        return error(
            "limit",
            "is too much: a rate that adapts has at most a thousand million a second",
            &in_words(quota),
        );
    }
    Ok(())
}

fn in_words(quota: &Quota) -> String {
    format!("{} in {:?}", quota.limit(), quota.window())
}

/// Units per second.
#[allow(clippy::cast_precision_loss, reason = "a rate that is found by trial")]
pub(crate) fn per_second(quota: &Quota) -> f64 {
    quota.limit() as f64 * 1e9 / nanos(quota.window()).max(1) as f64
}
