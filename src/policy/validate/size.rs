//! The memory that a policy takes once it is compiled, estimated beforehand.
//!
//! A small file can describe a large policy: an adaptive rate has a copy of
//! every tier set for each of its steps. The bound is on all rules together.

use super::tiers::tier_sets;
use crate::{
    error::ConfigError,
    policy::{ladder::Ladder, matcher::NODE_BYTES, rule::Rule, rule_keys, rule_set::Policy, spelling::segments, tier},
};

/// For instance, half a million tenants with one tier each.
const MAX_BYTES: usize = 128 << 20;

pub(super) fn check_size(policy: &Policy) -> Result<(), ConfigError> {
    let (mut total, mut largest) = (0usize, None);
    for rule in policy.rules.iter().filter(|rule| rule.enabled) {
        let (tiers, matches) = (bytes_of_tiers(rule), bytes_of_matches(rule));
        let bytes = tiers.saturating_add(matches);
        let key = match rule.adapt {
            _ if tiers < matches => "match",
            Some(_) => "adapt",
            None => "tiers",
        };
        total = total.saturating_add(bytes);
        largest = largest.max(Some((bytes, key, rule.id.as_str())));
    }
    match largest {
        Some((bytes, key, id)) if total > MAX_BYTES => {
            let (own, total, max) = (bytes >> 20, total >> 20, MAX_BYTES >> 20);
            let reason =
                format!("compiled, the policy would take {total} MiB, and this rule the most: at most {max} MiB");
            Err(ConfigError::new(key, reason).with_value(format_args!("{own} MiB")).of_rule(id))
        }
        _ => Ok(()),
    }
}

/// Each step of an adaptive rate has a copy of every tier set, with one more
/// tier. The fallback limiter has another copy of all if it has a share.
fn bytes_of_tiers(rule: &Rule) -> usize {
    let sets = || tier_sets(rule).map(|(_, tiers)| tiers.len());
    let tiers = match &rule.adapt {
        Some(adapt) => sets().map(|tiers| tiers + 1).sum::<usize>().saturating_mul(Ladder::steps_of(adapt)),
        None => sets().sum(),
    };
    let copies = if rule.local_share.is_some_and(|share| share < 1.0) { 2 } else { 1 };
    tiers.saturating_mul(copies * tier::BYTES)
}

fn bytes_of_matches(rule: &Rule) -> usize {
    let nodes = rule.paths.iter().map(|path| segments(path).count() * NODE_BYTES).sum::<usize>();
    nodes.saturating_add(rule_keys::bytes(rule))
}
