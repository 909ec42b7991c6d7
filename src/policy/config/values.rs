//! The values of a policy file: how each is read, and how it is written.
//!
//! What is written here is read back as the same value.

use std::{collections::BTreeMap, time::Duration};

use http::Method;

use super::{
    duration,
    keys::Kind,
    node::Node,
    schema::{self, KnownKeys},
    typed::{Fields, Result},
};
use crate::{
    policy::{
        choices::{Consistency, Dimension, FailureMode, Messages},
        rule::Override,
        statuses::{Item, Statuses},
        validate::check_id,
    },
    quota::{Algorithm, Quota},
};

pub(super) const NUMBER: Kind<u64> = Kind { read: Node::number, schema: schema::number };

pub(super) const FRACTION: Kind<f64> = Kind { read: Node::fraction, schema: schema::fraction };

pub(super) const DURATION: Kind<Duration> = Kind { read: Node::duration, schema: schema::duration };

pub(super) const ID: Kind<String> = Kind { read: read_id, schema: || schema::like("^[ -~]{1,128}$") };

pub(super) const METHODS: Kind<Vec<Method>> =
    Kind { read: |node| node.list(read_method), schema: || schema::list(schema::like("^[^a-z]+$")) };

pub(super) const PATHS: Kind<Vec<String>> =
    Kind { read: |node| node.list(Node::string), schema: || schema::list(schema::path()) };

pub(super) const ROUTES: Kind<Vec<String>> =
    Kind { read: |node| node.list(Node::string), schema: || schema::list(schema::like(".")) };

pub(super) const PARAMETER: Kind<String> = Kind { read: read_parameter, schema: || schema::like(r"^\{[^{}*/]+\}$") };

pub(super) const DIMENSIONS: Kind<Vec<Dimension>> = Kind {
    read: |node| node.list(read_dimension),
    schema: || {
        let key = schema::like("^[A-Za-z0-9_-]{1,64}$");
        schema::list(schema::any_of([schema::names(Dimension::ALL), key]))
    },
};

pub(super) const STATUSES: Kind<Statuses> = Kind {
    read: read_statuses,
    schema: || {
        let bounds = [("minimum", Node::Integer(100)), ("maximum", Node::Integer(599))];
        let code = schema::of_type("integer").and(schema::map(bounds));
        schema::list(schema::any_of([schema::like("^[1-5]xx$"), code])).and(schema::at_least_one())
    },
};

pub(super) const MESSAGES: Kind<Messages> =
    Kind { read: |node| node.choice("direction", Messages::ALL), schema: || schema::names(Messages::ALL) };

pub(super) const CONSISTENCY: Kind<Consistency> =
    Kind { read: read_consistency, schema: || schema::names(Consistency::ALL) };

pub(super) const FAILURE_MODE: Kind<FailureMode> =
    Kind { read: |node| node.choice("failure mode", FailureMode::ALL), schema: || schema::names(FailureMode::ALL) };

/// May be empty beside an adaptive rate.
pub(super) const TIERS: Kind<Vec<Quota>> =
    Kind { read: read_tiers, schema: || schema::list(schema::reference("tier")) };

pub(super) const PLANS: Kind<BTreeMap<String, Vec<Quota>>> =
    Kind { read: |node| node.map(read_tiers), schema: || schema::map_of(some_tiers()) };

pub(super) const TENANTS: Kind<BTreeMap<String, Override>> = Kind {
    read: |node| node.map(read_override),
    schema: || schema::map_of(schema::any_of([schema::names(&["unlimited"]), some_tiers()])),
};

/// An adaptive rate's floor, ceiling or start.
pub(super) const RATE: Kind<Quota> =
    Kind { read: |node| read_limit(&node.fields(LIMIT)?), schema: || schema::fields(LIMIT, &["limit", "window"]) };

const LIMIT: &KnownKeys = &[("limit", schema::number), ("window", schema::duration)];

/// The keys of a tier, without the last one or that one alone.
const TIER: &KnownKeys = &[
    ("limit", schema::number),
    ("window", schema::duration),
    ("burst", schema::number),
    ("algorithm", || schema::names(&Algorithm::WINDOWED)),
    ("concurrent", schema::number),
];

fn some_tiers() -> Node {
    (TIERS.schema)().and(schema::at_least_one())
}

pub(super) fn tier_schema() -> Node {
    let (windowed, concurrent) = TIER.split_at(4);
    schema::any_of([schema::fields(windowed, &["limit", "window"]), schema::fields(concurrent, &["concurrent"])])
}

pub(super) fn write_text<T: ToString + ?Sized>(text: &T) -> Node {
    Node::Text(text.to_string())
}

pub(super) fn write_integer(value: impl Into<i128>) -> Node {
    Node::Integer(value.into())
}

pub(super) fn write_duration(duration: Duration) -> Node {
    Node::Text(duration::format(duration))
}

pub(super) fn write_list<T>(items: &[T], write: impl Fn(&T) -> Node) -> Node {
    Node::List(items.iter().map(write).collect())
}

/// `None` for an empty list, which a missing key stands for.
pub(super) fn write_texts<T: ToString>(items: &[T]) -> Option<Node> {
    (!items.is_empty()).then(|| write_list(items, write_text))
}

/// `None` for an empty map, which a missing key stands for.
pub(super) fn write_map<T>(entries: &BTreeMap<String, T>, write: impl Fn(&T) -> Node) -> Option<Node> {
    let entries: Vec<_> = entries.iter().map(|(key, value)| (key.clone(), write(value))).collect();
    (!entries.is_empty()).then_some(Node::Map(entries))
}

pub(super) fn read_id(node: &Node) -> Result<String> {
    let id = node.string()?;
    check_id(&id).map_err(|reason| node.error(reason))?;
    Ok(id)
}

pub(super) fn read_method(node: &Node) -> Result<Method> {
    let text = node.text()?;
    // Methods are case-sensitive: a rule for `get` would match no request.
    if text.bytes().any(|byte| byte.is_ascii_lowercase()) {
        return Err(node.error("methods are written in capitals, such as `GET`"));
    }
    Method::from_bytes(text.as_bytes()).map_err(|_| node.error("must be an HTTP method"))
}

/// A dimension by its name; any other name is that of a key.
fn read_dimension(node: &Node) -> Result<Dimension> {
    let name = node.text()?;
    let known = Dimension::ALL.iter().find(|known| known.as_str() == name);
    let dimension = known.cloned().unwrap_or_else(|| Dimension::key(name));
    dimension.check().map_err(|reason| node.error(reason))?;
    Ok(dimension)
}

/// A parameter of the path: `{org}`.
fn read_consistency(node: &Node) -> Result<Consistency> {
    if node.text()? == "eventual" {
        return Err(node.error("there is no level `eventual` any more: use `leased`, which is never over the limit"));
    }
    node.choice("consistency level", Consistency::ALL)
}

fn read_parameter(node: &Node) -> Result<String> {
    let name = node.text()?.strip_prefix('{').and_then(|text| text.strip_suffix('}'));
    match name {
        Some(name) if !name.is_empty() && !name.contains(['{', '}', '*', '/']) => Ok(name.into()),
        _ => Err(node.error("must name a parameter of the path in braces, such as `{org}`")),
    }
}

/// A list of statuses, each a number or a class.
fn read_statuses(node: &Node) -> Result<Statuses> {
    let mut statuses = Statuses::NONE;
    node.list(|item| {
        let status = read_status(item)?;
        if statuses.intersects(status) {
            return Err(item.error("is named twice: as a number or by its class"));
        }
        statuses = statuses.and(status);
        Ok(())
    })?;
    if statuses.is_empty() { Err(node.error("must name at least one status")) } else { Ok(statuses) }
}

fn read_status(item: &Node) -> Result<Item> {
    let error = || item.error("must be a number from 100 to 599, or a class such as `5xx`");
    match item {
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

pub(super) fn write_statuses(statuses: &Statuses) -> Node {
    let item = |item| match item {
        Item::Class(_) => write_text(&item),
        Item::Code(code) => write_integer(code),
    };
    Node::List(statuses.items().map(item).collect())
}

fn read_override(node: &Node) -> Result<Override> {
    match node {
        Node::Text(text) if text == "unlimited" => Ok(Override::Unlimited),
        Node::List(_) => read_tiers(node).map(Override::Tiers),
        _ => Err(node.expected("`unlimited` or a list of tiers")),
    }
}

pub(super) fn write_override(exception: &Override) -> Node {
    match exception {
        Override::Tiers(tiers) => write_list(tiers, write_tier),
        Override::Unlimited => write_text("unlimited"),
    }
}

fn read_tiers(node: &Node) -> Result<Vec<Quota>> {
    node.list(read_tier)
}

pub(super) fn read_tier(node: &Node) -> Result<Quota> {
    let fields = node.fields(TIER)?;
    if let Some(concurrent) = fields.get("concurrent") {
        let mut others = TIER[..4].iter();
        return match others.find(|(key, _)| fields.get(key).is_some()) {
            Some((key, _)) => fields.required(key, |other| {
                Err(other.error("has no meaning beside `concurrent`, which needs no other key"))
            }),
            None => fields.required("concurrent", |_| concurrent.number()).map(Quota::concurrent),
        };
    }
    let mut quota = read_limit(&fields)?;
    if let Some(burst) = fields.optional("burst", Node::number)? {
        quota = quota.burst(burst);
    }
    Ok(quota.algorithm(fields.or("algorithm", Algorithm::default(), read_algorithm)?))
}

fn read_limit(fields: &Fields<'_>) -> Result<Quota> {
    Ok(Quota::new(fields.required("limit", Node::number)?, fields.required("window", Node::duration)?))
}

fn read_algorithm(node: &Node) -> Result<Algorithm> {
    match node {
        Node::Text(name) if name == Algorithm::InFlight.as_str() => {
            Err(node.error("has no window: write the tier as `{ concurrent: 10 }`"))
        }
        _ => node.choice("algorithm", &Algorithm::WINDOWED),
    }
}

pub(super) fn write_tier(quota: &Quota) -> Node {
    let algorithm = quota.counted_by();
    if algorithm == Algorithm::InFlight {
        return Node::Map(vec![("concurrent".into(), write_integer(quota.limit()))]);
    }
    let entries = [
        ("limit", Some(write_integer(quota.limit()))),
        ("window", Some(write_duration(quota.window()))),
        ("burst", quota.explicit_burst().map(write_integer)),
        ("algorithm", (algorithm != Algorithm::default()).then(|| write_text(&algorithm))),
    ];
    Node::Map(entries.into_iter().filter_map(|(key, value)| Some((key.into(), value?))).collect())
}
