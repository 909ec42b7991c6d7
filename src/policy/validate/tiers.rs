//! Checks of a rule's tiers, and of settings that not every algorithm allows.

use crate::{
    error::{ConfigError, ensure},
    policy::rule::{Override, Rule},
    quota::{Algorithm, Quota},
};

/// All tier sets of a rule, each with its key: its own, those of plans, and
/// those of tenants.
pub(super) fn tier_sets(rule: &Rule) -> impl Iterator<Item = (String, &[Quota])> {
    let plans = rule.plans.iter().map(|(plan, tiers)| (format!("plans.{plan}"), tiers.as_slice()));
    let tenants = rule.tenants.iter().filter_map(|(tenant, exception)| match exception {
        Override::Tiers(tiers) => Some((format!("tenants.{tenant}"), tiers.as_slice())),
        Override::Unlimited => None,
    });
    std::iter::once(("tiers".to_owned(), rule.tiers.as_slice())).chain(plans).chain(tenants)
}

/// The first tier of any set that has such an algorithm, with its key.
fn find_tier(rule: &Rule, has: impl Fn(Algorithm) -> bool) -> Option<(String, &Quota)> {
    tier_sets(rule).find_map(|(key, tiers)| {
        let index = tiers.iter().position(|quota| has(quota.counted_by()))?;
        Some((format!("{key}[{index}]"), &tiers[index]))
    })
}

pub(super) fn check_tiers(rule: &Rule) -> Result<(), ConfigError> {
    for (key, tiers) in tier_sets(rule) {
        // An adaptive rate is a tier, too.
        let may_be_empty = rule.adapt.is_some() && key == "tiers";
        ensure(may_be_empty || !tiers.is_empty(), &key, "[]", "must have at least one tier")?;
        for (index, quota) in tiers.iter().enumerate() {
            check_quota(quota).map_err(|error| error.under(format!("{key}[{index}]")))?;
        }
    }
    Ok(())
}

fn check_quota(quota: &Quota) -> Result<(), ConfigError> {
    let (algorithm, limit, window) = (quota.counted_by(), quota.limit(), quota.window());
    if algorithm == Algorithm::InFlight {
        let reason = format_args!("has no meaning for {algorithm}: write `Quota::concurrent({limit})`");
        ensure(window.is_zero(), "window", format_args!("{window:?}"), reason)?;
    } else {
        ensure(!window.is_zero(), "window", "0s", "must be longer than zero")?;
    }
    if let Some(burst) = quota.explicit_burst() {
        ensure(burst > 0, "burst", burst, "must be at least 1")?;
        ensure(algorithm.has_burst(), "burst", burst, format_args!("has no meaning for {algorithm}"))?;
    }
    let max = if algorithm == Algorithm::SlidingLog { Quota::MAX_SLIDING_LOG } else { u64::MAX };
    ensure(limit <= max, "limit", limit, format_args!("must be at most {max} for {algorithm}"))
}

/// A concurrency limit counts calls, and a stream cannot be ended by a rule that
/// never rejects.
pub(super) fn check_per_message(rule: &Rule) -> Result<(), ConfigError> {
    if rule.per_message.is_none() {
        return Ok(());
    }
    if let Some((key, quota)) = find_tier(rule, |algorithm| algorithm == Algorithm::InFlight) {
        let reason = "limits concurrent calls, so its rule cannot be `per_message`: use two rules";
        return Err(ConfigError::new(key, reason).with_value(quota.limit()));
    }
    ensure(!rule.shadow, "per_message", "shadow", "cannot be used in `shadow` mode")
}

pub(super) fn check_smooth(rule: &Rule) -> Result<(), ConfigError> {
    if !rule.smooth {
        return Ok(());
    }
    if let Some((key, quota)) = find_tier(rule, |algorithm| algorithm == Algorithm::SlidingLog) {
        let reason = "cannot be made smooth without losing throughput: use a sliding-window or a leaky-bucket";
        return Err(ConfigError::new(format!("{key}.algorithm"), reason).with_value(quota.counted_by()));
    }
    let reason = "needs a tier with a window: fixed-window, anchored-window or sliding-window";
    ensure(find_tier(rule, Algorithm::has_windows).is_some(), "smooth", true, reason)?;
    let may_wait = rule.max_wait.is_some_and(|max_wait| !max_wait.is_zero());
    ensure(may_wait, "smooth", true, "needs a `max_wait`: without one, no request could be delayed")
}
