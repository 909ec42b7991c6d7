//! Reads a policy from a document: the native form and the `slas` form.
//!
//! The policy that is returned is valid. A new key of a rule is added in three
//! places: [`RULE_KEYS`], [`rule`] and `write::rule`.

use std::time::Duration;

use http::Method;

use super::{
    cursor::{Cursor, Fields, Result},
    node::Node,
};
use crate::{
    policy::{
        adapt::Adapt,
        dimension::Dimension,
        failure_mode::FailureMode,
        messages::Messages,
        rule::{Override, Rule},
        rule_set::Policy,
        statuses::{Item, Statuses},
        validate::{patterns::check_path, validate},
    },
    quota::{Algorithm, Quota},
};

const RULE_KEYS: &[&str] = &[
    "id",
    "match",
    "tenant",
    "tiers",
    "adapt",
    "per",
    "max_wait",
    "smooth",
    "cost",
    "settle",
    "charge_on",
    "refund_on",
    "per_message",
    "plans",
    "tenants",
    "fallback",
    "fair",
    "shadow",
    "upstream_feedback",
    "enabled",
    "on_backend_failure",
    "local_share",
];

/// The policy of a document.
pub(super) fn policy(node: &Node) -> Result<Policy> {
    Ok(document(node, &["rules", "slas", "ignore_case"])?.0)
}

/// The policy, and the number of instances that share its limits, if that key
/// is there.
#[cfg(feature = "watch")]
pub(super) fn policy_and_instances(node: &Node) -> Result<(Policy, Option<u64>)> {
    document(node, &["rules", "slas", "ignore_case", "instances"])
}

fn document(node: &Node, keys: &[&str]) -> Result<(Policy, Option<u64>)> {
    let root = Cursor::new(node);
    if *node == Node::Null {
        return Err(root.error_at("", "the policy is empty: it needs `rules` or `slas`"));
    }
    let fields = root.fields(keys)?;
    if fields.get("rules").or(fields.get("slas")).is_none() {
        return Err(root.error_at("", "the policy has neither `rules` nor `slas`"));
    }
    let ignore_case = fields.or("ignore_case", false, Cursor::boolean)?;
    let mut rules = fields.or("rules", Vec::new(), |list| rules("rules", list, rule))?;
    rules.extend(fields.or("slas", Vec::new(), |list| self::rules("slas", list, sla))?);
    let policy = Policy { rules, ignore_case };
    validate(&policy)?;
    Ok((policy, fields.optional("instances", Cursor::number)?))
}

fn rules(key: &str, list: &Cursor<'_>, read: fn(&Cursor<'_>) -> Result<Rule>) -> Result<Vec<Rule>> {
    let mut rules = Vec::new();
    for (index, entry) in list.list(|entry| Ok(entry.clone()))?.into_iter().enumerate() {
        let name = usable_id(entry.node).map_or_else(|| format!("{key}[{index}]"), str::to_owned);
        rules.push(read(&entry.in_rule(name))?);
    }
    Ok(rules)
}

/// The id by which errors name the rule, if it has one.
fn usable_id(node: &Node) -> Option<&str> {
    let Node::Map(entries) = node else { return None };
    entries.iter().find_map(|(key, value)| match value {
        Node::Text(id) if key == "id" && !id.is_empty() => Some(id.as_str()),
        _ => None,
    })
}

fn id(cursor: &Cursor<'_>) -> Result<String> {
    match cursor.text()? {
        "" => Err(cursor.error("must not be empty")),
        text => Ok(text.into()),
    }
}

fn rule(entry: &Cursor<'_>) -> Result<Rule> {
    let fields = entry.fields(RULE_KEYS)?;
    let mut rule = Rule::new(fields.required("id", id)?);
    if let Some(matches) = fields.get("match") {
        let matches = matches.fields(&["methods", "paths", "routes"])?;
        rule.methods = methods(&matches)?;
        rule.paths = matches.or("paths", Vec::new(), |paths| paths.list(string))?;
        rule.routes = matches.or("routes", Vec::new(), |routes| routes.list(string))?;
    }
    rule.tenant_param = fields.optional("tenant", tenant_param)?;
    rule.adapt = fields.optional("adapt", adapt)?;
    rule.tiers = match rule.adapt {
        Some(_) => fields.or("tiers", Vec::new(), tiers)?,
        None => fields.required("tiers", tiers)?,
    };
    rule.per = fields.optional("per", |per| per.list(|item| item.choice("dimension", Dimension::ALL)))?;
    rule.max_wait = fields.optional("max_wait", Cursor::duration)?;
    rule.cost = fields.or("cost", rule.cost, Cursor::number)?;
    rule.charge_on = fields.optional("charge_on", statuses)?;
    rule.refund_on = fields.optional("refund_on", statuses)?;
    rule.per_message = fields.optional("per_message", |item| item.choice("direction", Messages::ALL))?;
    rule.plans = fields.or("plans", rule.plans, |plans| plans.map(tiers))?;
    rule.tenants = fields.or("tenants", rule.tenants, |tenants| tenants.map(override_of))?;
    let flag = |key, default| fields.or(key, default, Cursor::boolean);
    rule.smooth = flag("smooth", rule.smooth)?;
    rule.settle = flag("settle", rule.settle)?;
    rule.fallback = flag("fallback", rule.fallback)?;
    rule.fair = flag("fair", rule.fair)?;
    rule.shadow = flag("shadow", rule.shadow)?;
    rule.upstream_feedback = flag("upstream_feedback", rule.upstream_feedback)?;
    rule.enabled = flag("enabled", rule.enabled)?;
    let mode = |item: &Cursor<'_>| item.choice("failure mode", FailureMode::ALL);
    rule.on_backend_failure = fields.or("on_backend_failure", rule.on_backend_failure, mode)?;
    rule.local_share = fields.optional("local_share", Cursor::fraction)?;
    Ok(rule)
}

/// A rule in the form that service teams already have.
fn sla(entry: &Cursor<'_>) -> Result<Rule> {
    let fields = entry.fields(&["id", "enabled", "match", "tiers"])?;
    let mut rule = Rule::new(fields.required("id", id)?).per(Dimension::ALL.iter().copied());
    rule.enabled = fields.or("enabled", rule.enabled, Cursor::boolean)?;
    if let Some(matches) = fields.get("match") {
        let matches = matches.fields(&["methods", "pathPattern"])?;
        rule.methods = methods(&matches)?;
        rule.paths.extend(matches.optional("pathPattern", |pattern| {
            check_path(pattern.text()?).map_err(|reason| pattern.error(reason))?;
            string(pattern)
        })?);
    }
    rule.tiers = fields.required("tiers", |tiers| tiers.list(sla_tier))?;
    Ok(rule)
}

fn sla_tier(tier: &Cursor<'_>) -> Result<Quota> {
    let fields = tier.fields(&["period", "threshold"])?;
    let period = fields.required("period", |period| match period.number()? {
        0 => Err(period.error("must be at least 1 second")),
        seconds => Ok(Duration::from_secs(seconds)),
    })?;
    Ok(Quota::new(fields.required("threshold", Cursor::number)?, period).algorithm(Algorithm::FixedWindow))
}

fn methods(matches: &Fields<'_>) -> Result<Vec<Method>> {
    matches.or("methods", Vec::new(), |methods| methods.list(method))
}

fn method(cursor: &Cursor<'_>) -> Result<Method> {
    let text = cursor.text()?;
    // Methods are case-sensitive: a rule for `get` would match no request.
    if text.bytes().any(|byte| byte.is_ascii_lowercase()) {
        return Err(cursor.error("methods are written in capitals, such as `GET`"));
    }
    Method::from_bytes(text.as_bytes()).map_err(|_| cursor.error("must be an HTTP method"))
}

/// A list of statuses, each a number or a class.
fn statuses(cursor: &Cursor<'_>) -> Result<Statuses> {
    let mut statuses = Statuses::NONE;
    for item in cursor.list(|item| Ok(item.clone()))? {
        let status = status(&item)?;
        if statuses.intersects(status) {
            return Err(item.error("is named twice: as a number or by its class"));
        }
        statuses = statuses.and(status);
    }
    if statuses.is_empty() { Err(cursor.error("must name at least one status")) } else { Ok(statuses) }
}

fn status(item: &Cursor<'_>) -> Result<Item> {
    let error = || item.error("must be a number from 100 to 599, or a class such as `5xx`");
    match item.node {
        Node::Integer(code @ 100..=599) => Ok(Item::Code(u16::try_from(*code).unwrap_or_default())),
        Node::Text(text) => match text.as_bytes() {
            [digit @ b'1'..=b'5', b'x', b'x'] => Ok(Item::Class(digit - b'0')),
            [b'1'..=b'5', b'0'..=b'9', b'0'..=b'9'] => {
                Err(item.error("expected a number, found a string: write it without quotes"))
            }
            _ => Err(error()),
        },
        _ => Err(error()),
    }
}

fn string(cursor: &Cursor<'_>) -> Result<String> {
    cursor.text().map(str::to_owned)
}

fn tenant_param(cursor: &Cursor<'_>) -> Result<String> {
    let name = cursor.text()?.strip_prefix('{').and_then(|text| text.strip_suffix('}'));
    match name {
        Some(name) if !name.is_empty() && !name.contains(['{', '}', '*', '/']) => Ok(name.into()),
        _ => Err(cursor.error("must name a parameter of the path in braces, such as `{org}`")),
    }
}

fn override_of(cursor: &Cursor<'_>) -> Result<Override> {
    match cursor.node {
        Node::Text(text) if text == "unlimited" => Ok(Override::Unlimited),
        Node::List(_) => tiers(cursor).map(Override::Tiers),
        _ => Err(cursor.expected("`unlimited` or a list of tiers")),
    }
}

fn tiers(cursor: &Cursor<'_>) -> Result<Vec<Quota>> {
    cursor.list(quota)
}

fn adapt(cursor: &Cursor<'_>) -> Result<Adapt> {
    let fields = cursor.fields(&["floor", "ceiling", "start", "increase", "decrease"])?;
    Ok(Adapt {
        floor: fields.required("floor", rate)?,
        ceiling: fields.required("ceiling", rate)?,
        start: fields.optional("start", rate)?,
        increase: fields.or("increase", Adapt::INCREASE, Cursor::fraction)?,
        decrease: fields.or("decrease", Adapt::DECREASE, Cursor::fraction)?,
    })
}

fn rate(cursor: &Cursor<'_>) -> Result<Quota> {
    limit_and_window(&cursor.fields(&["limit", "window"])?)
}

fn limit_and_window(fields: &Fields<'_>) -> Result<Quota> {
    Ok(Quota::new(fields.required("limit", Cursor::number)?, fields.required("window", Cursor::duration)?))
}

/// One tier.
pub(super) fn quota(tier: &Cursor<'_>) -> Result<Quota> {
    let fields = tier.fields(&["limit", "window", "burst", "algorithm", "concurrent"])?;
    if let Some(concurrent) = fields.get("concurrent") {
        return match ["limit", "window", "burst", "algorithm"].iter().find_map(|key| fields.get(key)) {
            Some(beside) => Err(beside.error("has no meaning beside `concurrent`, which needs no other key")),
            None => concurrent.number().map(Quota::concurrent),
        };
    }
    let mut quota = limit_and_window(&fields)?;
    if let Some(burst) = fields.optional("burst", Cursor::number)? {
        quota = quota.burst(burst);
    }
    Ok(quota.algorithm(fields.or("algorithm", Algorithm::default(), algorithm)?))
}

fn algorithm(cursor: &Cursor<'_>) -> Result<Algorithm> {
    match cursor.node {
        Node::Text(name) if name == Algorithm::InFlight.as_str() => {
            Err(cursor.error("has no window: write the tier as `{ concurrent: 10 }`"))
        }
        _ => cursor.choice("algorithm", &Algorithm::WINDOWED),
    }
}
