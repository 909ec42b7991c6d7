//! What operators see of Redis: its circuit breaker, its latency, and lost data.
//!
//! Invariant: what an attack can cause is logged at most once a second.

#![allow(clippy::unused_self, reason = "callers report to one store, whatever is remembered of it")]

use std::{
    error::Error,
    fmt,
    sync::{
        OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use super::{
    counters::LogLimiter,
    facade::{metrics, tracing},
};
use crate::{error::BackendError, time::Timestamp};

/// Whether [`StoreReport::called`] does anything.
pub(crate) const MEASURES: bool = cfg!(feature = "metrics");

/// The metrics and events of one store.
#[derive(Debug, Default)]
pub(crate) struct StoreReport {
    openings: LogLimiter,
    losses: LogLimiter,
    out_of_memory: LogLimiter,
    /// The circuit breakers that are not closed: a cluster has one for each node.
    open: AtomicUsize,
    /// The start of the time by which events are limited: the first one.
    origin: OnceLock<Instant>,
}

impl StoreReport {
    /// A new store's circuit breaker starts open or closed.
    pub(crate) fn starts(&self, open: bool) {
        self.show(open);
        // From here the first loss is an increase.
        metrics::counter!("rate_limiting.backend.memory_lost").increment(0);
    }

    /// One of the circuit breakers is not closed any more, or is closed again or gone.
    pub(crate) fn counts(&self, open: bool) {
        if open {
            self.open.fetch_add(1, Ordering::Relaxed);
        } else {
            self.open.fetch_sub(1, Ordering::Relaxed);
            self.show(false);
        }
    }

    /// The circuit breaker opened after `failures` consecutive failures. A failed
    /// probe is one.
    pub(crate) fn opened(&self, cause: &BackendError, failures: u64) {
        self.transition("open", true);
        if let Some(suppressed) = self.openings.allow(self.now()) {
            let why = cause.source().map_or_else(|| cause.to_string(), ToString::to_string);
            let plural = if failures == 1 { "" } else { "s" };
            tracing::warn!(
                error = %cause,
                failures,
                suppressed,
                "redis circuit breaker opened after {failures} failure{plural}: {why}; rules fall back to on_backend_failure"
            );
        }
    }

    /// The circuit breaker sends a probe.
    pub(crate) fn half_opened(&self) {
        self.transition("half_open", true);
        tracing::debug!("redis circuit breaker half-open; probing");
    }

    /// A probe succeeded.
    pub(crate) fn closed(&self, after: Duration) {
        self.transition("closed", false);
        tracing::info!(after_ms = after.as_millis(), "redis circuit breaker closed; redis decides again");
    }

    fn now(&self) -> Timestamp {
        Timestamp::UNIX_EPOCH.saturating_add(self.origin.get_or_init(Instant::now).elapsed())
    }

    fn transition(&self, to: &'static str, open: bool) {
        metrics::counter!("rate_limiting.backend.transitions", "to" => to).increment(1);
        self.show(open);
    }

    /// Shows whether any circuit breaker is open.
    fn show(&self, open: bool) {
        let is_open = open || self.open.load(Ordering::Relaxed) > 0;
        metrics::gauge!("rate_limiting.backend.open").set(f64::from(u8::from(is_open)));
    }

    /// The store lost counters, or may have lost some.
    pub(crate) fn memory_lost(&self, what: &str) {
        metrics::counter!("rate_limiting.backend.memory_lost").increment(1);
        if let Some(suppressed) = self.losses.allow(self.now()) {
            tracing::warn!(what, suppressed, "redis lost counters; the quotas of these keys are full again");
        }
    }

    /// The store has no memory left for more counters.
    pub(crate) fn out_of_memory(&self) {
        if let Some(suppressed) = self.out_of_memory.allow(self.now()) {
            tracing::warn!(
                suppressed,
                "redis is out of memory, perhaps by a flood of invented tenants; rules that count them fall back to the \
                 local limiter, all others to on_backend_failure"
            );
        }
    }

    /// The server's clock is behind the latest time that it has had. Reported once,
    /// until it has caught up.
    pub(crate) fn clock_set_back(&self) {
        tracing::warn!("redis clock was set back; counters that are too far ahead of it are moved back");
    }

    /// Units were leased ahead of demand, in one refill.
    pub(crate) fn leased(&self, units: u64) {
        metrics::counter!("rate_limiting.leases.refills").increment(1);
        metrics::counter!("rate_limiting.leases.units", "result" => "leased").increment(units);
    }

    /// Units that were leased and not used are given back, or have expired with
    /// their window.
    pub(crate) fn unused(&self, units: u64, expired: bool) {
        let result = if expired { "expired" } else { "returned" };
        metrics::counter!("rate_limiting.leases.units", "result" => result).increment(units);
    }

    /// A call ended, with a reply or an error.
    pub(crate) fn called(&self, took: Duration) {
        metrics::histogram!("rate_limiting.backend.call.duration").record(took.as_secs_f64());
    }
}

/// Logs that cooldowns cannot be sent to other instances, or can again. The
/// caller logs each change once.
pub(crate) fn log_cooldown_sharing(servers: &dyn fmt::Display, problem: Option<&BackendError>) {
    let Some(error) = problem else {
        tracing::info!(%servers, "cooldowns are sent to other instances again");
        return;
    };
    let why = error.source().map(ToString::to_string);
    tracing::warn!(%servers, %error, why, "cooldowns are not sent to other instances");
}

/// Logs that cooldowns of other instances cannot be received, or can again.
/// The caller logs each change once.
pub(crate) fn log_cooldown_subscription(servers: &dyn fmt::Display, problem: Option<&BackendError>) {
    let Some(error) = problem else {
        tracing::info!(%servers, "cooldowns of other instances are received again");
        return;
    };
    let why = error.source().map(ToString::to_string);
    tracing::warn!(%servers, %error, why, "cooldowns of other instances are not received");
}

#[cfg(all(test, feature = "metrics"))]
mod tests;
