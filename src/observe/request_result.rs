//! [`RequestResult`]: how a rule decided a request, as counters name it.

/// How a request was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestResult {
    Allowed,
    Delayed,
    Rejected,
    ShadowRejected,
    FailedOpen,
    FailedClosed,
    FailedLocal,
}

impl RequestResult {
    pub(crate) const COUNT: usize = 7;

    /// The label of a counter.
    #[cfg(any(feature = "metrics", feature = "tracing"))]
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Delayed => "delayed",
            Self::Rejected => "rejected",
            Self::ShadowRejected => "shadow_rejected",
            Self::FailedOpen => "failed_open",
            Self::FailedClosed => "failed_closed",
            Self::FailedLocal => "failed_local",
        }
    }
}
