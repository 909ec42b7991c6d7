//! Tells operators what was decided. Does nothing without the features
//! `tracing` and `metrics`. Never names a tenant: it may be a secret.

#![cfg_attr(
    not(all(feature = "tracing", feature = "metrics")),
    allow(unused_variables, clippy::needless_pass_by_value, reason = "each feature uses some of the arguments")
)]

use std::time::Duration;

#[cfg(feature = "metrics")]
use crate::error::BackendErrorKind;
#[cfg(feature = "tracing")]
use crate::policy::FailureMode;
use crate::{decision::Decision, error::BackendError, observe::Event, policy::CompiledRule, time::Timestamp};

/// Whether [`decided`] looks at the decision.
pub(super) const LOOKS: bool = cfg!(any(feature = "tracing", feature = "metrics"));

#[inline]
pub(super) fn decided<'a>(
    rules: impl IntoIterator<Item = &'a CompiledRule> + Clone,
    event: Event,
    decision: &Decision,
    now: Timestamp,
) {
    #[cfg(feature = "metrics")]
    {
        for rule in rules.clone() {
            // A rejection is only that of the rules that rejected.
            let own = event != Event::Rejected || decision.tiers().is_empty() || violates(decision, rule);
            if own {
                rule.meters.count(rule.id, event);
            }
        }
        if !decision.wait().is_zero() {
            metrics::histogram!("rate_limiting.request.time_in_queue").record(decision.wait().as_secs_f64());
        }
    }
    #[cfg(feature = "tracing")]
    {
        tracing::debug!(
            result = event.as_str(),
            remaining = decision.remaining(),
            wait_ms = decision.wait().as_millis(),
            "rate limit decided"
        );
        if event == Event::Rejected
            && let Some(rule) = rules.into_iter().find(|rule| decision.tiers().is_empty() || violates(decision, rule))
            && let Some(suppressed) = rule.log_gate.pass(now)
        {
            tracing::warn!(
                rule = &**rule.id,
                retry_after_ms = decision.retry_after().map(|after| after.as_millis()),
                suppressed,
                "rate limit exceeded"
            );
        }
    }
}

#[cfg(any(feature = "tracing", feature = "metrics"))]
fn violates(decision: &Decision, rule: &CompiledRule) -> bool {
    decision.tiers().iter().any(|tier| tier.rule == rule.id && tier.violated)
}

/// How many wait and hold, and how the backend answers, for all limiters of
/// this process together. Made at their first use and kept, so that what goes
/// up comes down at the same place if a recorder is installed in between.
#[derive(Default)]
pub(super) struct Gauges {
    #[cfg(feature = "metrics")]
    waiters: std::sync::OnceLock<metrics::Gauge>,
    #[cfg(feature = "metrics")]
    holds: std::sync::OnceLock<metrics::Gauge>,
    /// One for each kind of error.
    #[cfg(feature = "metrics")]
    errors: [std::sync::OnceLock<metrics::Counter>; BackendErrorKind::COUNT],
    #[cfg(feature = "metrics")]
    answers: std::sync::OnceLock<metrics::Histogram>,
}

impl std::fmt::Debug for Gauges {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Gauges")
    }
}

#[inline]
pub(super) fn waiters(gauges: &Gauges, change: f64) {
    #[cfg(feature = "metrics")]
    gauges.waiters.get_or_init(|| metrics::gauge!("rate_limiting.queued_requests")).increment(change);
}

#[inline]
pub(super) fn holds(gauges: &Gauges, change: f64) {
    #[cfg(feature = "metrics")]
    gauges.holds.get_or_init(|| metrics::gauge!("rate_limiting.active_permits")).increment(change);
}

pub(super) fn shadow_rejected(rule: &CompiledRule, now: Timestamp) {
    #[cfg(feature = "metrics")]
    rule.meters.count(rule.id, Event::ShadowRejected);
    #[cfg(feature = "tracing")]
    if let Some(suppressed) = rule.log_gate.pass(now) {
        tracing::info!(rule = &**rule.id, suppressed, "a shadow rule would have rejected");
    }
}

/// What came of a request for these rules too, beside those that decided it.
#[inline]
pub(super) fn also<'a>(rules: impl IntoIterator<Item = &'a CompiledRule>, event: Event) {
    #[cfg(feature = "metrics")]
    rules.into_iter().for_each(|rule| rule.meters.count(rule.id, event));
}

/// A provider asks to be left alone for a while.
pub(super) fn cooldown_started(rule: &CompiledRule, time: Duration, now: Timestamp) {
    #[cfg(feature = "metrics")]
    metrics::counter!("rate_limiting.upstream_cooldowns", "rule" => *rule.id).increment(1);
    #[cfg(feature = "tracing")]
    if let Some(suppressed) = rule.cooldown_gate.pass(now) {
        tracing::warn!(rule = &**rule.id, hold_ms = time.as_millis(), suppressed, "the provider asks to slow down");
    }
}

/// Another instance says that a provider has asked it.
pub(super) fn cooldown_received(rule: &CompiledRule, time: Duration) {
    #[cfg(feature = "tracing")]
    tracing::debug!(rule = &**rule.id, hold_ms = time.as_millis(), "another instance was asked to slow down");
    #[cfg(not(feature = "tracing"))]
    let _ = (rule, time);
}

/// How long a backend took that had to be waited for.
#[inline]
pub(super) fn backend_took(gauges: &Gauges, time: Duration) {
    #[cfg(feature = "metrics")]
    gauges.answers.get_or_init(|| metrics::histogram!("rate_limiting.backend.duration")).record(time.as_secs_f64());
}

/// Each rule's failure is told at most once a second, and apart from its
/// rejections, of which there may be many.
pub(super) fn backend_failed<'a>(
    gauges: &Gauges,
    rules: impl IntoIterator<Item = &'a CompiledRule>,
    error: &BackendError,
    now: Timestamp,
) {
    #[cfg(feature = "metrics")]
    {
        let kind = error.kind();
        let counter = gauges.errors[kind as usize]
            .get_or_init(|| metrics::counter!("rate_limiting.backend.errors", "kind" => kind.as_str()));
        counter.increment(1);
    }
    #[cfg(feature = "tracing")]
    for rule in rules {
        if let Some(suppressed) = rule.failure_gate.pass(now) {
            let fails = match rule.on_backend_failure {
                FailureMode::Open => "open",
                FailureMode::Closed => "closed",
                FailureMode::Local => "local",
            };
            let kind = error.kind().as_str();
            tracing::error!(rule = &**rule.id, fails, kind, %error, suppressed, "the rate limit backend gave no answer");
        }
    }
}

/// Somebody else has rejected what such a rule let go; the `rate` is what the
/// rule has found since, where that is another for it.
pub(super) fn rejected_elsewhere(rule: &CompiledRule, rate: Option<f64>) {
    #[cfg(feature = "metrics")]
    metrics::counter!("rate_limiting.adaptive.rejections", "rule" => &**rule.id).increment(1);
    #[cfg(feature = "tracing")]
    if let Some(rate) = rate {
        tracing::debug!(rule = &**rule.id, rate, "a rate was lowered, as a request was rejected");
    }
}
