//! What is counted and logged of a rule, [`RuleReports`], by the [`RequestResult`]s of
//! its requests; [`LogLimiter`]; and [`Gauge`].
//!
//! Invariant: each metric is created at its first use, so a recorder may be
//! installed after the policy was built, and kept, so no label is built twice.

#[cfg(feature = "admin")]
use std::sync::Arc;
#[cfg(not(all(test, tower_ratelimit_loom)))]
use std::sync::atomic::AtomicUsize;
use std::sync::{
    OnceLock,
    atomic::{AtomicU64, Ordering},
};

#[cfg(all(test, tower_ratelimit_loom))]
use loom::sync::atomic::AtomicUsize;

use super::{facade::metrics, mistakes::Reported};
use crate::{descriptor::Priority, time::Timestamp};

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
    totals: OnceLock<Arc<[AtomicU64; RequestResult::COUNT]>>,
    /// By priority and result.
    #[cfg(feature = "metrics")]
    counters: [[OnceLock<metrics::Counter>; RequestResult::COUNT]; Priority::ALL.len()],
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
        if let Some(totals) = self.totals.get() {
            totals[result as usize].fetch_add(1, Ordering::Relaxed);
        }
        #[cfg(feature = "metrics")]
        self.counters[priority as usize][result as usize]
            .get_or_init(|| {
                let labels = [("rule", rule), ("result", result.as_str()), ("priority", priority.as_str())];
                metrics::counter!("rate_limiting.requests", &labels)
            })
            .increment(1);
        #[cfg(not(feature = "metrics"))]
        let _ = (rule, result, priority);
    }
}

#[cfg(feature = "admin")]
impl RuleReports {
    /// Counts from now on, or goes on where an earlier form of the rule has counted.
    pub(crate) fn count_like(&self, earlier: Option<&Self>) {
        self.totals.get_or_init(|| earlier.and_then(|earlier| earlier.totals.get()).cloned().unwrap_or_default());
    }

    /// The requests of the rule so far, by result; none where nothing counts them.
    pub(crate) fn total(&self, result: RequestResult) -> u64 {
        self.totals.get().map_or(0, |totals| totals[result as usize].load(Ordering::Relaxed))
    }
}

/// A rate limiter for log events, so that an attack cannot fill the disk: allows one event a
/// second, and counts the suppressed ones.
#[derive(Debug, Default)]
pub(crate) struct LogLimiter {
    next: AtomicU64,
    suppressed: AtomicU64,
}

const INTERVAL: u64 = 1_000_000_000;

impl LogLimiter {
    /// The number of events suppressed since the last one; `None` if this one
    /// is to be suppressed too, or if none is logged.
    pub(crate) fn allow(&self, now: Timestamp) -> Option<u64> {
        if cfg!(not(any(test, feature = "tracing"))) {
            return None;
        }
        let (now, next) = (now.as_nanos(), self.next.load(Ordering::Relaxed));
        // A clock that stepped back far must not silence the log.
        let is_due = now >= next || next - now > INTERVAL;
        let swap =
            |next| self.next.compare_exchange(next, now.saturating_add(INTERVAL), Ordering::Relaxed, Ordering::Relaxed);
        if is_due && swap(next).is_ok() {
            return Some(self.suppressed.swap(0, Ordering::Relaxed));
        }
        self.suppressed.fetch_add(1, Ordering::Relaxed);
        None
    }
}

/// A number of one limiter or store, and its share of a gauge of the process. The gauge
/// is registered at its first use and kept, so that a recorder that is
/// installed later sees no unmatched decrement.
#[derive(Debug)]
pub(crate) struct Gauge {
    value: AtomicUsize,
    name: &'static str,
    gauge: OnceLock<metrics::Gauge>,
}

impl Gauge {
    pub(crate) fn new(name: &'static str) -> Self {
        Self { value: AtomicUsize::new(0), name, gauge: OnceLock::new() }
    }

    pub(crate) fn value(&self) -> usize {
        self.value.load(Ordering::Relaxed)
    }

    /// Adds one, unless that makes more than `most`.
    pub(crate) fn add_up_to(&self, most: usize) -> bool {
        let one_more = |value| (value < most).then_some(value + 1);
        let is_added = self.value.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok();
        if is_added {
            self.change(1.0);
        }
        is_added
    }

    /// Adds one. Returns what the number was before.
    pub(crate) fn add(&self) -> usize {
        self.change(1.0);
        self.value.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn subtract(&self) {
        self.release(1);
    }

    #[allow(clippy::cast_precision_loss, reason = "a gauge")]
    pub(crate) fn release(&self, count: usize) {
        self.value.fetch_sub(count, Ordering::Relaxed);
        self.change(-(count as f64));
    }

    #[inline]
    fn change(&self, change: f64) {
        #[cfg(feature = "metrics")]
        self.gauge.get_or_init(|| metrics::gauge!(self.name)).increment(change);
    }
}

#[cfg(test)]
mod tests;
