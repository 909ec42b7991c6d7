//! The keys of a rule, and of its adaptive rate.
//!
//! Both are destructured, so that the compiler names a setting without a key.

use std::{mem::take, time::Duration};

use http::Method;

use super::{
    keys::{self, Keys},
    node::Node,
    typed::Result,
    values::{
        read_dimension, read_method, read_override, read_parameter, read_rate, read_statuses, read_tiers,
        write_duration, write_integer, write_list, write_map, write_override, write_statuses, write_text, write_texts,
        write_tier,
    },
};
use crate::{
    policy::{
        adapt::Adapt,
        choices::{Consistency, FailureMode, Messages},
        rule::{Rule, RuleOptions},
        validate::check_id,
    },
    quota::Quota,
};

/// Before its rates are read.
const UNSET: Adapt = Adapt::between(Quota::new(0, Duration::ZERO), Quota::new(0, Duration::ZERO));

pub(super) fn read(node: &Node) -> Result<Rule> {
    keys::read(node, Rule::new(""), rule)
}

pub(super) fn write(value: &Rule) -> Node {
    keys::write(value, rule)
}

fn rule(value: &mut Rule, keys: &mut Keys<'_>) {
    let Rule {
        id,
        methods,
        paths,
        routes,
        tiers,
        adapt,
        per,
        tenant_param,
        max_wait,
        plans,
        tenants,
        enabled,
        local_share,
        options,
    } = value;
    let RuleOptions {
        cost,
        settle,
        charge_on,
        refund_on,
        smooth,
        per_message,
        fallback,
        fair,
        shadow,
        exempt,
        upstream_feedback,
        on_backend_failure,
        consistency,
        sync_interval,
    } = options;
    keys.key("id", id, read_id, |id| Some(write_text(id)));
    keys.require("id");
    let mut matched = (take(methods), take(paths), take(routes));
    keys.key(
        "match",
        &mut matched,
        |node| keys::read(node, <_>::default(), matches),
        |matched| Some(keys::write(matched, matches)).filter(|node| *node != Node::Map(Vec::new())),
    );
    (*methods, *paths, *routes) = matched;
    keys.optional("tenant", tenant_param, read_parameter, |name| write_text(&format!("{{{name}}}")));
    keys.optional("adapt", adapt, |node| keys::read(node, UNSET, adapt_keys), |adapt| keys::write(adapt, adapt_keys));
    keys.flag("exempt", exempt, false);
    let may_be_empty = adapt.is_some() || *exempt;
    keys.key("tiers", tiers, read_tiers, |tiers| {
        (!may_be_empty || !tiers.is_empty()).then(|| write_list(tiers, write_tier))
    });
    if !may_be_empty {
        keys.require("tiers");
    }
    keys.optional("per", per, |node| node.list(read_dimension), |per| write_list(per, write_text));
    keys.optional("max_wait", max_wait, Node::duration, |wait| write_duration(*wait));
    keys.flag("smooth", smooth, false);
    keys.key("cost", cost, Node::number, |cost| (*cost != 1).then(|| write_integer(*cost)));
    keys.flag("settle", settle, false);
    keys.optional("charge_on", charge_on, read_statuses, write_statuses);
    keys.optional("refund_on", refund_on, read_statuses, write_statuses);
    keys.optional("per_message", per_message, |node| node.choice("direction", Messages::ALL), write_text);
    keys.key(
        "plans",
        plans,
        |node| node.map(read_tiers),
        |plans| write_map(plans, |tiers| write_list(tiers, write_tier)),
    );
    keys.key("tenants", tenants, |node| node.map(read_override), |tenants| write_map(tenants, write_override));
    keys.flag("fallback", fallback, false);
    keys.flag("fair", fair, false);
    keys.flag("shadow", shadow, false);
    keys.flag("upstream_feedback", upstream_feedback, true);
    keys.flag("enabled", enabled, true);
    keys.key(
        "consistency",
        consistency,
        |node| node.choice("consistency level", Consistency::ALL),
        |level| (*level != Consistency::Exact).then(|| write_text(level)),
    );
    keys.optional("sync_interval", sync_interval, Node::duration, |interval| write_duration(*interval));
    let mode = |node: &Node| node.choice("failure mode", FailureMode::ALL);
    keys.optional("on_backend_failure", on_backend_failure, mode, write_text);
    keys.optional("local_share", local_share, Node::fraction, |share| Node::Float(*share));
}

fn matches((methods, paths, routes): &mut (Vec<Method>, Vec<String>, Vec<String>), keys: &mut Keys<'_>) {
    keys.key("methods", methods, |node| node.list(read_method), |methods| write_texts(methods));
    keys.key("paths", paths, |node| node.list(Node::string), |paths| write_texts(paths));
    keys.key("routes", routes, |node| node.list(Node::string), |routes| write_texts(routes));
}

fn adapt_keys(value: &mut Adapt, keys: &mut Keys<'_>) {
    let Adapt { floor, ceiling, start, increase, decrease } = value;
    for (key, rate) in [("floor", floor), ("ceiling", ceiling)] {
        keys.key(key, rate, read_rate, |rate| Some(write_tier(rate)));
        keys.require(key);
    }
    keys.optional("start", start, read_rate, write_tier);
    for (key, share, default) in [("increase", increase, Adapt::INCREASE), ("decrease", decrease, Adapt::DECREASE)] {
        keys.key(key, share, Node::fraction, |share| share.total_cmp(&default).is_ne().then_some(Node::Float(*share)));
    }
}

pub(super) fn read_id(node: &Node) -> Result<String> {
    let id = node.string()?;
    check_id(&id).map_err(|reason| node.error(reason))?;
    Ok(id)
}
