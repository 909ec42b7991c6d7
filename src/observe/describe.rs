//! What each metric means, and its unit: [`describe_metrics`].
//!
//! Invariant: every metric that is reported anywhere is in one of these tables,
//! which a test compares with the code.

use metrics::Unit;

/// They all count something.
const COUNTERS: [(&str, &str); 13] = [
    ("rate_limiting.requests", "Requests by rule, result and priority."),
    ("rate_limiting.upstream_cooldowns", "Cooldowns that upstreams asked for, by rule."),
    ("rate_limiting.adaptive.rejections", "Rejections reported to an adaptive rate, by rule."),
    ("rate_limiting.concurrency.samples", "Latencies that an adaptive concurrency limit measured, by rule."),
    ("rate_limiting.policy.reloads", "Answers of policy sources, by result."),
    ("rate_limiting.mistakes", "Mistakes in the set-up, by code."),
    ("rate_limiting.overload.shed", "Requests that were shed under overload, by priority."),
    ("rate_limiting.priority.unknown", "Priorities of an unknown name, which count as normal."),
    ("rate_limiting.backend.errors", "Requests whose backend call failed, by kind of error."),
    ("rate_limiting.backend.transitions", "Transitions of the circuit breaker, by its new state."),
    ("rate_limiting.backend.memory_lost", "Detected data losses of Redis."),
    ("rate_limiting.leases.refills", "Replies that leased units."),
    (
        "rate_limiting.leases.units",
        "Units that were leased ahead of demand, given back unused, or lost with their window, by result.",
    ),
];

const GAUGES: [(&str, Unit, &str); 12] = [
    ("rate_limiting.queued_requests", Unit::Count, "Requests that wait."),
    ("rate_limiting.active_permits", Unit::Count, "Admitted requests that keep a lease."),
    ("rate_limiting.keys", Unit::Count, "Counters in this process."),
    (
        "rate_limiting.policy.current",
        Unit::Count,
        "1 while the policy in force is that of its source, 0 while that one is invalid or unavailable.",
    ),
    ("rate_limiting.overload.shed_fraction", Unit::Count, "The part of all requests that is shed, from 0 to 0.95."),
    ("rate_limiting.concurrency.limit", Unit::Count, "The adaptive concurrency limit, by rule."),
    (
        "rate_limiting.concurrency.in_flight",
        Unit::Count,
        "The most in flight under an adaptive concurrency limit in the last window, by rule.",
    ),
    (
        "rate_limiting.concurrency.baseline",
        Unit::Seconds,
        "The latency without a queue, as an adaptive concurrency limit sees it, by rule.",
    ),
    ("rate_limiting.backend.open", Unit::Count, "1 while the circuit breaker of Redis is open."),
    ("rate_limiting.split.members", Unit::Count, "Instances that share the limits by gossip, this one included."),
    ("rate_limiting.split.view_age", Unit::Seconds, "How long ago this instance heard of another."),
    ("rate_limiting.split.share", Unit::Count, "This instance's share of a rule's limits, from 0 to 1, by rule."),
];

const HISTOGRAMS: [(&str, Unit, &str); 3] = [
    (
        "rate_limiting.request.time_in_queue",
        Unit::Seconds,
        "How long delayed requests waited, recorded when they are admitted.",
    ),
    ("rate_limiting.backend.duration", Unit::Seconds, "Latency of the backend for each request that waited for it."),
    (
        "rate_limiting.backend.call.duration",
        Unit::Seconds,
        "Latency of each call to Redis, which may be a batch of requests.",
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
    for (name, text) in COUNTERS {
        metrics::describe_counter!(name, Unit::Count, text);
    }
    for (name, unit, text) in GAUGES {
        metrics::describe_gauge!(name, unit, text);
    }
    for (name, unit, text) in HISTOGRAMS {
        metrics::describe_histogram!(name, unit, text);
    }
}
