//! What operators see of a store: whether it is asked, how long it takes, and
//! whether it lost its memory. Does nothing without the features `tracing` and
//! `metrics`.

#![cfg_attr(
    not(all(feature = "tracing", feature = "metrics")),
    allow(unused_variables, clippy::unused_self, reason = "each feature uses some of the arguments")
)]

use std::{fmt, time::Duration};

#[cfg(feature = "tracing")]
use super::LogGate;
use crate::{error::BackendError, time::Timestamp};

/// Whether [`StoreReport::called`] does anything.
pub(crate) const TIMES_CALLS: bool = cfg!(feature = "metrics");

/// Tells operators of one store.
#[derive(Default)]
pub(crate) struct StoreReport {
    #[cfg(feature = "metrics")]
    duration: std::sync::OnceLock<metrics::Histogram>,
    #[cfg(feature = "tracing")]
    openings: LogGate,
    #[cfg(feature = "tracing")]
    losses: LogGate,
}

impl fmt::Debug for StoreReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StoreReport")
    }
}

impl StoreReport {
    /// The store is new, and asked or not yet.
    pub(crate) fn starts(&self, open: bool) {
        #[cfg(feature = "metrics")]
        metrics::gauge!("rate_limiting.backend.open").set(f64::from(u8::from(open)));
    }

    /// The store is left alone from now on, or a probe of it failed.
    pub(crate) fn opened(&self, cause: &BackendError, now: Timestamp) {
        self.transition("open", true);
        #[cfg(feature = "tracing")]
        if let Some(suppressed) = self.openings.pass(now) {
            let why = std::error::Error::source(cause).map(tracing::field::display);
            tracing::warn!(error = %cause, why, suppressed, "the rate limit store is left alone");
        }
    }

    /// A probe of the store sets out.
    pub(crate) fn half_opened(&self) {
        self.transition("half_open", true);
        #[cfg(feature = "tracing")]
        tracing::debug!("the rate limit store is probed");
    }

    /// The store is asked again.
    pub(crate) fn closed(&self, after: Duration) {
        self.transition("closed", false);
        #[cfg(feature = "tracing")]
        tracing::info!(after_ms = after.as_millis(), "the rate limit store answers again");
    }

    fn transition(&self, to: &'static str, open: bool) {
        #[cfg(feature = "metrics")]
        {
            metrics::counter!("rate_limiting.backend.transitions", "to" => to).increment(1);
            metrics::gauge!("rate_limiting.backend.open").set(f64::from(u8::from(open)));
        }
    }

    /// The store forgot what was counted, or may have forgotten some of it.
    pub(crate) fn memory_lost(&self, what: &str, now: Timestamp) {
        #[cfg(feature = "metrics")]
        metrics::counter!("rate_limiting.backend.memory_lost").increment(1);
        #[cfg(feature = "tracing")]
        if let Some(suppressed) = self.losses.pass(now) {
            tracing::warn!(what, suppressed, "the rate limit store lost what it had counted");
        }
    }

    /// A call came back, well or not.
    #[inline]
    pub(crate) fn called(&self, took: Duration) {
        #[cfg(feature = "metrics")]
        self.duration
            .get_or_init(|| metrics::histogram!("rate_limiting.backend.call.duration"))
            .record(took.as_secs_f64());
    }
}

/// Instances cannot be told what this one's provider asks for; or can again.
/// Whoever says so sees to it that it is said once.
pub(crate) fn shares_cooldowns(place: &dyn fmt::Display, trouble: Option<&BackendError>) {
    #[cfg(feature = "tracing")]
    match trouble {
        Some(error) => {
            let why = std::error::Error::source(error).map(tracing::field::display);
            tracing::warn!(%place, %error, why, "other instances are not told what a provider asks for");
        }
        None => tracing::info!(%place, "other instances are told again what a provider asks for"),
    }
}

/// The same for what others' providers ask for.
pub(crate) fn is_subscribed(place: &dyn fmt::Display, trouble: Option<&BackendError>) {
    #[cfg(feature = "tracing")]
    match trouble {
        Some(error) => {
            let why = std::error::Error::source(error).map(tracing::field::display);
            tracing::warn!(%place, %error, why, "what providers ask of other instances is not heard");
        }
        None => tracing::info!(%place, "what providers ask of other instances is heard again"),
    }
}

#[cfg(all(test, feature = "metrics"))]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    #[test]
    fn every_event_is_counted() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let lines = || recorder.handle().render();
        metrics::with_local_recorder(&recorder, || {
            let report = StoreReport::default();
            report.starts(false);
            assert!(lines().contains("rate_limiting_backend_open 0"));
            report.opened(&BackendError::unavailable("gone"), Timestamp::UNIX_EPOCH);
            assert!(lines().contains("rate_limiting_backend_open 1"));
            report.half_opened();
            report.opened(&BackendError::unavailable("gone"), Timestamp::UNIX_EPOCH);
            report.half_opened();
            report.closed(Duration::from_secs(1));
            assert!(lines().contains("rate_limiting_backend_open 0"));
            for (to, count) in [("open", 2), ("half_open", 2), ("closed", 1)] {
                let line = format!("rate_limiting_backend_transitions{{to=\"{to}\"}} {count}");
                assert!(lines().contains(&line), "{line} in {}", lines());
            }
            report.memory_lost("emptied", Timestamp::UNIX_EPOCH);
            assert!(lines().contains("rate_limiting_backend_memory_lost 1"));
            report.called(Duration::from_millis(250));
            assert!(lines().contains("rate_limiting_backend_call_duration_sum 0.25"), "{}", lines());
        });
    }
}
