//! What the page shows, as data: [`Report`].
//!
//! It renders nothing. Invariant: each text has passed [`plain`], and tenants are hashed unless
//! they are revealed.

use serde::{Serialize, Serializer};
use serde_json::Value;

use super::text::plain;
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
    pub(super) policy: PolicyReport,
    pub(super) sources: Vec<SourceReport>,
    #[serde(serialize_with = "by_name")]
    pub(super) requests: Vec<(&'static str, u64)>,
    pub(super) rules: Vec<RuleReport>,
    pub(super) top_tenants: Option<Vec<TopReport>>,
    pub(super) backend: BackendReport,
    pub(super) overload: Option<Readings>,
    pub(super) overrides: Vec<OverrideReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) explanation: Option<Value>,
}

#[derive(Debug, Serialize)]
pub(super) struct PolicyReport {
    /// How often it was replaced.
    pub(super) version: u64,
    pub(super) replaced_seconds_ago: Option<u64>,
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
pub(super) struct RuleReport {
    pub(super) rule: String,
    /// Such as `shadow` or `disabled`.
    pub(super) kind: &'static str,
    pub(super) tiers: Vec<String>,
    /// In the order of [`RESULTS`].
    #[serde(serialize_with = "by_name")]
    pub(super) requests: Vec<(&'static str, u64)>,
}

/// The results that rules count.
const RESULTS: [RequestResult; 8] = {
    use RequestResult::*;
    [Allowed, Delayed, Rejected, ShadowAllowed, ShadowRejected, FailedOpen, FailedClosed, FailedLocal]
};

#[derive(Debug, Serialize)]
pub(super) struct TopReport {
    pub(super) rule: String,
    /// `None` for the anonymous tenant.
    pub(super) tenant: Option<String>,
    pub(super) units: u64,
    pub(super) units_error: u64,
    pub(super) rejections: u64,
    pub(super) rejections_error: u64,
    pub(super) least_remaining: f64,
}

/// The top tenants of each rule by each order.
const TOP: usize = 10;

#[derive(Debug, Serialize)]
pub(super) struct BackendReport {
    pub(super) name: String,
    pub(super) counters: usize,
    pub(super) fallback_counters: usize,
    #[serde(serialize_with = "by_name")]
    pub(super) state: Vec<(&'static str, String)>,
}

#[derive(Debug, Serialize)]
pub(super) struct OverrideReport {
    pub(super) tenant: String,
    /// Each with its rule, or for all rules that count by tenant.
    pub(super) tiers: Vec<String>,
    pub(super) tiers_for_seconds: Option<u64>,
    pub(super) blocked_for_seconds: Option<u64>,
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
