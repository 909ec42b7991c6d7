//! Decides the requests of a log by the real limiter, at the times of the log:
//! [`LogClock`] and [`Decider`].
//!
//! It counts nothing. Invariant: the clock never goes back, and stands still unless it is moved.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};
use tokio::time::Instant;
use tower_ratelimit::{
    Algorithm, Policy, Quota, RateLimiter, Rule,
    decision::Decision,
    time::{Clock, Timestamp},
};

use super::log_format::Record;

/// The time of the log. While requests wait, Tokio's paused time moves it; else it is set.
#[derive(Clone, Debug)]
pub(super) struct LogClock {
    start: Instant,
    ahead: Arc<AtomicU64>,
}

impl LogClock {
    pub(super) fn new() -> Self {
        Self { start: Instant::now(), ahead: Arc::default() }
    }

    /// How much later `time` is than now, in nanoseconds.
    pub(super) fn left(&self, time: u64) -> u64 {
        time.saturating_sub(self.now().as_nanos())
    }

    pub(super) fn skip(&self, nanos: u64) {
        self.ahead.fetch_add(nanos, Ordering::Relaxed);
    }
}

impl Clock for LogClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_nanos(self.ahead.load(Ordering::Relaxed)).saturating_add(self.start.elapsed())
    }
}

/// A policy on counters of its own.
#[derive(Clone, Debug)]
pub(super) struct Decider {
    limiter: RateLimiter,
    /// Whether a request that is admitted at once may be delayed, or settled by the status of
    /// its response.
    is_paced_or_settled: bool,
}

impl Decider {
    pub(super) fn new(policy: &Policy, clock: &LogClock) -> Result<Self, String> {
        let mut written = serde_json::to_value(policy).map_err(|error| error.to_string())?;
        let mut is_paced_or_settled = false;
        for rule in written["rules"].as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
            is_paced_or_settled |= ["charge_on", "refund_on", "smooth"].iter().any(|key| rule.contains_key(*key));
            // A layer rejects at once what may not wait, `acquire` only if the rule says so.
            if !rule.contains_key("exempt") {
                rule.entry("max_wait").or_insert(json!("0s"));
            }
        }
        let policy = serde_json::from_value::<Policy>(written).map_err(|error| error.to_string())?;
        let limiter = RateLimiter::builder().policy(policy).clock(clock.clone()).build();
        Ok(Self { limiter: limiter.map_err(|error| error.to_string())?, is_paced_or_settled })
    }

    /// The decision of a request that is admitted as it arrives. Any other is charged nothing.
    pub(super) fn at_once(&self, record: &Record) -> Option<Decision> {
        if self.is_paced_or_settled {
            return None;
        }
        self.limiter.try_check(&record.descriptor()).filter(Decision::is_allowed)
    }

    /// The decision, when the request leaves; `None` where a rejection does not tell more.
    pub(super) async fn decide(&self, record: &Record) -> Option<Decision> {
        match self.limiter.acquire(&record.descriptor(), Duration::MAX).await {
            Ok(permit) => {
                let decision = permit.decision().clone();
                // A request that the server rejected has no status of its own.
                let status = record.status.filter(|status| *status != 429);
                if let Some(status) = status.and_then(|status| http::StatusCode::from_u16(status).ok()) {
                    permit.finish(status);
                }
                Some(decision)
            }
            Err(rejected) => rejected.decision().cloned(),
        }
    }
}

fn is_concurrency(quota: &Quota) -> bool {
    quota.counted_by() == Algorithm::Concurrency
}

/// What a replay leaves out of a policy.
pub(super) fn notes(policy: &Policy) -> Vec<String> {
    let written = serde_json::to_value(policy).unwrap_or_default();
    let note = |(rule, written): (&Rule, &Value)| match written["shadow"] == true {
        true => Some(format!("rule `{}` is in shadow mode, so it rejects nothing and is not counted", rule.id())),
        false if written["match"]["headers"].is_object() => {
            Some(format!("rule `{}` is not replayed: a log does not have the headers that it is for", rule.id()))
        }
        false if rule.tiers().iter().any(is_concurrency) => Some(format!(
            "the concurrency limit of rule `{}` is not replayed: a log does not say how long requests ran",
            rule.id()
        )),
        false => None,
    };
    policy.rules().iter().zip(written["rules"].as_array().into_iter().flatten()).filter_map(note).collect()
}
