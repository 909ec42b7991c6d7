//! The keys of a rule, and of its adaptive rate.
//!
//! Both are destructured, so that the compiler names a setting without a key.

use std::{mem::take, time::Duration};

use http::Method;

use super::{
    keys::{self, Keys, Kind},
    node::Node,
    schema,
    typed::Result,
    values::{
        CONSISTENCY, DIMENSIONS, DURATION, FAILURE_MODE, FRACTION, ID, MESSAGES, METHODS, NUMBER, PARAMETER, PATHS,
        PLANS, RATE, ROUTES, STATUSES, TENANTS, TIERS, write_duration, write_integer, write_list, write_map,
        write_override, write_statuses, write_text, write_texts, write_tier,
    },
};
use crate::{
    policy::{
        adapt::Adapt,
        choices::Consistency,
        rule::{Rule, RuleOptions},
    },
    quota::Quota,
};

/// Before its rates are read.
const UNSET: Adapt = Adapt::between(Quota::new(0, Duration::ZERO), Quota::new(0, Duration::ZERO));

/// Methods, paths and routes.
type Match = (Vec<Method>, Vec<String>, Vec<String>);

const MATCH: Kind<Match> = Kind {
    read: |node| keys::read(node, Match::default(), matches),
    schema: || keys::describe(Match::default(), matches),
};

const ADAPT: Kind<Adapt> =
    Kind { read: |node| keys::read(node, UNSET, adapt_keys), schema: || keys::describe(UNSET, adapt_keys) };

pub(super) fn schema() -> Node {
    let exempts = schema::map([("properties", schema::map([("exempt", schema::map([("const", Node::Bool(true))]))]))]);
    let has_tiers = schema::map([("properties", schema::map([("tiers", schema::at_least_one())]))]);
    keys::describe(Rule::new(""), rule).and(schema::any_of([
        has_tiers.and(schema::require(&["tiers"])),
        schema::require(&["adapt"]),
        exempts.and(schema::require(&["exempt"])),
    ]))
}

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
    keys.key("id", id, &ID, |id| Some(write_text(id)));
    keys.require("id");
    let mut matched = (take(methods), take(paths), take(routes));
    keys.key("match", &mut matched, &MATCH, |matched| {
        Some(keys::write(matched, matches)).filter(|node| *node != Node::Map(Vec::new()))
    });
    (*methods, *paths, *routes) = matched;
    keys.optional("tenant", tenant_param, &PARAMETER, |name| write_text(&format!("{{{name}}}")));
    keys.optional("adapt", adapt, &ADAPT, |adapt| keys::write(adapt, adapt_keys));
    keys.flag("exempt", exempt, false);
    let may_be_empty = adapt.is_some() || *exempt;
    keys.key("tiers", tiers, &TIERS, |tiers| {
        (!may_be_empty || !tiers.is_empty()).then(|| write_list(tiers, write_tier))
    });
    keys.require_if(!may_be_empty, "tiers");
    keys.optional("per", per, &DIMENSIONS, |per| write_list(per, write_text));
    keys.optional("max_wait", max_wait, &DURATION, |wait| write_duration(*wait));
    keys.flag("smooth", smooth, false);
    keys.key("cost", cost, &NUMBER, |cost| (*cost != 1).then(|| write_integer(*cost)));
    keys.flag("settle", settle, false);
    keys.optional("charge_on", charge_on, &STATUSES, write_statuses);
    keys.optional("refund_on", refund_on, &STATUSES, write_statuses);
    keys.optional("per_message", per_message, &MESSAGES, write_text);
    keys.key("plans", plans, &PLANS, |plans| write_map(plans, |tiers| write_list(tiers, write_tier)));
    keys.key("tenants", tenants, &TENANTS, |tenants| write_map(tenants, write_override));
    keys.flag("fallback", fallback, false);
    keys.flag("fair", fair, false);
    keys.flag("shadow", shadow, false);
    keys.flag("upstream_feedback", upstream_feedback, true);
    keys.flag("enabled", enabled, true);
    keys.key("consistency", consistency, &CONSISTENCY, |level| {
        (*level != Consistency::Exact).then(|| write_text(level))
    });
    keys.optional("sync_interval", sync_interval, &DURATION, |interval| write_duration(*interval));
    keys.optional("on_backend_failure", on_backend_failure, &FAILURE_MODE, write_text);
    keys.optional("local_share", local_share, &FRACTION, |share| Node::Float(*share));
}

fn matches((methods, paths, routes): &mut Match, keys: &mut Keys<'_>) {
    keys.key("methods", methods, &METHODS, |methods| write_texts(methods));
    keys.key("paths", paths, &PATHS, |paths| write_texts(paths));
    keys.key("routes", routes, &ROUTES, |routes| write_texts(routes));
}

fn adapt_keys(value: &mut Adapt, keys: &mut Keys<'_>) {
    let Adapt { floor, ceiling, start, increase, decrease } = value;
    for (key, rate) in [("floor", floor), ("ceiling", ceiling)] {
        keys.key(key, rate, &RATE, |rate| Some(write_tier(rate)));
        keys.require(key);
    }
    keys.optional("start", start, &RATE, write_tier);
    for (key, share, default) in [("increase", increase, Adapt::INCREASE), ("decrease", decrease, Adapt::DECREASE)] {
        let write = |share: &f64| share.total_cmp(&default).is_ne().then_some(Node::Float(*share));
        keys.key(key, share, &FRACTION, write);
    }
}
