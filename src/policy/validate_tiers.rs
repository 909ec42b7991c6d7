//! What the tiers of a rule must satisfy, its own and those of plans and tenants, and the
//! settings that some tiers exclude.
//!
//! Checks only. Every error names key and value; the caller adds the rule. Invariant: tiers
//! that pass can be compiled, and what they adapt can be found.

use super::{rule::Rule, settings::Limits};
use crate::{
    error::{ConfigError, ensure},
    quota::{Algorithm, Quota},
};

/// The tiers of a rule of a policy.
pub(super) fn check(rule: &Rule) -> Result<(), ConfigError> {
    check_tiers(rule)?;
    if let Some(adapt) = &rule.adaptive_rate {
        adapt.check().map_err(|error| error.under("adaptive_rate"))?;
        let reason = "cannot be used with an adaptive rate, for which requests wait first come, first served";
        ensure(!rule.fair, "fair", true, reason)?;
        let reason = "cannot be used with an adaptive rate, whose bursts are too small to be divided";
        ensure(rule.reserve.is_empty(), "reserve", rule.reserve.len(), reason)?;
    }
    check_adaptive_limit(rule)?;
    check_per_message(rule)?;
    check_smooth(rule)
}

/// The most tiers that a tenant brings.
const MAX_OWN_TIERS: usize = 32;

/// A rule whose tiers a tenant has brought.
pub(super) fn check_own_tiers(rule: &Rule) -> Result<(), ConfigError> {
    let count = rule.tiers.len();
    ensure((1..=MAX_OWN_TIERS).contains(&count), "tiers", count, format_args!("must be 1 to {MAX_OWN_TIERS} tiers"))?;
    check_tiers(rule)?;
    let is_fixed = rule.tiers.iter().all(|tier| !tier.is_adaptive());
    ensure(is_fixed, "tiers", "adaptive", "a tenant cannot bring an adaptive concurrency limit")?;
    check_per_message(rule)?;
    check_smooth(rule)
}

/// All tier sets of a rule, each with its key: its own, those of plans, and
/// those of tenants.
pub(super) fn tier_sets(rule: &Rule) -> impl Iterator<Item = (String, &[Quota])> {
    let overrides = [("plans", &rule.plans), ("tenants", &rule.tenants)].into_iter();
    let overrides = overrides.flat_map(|(key, of)| of.iter().map(move |(name, instead)| (key, name, instead)));
    let instead = overrides.filter_map(|(key, name, instead)| match &instead.limits {
        Some(Limits::Tiers(tiers)) => Some((format!("{key}.{name}"), tiers.as_slice())),
        Some(Limits::Unlimited) | None => None,
    });
    std::iter::once(("tiers".to_owned(), rule.tiers.as_slice())).chain(instead)
}

/// The first tier of any set that has such an algorithm, with its key.
fn find_tier(rule: &Rule, has: impl Fn(Algorithm) -> bool) -> Option<(String, &Quota)> {
    tier_sets(rule).find_map(|(key, tiers)| {
        let index = tiers.iter().position(|quota| has(quota.counted_by()))?;
        Some((format!("{key}[{index}]"), &tiers[index]))
    })
}

fn check_tiers(rule: &Rule) -> Result<(), ConfigError> {
    for (key, tiers) in tier_sets(rule) {
        // An adaptive rate is a tier, too.
        let may_be_empty = !rule.needs_tiers() && key == "tiers";
        ensure(may_be_empty || !tiers.is_empty(), &key, "[]", "must have at least one tier")?;
        for (index, quota) in tiers.iter().enumerate() {
            check_quota(quota).map_err(|error| error.under(format!("{key}[{index}]")))?;
        }
    }
    Ok(())
}

fn check_quota(quota: &Quota) -> Result<(), ConfigError> {
    let (algorithm, limit, window) = (quota.counted_by(), quota.limit(), quota.window());
    if algorithm == Algorithm::Concurrency {
        let reason = format_args!("has no meaning for {algorithm}: write `Quota::concurrent({limit})`");
        ensure(window.is_zero(), "window", format_args!("{window:?}"), reason)?;
    } else {
        ensure(!window.is_zero(), "window", "0s", "must be longer than zero")?;
    }
    let is_fixed = algorithm == Algorithm::FixedWindow;
    let reason = format_args!("a calendar month is counted by fixed-window only, not by {algorithm}");
    ensure(is_fixed || !quota.is_month(), "window", "month", reason)?;
    if let Some(offset) = quota.explicit_offset() {
        let value = format!("{offset:?}");
        let reason = format_args!("moves the start of fixed windows, and has no meaning for {algorithm}");
        ensure(is_fixed, "offset", &value, reason)?;
        ensure(!quota.is_month(), "offset", &value, "has no meaning for a calendar month, which is one of UTC")?;
        let reason = format_args!("must be shorter than the window, {window:?}");
        ensure(offset < window, "offset", value, reason)?;
    }
    if let Some(burst) = quota.explicit_burst() {
        ensure(burst > 0, "burst", burst, "must be at least 1")?;
        ensure(algorithm.has_burst(), "burst", burst, format_args!("has no meaning for {algorithm}"))?;
    }
    let max = if algorithm == Algorithm::SlidingLog { Quota::MAX_SLIDING_LOG } else { u64::MAX };
    ensure(limit <= max, "limit", limit, format_args!("must be at most {max} for {algorithm}"))
}

/// The largest maximum of an adaptive concurrency limit.
const MAX_LIMIT: u64 = 1_000_000;

/// Whether the adaptive tiers of a rule can be found and kept.
fn check_adaptive_limit(rule: &Rule) -> Result<(), ConfigError> {
    let mut is_adaptive = false;
    for (key, tiers) in tier_sets(rule) {
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

/// A concurrency limit counts calls, and a stream cannot be ended by a rule that
/// never rejects.
fn check_per_message(rule: &Rule) -> Result<(), ConfigError> {
    if rule.per_message.is_none() {
        return Ok(());
    }
    if let Some((key, quota)) = find_tier(rule, |algorithm| algorithm == Algorithm::Concurrency) {
        let reason = "limits concurrent calls, so its rule cannot be `per_message`: use two rules";
        return Err(ConfigError::new(key, reason).with_value(quota.limit()));
    }
    ensure(!rule.shadow, "per_message", "shadow", "cannot be used in `shadow` mode")
}

fn check_smooth(rule: &Rule) -> Result<(), ConfigError> {
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
