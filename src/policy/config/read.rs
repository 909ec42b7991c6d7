use std::time::Duration;

use http::Method;

use super::{
    cursor::{Cursor, Fields, Place},
    node::Node,
};
use crate::{
    error::ConfigError,
    policy::{
        Adapt, Dimension, FailureMode, Messages, Override, Policy, Rule, Statuses,
        statuses::Item,
        validate::{check_path, validate},
    },
    quota::{Algorithm, Quota},
};

pub(super) const DIMENSIONS: [(&str, Dimension); 3] =
    [("tenant", Dimension::Tenant), ("endpoint", Dimension::Endpoint), ("method", Dimension::Method)];

pub(super) const MESSAGES: [(&str, Messages); 3] =
    [("client", Messages::Client), ("server", Messages::Server), ("both", Messages::Both)];

pub(super) const FAILURE_MODES: [(&str, FailureMode); 3] =
    [("open", FailureMode::Open), ("closed", FailureMode::Closed), ("local", FailureMode::Local)];

const POLICY: &[&str] = &["rules", "slas", "ignore_case"];
#[cfg(feature = "watch")]
const DOCUMENT: &[&str] = &["rules", "slas", "ignore_case", "instances"];

/// The policy that a file holds, valid.
pub(super) fn policy(node: &Node) -> Result<Policy, ConfigError> {
    Ok(root(node, POLICY)?.0)
}

/// The same, and over how many instances it is split, where that is said.
#[cfg(feature = "watch")]
pub(super) fn document(node: &Node) -> Result<(Policy, Option<u64>), ConfigError> {
    root(node, DOCUMENT)
}

fn root(node: &Node, keys: &'static [&'static str]) -> Result<(Policy, Option<u64>), ConfigError> {
    let root = Cursor::new(Place::default(), node);
    if *node == Node::Null {
        return Err(root.place.error("the policy is empty: it needs `rules` or `slas`"));
    }
    let fields = root.fields(keys)?;
    if fields.get("rules").or(fields.get("slas")).is_none() {
        return Err(root.place.error("the policy has neither `rules` nor `slas`"));
    }
    let mut policy = Policy::new();
    if let Some(ignore) = fields.get("ignore_case") {
        policy = policy.ignore_case(ignore.boolean()?);
    }
    type Read = fn(&Cursor<'_>) -> Result<Rule, ConfigError>;
    for (key, read) in [("rules", rule as Read), ("slas", sla as Read)] {
        let Some(list) = fields.get(key) else { continue };
        for (index, entry) in list.list()?.into_iter().enumerate() {
            let name = usable_id(entry.node).map_or_else(|| format!("{key}[{index}]"), str::to_owned);
            policy = policy.rule(read(&entry.in_rule(name))?);
        }
    }
    validate(&policy)?;
    let instances = fields.get("instances").map(Cursor::number).transpose()?;
    Ok((policy, instances))
}

/// By what an error calls the rule.
fn usable_id(node: &Node) -> Option<&str> {
    let Node::Map(entries) = node else { return None };
    entries.iter().find_map(|(key, value)| match value {
        Node::Text(id) if key == "id" && !id.is_empty() => Some(id.as_str()),
        _ => None,
    })
}

fn id<'n>(fields: &Fields<'n>) -> Result<&'n str, ConfigError> {
    let id = fields.required("id")?;
    match id.text()? {
        "" => Err(id.error("must not be empty")),
        text => Ok(text),
    }
}

fn rule(entry: &Cursor<'_>) -> Result<Rule, ConfigError> {
    let fields = entry.fields(&[
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
    ])?;
    let mut rule = Rule::new(id(&fields)?);
    if let Some(matches) = fields.get("match") {
        let matches = matches.fields(&["methods", "paths", "routes"])?;
        rule.methods = methods(&matches)?;
        rule.paths = texts(&matches, "paths")?;
        rule.routes = texts(&matches, "routes")?;
    }
    rule.tenant_param = fields.get("tenant").map(tenant_param).transpose()?;
    rule.adapt = fields.get("adapt").map(adapt).transpose()?;
    match fields.get("tiers") {
        None if rule.adapt.is_some() => {}
        _ => rule.tiers = tiers(fields.required("tiers")?)?,
    }
    if let Some(per) = fields.get("per") {
        let dimension = |item: &Cursor<'_>| item.choice("dimension", &DIMENSIONS);
        rule.per = Some(per.list()?.iter().map(dimension).collect::<Result<_, _>>()?);
    }
    if let Some(max_wait) = fields.get("max_wait") {
        rule.max_wait = Some(max_wait.duration()?);
    }
    if let Some(cost) = fields.get("cost") {
        rule.cost = cost.number()?;
    }
    rule.charge_on = fields.get("charge_on").map(statuses).transpose()?;
    rule.refund_on = fields.get("refund_on").map(statuses).transpose()?;
    if let Some(messages) = fields.get("per_message") {
        rule.per_message = Some(messages.choice("direction", &MESSAGES)?);
    }
    if let Some(plans) = fields.get("plans") {
        for (plan, quotas) in plans.entries()? {
            rule.plans.insert(plan.into(), tiers(&quotas)?);
        }
    }
    if let Some(tenants) = fields.get("tenants") {
        for (tenant, exception) in tenants.entries()? {
            rule.tenants.insert(tenant.into(), override_of(&exception)?);
        }
    }
    let flag = |key, default| fields.get(key).map_or(Ok(default), Cursor::boolean);
    rule.smooth = flag("smooth", false)?;
    rule.settle = flag("settle", false)?;
    rule.fallback = flag("fallback", false)?;
    rule.fair = flag("fair", false)?;
    rule.shadow = flag("shadow", false)?;
    rule.upstream_feedback = flag("upstream_feedback", true)?;
    rule.enabled = flag("enabled", true)?;
    if let Some(mode) = fields.get("on_backend_failure") {
        rule.on_backend_failure = mode.choice("failure mode", &FAILURE_MODES)?;
    }
    rule.local_share = fields.get("local_share").map(Cursor::fraction).transpose()?;
    Ok(rule)
}

/// A rule of the form that service teams already have.
fn sla(entry: &Cursor<'_>) -> Result<Rule, ConfigError> {
    let fields = entry.fields(&["id", "enabled", "match", "tiers"])?;
    let mut rule = Rule::new(id(&fields)?).per([Dimension::Tenant, Dimension::Endpoint, Dimension::Method]);
    if let Some(enabled) = fields.get("enabled") {
        rule.enabled = enabled.boolean()?;
    }
    if let Some(matches) = fields.get("match") {
        let matches = matches.fields(&["methods", "pathPattern"])?;
        rule.methods = methods(&matches)?;
        if let Some(pattern) = matches.get("pathPattern") {
            let path = pattern.text()?;
            check_path(path).map_err(|reason| pattern.error(reason))?;
            rule.paths.push(path.into());
        }
    }
    for tier in fields.required("tiers")?.list()? {
        let tier = tier.fields(&["period", "threshold"])?;
        let period = tier.required("period")?;
        let seconds = match period.number()? {
            0 => return Err(period.error("must be at least 1 second")),
            seconds => Duration::from_secs(seconds),
        };
        rule.tiers.push(Quota::new(tier.required("threshold")?.number()?, seconds).algorithm(Algorithm::FixedWindow));
    }
    Ok(rule)
}

fn methods(matches: &Fields<'_>) -> Result<Vec<Method>, ConfigError> {
    let Some(methods) = matches.get("methods") else { return Ok(Vec::new()) };
    methods.list()?.iter().map(method).collect()
}

fn method(cursor: &Cursor<'_>) -> Result<Method, ConfigError> {
    let text = cursor.text()?;
    // Methods are case-sensitive: a rule for `get` would match nothing.
    if text.bytes().any(|byte| byte.is_ascii_lowercase()) {
        return Err(cursor.error("methods are written in capitals, such as `GET`"));
    }
    Method::from_bytes(text.as_bytes()).map_err(|_| cursor.error("is no HTTP method"))
}

/// A list of statuses, each a number or a class.
fn statuses(cursor: &Cursor<'_>) -> Result<Statuses, ConfigError> {
    let mut statuses = Statuses::NONE;
    for item in cursor.list()? {
        let status = status(&item)?;
        if statuses.meets(status) {
            return Err(item.error("is named twice: by itself, and by its class or again"));
        }
        statuses = statuses.and(status);
    }
    match statuses.is_empty() {
        true => Err(cursor.error("must name at least one status")),
        false => Ok(statuses),
    }
}

fn status(item: &Cursor<'_>) -> Result<Item, ConfigError> {
    const EXPECTED: &str = "is no status: a number from 100 to 599, or a class such as `5xx`";
    match item.node {
        Node::Integer(code @ 100..=599) => Ok(Item::Code(u16::try_from(*code).unwrap_or_default())),
        Node::Text(text) => match text.as_bytes() {
            [digit @ b'1'..=b'5', b'x', b'x'] => Ok(Item::Class(u16::from(digit - b'0'))),
            [b'1'..=b'5', b'0'..=b'9', b'0'..=b'9'] => {
                Err(item.error("expected a number, found a string: write it without quotes"))
            }
            _ => Err(item.error(EXPECTED)),
        },
        _ => Err(item.error(EXPECTED)),
    }
}

fn texts(fields: &Fields<'_>, key: &str) -> Result<Vec<String>, ConfigError> {
    let Some(list) = fields.get(key) else { return Ok(Vec::new()) };
    list.list()?.iter().map(|item| item.text().map(str::to_owned)).collect()
}

fn tenant_param(cursor: &Cursor<'_>) -> Result<String, ConfigError> {
    let name = cursor.text()?.strip_prefix('{').and_then(|text| text.strip_suffix('}'));
    match name {
        Some(name) if !name.is_empty() && !name.contains(['{', '}', '*', '/']) => Ok(name.into()),
        _ => Err(cursor.error("must name a parameter of the path in braces, such as `{org}`")),
    }
}

fn override_of(cursor: &Cursor<'_>) -> Result<Override, ConfigError> {
    match cursor.node {
        Node::Text(text) if text == "unlimited" => Ok(Override::Unlimited),
        Node::List(_) => tiers(cursor).map(Override::Tiers),
        _ => Err(cursor.error(format!("expected `unlimited` or a list of tiers, found {}", cursor.node.kind()))),
    }
}

fn tiers(cursor: &Cursor<'_>) -> Result<Vec<Quota>, ConfigError> {
    cursor.list()?.iter().map(quota).collect()
}

fn adapt(cursor: &Cursor<'_>) -> Result<Adapt, ConfigError> {
    let fields = cursor.fields(&["floor", "ceiling", "start", "increase", "decrease"])?;
    let rate = |cursor: &Cursor<'_>| {
        let fields = cursor.fields(&["limit", "window"])?;
        Ok::<_, ConfigError>(Quota::new(fields.required("limit")?.number()?, fields.required("window")?.duration()?))
    };
    let mut adapt = Adapt::between(rate(fields.required("floor")?)?, rate(fields.required("ceiling")?)?);
    adapt.start = fields.get("start").map(rate).transpose()?;
    if let Some(share) = fields.get("increase") {
        adapt = adapt.increase(share.fraction()?);
    }
    if let Some(share) = fields.get("decrease") {
        adapt = adapt.decrease(share.fraction()?);
    }
    Ok(adapt)
}

/// One tier.
pub(super) fn quota(tier: &Cursor<'_>) -> Result<Quota, ConfigError> {
    let fields = tier.fields(&["limit", "window", "burst", "algorithm", "concurrent"])?;
    if let Some(concurrent) = fields.get("concurrent") {
        for key in ["limit", "window", "burst", "algorithm"] {
            if let Some(beside) = fields.get(key) {
                return Err(beside.error("has no meaning beside `concurrent`, which is all there is to such a tier"));
            }
        }
        return Ok(Quota::concurrent(concurrent.number()?));
    }
    let mut quota = Quota::new(fields.required("limit")?.number()?, fields.required("window")?.duration()?);
    if let Some(burst) = fields.get("burst") {
        quota = quota.burst(burst.number()?);
    }
    if let Some(algorithm) = fields.get("algorithm") {
        if let Node::Text(name) = algorithm.node
            && name == Algorithm::InFlight.as_str()
        {
            return Err(algorithm.error("has no window: write the tier as `{ concurrent: 10 }`"));
        }
        let named = Algorithm::WINDOWED.map(|algorithm| (algorithm.as_str(), algorithm));
        quota = quota.algorithm(algorithm.choice("algorithm", &named)?);
    }
    Ok(quota)
}
