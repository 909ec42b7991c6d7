//! What a policy must satisfy to be put in force, built in code or read from a
//! file.
//!
//! Checks only: nothing is changed or defaulted here. Disabled rules are checked
//! as well, as they may be enabled one day. Every error names rule, key and
//! value.

mod adapt;
mod exempt;
mod size;
mod tiers;

use std::{collections::HashSet, ops::RangeInclusive, time::Duration};

use super::{
    choices::{Consistency, Dimension, FailureMode},
    networks,
    pattern::{self, ParameterPosition},
    rule::Rule,
    rule_keys::STANDARD_METHODS,
    rule_set::Policy,
    statuses::Statuses,
};
use crate::error::{ConfigError, ensure};

/// In bytes.
const MAX_ID: usize = 128;

/// The index of a pattern in its rule is stored in 16 bits.
const MAX_PATTERNS: usize = u16::MAX as usize;

/// Shorter, and a sync would take longer than its interval; longer, and units
/// stay with instances that do not need them.
const SYNC_INTERVALS: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(10);

/// Each method that a rule names has counters of its own.
const MAX_METHODS: usize = 64;

pub(super) fn validate(policy: &Policy) -> Result<(), ConfigError> {
    let mut ids = HashSet::new();
    for (index, rule) in policy.rules.iter().enumerate() {
        if let Err(reason) = check_id(&rule.id) {
            // Such an id cannot name the rule.
            let error = ConfigError::new("id", reason).with_value(&rule.id);
            return Err(error.of_rule(format!("rules[{index}]")));
        }
        ensure(ids.insert(&rule.id), "id", &rule.id, "another rule has the same id")
            .and_then(|()| check_rule(rule))
            .map_err(|error| error.of_rule(&rule.id))?;
    }
    size::check_size(policy)
}

/// Ids stand in response headers, metrics, logs and the keys of a store. The
/// error is the reason.
pub(super) fn check_id(id: &str) -> Result<(), &'static str> {
    if id.is_empty() {
        return Err("must not be empty");
    }
    if !id.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return Err("must be printable ASCII");
    }
    if id.len() > MAX_ID { Err("must have at most 128 bytes") } else { Ok(()) }
}

fn check_rule(rule: &Rule) -> Result<(), ConfigError> {
    check_patterns(rule)?;
    if let Some(name) = &rule.tenant_param {
        check_tenant_param(rule, name)?;
    }
    if rule.options.exempt {
        return exempt::check_rule(rule);
    }
    for tenant in rule.tenants.keys() {
        networks::parse(tenant).map_err(|reason| ConfigError::new("tenants", reason).with_value(tenant))?;
    }
    let per = rule.per.as_deref();
    for (index, dimension) in per.unwrap_or_default().iter().enumerate() {
        dimension.check().map_err(|reason| ConfigError::new(format!("per[{index}]"), reason).with_value(dimension))?;
        let is_first = !per.unwrap_or_default()[..index].contains(dimension);
        ensure(is_first, &format!("per[{index}]"), dimension, "is named twice")?;
    }
    let is_shared = |dimension: &Dimension| matches!(dimension, Dimension::Endpoint | Dimension::Method);
    let shares_counter = per.is_some_and(|per| per.iter().all(is_shared));
    let reason = "round-robin between tenants works only at a counter that they share: see `per`";
    ensure(!rule.options.fair || shares_counter, "fair", true, reason)?;
    ensure(rule.options.cost > 0, "cost", 0, "must be at least 1")?;
    check_local_share(rule)?;
    check_sync_interval(rule)?;
    check_statuses(rule)?;
    tiers::check_tiers(rule)?;
    if let Some(adapt) = &rule.adapt {
        adapt::check_rule(rule, adapt)?;
    }
    tiers::check_per_message(rule)?;
    tiers::check_smooth(rule)
}

/// The most tiers that a tenant brings.
const MAX_OWN_TIERS: usize = 32;

/// A rule whose tiers a tenant has brought.
pub(super) fn check_own_tiers(rule: &Rule) -> Result<(), ConfigError> {
    let count = rule.tiers.len();
    ensure((1..=MAX_OWN_TIERS).contains(&count), "tiers", count, format_args!("must be 1 to {MAX_OWN_TIERS} tiers"))?;
    tiers::check_tiers(rule)?;
    tiers::check_per_message(rule)?;
    tiers::check_smooth(rule)
}

fn check_patterns(rule: &Rule) -> Result<(), ConfigError> {
    if rule.paths.len() + rule.routes.len() > MAX_PATTERNS {
        return Err(ConfigError::new("match", format!("more than {MAX_PATTERNS} paths and routes")));
    }
    if rule.methods.len() > MAX_METHODS {
        return Err(ConfigError::new("match.methods", format!("more than {MAX_METHODS} methods")));
    }
    for (index, method) in rule.methods.iter().enumerate() {
        if let Err(reason) = check_method(method.as_str()) {
            return Err(ConfigError::new(format!("match.methods[{index}]"), reason).with_value(method));
        }
    }
    check_each("path", &rule.paths, pattern::check)?;
    check_each("route", &rule.routes, |route| if route.is_empty() { Err("must not be empty".into()) } else { Ok(()) })
}

/// Rejects what can only be a mistake; HTTP allows any other word. The error is
/// the reason.
fn check_method(method: &str) -> Result<(), String> {
    if matches!(method, "*" | "ALL" | "ANY") {
        return Err("is no method: leave `methods` out to match all of them".into());
    }
    match STANDARD_METHODS.iter().find(|standard| is_misspelling(method, standard)) {
        Some(standard) => Err(format!("is no method; did you mean `{standard}`?")),
        None => Ok(()),
    }
}

/// Whether one letter is missing or added, or two neighbours are swapped. Another
/// letter makes another word, such as `TRACK`.
fn is_misspelling(word: &str, of: &str) -> bool {
    let (word, of) = (word.as_bytes(), of.as_bytes());
    let start = word.iter().zip(of).take_while(|(a, b)| a == b).count();
    let (word, of) = (&word[start..], &of[start..]);
    match (word, of) {
        ([_, rest @ ..], of) if rest == of => true,
        (word, [_, rest @ ..]) if rest == word => true,
        ([a, b, rest @ ..], [c, d, other @ ..]) => (a, b, rest) == (d, c, other),
        _ => false,
    }
}

fn check_each(kind: &str, patterns: &[String], check: fn(&str) -> Result<(), String>) -> Result<(), ConfigError> {
    let mut seen = HashSet::new();
    for (index, pattern) in patterns.iter().enumerate() {
        let is_new = seen.insert(pattern);
        check(pattern)
            .and_then(|()| is_new.then_some(()).ok_or_else(|| format!("the rule has the same {kind} twice")))
            .map_err(|reason| ConfigError::new(format!("match.{kind}s[{index}]"), reason).with_value(pattern))?;
    }
    Ok(())
}

/// All requests without the parameter would share one tenant's counter.
fn check_tenant_param(rule: &Rule, name: &str) -> Result<(), ConfigError> {
    let value = format!("{{{name}}}");
    ensure(!name.is_empty(), "tenant", &value, "the parameter needs a name")?;
    ensure(rule.routes.is_empty(), "tenant", &value, "is taken from a path, and the rule matches routes")?;
    ensure(!rule.paths.is_empty(), "tenant", &value, "is taken from a path, and the rule names none")?;
    rule.paths.iter().try_for_each(|path| {
        let has_parameter = ParameterPosition::find(path, name).is_some();
        ensure(has_parameter, "tenant", &value, format_args!("the path `{path}` has no such parameter"))
    })
}

fn check_local_share(rule: &Rule) -> Result<(), ConfigError> {
    let Some(share) = rule.local_share else { return Ok(()) };
    // False for NaN.
    ensure(share > 0.0 && share <= 1.0, "local_share", share, "must be more than 0, and at most 1")?;
    let reason = "has a meaning only where `on_backend_failure` is `local`";
    ensure(rule.options.on_backend_failure == Some(FailureMode::Local), "local_share", share, reason)
}

fn check_sync_interval(rule: &Rule) -> Result<(), ConfigError> {
    let Some(interval) = rule.options.sync_interval else { return Ok(()) };
    let value = format!("{interval:?}");
    ensure(SYNC_INTERVALS.contains(&interval), "sync_interval", &value, "must be at least 10ms and at most 10s")?;
    let reason = "has a meaning only where `consistency` is not `exact`";
    ensure(rule.options.consistency != Consistency::Exact, "sync_interval", value, reason)
}

/// The response statuses that are charged, and those that are refunded.
fn check_statuses(rule: &Rule) -> Result<(), ConfigError> {
    for (key, statuses) in [("charge_on", &rule.options.charge_on), ("refund_on", &rule.options.refund_on)] {
        let Some(statuses) = statuses else { continue };
        if let Some(code) = statuses.invalid() {
            return Err(ConfigError::new(key, "must be an HTTP status between 100 and 599").with_value(code));
        }
        ensure(!statuses.is_empty(), key, "[]", "must name at least one status")?;
    }
    match (&rule.options.charge_on, &rule.options.refund_on) {
        (Some(charged), Some(refunded)) => check_refund(charged, refunded),
        _ => Ok(()),
    }
}

fn check_refund(charged: &Statuses, refunded: &Statuses) -> Result<(), ConfigError> {
    for item in refunded.items() {
        ensure(charged.covers(item), "refund_on", item, "is refunded anyway, because it is not in `charge_on`")?;
    }
    let all = refunded.items().map(|item| item.to_string()).collect::<Vec<_>>().join(", ");
    let is_partial = charged.items().any(|item| !refunded.covers(item));
    ensure(is_partial, "refund_on", format_args!("[{all}]"), "leaves nothing to be charged of `charge_on`")
}
