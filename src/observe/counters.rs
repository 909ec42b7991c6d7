//! What is counted and logged of a rule, [`RuleReports`], by the [`RequestResult`]s of
//! its requests; and [`KeysGauge`].
//!
//! Invariant: each metric is created at its first use, so a recorder may be
//! installed after the policy was built, and kept, so no label is built twice.

use std::sync::OnceLock;
#[cfg(feature = "admin")]
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use super::{facade::metrics, log_limiter::LogLimiter, mistakes::Reported};
use crate::descriptor::Priority;

/// How a request was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestResult {
    Allowed,
    Delayed,
    Rejected,
    ShadowAllowed,
    ShadowRejected,
    FailedOpen,
    FailedClosed,
    FailedLocal,
    Shed,
}

impl RequestResult {
    pub(crate) const COUNT: usize = 9;

    /// The label of a counter.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Delayed => "delayed",
            Self::Rejected => "rejected",
            Self::ShadowAllowed => "shadow_allowed",
            Self::ShadowRejected => "shadow_rejected",
            Self::FailedOpen => "failed_open",
            Self::FailedClosed => "failed_closed",
            Self::FailedLocal => "failed_local",
            Self::Shed => "shed",
        }
    }
}

/// What is reported of one rule.
#[derive(Debug, Default)]
pub(crate) struct RuleReports {
    pub(crate) mistakes: Reported,
    /// Only where a page shows them.
    #[cfg(feature = "admin")]
    totals: OnceLock<Arc<RuleTotals>>,
    #[cfg(feature = "metrics")]
    counters: RuleCounters,
    pub(crate) rejections: LogLimiter,
    pub(crate) failures: LogLimiter,
    pub(crate) cooldowns: LogLimiter,
    pub(crate) upgrade: OnceLock<()>,
}

impl RuleReports {
    /// Whether [`Self::count`] does anything.
    pub(crate) const COUNTS: bool = cfg!(any(feature = "admin", feature = "metrics"));

    /// Counts a request.
    #[inline]
    pub(crate) fn count(&self, rule: &'static str, result: RequestResult, priority: Priority) {
        #[cfg(feature = "admin")]
        if let Some(RuleTotals(totals)) = self.totals.get().map(|totals| &**totals) {
            totals[result as usize].fetch_add(1, Ordering::Relaxed);
        }
        #[cfg(feature = "metrics")]
        self.counters.count(rule, result, priority);
        #[cfg(not(feature = "metrics"))]
        let _ = (rule, result, priority);
    }
}

/// The requests of one rule, by result.
#[cfg(feature = "admin")]
#[derive(Debug, Default)]
struct RuleTotals([AtomicU64; RequestResult::COUNT]);

#[cfg(feature = "admin")]
impl RuleReports {
    /// Counts from now on, or goes on where an earlier form of the rule has counted.
    pub(crate) fn count_like(&self, earlier: Option<&Self>) {
        self.totals.get_or_init(|| earlier.and_then(|earlier| earlier.totals.get()).cloned().unwrap_or_default());
    }

    /// The requests of the rule so far, by result; none where nothing counts them.
    pub(crate) fn total(&self, result: RequestResult) -> u64 {
        self.totals.get().map_or(0, |totals| totals.0[result as usize].load(Ordering::Relaxed))
    }
}

/// The metrics of one rule's requests.
#[cfg(feature = "metrics")]
#[derive(Debug, Default)]
struct RuleCounters([[OnceLock<metrics::Counter>; RequestResult::COUNT]; Priority::ALL.len()]);

#[cfg(feature = "metrics")]
impl RuleCounters {
    fn count(&self, rule: &'static str, result: RequestResult, priority: Priority) {
        let labels = || [("rule", rule), ("result", result.as_str()), ("priority", priority.as_str())];
        let counter = self.0[priority as usize][result as usize]
            .get_or_init(|| metrics::counter!("rate_limiting.requests", &labels()));
        counter.increment(1);
    }
}

/// A store's share of the gauge, which counts the keys of all stores.
#[derive(Debug, Default)]
pub(crate) struct KeysGauge(OnceLock<metrics::Gauge>);

impl KeysGauge {
    pub(crate) fn add(&self) {
        self.gauge().increment(1.0);
    }

    #[allow(clippy::cast_precision_loss, reason = "a gauge")]
    pub(crate) fn subtract(&self, keys: usize) {
        self.gauge().decrement(keys as f64);
    }

    fn gauge(&self) -> &metrics::Gauge {
        self.0.get_or_init(|| metrics::gauge!("rate_limiting.keys"))
    }
}
