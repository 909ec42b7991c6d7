//! What each metric means, and its unit: [`describe_metrics`].
//!
//! Invariant: every metric that is reported anywhere is in [`METRICS`], which a
//! test compares with the code.

use metrics::Unit;

/// What kind of metric it is.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
}

use Kind::{Counter, Gauge, Histogram};

const METRICS: [(Kind, &str, Unit, &str); 18] = [
    (Counter, "rate_limiting.requests", Unit::Count, "Requests by rule and result."),
    (
        Histogram,
        "rate_limiting.request.time_in_queue",
        Unit::Seconds,
        "How long delayed requests waited, recorded when they are admitted.",
    ),
    (Gauge, "rate_limiting.queued_requests", Unit::Count, "Requests that wait."),
    (Gauge, "rate_limiting.active_permits", Unit::Count, "Admitted requests that keep a lease."),
    (Gauge, "rate_limiting.keys", Unit::Count, "Counters in this process."),
    (Counter, "rate_limiting.upstream_cooldowns", Unit::Count, "Cooldowns that upstreams asked for, by rule."),
    (Counter, "rate_limiting.adaptive.rejections", Unit::Count, "Rejections reported to an adaptive rate, by rule."),
    (Counter, "rate_limiting.policy.reloads", Unit::Count, "Answers of policy sources, by result."),
    (
        Gauge,
        "rate_limiting.policy.current",
        Unit::Count,
        "1 while the policy in force is that of its source, 0 while that one is invalid or unavailable.",
    ),
    (Counter, "rate_limiting.mistakes", Unit::Count, "Mistakes in the set-up, by code."),
    (Counter, "rate_limiting.backend.errors", Unit::Count, "Requests whose backend call failed, by kind of error."),
    (
        Histogram,
        "rate_limiting.backend.duration",
        Unit::Seconds,
        "Latency of the backend for each request that waited for it.",
    ),
    (
        Histogram,
        "rate_limiting.backend.call.duration",
        Unit::Seconds,
        "Latency of each call to Redis, which may be a batch of requests.",
    ),
    (Gauge, "rate_limiting.backend.open", Unit::Count, "1 while the circuit breaker of Redis is open."),
    (
        Counter,
        "rate_limiting.backend.transitions",
        Unit::Count,
        "Transitions of the circuit breaker, by its new state.",
    ),
    (Counter, "rate_limiting.backend.memory_lost", Unit::Count, "Detected data losses of Redis."),
    (Counter, "rate_limiting.leases.refills", Unit::Count, "Replies that leased units."),
    (
        Counter,
        "rate_limiting.leases.units",
        Unit::Count,
        "Units that were leased ahead of demand, given back unused, or lost with their window, by result.",
    ),
];

/// Describes all metrics of this crate, with their units, to the recorder of the
/// crate `metrics`. Counters of rare events start at 0.
///
/// Building a limiter does so, too. Call it when a recorder is installed after
/// the limiters were built.
///
/// ```
/// # use metrics_exporter_prometheus::PrometheusBuilder;
/// let recorder = PrometheusBuilder::new().build_recorder();
/// metrics::with_local_recorder(&recorder, || {
///     tower_ratelimit::limiter::describe_metrics();
///     metrics::gauge!("rate_limiting.keys").set(3);
/// });
/// assert!(recorder.handle().render().contains("# HELP rate_limiting_keys Counters in this process."));
/// ```
pub fn describe_metrics() {
    super::mistakes::start_counters();
    for (kind, name, unit, text) in METRICS {
        match kind {
            Counter => metrics::describe_counter!(name, unit, text),
            Gauge => metrics::describe_gauge!(name, unit, text),
            Histogram => metrics::describe_histogram!(name, unit, text),
        }
    }
}
