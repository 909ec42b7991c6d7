//! The whole document: rules in the native form and in the `slas` form.
//!
//! A policy that is read here is valid.

use std::time::Duration;

use super::{
    node::Node,
    rule,
    schema::{self, KnownKeys},
    typed::Result,
    values::{self, METHODS, read_id},
};
use crate::{
    error::ConfigError,
    policy::{
        choices::Dimension,
        pattern,
        rule::Rule,
        rule_set::Policy,
        validate::{check_id, validate},
    },
    quota::{Algorithm, Quota},
};

const DOCUMENT: &KnownKeys = &[
    ("rules", || schema::list(rule::schema())),
    ("slas", || schema::list(schema::fields(SLA, &["id", "tiers"]))),
    ("ignore_case", schema::flag),
    ("instances", schema::number),
];

const SLA: &KnownKeys = &[
    ("id", values::ID.schema),
    ("enabled", schema::flag),
    ("match", || schema::fields(SLA_MATCH, &[])),
    ("tiers", || schema::list(schema::fields(SLA_TIER, &["period", "threshold"])).and(schema::at_least_one())),
];

const SLA_MATCH: &KnownKeys = &[("methods", METHODS.schema), ("pathPattern", schema::path)];

const SLA_TIER: &KnownKeys = &[("period", schema::number), ("threshold", schema::number)];

/// The schema of a document.
pub(super) fn schema() -> Node {
    let defs = schema::map([("$defs", schema::map([("tier", values::tier_schema())]))]);
    let has_rules = schema::any_of([schema::require(&["rules"]), schema::require(&["slas"])]);
    schema::fields(DOCUMENT, &[]).and(has_rules).and(defs)
}

/// The policy of a document.
pub(super) fn read(node: &Node) -> Result<Policy> {
    Ok(read_known(node, &DOCUMENT[..3])?.0)
}

/// The policy, and the number of instances that share its limits, if that key
/// is there.
#[cfg(feature = "watch")]
pub(super) fn read_with_instances(node: &Node) -> Result<(Policy, Option<u64>)> {
    read_known(node, DOCUMENT)
}

fn read_known(node: &Node, keys: &KnownKeys) -> Result<(Policy, Option<u64>)> {
    if *node == Node::Null {
        return Err(ConfigError::new("", "the policy is empty: it needs `rules` or `slas`"));
    }
    let fields = node.fields(keys)?;
    if fields.get("rules").or(fields.get("slas")).is_none() {
        return Err(ConfigError::new("", "the policy has neither `rules` nor `slas`"));
    }
    let mut policy = Policy { rules: Vec::new(), ignore_case: fields.or("ignore_case", false, Node::boolean)? };
    for (key, read) in [("rules", rule::read as fn(&Node) -> Result<_>), ("slas", read_sla)] {
        for (index, entry) in fields.or(key, &[][..], Node::items)?.iter().enumerate() {
            let name = || usable_id(entry).map_or_else(|| format!("{key}[{index}]"), str::to_owned);
            policy.rules.push(read(entry).map_err(|error| error.of_rule(name()))?);
        }
    }
    validate(&policy)?;
    Ok((policy, fields.optional("instances", Node::number)?))
}

/// The id by which errors name the rule, if it has one.
fn usable_id(node: &Node) -> Option<&str> {
    let Node::Map(entries) = node else { return None };
    entries.iter().find_map(|(key, value)| match value {
        Node::Text(id) if key == "id" && check_id(id).is_ok() => Some(id.as_str()),
        _ => None,
    })
}

/// The form of a rule that service teams have already. It is only read.
fn read_sla(node: &Node) -> Result<Rule> {
    let fields = node.fields(SLA)?;
    let mut rule = Rule::new(fields.required("id", read_id)?).per(Dimension::ALL.iter().cloned());
    rule.enabled = fields.or("enabled", true, Node::boolean)?;
    (rule.methods, rule.paths) = fields.or("match", <_>::default(), |node| {
        let fields = node.fields(SLA_MATCH)?;
        let methods = fields.or("methods", Vec::new(), METHODS.read)?;
        Ok((methods, fields.optional("pathPattern", read_path)?.into_iter().collect()))
    })?;
    rule.tiers = fields.required("tiers", |node| node.list(read_sla_tier))?;
    Ok(rule)
}

fn read_path(node: &Node) -> Result<String> {
    let path = node.string()?;
    pattern::check(&path).map_err(|reason| node.error(reason))?;
    Ok(path)
}

fn read_sla_tier(node: &Node) -> Result<Quota> {
    let fields = node.fields(SLA_TIER)?;
    let period = fields.required("period", |period| match period.number()? {
        0 => Err(period.error("must be at least 1 second")),
        seconds => Ok(Duration::from_secs(seconds)),
    })?;
    Ok(Quota::new(fields.required("threshold", Node::number)?, period).algorithm(Algorithm::FixedWindow))
}

pub(super) fn write(policy: &Policy) -> Node {
    let rules = Node::List(policy.rules.iter().map(rule::write).collect());
    let ignore_case = policy.ignore_case.then(|| ("ignore_case".into(), Node::Bool(true)));
    Node::Map([("rules".into(), rules)].into_iter().chain(ignore_case).collect())
}
