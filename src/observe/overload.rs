//! What operators see of overload: what is shed, and when that starts and ends.
//!
//! It remembers nothing: the caller logs each change once.

use super::facade::{metrics, tracing};

/// A request of this priority was shed.
pub(crate) fn count_shed(priority: &'static str) {
    metrics::counter!("rate_limiting.overload.shed", "priority" => priority).increment(1);
}

/// This part of all requests is shed from now on.
pub(crate) fn report_shed_fraction(fraction: f64) {
    metrics::gauge!("rate_limiting.overload.shed_fraction").set(fraction);
}

/// Requests are shed from now on, or no longer, by this signal.
pub(crate) fn log_shedding(starts: bool, signal: &str, value: f64, threshold: f64) {
    if starts {
        tracing::warn!(signal, value, threshold, "overload: the limiter sheds requests of low priority");
    } else {
        tracing::info!(signal, value, threshold, "overload ended: the limiter sheds no more requests");
    }
}
