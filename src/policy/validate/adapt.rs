//! Checks of an adaptive rate, and of the rule that has it.

use std::fmt::Display;

use crate::{
    error::{ConfigError, ensure},
    policy::{
        adapt::{Adapt, per_second},
        rule::Rule,
    },
    quota::{Algorithm, Quota},
};

/// The longest that one unit may take, in seconds.
const MAX_SECONDS_PER_UNIT: f64 = 2.0 * 86_400.0;

/// The most units a second that a ladder counts.
const MAX_RATE: f64 = 1e9;

pub(super) fn check_rule(rule: &Rule, adapt: &Adapt) -> Result<(), ConfigError> {
    adapt.check()?;
    let reason = "cannot be used with an adaptive rate, for which requests wait first come, first served";
    ensure(!rule.options.fair, "fair", true, reason)
}

impl Adapt {
    pub(in crate::policy) fn check(&self) -> Result<(), ConfigError> {
        check(self).map_err(|error| error.under("adapt"))
    }
}

fn check(adapt: &Adapt) -> Result<(), ConfigError> {
    let Adapt { floor, ceiling, increase, decrease, .. } = adapt;
    let start = adapt.first();
    for (key, quota) in [("floor", floor), ("ceiling", ceiling), ("start", &start)] {
        check_rate(quota).map_err(|error| error.under(key))?;
    }
    let (lowest, highest) = (per_second(floor), per_second(ceiling));
    ensure(highest >= lowest, "ceiling", words(ceiling), "must not be below the floor")?;
    #[allow(clippy::cast_precision_loss, reason = "a million")]
    let max = lowest * Adapt::WIDEST as f64 * 1.000_000_1;
    let reason = format_args!("must be at most {} times the floor", Adapt::WIDEST);
    ensure(highest <= max, "ceiling", words(ceiling), reason)?;
    let is_between = (lowest..=highest).contains(&per_second(&start));
    ensure(is_between, "start", words(&start), "must be between the floor and the ceiling")?;
    // Both are false for NaN.
    ensure(*increase > 0.0 && *increase <= 1.0, "increase", increase, "must be more than 0, and at most 1")?;
    ensure((0.1..1.0).contains(decrease), "decrease", decrease, "must be at least 0.1, and less than 1")
}

fn check_rate(quota: &Quota) -> Result<(), ConfigError> {
    const MEANINGLESS: &str = "has no meaning for an adaptive rate";
    let algorithm = quota.counted_by();
    ensure(algorithm == Algorithm::TokenBucket, "algorithm", algorithm, MEANINGLESS)?;
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
fn words(quota: &Quota) -> impl Display {
    format!("{} in {:?}", quota.limit(), quota.window())
}
