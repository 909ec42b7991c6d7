//! [`RequestResult`]: how a rule decided a request, as counters name it, and
//! the counters of one rule's requests.

#[cfg(feature = "metrics")]
use std::sync::OnceLock;

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
}

impl RequestResult {
    pub(crate) const COUNT: usize = 8;

    /// The label of a counter.
    #[cfg(any(feature = "metrics", feature = "tracing"))]
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
        }
    }
}

/// The metrics of one rule's requests. Each is created at its first use, so a
/// recorder may be installed after the policy was built, and kept, so no label
/// is built twice.
#[cfg(feature = "metrics")]
#[derive(Debug, Default)]
pub(crate) struct RuleCounters([OnceLock<metrics::Counter>; RequestResult::COUNT]);

#[cfg(feature = "metrics")]
impl RuleCounters {
    pub(crate) fn count(&self, rule: &'static str, result: RequestResult) {
        let counter = self.0[result as usize]
            .get_or_init(|| metrics::counter!("rate_limiting.requests", "rule" => rule, "result" => result.as_str()));
        counter.increment(1);
    }
}
