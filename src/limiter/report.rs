//! Tells operators what was decided. Does nothing without the features
//! `tracing` and `metrics`. Never names a tenant: it may be a secret.

#![cfg_attr(
    not(all(feature = "tracing", feature = "metrics")),
    allow(unused_variables, clippy::needless_pass_by_value, reason = "each feature uses some of the arguments")
)]

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
            // A refusal is only that of the rules that refused.
            let own = event != Event::Rejected || decision.tiers().is_empty() || violates(decision, rule);
            if own {
                rule.meters.count(rule.id, event);
            }
        }
        if event == Event::Delayed {
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
            && let Some(held_back) = rule.log_gate.pass(now)
        {
            tracing::warn!(
                rule = &**rule.id,
                retry_after_ms = decision.retry_after().map(|after| after.as_millis()),
                held_back,
                "rate limit exceeded"
            );
        }
    }
}

#[cfg(any(feature = "tracing", feature = "metrics"))]
fn violates(decision: &Decision, rule: &CompiledRule) -> bool {
    decision.tiers().iter().any(|tier| tier.rule == rule.id && tier.violated)
}

/// How many wait and hold, for all limiters of this process together. Made at
/// their first use and kept, so that what goes up comes down at the same place
/// if a recorder is installed in between.
#[derive(Default)]
pub(super) struct Gauges {
    #[cfg(feature = "metrics")]
    waiters: std::sync::OnceLock<metrics::Gauge>,
    #[cfg(feature = "metrics")]
    holds: std::sync::OnceLock<metrics::Gauge>,
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
    if let Some(held_back) = rule.log_gate.pass(now) {
        tracing::info!(rule = &**rule.id, held_back, "a shadow rule would have refused");
    }
}

pub(super) fn backend_failed<'a>(
    rules: impl IntoIterator<Item = &'a CompiledRule>,
    error: &BackendError,
    now: Timestamp,
) {
    #[cfg(feature = "metrics")]
    metrics::counter!("rate_limiting.backend.errors").increment(1);
    #[cfg(feature = "tracing")]
    if let Some(rule) = rules.into_iter().next()
        && let Some(held_back) = rule.log_gate.pass(now)
    {
        tracing::error!(rule = &**rule.id, %error, held_back, "the rate limit backend gave no answer");
    }
}
