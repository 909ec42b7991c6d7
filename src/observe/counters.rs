//! [`RuleCounters`]: the metrics of one rule's requests.

use std::{fmt, sync::OnceLock};

use super::request_result::RequestResult;

/// A rule's counters. Each is created at its first use, so a recorder may be
/// installed after the policy was built, and kept, so no label is built twice.
#[derive(Default)]
pub(crate) struct RuleCounters([OnceLock<metrics::Counter>; RequestResult::COUNT]);

impl RuleCounters {
    pub(crate) fn count(&self, rule: &'static str, result: RequestResult) {
        let counter = self.0[result as usize]
            .get_or_init(|| metrics::counter!("rate_limiting.requests", "rule" => rule, "result" => result.as_str()));
        counter.increment(1);
    }
}

impl fmt::Debug for RuleCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RuleCounters")
    }
}
