//! What operators see: counters, and events for the log. Those about a request are
//! reported by `limiter/observe.rs`.
//!
//! It reports and decides nothing; without the features `metrics` and `tracing`
//! it does nothing. The invariant: no report names a tenant, whose name may be
//! a secret; only the top tenants do, which an operator asks for. The functions of this file
//! remember nothing: their callers log each change once.

#![cfg_attr(
    not(all(feature = "tracing", feature = "metrics")),
    allow(dead_code, unused_variables, reason = "each feature uses some of the arguments")
)]

mod counters;
#[cfg(feature = "metrics")]
mod describe;
pub(crate) mod facade;
mod mistakes;
#[cfg(feature = "redis")]
mod store;
mod top;

#[cfg(feature = "metrics")]
pub use self::describe::describe_metrics;
use self::facade::{metrics, tracing};
#[cfg(feature = "redis")]
pub(crate) use self::store::{MEASURES, StoreReport, log_cooldown_sharing, log_cooldown_subscription};
pub use self::top::TopTenant;
pub(crate) use self::{
    counters::{Gauge, RequestResult, RuleReports},
    mistakes::{Mistake, Reported},
    top::{Measure, Sampler, TopTenants, minute},
};

/// A trusted header had a priority of an unknown name.
pub(crate) fn count_unknown_priority() {
    metrics::counter!("rate_limiting.priority.unknown").increment(1);
}

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

/// The result of asking a source for a policy.
#[cfg(feature = "watch")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reload {
    /// A new policy is in force.
    Applied,
    /// The source's policy is invalid.
    Rejected,
    /// The source did not answer, or holds nothing.
    Unavailable,
}

#[cfg(feature = "watch")]
impl Reload {
    /// Lets the counters start at 0, from where the first event is an increase.
    pub(crate) fn start() {
        [Self::Applied, Self::Rejected, Self::Unavailable].iter().for_each(|result| result.count(0));
    }

    pub(crate) fn count(self, times: u64) {
        let result = match self {
            Self::Applied => "applied",
            Self::Rejected => "rejected",
            Self::Unavailable => "unavailable",
        };
        metrics::counter!("rate_limiting.policy.reloads", "result" => result).increment(times);
    }

    /// Whether the policy in force is that of its source.
    pub(crate) fn is_current(source: &str, is_current: bool) {
        metrics::gauge!("rate_limiting.policy.current", "source" => source.to_owned())
            .set(f64::from(u8::from(is_current)));
    }

    /// Logs the result, and how many rules are in force.
    pub(crate) fn log(self, source: &str, why: &str, rules: usize) {
        let problem = match self {
            Self::Applied => {
                tracing::info!(source, rules, "a new policy is in force");
                return;
            }
            Self::Rejected => "policy rejected",
            Self::Unavailable => "policy source unavailable",
        };
        tracing::warn!(source, why, "{problem}; the last good policy stays in force");
        mistakes::say_unheard(&format_args!("{problem}; the last good policy stays in force: {source}: {why}"));
    }

    /// Logs that a source is available again.
    pub(crate) fn log_recovery(source: &str) {
        tracing::info!(source, "policy source available again");
    }
}

/// Logs that the backend ignores a rule's consistency level.
pub(crate) fn log_ignored_level(rule: &str, consistency: &str) {
    tracing::warn!(rule, consistency, "the backend ignores the consistency level; it decides this rule as any other");
}

/// Logs a problem of the source of this instance's share.
pub(crate) fn log_share_source(source: &str, problem: &str) {
    tracing::warn!(source, problem, "the source of this instance's share has a problem");
}

/// How many instances share the limits, and how long ago another was heard of.
#[cfg(feature = "gossip")]
pub(crate) fn report_fleet(members: usize, age: std::time::Duration) {
    metrics::gauge!("rate_limiting.split.members").set(u32::try_from(members).map_or(f64::MAX, f64::from));
    metrics::gauge!("rate_limiting.split.view_age").set(age.as_secs_f64());
}

/// This instance's share of each rule.
#[cfg(feature = "gossip")]
pub(crate) fn report_shares<'a>(shares: impl Iterator<Item = (&'a str, f64)>) {
    for (rule, share) in shares {
        metrics::gauge!("rate_limiting.split.share", "rule" => rule.to_owned()).set(share);
    }
}
