//! What a policy must satisfy to be put in force, built in code or read from a
//! file.
//!
//! Checks only: nothing is changed or defaulted here, and tiers are checked by
//! `validate_tiers`. Disabled rules are checked as well, as they may be enabled one day.
//! Every error names rule, key and value.

use std::{
    collections::{BTreeMap, HashSet},
    ops::RangeInclusive,
    time::Duration,
};

use http::{HeaderName, HeaderValue};

use super::{
    Policy,
    exceptions::parse_network,
    keys::STANDARD_METHODS,
    pattern::{self, ParameterPosition},
    rule::Rule,
    settings::{Consistency, Dimension, FailureMode, Unsettled},
    statuses::Statuses,
    tiers::steps,
    validate_tiers::{self, tier_sets},
};
use crate::{
    algorithm::Share,
    descriptor::Priority,
    error::{ConfigError, ensure},
    overload::Overload,
};

/// In bytes.
const MAX_ID: usize = 128;

/// The index of a pattern in its rule is stored in 16 bits.
const MAX_PATTERNS: usize = u16::MAX as usize;

/// Shorter, and a sync would take longer than its interval; longer, and units
/// stay with instances that do not need them.
const SYNC_INTERVALS: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(10);

/// Each method that a rule names has counters of its own.
const MAX_METHODS: usize = 64;

/// `place` names a rule by its index, where its id cannot.
pub(super) fn validate(policy: &Policy, place: impl Fn(usize) -> String) -> Result<(), ConfigError> {
    policy.instances.map_or(Ok(()), check_instances)?;
    policy.overload.as_ref().map_or(Ok(()), Overload::check)?;
    let (mut ids, mut size) = (HashSet::new(), Size::default());
    for (index, rule) in policy.rules.iter().enumerate() {
        if let Err(reason) = check_id(&rule.id) {
            return Err(ConfigError::new("id", reason).with_value(&rule.id).of_rule(place(index)));
        }
        ensure(ids.insert(&rule.id), "id", &rule.id, "another rule has the same id")
            .and_then(|()| check_rule(rule))
            .and_then(|()| if rule.enabled { size.add(rule) } else { Ok(()) })
            .map_err(|error| error.of_rule(&rule.id))?;
    }
    Ok(())
}

pub(crate) fn check_instances(count: u64) -> Result<(), ConfigError> {
    let reason = format_args!("must be from 1 to {}", Share::MAX_COUNT);
    ensure((1..=Share::MAX_COUNT).contains(&count), "instances", count, reason)
}

/// The most tiers of all rules together: for instance, of half a million tenants.
const MAX_TIERS: usize = 700_000;

/// The most segments and methods of all paths together. A segment may be a node of the
/// tree in which paths are found, and a method a counter.
const MAX_SEGMENTS: usize = 450_000;

/// What multiplies in a policy: a small file can describe a large one.
#[derive(Default)]
struct Size {
    tiers: usize,
    segments: usize,
}

impl Size {
    /// Adds a rule. Errors where the policy becomes larger than some hundred MiB.
    fn add(&mut self, rule: &Rule) -> Result<(), ConfigError> {
        let key = if rule.adaptive_rate.is_some() { "adaptive_rate" } else { "tiers" };
        // The fallback limiter has tiers of its own if it has a share.
        let copies = 1 + usize::from(rule.local_share.is_some_and(|share| share < 1.0));
        let tiers: usize =
            tier_sets(rule).map(|(_, tiers)| tiers.len() + usize::from(rule.adaptive_rate.is_some())).sum();
        // Requests of lower priorities have tiers of their own where others have a reserve.
        let copies = copies * (1 + rule.reserve.len());
        self.tiers = self.tiers.saturating_add(tiers.saturating_mul(steps(rule).len() * copies));
        let of_pattern = |pattern: &str| pattern.split('/').count() + rule.matches.methods.len();
        self.segments += rule.matches.patterns().map(of_pattern).sum::<usize>();
        let reason = format_args!(
            "the policy may have at most {MAX_TIERS} tiers: those of each rule, plan and tenant, for each step of an \
             adaptive rate"
        );
        ensure(self.tiers <= MAX_TIERS, key, self.tiers, reason)?;
        let reason = format_args!("the paths of the policy may have at most {MAX_SEGMENTS} segments and methods");
        ensure(self.segments <= MAX_SEGMENTS, "match", self.segments, reason)
    }
}

/// Ids stand in response headers, metrics, logs and the keys of a store. The
/// error is the reason.
pub(super) fn check_id(id: &str) -> Result<(), &'static str> {
    if id.is_empty() {
        return Err("must not be empty");
    }
    if !id.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return Err("must be printable ASCII");
    }
    if id.len() > MAX_ID { Err("must have at most 128 bytes") } else { Ok(()) }
}

fn check_rule(rule: &Rule) -> Result<(), ConfigError> {
    check_patterns(rule)?;
    if let Some(name) = &rule.tenant_param {
        check_tenant_param(rule, name)?;
    }
    if rule.exempt {
        return check_exempt(rule);
    }
    for tenant in rule.tenants.keys() {
        parse_network(tenant).map_err(|reason| ConfigError::new("tenants", reason).with_value(tenant))?;
    }
    let per = rule.per.as_deref();
    let mut seen = HashSet::new();
    for (index, dimension) in per.unwrap_or_default().iter().enumerate() {
        dimension.check().map_err(|reason| ConfigError::new(format!("per[{index}]"), reason).with_value(dimension))?;
        ensure(seen.insert(dimension), &format!("per[{index}]"), dimension, "is named twice")?;
    }
    let is_shared = |dimension: &Dimension| matches!(dimension, Dimension::Endpoint | Dimension::Method);
    let shares_counter = per.is_some_and(|per| per.iter().all(is_shared));
    let reason = "round-robin between tenants works only at a counter that they share: see `per`";
    ensure(!rule.fair || shares_counter, "fair", true, reason)?;
    ensure(rule.cost > 0, "cost", 0, "must be at least 1")?;
    check_id(rule.unit_name()).map_err(|reason| ConfigError::new("unit", reason).with_value(rule.unit_name()))?;
    let reason = "counts bytes, so its rule needs a `unit` such as `content-bytes`";
    ensure(rule.per_byte.is_none() || rule.unit.is_some(), "per_byte", "response", reason)?;
    let reason = "is settled by the layer, so its rule cannot be settled by a handler: use two rules";
    ensure(rule.per_byte.is_none() || !rule.settle, "per_byte", "response", reason)?;
    let reason = "has no meaning in a rule that does not settle: see `settle`";
    ensure(rule.settle || rule.unsettled == Unsettled::Keep, "unsettled", rule.unsettled, reason)?;
    check_reserve(rule)?;
    check_local_share(rule)?;
    check_sync_interval(rule)?;
    check_statuses(rule)?;
    validate_tiers::check(rule)
}

fn check_patterns(rule: &Rule) -> Result<(), ConfigError> {
    if rule.matches.patterns().count() > MAX_PATTERNS {
        return Err(ConfigError::new("match", format!("more than {MAX_PATTERNS} paths and routes")));
    }
    if rule.matches.methods.len() > MAX_METHODS {
        return Err(ConfigError::new("match.methods", format!("more than {MAX_METHODS} methods")));
    }
    for (index, method) in rule.matches.methods.iter().enumerate() {
        if let Err(reason) = check_method(method.as_str()) {
            return Err(ConfigError::new(format!("match.methods[{index}]"), reason).with_value(method));
        }
    }
    check_headers(&rule.matches.headers)?;
    check_each("path", &rule.matches.paths, pattern::check)?;
    check_each(
        "route",
        &rule.matches.routes,
        |route| if route.is_empty() { Err("must not be empty".into()) } else { Ok(()) },
    )
}

/// A header that no request can have would make the rule one for no request. So would one that
/// is named in two spellings, as a request needs a value of each.
fn check_headers(headers: &BTreeMap<String, Vec<String>>) -> Result<(), ConfigError> {
    let mut names = HashSet::new();
    for (name, values) in headers {
        ensure(name.parse::<HeaderName>().is_ok(), "match.headers", name, "is not the name of a header")?;
        ensure(names.insert(name.to_ascii_lowercase()), "match.headers", name, "is named twice, but for capitals")?;
        ensure(!values.is_empty(), &format!("match.headers.{name}"), "[]", "must name at least one value")?;
        for (index, value) in values.iter().enumerate() {
            let key = format!("match.headers.{name}[{index}]");
            let is_sent = HeaderValue::from_str(value).is_ok() && value.trim_ascii() == value && !value.is_empty();
            ensure(is_sent, &key, value, "is not the value of a header, with no spaces around it")?;
        }
    }
    Ok(())
}

/// Rejects what can only be a mistake; HTTP allows any other word. The error is
/// the reason.
fn check_method(method: &str) -> Result<(), String> {
    if matches!(method, "*" | "ALL" | "ANY") {
        return Err("is no method: leave `methods` out to match all of them".into());
    }
    match STANDARD_METHODS.iter().find(|standard| is_misspelling(method, standard)) {
        Some(standard) => Err(format!("is no method; did you mean `{standard}`?")),
        None => Ok(()),
    }
}

/// Whether one letter is missing or added, or two neighbours are swapped. Another
/// letter makes another word, such as `TRACK`.
fn is_misspelling(word: &str, of: &str) -> bool {
    let has_another_letter = word.len() == of.len() && strsim::levenshtein(word, of) == 1;
    strsim::osa_distance(word, of) == 1 && !has_another_letter
}

fn check_each(kind: &str, patterns: &[String], check: fn(&str) -> Result<(), String>) -> Result<(), ConfigError> {
    let mut seen = HashSet::new();
    for (index, pattern) in patterns.iter().enumerate() {
        let is_new = seen.insert(pattern);
        check(pattern)
            .and_then(|()| is_new.then_some(()).ok_or_else(|| format!("the rule has the same {kind} twice")))
            .map_err(|reason| ConfigError::new(format!("match.{kind}s[{index}]"), reason).with_value(pattern))?;
    }
    Ok(())
}

/// All requests without the parameter would share one tenant's counter.
fn check_tenant_param(rule: &Rule, name: &str) -> Result<(), ConfigError> {
    let value = format!("{{{name}}}");
    ensure(!name.is_empty(), "tenant", &value, "the parameter needs a name")?;
    ensure(rule.matches.routes.is_empty(), "tenant", &value, "is taken from a path, and the rule matches routes")?;
    ensure(!rule.matches.paths.is_empty(), "tenant", &value, "is taken from a path, and the rule names none")?;
    rule.matches.paths.iter().try_for_each(|path| {
        let has_parameter = ParameterPosition::find(path, name).is_some();
        ensure(has_parameter, "tenant", &value, format_args!("the path `{path}` has no such parameter"))
    })
}

fn check_reserve(rule: &Rule) -> Result<(), ConfigError> {
    let mut sum = 0.0;
    for (priority, part) in &rule.reserve {
        let (key, percent) = (format!("reserve.{priority}"), format!("{}%", part * 100.0));
        let reason = "every request may use it: reserve a part for `normal`, `high` or `critical`";
        ensure(*priority > Priority::Low, &key, &percent, reason)?;
        // False for NaN.
        ensure(*part > 0.0 && *part < 1.0, &key, &percent, "must be more than 0% and less than 100%")?;
        sum += part;
    }
    let reason = "leaves nothing to the lowest priority: all reserves together must be less than 100%";
    ensure(sum < 1.0, "reserve", format_args!("{}%", sum * 100.0), reason)
}

fn check_local_share(rule: &Rule) -> Result<(), ConfigError> {
    let Some(share) = rule.local_share else { return Ok(()) };
    // False for NaN.
    ensure(share > 0.0 && share <= 1.0, "local_share", share, "must be more than 0, and at most 1")?;
    let reason = "has a meaning only where `on_backend_failure` is `local`";
    ensure(rule.on_backend_failure == Some(FailureMode::Local), "local_share", share, reason)
}

fn check_sync_interval(rule: &Rule) -> Result<(), ConfigError> {
    let Some(interval) = rule.sync_interval else { return Ok(()) };
    let value = format!("{interval:?}");
    ensure(SYNC_INTERVALS.contains(&interval), "sync_interval", &value, "must be at least 10ms and at most 10s")?;
    let reason = "has a meaning only where `consistency` is not `exact`";
    ensure(rule.consistency != Consistency::Exact, "sync_interval", value, reason)
}

/// The status of a rejection, the response statuses that are charged, and those that are
/// refunded.
fn check_statuses(rule: &Rule) -> Result<(), ConfigError> {
    if let Some(status) = rule.status {
        let is_error = status.is_client_error() || status.is_server_error();
        ensure(is_error, "status", status.as_u16(), "must be an HTTP status from 400 to 599")?;
    }
    for (key, statuses) in [("charge_on", &rule.charge_on), ("refund_on", &rule.refund_on)] {
        let Some(statuses) = statuses else { continue };
        if let Some(code) = statuses.invalid() {
            return Err(ConfigError::new(key, "must be an HTTP status between 100 and 599").with_value(code));
        }
        ensure(!statuses.is_empty(), key, "[]", "must name at least one status")?;
    }
    match (&rule.charge_on, &rule.refund_on) {
        (Some(charged), Some(refunded)) => check_refund(charged, refunded),
        _ => Ok(()),
    }
}

fn check_refund(charged: &Statuses, refunded: &Statuses) -> Result<(), ConfigError> {
    for item in refunded.items() {
        ensure(charged.covers(item), "refund_on", item, "is refunded anyway, because it is not in `charge_on`")?;
    }
    let all = refunded.items().map(|item| item.to_string()).collect::<Vec<_>>().join(", ");
    let is_partial = charged.items().any(|item| !refunded.covers(item));
    ensure(is_partial, "refund_on", format_args!("[{all}]"), "leaves nothing to be charged of `charge_on`")
}

/// An exempt rule has a match and nothing else: every other setting would have no
/// effect, which its author would not expect.
fn check_exempt(rule: &Rule) -> Result<(), ConfigError> {
    let settings = [
        ("tiers", rule.tiers.is_empty()),
        ("adaptive_rate", rule.adaptive_rate.is_none()),
        ("per", rule.per.is_none()),
        ("tenant", rule.tenant_param.is_none()),
        ("max_wait", rule.max_wait.is_none()),
        ("plans", rule.plans.is_empty()),
        ("tenants", rule.tenants.is_empty()),
        ("local_share", rule.local_share.is_none()),
        ("reserve", rule.reserve.is_empty()),
        ("fallback", !rule.fallback),
        ("shadow", !rule.shadow),
    ];
    let reason = "has no meaning in a rule that is `exempt`: it charges nothing";
    for (key, is_unset) in settings {
        ensure(is_unset, key, "exempt", reason)?;
    }
    let plain = Rule { matches: rule.matches.clone(), ..Rule::new(&rule.id).exempt(true).enabled(rule.enabled) };
    ensure(*rule == plain, "exempt", true, "takes no other setting than a match")
}
