//! What the page shows: as data, [`Report`], and as HTML, [`Page`], rendered here, so that reading
//! needs no scripts.
//!
//! Invariants: each text has passed [`plain`] and in HTML [`escaped`], tenants are hashed unless
//! they are revealed, and only the style and the script of `page.html` may run.

use std::{fmt, sync::LazyLock};

use askama::{Template, filters::Escaper};
use base64::{Engine, engine::general_purpose::STANDARD};
use http::HeaderValue;
use serde::{Serialize, Serializer};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::escape::escaped;
use crate::{
    descriptor::TenantId,
    limiter::{Explanation, RateLimiter, words},
    observe::{RequestResult, TopTenant},
    overload::Readings,
    policy::{CompiledPolicy, Rule},
    quota::Quota,
    time::Timestamp,
};

#[derive(Debug, Serialize)]
pub(super) struct Report {
    policy: PolicyReport,
    sources: Vec<SourceReport>,
    #[serde(serialize_with = "by_name")]
    requests: Vec<(&'static str, u64)>,
    rules: Vec<RuleReport>,
    top_tenants: Option<Vec<TopReport>>,
    backend: BackendReport,
    overload: Option<Readings>,
    overrides: Vec<OverrideReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    explanation: Option<Value>,
}

#[derive(Debug, Serialize)]
struct PolicyReport {
    /// How often it was replaced.
    version: u64,
    replaced_seconds_ago: Option<u64>,
}

/// A source that the limiter watches.
#[derive(Debug, Serialize)]
pub(super) struct SourceReport {
    pub(super) is_current: bool,
    pub(super) applied: u64,
    pub(super) rejected: u64,
    pub(super) unavailable: u64,
    pub(super) error: Option<String>,
}

#[derive(Debug, Serialize)]
struct RuleReport {
    rule: String,
    /// Such as `shadow` or `disabled`.
    kind: &'static str,
    tiers: Vec<String>,
    /// In the order of [`RESULTS`].
    #[serde(serialize_with = "by_name")]
    requests: Vec<(&'static str, u64)>,
}

/// The results that rules count.
const RESULTS: [RequestResult; 8] = {
    use RequestResult::*;
    [Allowed, Delayed, Rejected, ShadowAllowed, ShadowRejected, FailedOpen, FailedClosed, FailedLocal]
};

#[derive(Debug, Serialize)]
struct TopReport {
    rule: String,
    /// `None` for the anonymous tenant.
    tenant: Option<String>,
    units: u64,
    units_error: u64,
    rejections: u64,
    rejections_error: u64,
    least_remaining: f64,
}

/// The top tenants of each rule by each order.
const TOP: usize = 10;

#[derive(Debug, Serialize)]
struct BackendReport {
    name: String,
    counters: usize,
    fallback_counters: usize,
    #[serde(serialize_with = "by_name")]
    state: Vec<(&'static str, String)>,
}

#[derive(Debug, Serialize)]
struct OverrideReport {
    tenant: String,
    /// Each with its rule, or for all rules that count by tenant.
    tiers: Vec<String>,
    tiers_for_seconds: Option<u64>,
    blocked_for_seconds: Option<u64>,
}

fn by_name<S: Serializer>(facts: &[(&str, impl Serialize)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(facts.iter().map(|(name, value)| (name, value)))
}

impl Report {
    pub(super) fn new(limiter: &RateLimiter, sources: Vec<SourceReport>, reveals: bool) -> Self {
        let (now, stats) = (limiter.now(), limiter.stats());
        let (policy, replacements) = limiter.in_force();
        let (name, state) = limiter.backend_state();
        let mut overload = limiter.overload_readings(&policy);
        let signals = overload.iter_mut().flat_map(|readings| &mut readings.signals);
        signals.for_each(|signal| signal.name = plain(&signal.name));
        Self {
            policy: PolicyReport {
                version: replacements.set,
                replaced_seconds_ago: replacements.last.map(|last| now.saturating_since(last).as_secs()),
            },
            sources,
            requests: vec![
                ("allowed", stats.allowed),
                ("delayed", stats.delayed),
                ("rejected", stats.rejected),
                ("shed", stats.shed),
                ("failed_open", stats.failed_open),
                ("failed_closed", stats.failed_closed),
                ("failed_local", stats.failed_local),
                ("waiting", stats.waiting as u64),
                ("permits", stats.permits as u64),
            ],
            rules: policy.policy.rules().iter().map(|rule| of_rule(&policy, rule)).collect(),
            top_tenants: limiter
                .counted_top(TOP)
                .map(|top| top.into_iter().map(|one| top_tenant(one, reveals)).collect()),
            backend: BackendReport {
                name,
                counters: stats.backend.keys,
                fallback_counters: stats.fallback.keys,
                state: state.into_iter().map(|(name, value)| (name, plain(&value))).collect(),
            },
            overload,
            overrides: overrides(&policy, now, reveals),
            explanation: None,
        }
    }

    pub(super) fn explain(&mut self, explanation: &Explanation) {
        self.explanation = serde_json::to_value(explanation).ok().map(all_plain);
    }
}

/// The name of a tenant, or what stands for it: the same as long as the process lives.
fn shown(tenant: TenantId<'_>, reveals: bool) -> String {
    if reveals { plain(&tenant.to_string()) } else { format!("{:016x}", tenant.fingerprint()) }
}

fn of_rule(policy: &CompiledPolicy, rule: &Rule) -> RuleReport {
    let compiled = policy.find_rule(&rule.id).map(|index| &policy.rules[index as usize]);
    let total = |result| compiled.map_or(0, |compiled| compiled.reports.total(result));
    RuleReport {
        rule: plain(&rule.id),
        kind: match rule {
            Rule { enabled: false, .. } => "disabled",
            Rule { shadow: true, .. } => "shadow",
            Rule { exempt: true, .. } => "exempt",
            Rule { fallback: true, .. } => "fallback",
            _ => "",
        },
        tiers: rule.tiers.iter().map(words).collect(),
        requests: RESULTS.into_iter().map(|result| (result.as_str(), total(result))).collect(),
    }
}

fn top_tenant(top: TopTenant, reveals: bool) -> TopReport {
    TopReport {
        rule: plain(&top.rule),
        tenant: top.tenant.map(|tenant| shown(tenant.id(), reveals)),
        units: top.units,
        units_error: top.units_error,
        rejections: top.rejections,
        rejections_error: top.rejections_error,
        least_remaining: top.least_remaining,
    }
}

fn overrides(policy: &CompiledPolicy, now: Timestamp, reveals: bool) -> Vec<OverrideReport> {
    let seconds = |until: Timestamp| until.saturating_since(now).as_secs();
    let overrides = policy.carried.overrides.iter().flat_map(|overrides| overrides.iter());
    let mut all: Vec<_> = overrides
        .map(|own| OverrideReport {
            tenant: shown(own.tenant.id(), reveals),
            tiers: own.limits().into_iter().flat_map(|limits| limits.all()).map(in_words).collect(),
            tiers_for_seconds: own.tiers_until.map(seconds),
            blocked_for_seconds: own.blocked_until.map(seconds),
        })
        .collect();
    all.sort_by(|one, other| one.tenant.cmp(&other.tenant));
    all
}

fn in_words((rule, quotas): (Option<&str>, &[Quota])) -> String {
    let tiers: Vec<_> = quotas.iter().map(words).collect();
    format!("{}: {}", plain(rule.unwrap_or("all rules by tenant")), tiers.join(", "))
}

fn all_plain(value: Value) -> Value {
    match value {
        Value::String(text) => plain(&text).into(),
        Value::Array(values) => values.into_iter().map(all_plain).collect(),
        Value::Object(members) => members.into_iter().map(|(name, value)| (plain(&name), all_plain(value))).collect(),
        other => other,
    }
}

/// The most characters of a name that are shown.
const MOST: usize = 200;

/// A text of a policy, a tenant or a request, made fit to be shown: short, and without characters
/// that control a terminal or the direction of text. It escapes no markup.
pub(super) fn plain(text: &str) -> String {
    let mut shown = String::new();
    for char in text.chars().take(MOST) {
        match char {
            '"' | '\'' | '\\' => shown.push(char),
            other => shown.extend(other.escape_debug()),
        }
    }
    if text.chars().nth(MOST).is_some() {
        shown.push('…');
    }
    shown
}

/// The lines of a text, each made visible.
pub(super) fn lines(text: &str) -> Vec<String> {
    text.lines().map(plain).collect()
}

const TEMPLATE: &str = include_str!("page.html");

/// The whole page.
#[derive(Template)]
#[template(path = "page.html")]
pub(super) struct Page<'r> {
    pub(super) report: &'r Report,
    /// The lines of an explanation, if one was asked for.
    pub(super) explanation: Vec<String>,
}

/// The escaper of the template.
#[derive(Clone, Copy)]
struct Escaped;

impl Escaper for Escaped {
    fn write_escaped_str<W: fmt::Write>(&self, mut page: W, text: &str) -> fmt::Result {
        page.write_str(&escaped(text))
    }
}

/// Allows the style and the script of the template, by their hashes, and nothing else.
pub(super) fn content_security_policy() -> HeaderValue {
    static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
        let hash = |element: &str| {
            let after = TEMPLATE.split_once(&format!("<{element}>")).unwrap_or_default().1;
            let content = after.split_once(&format!("</{element}>")).unwrap_or_default().0;
            STANDARD.encode(Sha256::digest(content))
        };
        let policy = format!(
            "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; connect-src 'self'; \
             form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
            hash("style"),
            hash("script")
        );
        HeaderValue::try_from(policy).unwrap_or_else(|_| HeaderValue::from_static("default-src 'none'"))
    });
    POLICY.clone()
}

#[cfg(test)]
mod tests;
