//! Writes a policy in the native form. Settings at their default are left out.

use super::{duration, node::Node};
use crate::{
    policy::{
        adapt::Adapt,
        failure_mode::FailureMode,
        rule::{Override, Rule},
        rule_set::Policy,
        statuses::{Item, Statuses},
    },
    quota::{Algorithm, Quota},
};

pub(super) fn policy(policy: &Policy) -> Node {
    let mut map = Map::default();
    map.add("rules", list(&policy.rules, rule));
    map.add_flag("ignore_case", policy.ignore_case);
    map.into()
}

/// A map in the order in which entries are added.
#[derive(Default)]
struct Map(Vec<(String, Node)>);

impl Map {
    fn add(&mut self, key: &str, value: impl Into<Option<Node>>) {
        self.0.extend(value.into().map(|value| (key.to_owned(), value)));
    }

    /// Flags are false by default.
    fn add_flag(&mut self, key: &str, value: bool) {
        self.add(key, value.then_some(Node::Bool(true)));
    }
}

impl From<Map> for Node {
    fn from(map: Map) -> Self {
        Self::Map(map.0)
    }
}

fn rule(rule: &Rule) -> Node {
    let mut map = Map::default();
    map.add("id", text(&rule.id));
    map.add("match", matches(rule));
    map.add("tenant", rule.tenant_param.as_ref().map(|name| text(&format!("{{{name}}}"))));
    map.add("tiers", (rule.adapt.is_none() || !rule.tiers.is_empty()).then(|| list(&rule.tiers, quota)));
    map.add("adapt", rule.adapt.as_ref().map(adapt));
    map.add("per", rule.per.as_ref().map(|per| list(per, text)));
    map.add("max_wait", rule.max_wait.map(|max_wait| text(&duration::format(max_wait))));
    map.add_flag("smooth", rule.smooth);
    map.add("cost", (rule.cost != 1).then(|| integer(rule.cost)));
    map.add_flag("settle", rule.settle);
    map.add("charge_on", rule.charge_on.as_ref().map(statuses));
    map.add("refund_on", rule.refund_on.as_ref().map(statuses));
    map.add("per_message", rule.per_message.as_ref().map(text));
    let plans = rule.plans.iter().map(|(plan, quotas)| (plan.clone(), list(quotas, quota))).collect();
    map.add("plans", (!rule.plans.is_empty()).then_some(Node::Map(plans)));
    let tenants = rule.tenants.iter().map(|(tenant, exception)| (tenant.clone(), override_of(exception))).collect();
    map.add("tenants", (!rule.tenants.is_empty()).then_some(Node::Map(tenants)));
    map.add_flag("fallback", rule.fallback);
    map.add_flag("fair", rule.fair);
    map.add_flag("shadow", rule.shadow);
    map.add("upstream_feedback", (!rule.upstream_feedback).then_some(Node::Bool(false)));
    map.add("enabled", (!rule.enabled).then_some(Node::Bool(false)));
    let mode = rule.on_backend_failure;
    map.add("on_backend_failure", (mode != FailureMode::default()).then(|| text(&mode)));
    map.add("local_share", rule.local_share.map(Node::Float));
    map.into()
}

fn matches(rule: &Rule) -> Option<Node> {
    let mut map = Map::default();
    map.add("methods", (!rule.methods.is_empty()).then(|| list(&rule.methods, text)));
    map.add("paths", (!rule.paths.is_empty()).then(|| list(&rule.paths, text)));
    map.add("routes", (!rule.routes.is_empty()).then(|| list(&rule.routes, text)));
    (!map.0.is_empty()).then(|| map.into())
}

fn statuses(statuses: &Statuses) -> Node {
    let item = |item| match item {
        Item::Class(_) => text(&item),
        Item::Code(code) => integer(code),
    };
    Node::List(statuses.items().map(item).collect())
}

fn override_of(exception: &Override) -> Node {
    match exception {
        Override::Tiers(quotas) => list(quotas, quota),
        Override::Unlimited => text("unlimited"),
    }
}

fn adapt(adapt: &Adapt) -> Node {
    let mut map = Map::default();
    map.add("floor", quota(&adapt.floor));
    map.add("ceiling", quota(&adapt.ceiling));
    map.add("start", adapt.start.as_ref().map(quota));
    for (key, share, default) in
        [("increase", adapt.increase, Adapt::INCREASE), ("decrease", adapt.decrease, Adapt::DECREASE)]
    {
        map.add(key, share.total_cmp(&default).is_ne().then_some(Node::Float(share)));
    }
    map.into()
}

/// One tier.
pub(super) fn quota(quota: &Quota) -> Node {
    let mut map = Map::default();
    let algorithm = quota.counted_by();
    if algorithm == Algorithm::InFlight {
        map.add("concurrent", integer(quota.limit()));
        return map.into();
    }
    map.add("limit", integer(quota.limit()));
    map.add("window", text(&duration::format(quota.window())));
    map.add("burst", quota.explicit_burst().map(integer));
    map.add("algorithm", (algorithm != Algorithm::default()).then(|| text(&algorithm)));
    map.into()
}

fn text<T: ToString + ?Sized>(text: &T) -> Node {
    Node::Text(text.to_string())
}

fn integer(value: impl Into<i128>) -> Node {
    Node::Integer(value.into())
}

fn list<T>(items: &[T], item: impl Fn(&T) -> Node) -> Node {
    Node::List(items.iter().map(item).collect())
}
