use std::collections::HashSet;

use matchit::{InsertError, Router};

use super::{Adapt, Dimension, FailureMode, Override, Policy, Rule, ladder::Ladder, matcher::ParameterPlace};
use crate::{
    error::ConfigError,
    quota::{Algorithm, Quota},
};

/// A pattern's place in its rule is kept in 16 bits.
const MAX_PATTERNS: usize = 1 << 16;

/// One more and matchit panics.
const MAX_PARAMETERS: usize = 25;

/// Paths are matched segment by segment, one within the other.
const MAX_SEGMENTS: usize = 256;

/// Counters are kept for each path and method that a rule names.
const MAX_METHODS: usize = 64;

/// What a policy must hold to be put in force, whether it was made in code or
/// read from a file. Rules that are not enabled are no exception: they are
/// meant to be enabled one day.
pub(super) fn validate(policy: &Policy) -> Result<(), ConfigError> {
    let mut ids = HashSet::new();
    for (index, rule) in policy.rules.iter().enumerate() {
        if rule.id.is_empty() {
            return Err(ConfigError::new("id", "must not be empty").of_rule(format!("rules[{index}]")).with_value(""));
        }
        if !ids.insert(&rule.id) {
            return Err(ConfigError::new("id", "another rule has the same id").of_rule(&rule.id).with_value(&rule.id));
        }
        check_rule(rule).map_err(|error| error.of_rule(&rule.id))?;
    }
    Ok(())
}

fn check_rule(rule: &Rule) -> Result<(), ConfigError> {
    check_patterns(rule)?;
    if let Some(name) = &rule.tenant_param {
        check_tenant_param(rule, name)?;
    }
    if let Some(per) = &rule.per
        && let Some(twice) = (1..per.len()).find(|&at| per[..at].contains(&per[at]))
    {
        return Err(ConfigError::new(format!("per[{twice}]"), "is named twice")
            .with_value(format!("{:?}", per[twice]).to_lowercase()));
    }
    if rule.fair && rule.per.as_ref().is_none_or(|per| per.contains(&Dimension::Tenant)) {
        let reason = "tenants can take turns only at a counter that they share: see `per`";
        return Err(ConfigError::new("fair", reason).with_value(true));
    }
    if rule.cost == 0 {
        return Err(ConfigError::new("cost", "must be at least 1").with_value(0));
    }
    check_local_share(rule)?;
    check_statuses(rule)?;
    if rule.adapt.is_none() || !rule.tiers.is_empty() {
        check_tiers("tiers", &rule.tiers)?;
    }
    for (plan, tiers) in &rule.plans {
        check_tiers(&format!("plans.{plan}"), tiers)?;
    }
    for (tenant, exception) in &rule.tenants {
        if let Override::Tiers(tiers) = exception {
            check_tiers(&format!("tenants.{tenant}"), tiers)?;
        }
    }
    if let Some(adapt) = &rule.adapt {
        check_adapt(rule, adapt)?;
    }
    check_messages(rule)?;
    if rule.smooth { check_smooth(rule) } else { Ok(()) }
}

fn check_patterns(rule: &Rule) -> Result<(), ConfigError> {
    if rule.paths.len() + rule.routes.len() > MAX_PATTERNS {
        return Err(ConfigError::new("match", format!("more than {MAX_PATTERNS} paths and routes")));
    }
    if rule.methods.len() > MAX_METHODS {
        return Err(ConfigError::new("match.methods", format!("more than {MAX_METHODS} methods")));
    }
    let mut seen = HashSet::new();
    for (index, path) in rule.paths.iter().enumerate() {
        let key = || format!("match.paths[{index}]");
        check_path(path).map_err(|reason| ConfigError::new(key(), reason).with_value(path))?;
        if !seen.insert(path) {
            return Err(ConfigError::new(key(), "the rule has the same path twice").with_value(path));
        }
    }
    seen.clear();
    for (index, route) in rule.routes.iter().enumerate() {
        let key = || format!("match.routes[{index}]");
        if route.is_empty() {
            return Err(ConfigError::new(key(), "must not be empty").with_value(route));
        }
        if !seen.insert(route) {
            return Err(ConfigError::new(key(), "the rule has the same route twice").with_value(route));
        }
    }
    Ok(())
}

/// Whether a path pattern is one, and if not, why.
pub(super) fn check_path(path: &str) -> Result<(), String> {
    if path.is_empty() {
        return Err("must not be empty".into());
    }
    if !path.starts_with('/') {
        return Err("must start with `/`".into());
    }
    if path.contains(['?', '#']) {
        return Err("must be a path alone, without a query or a fragment".into());
    }
    let segments: Vec<&str> = path.split('/').collect();
    if segments.len() > MAX_SEGMENTS {
        return Err(format!("has more than {MAX_SEGMENTS} segments"));
    }
    // To a router such an asterisk is a letter, and the rule would match next
    // to nothing.
    if segments.iter().any(|&segment| segment != "*" && segment.replace("{*", "").contains('*')) {
        return Err("`*` stands for one whole segment; `{*rest}` takes all that is left".into());
    }
    // matchit allows text before it; here it takes whole segments only.
    if segments.iter().any(|segment| segment.replace("{{", "").find("{*").is_some_and(|at| at > 0)) {
        return Err(reason(&InsertError::InvalidCatchAll));
    }
    let named: Vec<&str> = segments.iter().map(|&segment| if segment == "*" { "{_}" } else { segment }).collect();
    let named = named.join("/");
    let unescaped = named.replace("{{", "");
    let parameters = unescaped.split('{').skip(1);
    if parameters.clone().count() > MAX_PARAMETERS {
        return Err(format!("has more than {MAX_PARAMETERS} parameters"));
    }
    if !parameters.clone().all(|parameter| parameter.contains('}')) {
        return Err(reason(&InsertError::InvalidParam));
    }
    // A name that holds a slash or a brace: matchit takes it, and no path
    // could ever match.
    if segments.iter().any(|segment| {
        let unescaped = segment.replace("{{", "").replace("}}", "");
        unescaped.matches('{').count() != unescaped.matches('}').count()
    }) {
        return Err(reason(&InsertError::InvalidParam));
    }
    Router::new().insert(named, ()).map_err(|error| reason(&error))
}

fn reason(error: &InsertError) -> String {
    match error {
        InsertError::InvalidParam => {
            "a parameter needs a name and both its braces; write `{{` and `}}` for braces themselves".into()
        }
        InsertError::InvalidParamSegment => "only one parameter is allowed in a segment".into(),
        InsertError::InvalidCatchAll => "`{*rest}` is allowed only as the whole last segment".into(),
        other => other.to_string(),
    }
}

/// A request whose tenant cannot be told would be counted with all such.
fn check_tenant_param(rule: &Rule, name: &str) -> Result<(), ConfigError> {
    let error = |reason: String| Err(ConfigError::new("tenant", reason).with_value(format_args!("{{{name}}}")));
    if name.is_empty() {
        return error("the parameter needs a name".into());
    }
    if !rule.routes.is_empty() {
        return error("is taken from a path, and the rule matches routes".into());
    }
    if rule.paths.is_empty() {
        return error("is taken from a path, and the rule names none".into());
    }
    match rule.paths.iter().find(|path| ParameterPlace::find(path, name).is_none()) {
        Some(path) => error(format!("the path `{path}` has no such parameter")),
        None => Ok(()),
    }
}

fn check_tiers(key: &str, tiers: &[Quota]) -> Result<(), ConfigError> {
    if tiers.is_empty() {
        return Err(ConfigError::new(key, "must have at least one tier").with_value("[]"));
    }
    for (index, quota) in tiers.iter().enumerate() {
        let error = |field: &str, reason: String| ConfigError::new(format!("{key}[{index}].{field}"), reason);
        let algorithm = quota.counted_by();
        if algorithm == Algorithm::InFlight {
            if !quota.window().is_zero() {
                let reason = format!("has no meaning for {algorithm}: write `Quota::concurrent({})`", quota.limit());
                return Err(error("window", reason).with_value(format_args!("{:?}", quota.window())));
            }
        } else if quota.window().is_zero() {
            return Err(error("window", "must be longer than zero".into()).with_value("0s"));
        }
        if let Some(burst) = quota.explicit_burst() {
            if burst == 0 {
                return Err(error("burst", "must be at least 1".into()).with_value(burst));
            }
            if !algorithm.has_burst() {
                return Err(error("burst", format!("has no meaning for {algorithm}")).with_value(burst));
            }
        }
        if algorithm == Algorithm::SlidingLog && quota.limit() > Quota::MAX_SLIDING_LOG {
            let reason = format!("must be at most {} for {algorithm}", Quota::MAX_SLIDING_LOG);
            return Err(error("limit", reason).with_value(quota.limit()));
        }
    }
    Ok(())
}

fn check_local_share(rule: &Rule) -> Result<(), ConfigError> {
    let Some(share) = rule.local_share else { return Ok(()) };
    let error = |reason| Err(ConfigError::new("local_share", reason).with_value(share));
    // A number that is none is not above 0 either.
    if !(share > 0.0 && share <= 1.0) {
        return error("must be more than 0, and at most 1");
    }
    match rule.on_backend_failure {
        FailureMode::Local => Ok(()),
        _ => error("has a meaning only where `on_backend_failure` is `local`"),
    }
}

/// The most tiers that a rule's steps may be made into.
const MOST_STEPS: usize = 100_000;

fn check_adapt(rule: &Rule, adapt: &Adapt) -> Result<(), ConfigError> {
    adapt.check()?;
    if rule.fair {
        let reason = "tenants that share a rate that adapts go first come, first served";
        return Err(ConfigError::new("fair", reason).with_value(true));
    }
    // Each step is a tier set of everybody's, and of those that stand in for a
    // backend.
    let own = rule.tiers.len() + 1;
    let plans: usize = rule.plans.values().map(|tiers| tiers.len() + 1).sum();
    let tenants: usize = rule
        .tenants
        .values()
        .map(|exception| if let Override::Tiers(tiers) = exception { tiers.len() + 1 } else { 0 })
        .sum();
    let tiers = Ladder::steps_of(adapt).saturating_mul(own + plans + tenants).saturating_mul(2);
    if tiers > MOST_STEPS {
        let reason = format!("makes too many tiers with the rule's plans and tenants: at most {MOST_STEPS}");
        return Err(ConfigError::new("adapt", reason).with_value(tiers));
    }
    Ok(())
}

/// The statuses of responses that are charged, and of those that are not.
fn check_statuses(rule: &Rule) -> Result<(), ConfigError> {
    for (key, statuses) in [("charge_on", &rule.charge_on), ("refund_on", &rule.refund_on)] {
        let Some(statuses) = statuses else { continue };
        if let Some(code) = statuses.no_status() {
            return Err(ConfigError::new(key, "is no status: those go from 100 to 599").with_value(code));
        }
        if statuses.is_empty() {
            return Err(ConfigError::new(key, "must name at least one status").with_value("[]"));
        }
    }
    if let (Some(charge_on), Some(refund_on)) = (&rule.charge_on, &rule.refund_on) {
        let error = |reason, item| Err(ConfigError::new("refund_on", reason).with_value(item));
        if let Some(item) = refund_on.items().find(|item| !charge_on.covers(*item)) {
            return error("is given back anyway, as it is not in `charge_on`", item.to_string());
        }
        if charge_on.items().all(|item| refund_on.covers(item)) {
            let all: Vec<String> = refund_on.items().map(|item| item.to_string()).collect();
            return error("leaves nothing to be charged of `charge_on`", format!("[{}]", all.join(", ")));
        }
    }
    Ok(())
}

/// All tiers of a rule, whoever's they are, and where they stand.
fn all_tiers(rule: &Rule) -> impl Iterator<Item = (String, &Quota)> {
    let plans = rule.plans.iter().map(|(plan, tiers)| (format!("plans.{plan}"), tiers));
    let tenants = rule.tenants.iter().filter_map(|(tenant, exception)| match exception {
        Override::Tiers(tiers) => Some((format!("tenants.{tenant}"), tiers)),
        Override::Unlimited => None,
    });
    let sets = std::iter::once(("tiers".to_owned(), &rule.tiers)).chain(plans).chain(tenants);
    sets.flat_map(|(key, tiers)| tiers.iter().enumerate().map(move |(index, quota)| (format!("{key}[{index}]"), quota)))
}

/// What is in flight is calls, not messages, and nobody is told of a trial in
/// the midst of a stream.
fn check_messages(rule: &Rule) -> Result<(), ConfigError> {
    let Some(_) = rule.per_message else { return Ok(()) };
    if let Some((key, quota)) = all_tiers(rule).find(|(_, quota)| quota.counted_by() == Algorithm::InFlight) {
        let reason = "limits calls in flight, so its rule cannot be `per_message`: take two rules";
        return Err(ConfigError::new(key, reason).with_value(quota.limit()));
    }
    match rule.shadow {
        true => Err(ConfigError::new("per_message", "cannot be tried as a `shadow`").with_value("shadow")),
        false => Ok(()),
    }
}

/// A rule that is to let its windows' units out evenly.
fn check_smooth(rule: &Rule) -> Result<(), ConfigError> {
    if let Some((key, quota)) = all_tiers(rule).find(|(_, quota)| quota.counted_by() == Algorithm::SlidingLog) {
        let reason = "cannot be made smooth without losing throughput: take a sliding-window or a leaky-bucket";
        return Err(ConfigError::new(format!("{key}.algorithm"), reason).with_value(quota.counted_by()));
    }
    let error = |reason: &str| Err(ConfigError::new("smooth", reason).with_value(true));
    if !all_tiers(rule).any(|(_, quota)| quota.counted_by().has_windows()) {
        return error("needs a tier with a window: fixed-window, anchored-window or sliding-window");
    }
    if rule.max_wait.is_none_or(|max_wait| max_wait.is_zero()) {
        return error("needs a `max_wait`: without one, nothing could ever be delayed");
    }
    Ok(())
}
