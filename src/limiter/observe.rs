//! Counts decisions and reports them to operators: logs, metrics, and the tenants that use
//! most. Without the features `tracing` and `metrics` it only counts. It decides nothing.
//!
//! A rejection is logged for the first of its rules that rejected, by [`record`]. A
//! request that is shed, or that loses its slot, has no such event: it is counted.
//!
//! Logs and metrics never name a tenant in full, since it may be a secret: only shadow mode
//! says who, as `Debug` writes a tenant. Invariant: without top tenants, they cost a request a
//! branch.

#![cfg_attr(
    not(all(feature = "tracing", feature = "metrics")),
    allow(
        dead_code,
        unused_variables,
        clippy::needless_pass_by_value,
        reason = "each feature uses some of the arguments"
    )
)]

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use super::adaptive_limit::limits::{LimitSummary, Window};
use crate::{
    backend::Charge,
    decision::{Decision, RateLimitedKind, TierStatus},
    descriptor::Priority,
    error::{BackendError, BackendErrorKind, ConfigError},
    observe::{
        Measure, Mistake, Reported, RequestResult, RuleReports, Sampler, TopTenants,
        facade::{metrics, tracing},
        minute,
    },
    policy::{CompiledRule, Policy},
    time::Timestamp,
};

/// One count for each [`RequestResult`]. Written by one thread only, read by any.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Counters {
    results: [AtomicU64; RequestResult::COUNT],
    sampler: Sampler,
}

impl Counters {
    /// No other thread writes, so no locked instruction is needed.
    #[inline]
    pub(super) fn count(&self, event: RequestResult) {
        let counter = &self.results[event as usize];
        counter.store(counter.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// All that this thread has decided.
    fn decisions(&self) -> u64 {
        self.results.iter().fold(0, |sum, counter| sum.wrapping_add(counter.load(Ordering::Relaxed)))
    }

    pub(super) fn add_to(&self, totals: &mut Totals) {
        totals.iter_mut().zip(&self.results).for_each(|(total, counter)| *total += counter.load(Ordering::Relaxed));
    }
}

/// Sums of [`Counters`].
pub(super) type Totals = [u64; RequestResult::COUNT];

/// A rule that a request is counted for, and how much the request matters under it.
pub(super) type RuleAndPriority<'a> = (&'a CompiledRule, Priority);

/// Whether [`record`] reads the decision.
pub(super) const READS_DECISION: bool = cfg!(any(feature = "tracing", feature = "metrics"));

/// Counts a decision for the limiter, and reports it for each of its rules.
#[inline]
pub(super) fn record<'a>(
    counters: &Counters,
    rules: impl IntoIterator<Item = RuleAndPriority<'a>> + Clone,
    result: RequestResult,
    decision: &Decision,
    now: Timestamp,
) {
    counters.count(result);
    // A rejection is one of the rules that rejected.
    let is_rejection = result == RequestResult::Rejected;
    let is_own = |rule: &CompiledRule| !is_rejection || decision.tiers().is_empty() || violates(decision, rule);
    if RuleReports::COUNTS {
        count_for_rules(rules.clone().into_iter().filter(|(rule, _)| is_own(rule)), result);
    }
    tracing::debug!(
        result = result.as_str(),
        remaining = decision.remaining(),
        wait_ms = decision.wait().as_millis(),
        "rate limit decided"
    );
    if is_rejection
        && let Some((rule, _)) = rules.into_iter().find(|(rule, _)| is_own(rule))
        && let Some(suppressed) = rule.reports.rejections.allow(now)
    {
        tracing::warn!(
            rule = &**rule.id,
            retry_after_ms = decision.retry_after().map(|after| after.as_millis()),
            cost = decision.excess().map(|(cost, _)| cost),
            capacity = decision.excess().map(|(_, capacity)| capacity),
            suppressed,
            "{}",
            rejection_event(decision)
        );
    }
}

/// A window of what an adaptive concurrency limit measures has ended.
pub(super) fn adaptive_limit(rule: &'static str, window: &Window, found: &LimitSummary) {
    metrics::gauge!("rate_limiting.concurrency.limit", "rule" => rule).set(found.limit.floor());
    metrics::gauge!("rate_limiting.concurrency.in_flight", "rule" => rule).set(window.peak());
    metrics::gauge!("rate_limiting.concurrency.baseline", "rule" => rule).set(found.baseline / 1e9);
    metrics::counter!("rate_limiting.concurrency.samples", "rule" => rule).increment(window.seen);
}

/// What the log says of a rejection.
fn rejection_event(decision: &Decision) -> &'static str {
    match decision.rejection() {
        Some(RateLimitedKind::Concurrency) => "concurrency limit reached",
        Some(RateLimitedKind::Overloaded) => "adaptive concurrency limit reached",
        Some(RateLimitedKind::Cooldown) => "request rejected: the upstream asked for a pause",
        Some(RateLimitedKind::QueueFull) => "request rejected: too many requests wait",
        Some(RateLimitedKind::NeverFits) => "request rejected: it costs more than the limit ever holds",
        Some(RateLimitedKind::MissingTenant) => "request rejected: it has no tenant",
        Some(RateLimitedKind::AmbiguousTenant) => "request rejected: it names more than one tenant",
        _ => "rate limit exceeded",
    }
}

pub(super) fn violates(decision: &Decision, rule: &CompiledRule) -> bool {
    decision.tiers().iter().any(|tier| tier.rule == rule.id && tier.violated)
}

/// The tiers that a tenant brings for a rule are invalid, so its request is
/// rejected.
#[cold]
pub(super) fn invalid_tiers(rule: &CompiledRule, error: &ConfigError, now: Timestamp) {
    if let Some(suppressed) = rule.reports.rejections.allow(now) {
        tracing::error!(rule = &**rule.id, %error, suppressed, "a tenant's own tiers are invalid; its requests are rejected");
    }
}

/// What is hardly meant in a policy that is now in force, as one report.
#[cold]
pub(super) fn without_effect(policy: &Policy) {
    let warnings = policy.warnings();
    let Some(first) = warnings.first() else { return };
    let rule = first.rule().unwrap_or_default();
    // Keys may name tenants.
    let key = first.key().split('.').next().unwrap_or_default();
    let others = warnings.len() - 1;
    let more = if others > 0 { format!(", and {others} more") } else { String::new() };
    let detail = format_args!("rule `{rule}`: {key}: {}{more}", first.reason());
    Reported::default().report(Mistake::WithoutEffect, &detail);
}

/// What a shadow rule would have done.
pub(super) fn shadow(
    counters: &Counters,
    charge: &Charge<'_>,
    path: Option<&str>,
    decision: &Decision,
    now: Timestamp,
) {
    let (rule, is_allowed) = (charge.rule, decision.is_allowed());
    let result = if is_allowed { RequestResult::ShadowAllowed } else { RequestResult::ShadowRejected };
    counters.count(result);
    rule.reports.count(rule.id, result, charge.priority);
    if !is_allowed && let Some(suppressed) = rule.reports.rejections.allow(now) {
        tracing::info!(
            rule = &**rule.id,
            tenant = charge.tenant().map(tracing::field::debug),
            path,
            suppressed,
            "a shadow rule would have rejected"
        );
    }
}

/// A request was admitted after it had waited so long. Its slot may have been
/// moved since it was decided, so this is not part of [`record`].
pub(super) fn waited(time: Duration) {
    if !time.is_zero() {
        metrics::histogram!("rate_limiting.request.time_in_queue").record(time.as_secs_f64());
    }
}

/// Counts a request for these rules too, which did not decide it.
#[inline]
pub(super) fn count_for_rules<'a>(rules: impl IntoIterator<Item = RuleAndPriority<'a>>, result: RequestResult) {
    rules.into_iter().for_each(|(rule, priority)| rule.reports.count(rule.id, result, priority));
}

/// How the backend replies.
#[derive(Debug, Default)]
pub(super) struct BackendMetrics {
    /// One for each kind of error.
    errors: [OnceLock<metrics::Counter>; BackendErrorKind::COUNT],
    replies: OnceLock<metrics::Histogram>,
}

impl BackendMetrics {
    /// A reply that a request had to wait for took so long.
    #[inline]
    pub(super) fn replied(&self, time: Duration) {
        self.replies.get_or_init(|| metrics::histogram!("rate_limiting.backend.duration")).record(time.as_secs_f64());
    }

    /// The backend failed. Logged at most once a second per rule, independently
    /// of the rule's rejections, of which there may be many.
    pub(super) fn failed<'a>(
        &self,
        rules: impl IntoIterator<Item = RuleAndPriority<'a>>,
        error: &BackendError,
        now: Timestamp,
    ) {
        let kind = error.kind();
        let counter = self.errors[kind as usize]
            .get_or_init(|| metrics::counter!("rate_limiting.backend.errors", "kind" => kind.as_str()));
        counter.increment(1);
        for (rule, _) in rules {
            if let Some(suppressed) = rule.reports.failures.allow(now) {
                tracing::error!(
                    rule = &**rule.id,
                    fails = rule.failure_mode(kind).as_str(),
                    kind = kind.as_str(),
                    error = std::error::Error::source(error).map(tracing::field::display),
                    suppressed,
                    "the rate limit backend failed"
                );
            }
        }
    }
}

/// An upstream asked this instance for a cooldown.
pub(super) fn cooldown_started(rule: &CompiledRule, time: Duration, now: Timestamp) {
    metrics::counter!("rate_limiting.upstream_cooldowns", "rule" => *rule.id).increment(1);
    if let Some(suppressed) = rule.reports.cooldowns.allow(now) {
        let cooldown_ms = time.as_millis();
        tracing::warn!(rule = &**rule.id, cooldown_ms, suppressed, "an upstream asked for a cooldown: requests wait");
    }
}

/// Another instance reported a cooldown.
pub(super) fn cooldown_received(rule: &CompiledRule, time: Duration) {
    tracing::debug!(rule = &**rule.id, cooldown_ms = time.as_millis(), "another instance started a cooldown");
}

/// A connection was upgraded, such as to WebSocket. Its concurrency limit counts
/// it only until the response is sent. Logged once for each rule.
#[cold]
pub(super) fn upgraded(rule: &CompiledRule) {
    rule.reports.upgrade.get_or_init(|| {
        tracing::warn!(
            rule = &**rule.id,
            "a connection was upgraded: its concurrency limit no longer counts it, \
             so keep the `ConnectionPermit` of the request's extensions in its task"
        );
    });
}

/// An upstream rejected a request that the limiter admitted. `rate` is the
/// rule's new adaptive rate, if it changed.
pub(super) fn upstream_rejected(rule: &CompiledRule, rate: Option<f64>) {
    metrics::counter!("rate_limiting.adaptive.rejections", "rule" => &**rule.id).increment(1);
    if let Some(rate) = rate {
        tracing::debug!(rule = &**rule.id, rate, "an upstream rejected a request: the adaptive rate was lowered");
    }
}

/// Tells the top tenants, if the limiter has them, that these charges were admitted by a
/// decision that has their tiers.
#[inline]
pub(super) fn count_units(
    top: Option<&TopTenants>,
    counters: &Counters,
    charges: &[Charge<'_>],
    decision: &Decision,
    now: Timestamp,
) {
    if let Some(top) = top
        && counters.sampler.is_due(size(charges))
    {
        count_sampled(top, counters, charges, decision, now);
    }
}

/// Tells them that a request with these charges was rejected: by the rules whose tiers are
/// violated, or by all of them together.
#[inline]
pub(super) fn count_rejection(top: Option<&TopTenants>, charges: &[Charge<'_>], decision: &Decision, now: Timestamp) {
    let Some(top) = top else { return };
    let is_by_all = decision.tiers().iter().all(|tier| !tier.violated);
    for (charge, tiers) in with_tiers(charges, decision) {
        if is_by_all || tiers.iter().any(|tier| tier.violated) {
            count(top, charge, (Measure::Rejections, 1), tiers, now);
        }
    }
}

#[cold]
#[inline(never)]
fn count_sampled(top: &TopTenants, counters: &Counters, charges: &[Charge<'_>], decision: &Decision, now: Timestamp) {
    let size = size(charges);
    let charged = counters.sampler.take(size, counters.decisions(), minute(now));
    for (charge, tiers) in with_tiers(charges, decision) {
        let own = u128::from(charged) * u128::from(charge.cost) / u128::from(size);
        let own = u64::try_from(own).unwrap_or(u64::MAX);
        count(top, charge, (Measure::Units, own), tiers, now);
    }
}

/// By how much a request counts when samples are drawn: the cost under its first rule. A sum over
/// all rules would take longer, and each is estimated without bias by any such size.
#[inline]
fn size(charges: &[Charge<'_>]) -> u64 {
    charges.first().map_or(1, |charge| charge.cost.max(1))
}

/// Each charge with the status of its tiers, where they are known.
fn with_tiers<'c>(
    charges: &'c [Charge<'c>],
    decision: &'c Decision,
) -> impl Iterator<Item = (&'c Charge<'c>, &'c [TierStatus])> {
    let mut tiers = decision.tiers();
    charges.iter().map(move |charge| {
        let (own, others) = tiers.split_at(charge.tiers().len().min(tiers.len()));
        tiers = others;
        (charge, own)
    })
}

/// Of a rule whose counter all callers share, there are no tenants to tell apart.
fn count(top: &TopTenants, charge: &Charge<'_>, amount: (Measure, u64), tiers: &[TierStatus], now: Timestamp) {
    if amount.1 == 0 || !charge.rule.is_per_tenant() && !charge.rule.options.fair {
        return;
    }
    #[allow(clippy::cast_precision_loss, reason = "a part")]
    let parts = tiers.iter().map(|tier| {
        let capacity = tier.quota.capacity().max(1);
        tier.remaining.min(capacity) as f64 / capacity as f64
    });
    top.count((charge.rule.id, charge.tenant), amount, parts.fold(1.0, f64::min), now);
}
