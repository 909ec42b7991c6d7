use super::{
    duration,
    node::Node,
    read::{DIMENSIONS, FAILURE_MODES, MESSAGES},
};
use crate::{
    policy::{Adapt, FailureMode, Override, Policy, Rule, Statuses, statuses::Item},
    quota::{Algorithm, Quota},
};

/// The native form; what is as by default is left out.
pub(super) fn policy(policy: &Policy) -> Node {
    let mut entries = vec![("rules", Node::List(policy.rules.iter().map(rule).collect()))];
    if policy.ignore_case {
        entries.push(("ignore_case", Node::Bool(true)));
    }
    map(entries)
}

fn rule(rule: &Rule) -> Node {
    let methods = rule.methods.iter().map(|method| text(method.as_str())).collect();
    let paths = rule.paths.iter().map(text).collect();
    let routes = rule.routes.iter().map(text).collect();
    let matches: Vec<_> = [("methods", methods), ("paths", paths), ("routes", routes)]
        .into_iter()
        .filter(|(_, list): &(_, Vec<Node>)| !list.is_empty())
        .map(|(key, list)| (key, Node::List(list)))
        .collect();
    let plans = rule.plans.iter().map(|(plan, quotas)| (plan.clone(), tiers(quotas))).collect();
    let tenants = rule.tenants.iter().map(|(tenant, exception)| (tenant.clone(), override_of(exception))).collect();

    let mut entries = vec![("id", text(&rule.id))];
    let mut add = |differs: bool, key, value| {
        if differs {
            entries.push((key, value));
        }
    };
    add(!matches.is_empty(), "match", map(matches));
    if let Some(name) = &rule.tenant_param {
        add(true, "tenant", Node::Text(format!("{{{name}}}")));
    }
    add(rule.adapt.is_none() || !rule.tiers.is_empty(), "tiers", tiers(&rule.tiers));
    if let Some(found) = &rule.adapt {
        add(true, "adapt", adapt(found));
    }
    if let Some(per) = &rule.per {
        add(true, "per", Node::List(per.iter().map(|dimension| name(&DIMENSIONS, dimension)).collect()));
    }
    if let Some(max_wait) = rule.max_wait {
        add(true, "max_wait", Node::Text(duration::format(max_wait)));
    }
    add(rule.smooth, "smooth", Node::Bool(true));
    add(rule.cost != 1, "cost", Node::Integer(rule.cost.into()));
    add(rule.settle, "settle", Node::Bool(true));
    for (key, listed) in [("charge_on", &rule.charge_on), ("refund_on", &rule.refund_on)] {
        if let Some(listed) = listed {
            add(true, key, statuses(listed));
        }
    }
    if let Some(messages) = &rule.per_message {
        add(true, "per_message", name(&MESSAGES, messages));
    }
    add(!rule.plans.is_empty(), "plans", Node::Map(plans));
    add(!rule.tenants.is_empty(), "tenants", Node::Map(tenants));
    add(rule.fallback, "fallback", Node::Bool(true));
    add(rule.fair, "fair", Node::Bool(true));
    add(rule.shadow, "shadow", Node::Bool(true));
    add(!rule.upstream_feedback, "upstream_feedback", Node::Bool(false));
    add(!rule.enabled, "enabled", Node::Bool(false));
    let mode = &rule.on_backend_failure;
    add(*mode != FailureMode::default(), "on_backend_failure", name(&FAILURE_MODES, mode));
    if let Some(share) = rule.local_share {
        add(true, "local_share", Node::Float(share));
    }
    map(entries)
}

fn statuses(statuses: &Statuses) -> Node {
    let item = |item: Item| match item {
        Item::Class(_) => Node::Text(item.to_string()),
        Item::Code(code) => Node::Integer(code.into()),
    };
    Node::List(statuses.items().map(item).collect())
}

fn override_of(exception: &Override) -> Node {
    match exception {
        Override::Tiers(quotas) => tiers(quotas),
        Override::Unlimited => text("unlimited"),
    }
}

fn tiers(quotas: &[Quota]) -> Node {
    Node::List(quotas.iter().map(quota).collect())
}

fn adapt(adapt: &Adapt) -> Node {
    let mut entries = vec![("floor", quota(&adapt.floor)), ("ceiling", quota(&adapt.ceiling))];
    if let Some(start) = &adapt.start {
        entries.push(("start", quota(start)));
    }
    let shares = [("increase", adapt.increase, Adapt::INCREASE), ("decrease", adapt.decrease, Adapt::DECREASE)];
    entries.extend(
        shares
            .into_iter()
            .filter(|(_, share, default)| share.total_cmp(default).is_ne())
            .map(|(key, share, _)| (key, Node::Float(share))),
    );
    map(entries)
}

/// One tier.
pub(super) fn quota(quota: &Quota) -> Node {
    if quota.counted_by() == Algorithm::InFlight {
        return map(vec![("concurrent", Node::Integer(quota.limit().into()))]);
    }
    let mut entries =
        vec![("limit", Node::Integer(quota.limit().into())), ("window", Node::Text(duration::format(quota.window())))];
    if let Some(burst) = quota.explicit_burst() {
        entries.push(("burst", Node::Integer(burst.into())));
    }
    if quota.counted_by() != Algorithm::default() {
        entries.push(("algorithm", text(quota.counted_by().as_str())));
    }
    map(entries)
}

fn text(text: impl Into<String>) -> Node {
    Node::Text(text.into())
}

fn map(entries: Vec<(&str, Node)>) -> Node {
    Node::Map(entries.into_iter().map(|(key, value)| (key.into(), value)).collect())
}

fn name<T: PartialEq>(names: &[(&str, T)], value: &T) -> Node {
    let named = names.iter().find(|(_, candidate)| candidate == value);
    text(named.map_or("", |(name, _)| name))
}
