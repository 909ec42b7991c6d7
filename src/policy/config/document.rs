//! The whole document: rules in the native form and in the `slas` form.
//!
//! A policy that is read here is valid.

use std::time::Duration;

use http::Method;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, de::Error};

use super::{
    mistake::{locate, rule_name},
    tree::Node,
};
use crate::{
    error::ConfigError,
    policy::{
        choices::Dimension,
        forms::{self, yes},
        pattern,
        rule::{Match, Rule},
        rule_set::Policy,
        validate::validate,
    },
    quota::{Algorithm, Quota},
};

/// The keys of a document.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "A policy of tower-ratelimit")]
#[schemars(extend("anyOf" = [{ "required": ["rules"] }, { "required": ["slas"] }]))]
pub(super) struct Document {
    rules: Option<Vec<Rule>>,
    slas: Option<Vec<Sla>>,
    #[serde(default)]
    ignore_case: bool,
    /// How many instances share the limits.
    instances: Option<u64>,
}

/// The form of a rule that service teams have already. It is only read.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "sla")]
struct Sla {
    id: String,
    #[serde(default = "yes")]
    enabled: bool,
    #[serde(default, rename = "match")]
    matches: SlaMatch,
    tiers: Vec<SlaTier>,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct SlaMatch {
    #[serde(default, with = "forms::methods")]
    #[schemars(with = "Vec<String>")]
    methods: Vec<Method>,
    #[serde(default, deserialize_with = "pattern")]
    path_pattern: Option<String>,
}

#[derive(Clone, Copy, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SlaTier {
    #[serde(deserialize_with = "period")]
    period: u64,
    threshold: u64,
}

/// Checked here, because `validate` does not know this form's key.
fn pattern<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let pattern = String::deserialize(deserializer)?;
    pattern::check(&pattern).map_err(D::Error::custom)?;
    Ok(Some(pattern))
}

/// Checked here, because `validate` does not know this form's key.
fn period<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    match u64::deserialize(deserializer)? {
        0 => Err(D::Error::custom("must be at least 1 second")),
        seconds => Ok(seconds),
    }
}

impl From<Sla> for Rule {
    fn from(sla: Sla) -> Self {
        let tier = |SlaTier { period, threshold }| {
            Quota::new(threshold, Duration::from_secs(period)).algorithm(Algorithm::FixedWindow)
        };
        let SlaMatch { methods, path_pattern } = sla.matches;
        let mut rule = Self::new(sla.id).enabled(sla.enabled).per(Dimension::ALL.iter().cloned());
        rule.matches = Match { methods, paths: path_pattern.into_iter().collect(), routes: Vec::new() };
        rule.tiers = sla.tiers.into_iter().map(tier).collect();
        rule
    }
}

/// The policy of a document, and the number of instances that share its limits.
/// Only a document that is watched may say that.
pub(super) fn read(node: &Node, is_watched: bool) -> Result<(Policy, Option<u64>), ConfigError> {
    if *node == Node::Null {
        return Err(ConfigError::new("", "the policy is empty: it needs `rules` or `slas`"));
    }
    let read: Result<Document, _> = serde_path_to_error::deserialize(node);
    let Document { rules, slas, ignore_case, instances } = read.map_err(|error| locate(node, error))?;
    if let (Some(count), false) = (instances, is_watched) {
        return Err(ConfigError::new("instances", "is a key of watched documents only").with_value(count));
    }
    if rules.is_none() && slas.is_none() {
        return Err(ConfigError::new("", "the policy has neither `rules` nor `slas`"));
    }
    let rules = rules.unwrap_or_default();
    let natives = rules.len();
    for (index, rule) in rules.iter().enumerate() {
        let is_missing = node
            .values("rules")
            .filter_map(|rules| rules.item(index))
            .all(|rule| rule.values("tiers").next().is_none());
        if is_missing && rule.needs_tiers() {
            return Err(ConfigError::new("tiers", "is missing").of_rule(rule_name(node, "rules", index)));
        }
    }
    let rules = rules.into_iter().chain(slas.into_iter().flatten().map(Rule::from)).collect();
    let policy = Policy { rules, ignore_case };
    validate(&policy, |index| match index.checked_sub(natives) {
        None => rule_name(node, "rules", index),
        Some(index) => rule_name(node, "slas", index),
    })?;
    Ok((policy, instances))
}
