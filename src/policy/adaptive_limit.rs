//! An adaptive concurrency limit: its bounds, [`LimitBounds`], and the limits that it steps
//! through, [`LimitSteps`].
//!
//! Not here: the control law and the current limit of a key (`limiter/adaptive_limit`).
//! Invariant: all steps share one counter.

use super::{adaptive_rate::ascending, rule::Rule};
use crate::{
    error::{ConfigError, ensure},
    quota::Quota,
};

/// The bounds of an adaptive concurrency limit, in units in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct LimitBounds {
    pub(crate) min: f64,
    pub(crate) max: f64,
    pub(crate) start: f64,
}

/// The limits that a rule's adaptive tier can have.
#[derive(Debug)]
pub(crate) struct LimitSteps {
    /// Ascending.
    limits: Box<[u64]>,
    pub(crate) bounds: LimitBounds,
}

impl LimitSteps {
    /// `None` where the rule has no such tier.
    #[allow(clippy::cast_precision_loss, reason = "validation bounds the maximum")]
    pub(super) fn new(rule: &Rule) -> Option<Self> {
        let (min, max, start) = rule.tiers.iter().find_map(Quota::adaptive_bounds)?;
        let bounds = LimitBounds { min: min as f64, max: max as f64, start: start as f64 };
        Some(Self { limits: ascending(min, max), bounds })
    }

    pub(super) fn count(&self) -> usize {
        self.limits.len()
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

/// The largest maximum.
const MAX_LIMIT: u64 = 1_000_000;

/// Whether the adaptive tiers of a rule can be found and kept.
pub(super) fn check<'r>(
    rule: &Rule,
    tier_sets: impl Iterator<Item = (String, &'r [Quota])>,
) -> Result<(), ConfigError> {
    let mut is_adaptive = false;
    for (key, tiers) in tier_sets {
        let Some(index) = tiers.iter().position(Quota::is_adaptive) else {
            let reason =
                "cannot replace an adaptive concurrency limit, which is found for all: use a rule of their own";
            ensure(!is_adaptive, &key, tiers.len(), reason)?;
            continue;
        };
        let (key, of_others) = (format!("{key}[{index}].concurrent"), key != "tiers");
        let (min, max, start) = tiers[index].adaptive_bounds().unwrap_or_default();
        let value = format!("{min} to {max}");
        let under = |name: &str| format!("{key}.{name}");
        ensure(!of_others, &key, &value, "is found for all requests of a rule: not for a plan or a tenant")?;
        ensure(tiers.len() == 1, &key, &value, "must be the only tier of its rule: other tiers stand in other rules")?;
        ensure(min > 0, &under("min"), min, "must be at least 1")?;
        ensure(max >= min, &under("max"), max, format_args!("must not be below `min`, {min}"))?;
        ensure(max <= MAX_LIMIT, &under("max"), max, format_args!("must be at most {MAX_LIMIT}"))?;
        let reason = format_args!("must be from `min` to `max`, {min} to {max}");
        ensure((min..=max).contains(&start), &under("start"), start, reason)?;
        let reason = format_args!("must not be below the cost of the rule, {}", rule.cost);
        ensure(min >= rule.cost, &under("min"), min, reason)?;
        is_adaptive = true;
    }
    let conflicts = [
        ("adaptive_rate", rule.adaptive_rate.is_none()),
        ("shadow", !rule.shadow),
        ("local_share", rule.local_share.is_none()),
    ];
    for (key, is_unset) in conflicts.into_iter().filter(|_| is_adaptive) {
        ensure(is_unset, key, "set", "cannot be used with an adaptive concurrency limit")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
