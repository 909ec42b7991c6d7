//! What operators see of a policy that is watched.

/// What came of asking a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reload {
    /// Another policy is in force.
    Applied,
    /// What the source holds cannot be put in force.
    Rejected,
    /// The source did not answer, or holds nothing.
    Unavailable,
}

impl Reload {
    #[cfg(feature = "metrics")]
    fn as_str(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Rejected => "rejected",
            Self::Unavailable => "unavailable",
        }
    }

    pub(crate) fn count(self) {
        #[cfg(feature = "metrics")]
        metrics::counter!("rate_limiting.policy.reloads", "result" => self.as_str()).increment(1);
    }

    /// Tells operators. Whoever says so sees to it that it is said once.
    pub(crate) fn say(self, source: &str, why: &str) {
        #[cfg(feature = "tracing")]
        match self {
            Self::Applied => tracing::info!(source, "another policy is in force"),
            Self::Rejected => tracing::warn!(source, why, "the policy is rejected, and the last good one stays"),
            Self::Unavailable => tracing::warn!(source, why, "the policy cannot be had, and the last good one stays"),
        }
        #[cfg(not(feature = "tracing"))]
        let _ = (source, why);
    }

    /// A source that was away answers.
    pub(crate) fn returned(source: &str) {
        #[cfg(feature = "tracing")]
        tracing::info!(source, "the policy's source answers again");
        #[cfg(not(feature = "tracing"))]
        let _ = source;
    }
}
