//! What a policy must satisfy to be put in force, built in code or read from a
//! file.
//!
//! Checks only: nothing is changed or defaulted here. Disabled rules are checked
//! as well, as they may be enabled one day. Every error names rule, key and
//! value.

mod adapt;
mod ensure;
pub(super) mod patterns;
mod tiers;

use std::collections::HashSet;

use self::{ensure::ensure, patterns::check_patterns, tiers::check_tiers};
use super::{
    dimension::Dimension, failure_mode::FailureMode, matcher::ParameterPlace, rule::Rule, rule_set::Policy,
    statuses::Statuses,
};
use crate::error::ConfigError;

pub(super) fn validate(policy: &Policy) -> Result<(), ConfigError> {
    let mut ids = HashSet::new();
    for (index, rule) in policy.rules.iter().enumerate() {
        ensure(!rule.id.is_empty(), "id", "", "must not be empty")
            .map_err(|error| error.of_rule(format!("rules[{index}]")))?;
        ensure(ids.insert(&rule.id), "id", &rule.id, "another rule has the same id")
            .and_then(|()| check_rule(rule))
            .map_err(|error| error.of_rule(&rule.id))?;
    }
    Ok(())
}

fn check_rule(rule: &Rule) -> Result<(), ConfigError> {
    check_patterns(rule)?;
    if let Some(name) = &rule.tenant_param {
        check_tenant_param(rule, name)?;
    }
    let per = rule.per.as_deref();
    for (index, dimension) in per.unwrap_or_default().iter().enumerate() {
        let is_first = !per.unwrap_or_default()[..index].contains(dimension);
        ensure(is_first, &format!("per[{index}]"), dimension, "is named twice")?;
    }
    let shares_counter = per.is_some_and(|per| !per.contains(&Dimension::Tenant));
    let reason = "round-robin between tenants works only at a counter that they share: see `per`";
    ensure(!rule.fair || shares_counter, "fair", true, reason)?;
    ensure(rule.cost > 0, "cost", 0, "must be at least 1")?;
    check_local_share(rule)?;
    check_statuses(rule)?;
    check_tiers(rule)?;
    if let Some(adapt) = &rule.adapt {
        adapt::check_rule(rule, adapt)?;
    }
    tiers::check_per_message(rule)?;
    tiers::check_smooth(rule)
}

/// All requests without the parameter would share one tenant's counter.
fn check_tenant_param(rule: &Rule, name: &str) -> Result<(), ConfigError> {
    let value = format!("{{{name}}}");
    ensure(!name.is_empty(), "tenant", &value, "the parameter needs a name")?;
    ensure(rule.routes.is_empty(), "tenant", &value, "is taken from a path, and the rule matches routes")?;
    ensure(!rule.paths.is_empty(), "tenant", &value, "is taken from a path, and the rule names none")?;
    rule.paths.iter().try_for_each(|path| {
        let has_parameter = ParameterPlace::find(path, name).is_some();
        ensure(has_parameter, "tenant", &value, format_args!("the path `{path}` has no such parameter"))
    })
}

fn check_local_share(rule: &Rule) -> Result<(), ConfigError> {
    let Some(share) = rule.local_share else { return Ok(()) };
    // False for NaN.
    ensure(share > 0.0 && share <= 1.0, "local_share", share, "must be more than 0, and at most 1")?;
    let reason = "has a meaning only where `on_backend_failure` is `local`";
    ensure(rule.on_backend_failure == FailureMode::Local, "local_share", share, reason)
}

/// The response statuses that are charged, and those that are refunded.
fn check_statuses(rule: &Rule) -> Result<(), ConfigError> {
    for (key, statuses) in [("charge_on", &rule.charge_on), ("refund_on", &rule.refund_on)] {
        let Some(statuses) = statuses else { continue };
        if let Some(code) = statuses.invalid() {
            return Err(ConfigError::new(key, "must be an HTTP status between 100 and 599").with_value(code));
        }
        ensure(!statuses.is_empty(), key, "[]", "must name at least one status")?;
    }
    match (&rule.charge_on, &rule.refund_on) {
        (Some(charged), Some(refunded)) => check_refund(charged, refunded),
        _ => Ok(()),
    }
}

fn check_refund(charged: &Statuses, refunded: &Statuses) -> Result<(), ConfigError> {
    for item in refunded.items() {
        ensure(charged.covers(item), "refund_on", item, "is given back anyway, as it is not in `charge_on`")?;
    }
    let all = refunded.items().map(|item| item.to_string()).collect::<Vec<_>>().join(", ");
    let is_partial = charged.items().any(|item| !refunded.covers(item));
    ensure(is_partial, "refund_on", format_args!("[{all}]"), "leaves nothing to be charged of `charge_on`")
}
