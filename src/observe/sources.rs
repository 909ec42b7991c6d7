//! What operators see of the sources of a policy, of an instance's share, and of
//! settings that a backend ignores.

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
    #[cfg(feature = "metrics")]
    fn as_str(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Rejected => "rejected",
            Self::Unavailable => "unavailable",
        }
    }

    /// Lets the counters start at 0, from where the first event is an increase.
    pub(crate) fn start() {
        #[cfg(feature = "metrics")]
        for result in [Self::Applied, Self::Rejected, Self::Unavailable] {
            result.counter().increment(0);
        }
    }

    #[cfg(feature = "metrics")]
    fn counter(self) -> metrics::Counter {
        metrics::counter!("rate_limiting.policy.reloads", "result" => self.as_str())
    }

    pub(crate) fn count(self) {
        #[cfg(feature = "metrics")]
        self.counter().increment(1);
    }

    /// Whether the policy in force is that of its source.
    pub(crate) fn is_current(source: &str, is_current: bool) {
        #[cfg(feature = "metrics")]
        metrics::gauge!("rate_limiting.policy.current", "source" => source.to_owned())
            .set(f64::from(u8::from(is_current)));
        #[cfg(not(feature = "metrics"))]
        let _ = (source, is_current);
    }

    /// Logs the result, and how many rules are in force. The caller logs each change
    /// once.
    pub(crate) fn log(self, source: &str, why: &str, rules: usize) {
        let problem = match self {
            Self::Applied => {
                #[cfg(feature = "tracing")]
                tracing::info!(source, rules, "a new policy is in force");
                #[cfg(not(feature = "tracing"))]
                let _ = rules;
                return;
            }
            Self::Rejected => "policy rejected",
            Self::Unavailable => "policy source unavailable",
        };
        #[cfg(feature = "tracing")]
        tracing::warn!(source, why, "{problem}; the last good policy stays in force");
        super::mistakes::say_unheard(&format_args!("{problem}; the last good policy stays in force: {source}: {why}"));
    }

    /// Logs that a source is available again.
    pub(crate) fn log_recovery(source: &str) {
        #[cfg(feature = "tracing")]
        tracing::info!(source, "policy source available again");
        #[cfg(not(feature = "tracing"))]
        let _ = source;
    }
}

/// Logs that the backend ignores a rule's consistency level. The caller logs it
/// once.
pub(crate) fn log_ignored_level(rule: &str, consistency: &str) {
    #[cfg(feature = "tracing")]
    tracing::warn!(rule, consistency, "the backend ignores the consistency level; it decides this rule as any other");
    #[cfg(not(feature = "tracing"))]
    let _ = (rule, consistency);
}

/// Logs a problem of the source of this instance's share. The caller logs each
/// problem once.
pub(crate) fn log_share_source(source: &str, problem: &str) {
    #[cfg(feature = "tracing")]
    tracing::warn!(source, problem, "the source of this instance's share has a problem");
    #[cfg(not(feature = "tracing"))]
    let _ = (source, problem);
}
