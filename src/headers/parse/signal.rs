//! What an upstream reported in one response.
//!
//! No time in a signal exceeds the parser's cap.

use std::time::Duration;

use super::Dialect;

/// What a response says about its upstream's limits.
///
/// [`Parser::read`](super::Parser::read) returns it. No time in it exceeds the
/// parser's cap. The default is the signal of a response that reports nothing.
/// For an upstream that says it elsewhere, see
/// [`UpstreamFeedback::read_with`](crate::middleware::UpstreamFeedback::read_with).
///
/// ```
/// use http::{HeaderMap, StatusCode};
/// use tower_ratelimit::{headers::parse::{Parser, Signal}, time::Timestamp};
///
/// let silent = Parser::new().read(StatusCode::OK, &HeaderMap::new(), Timestamp::UNIX_EPOCH);
/// assert_eq!(silent, Signal::default());
///
/// let rejected = Signal::rejection().with_cooldown(std::time::Duration::from_secs(60));
/// assert!(rejected.is_rejection());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signal {
    pub(super) rejection: bool,
    pub(super) no_retry: bool,
    /// Never zero once cut to the cap. The dialect is unknown if no field said it.
    pub(super) cooldown: Option<(Duration, Option<Dialect>)>,
    /// The least time that the cooldown can stand for.
    pub(super) least: Duration,
    pub(super) limit: Option<u64>,
    pub(super) remaining: Option<u64>,
    pub(super) reset: Option<Duration>,
}

impl Signal {
    /// The request was rejected because of a limit, and no time is known.
    #[must_use]
    pub const fn rejection() -> Self {
        Self {
            rejection: true,
            no_retry: false,
            cooldown: None,
            least: Duration::ZERO,
            limit: None,
            remaining: None,
            reset: None,
        }
    }

    /// The upstream asks for a cooldown of this time, which is exact. Zero: of none.
    /// Without a [`rejection`](Self::rejection) it says that nothing remains until then.
    #[must_use]
    pub const fn with_cooldown(mut self, time: Duration) -> Self {
        self.cooldown = if time.is_zero() { None } else { Some((time, None)) };
        self.least = time;
        self
    }

    /// Cuts every time to `cap`.
    pub(super) fn cut(mut self, cap: Duration) -> Self {
        let cut = self.cooldown.map(|(after, dialect)| (after.min(cap), dialect));
        self.cooldown = cut.filter(|(after, _)| !after.is_zero());
        self.reset = self.reset.map(|after| after.min(cap));
        self
    }

    /// The cooldown that the upstream asks for, counted from the `now` of the
    /// read. Never zero. `None`: the response asks for none, or names no time.
    #[must_use]
    pub const fn cooldown(&self) -> Option<Duration> {
        match self.cooldown {
            Some((after, _)) => Some(after),
            None => None,
        }
    }

    /// The least time that the cooldown can stand for: servers round times up
    /// to whole seconds.
    pub(crate) fn least_cooldown(&self) -> Option<Duration> {
        Some(self.cooldown()?.min(self.least))
    }

    /// Whether the upstream rejected the request because of a limit. It may do
    /// so without a time.
    #[must_use]
    pub const fn is_rejection(&self) -> bool {
        self.rejection
    }

    /// Whether the upstream asks not to repeat the request, by a gRPC pushback
    /// that is negative or unreadable (gRFC A6).
    #[must_use]
    pub const fn no_retry(&self) -> bool {
        self.no_retry
    }

    /// The binding limit: of those that are exhausted the one to wait for, or
    /// else the one with the smallest share left.
    #[must_use]
    pub const fn limit(&self) -> Option<u64> {
        self.limit
    }

    /// The units of the binding limit that remain.
    #[must_use]
    pub const fn remaining(&self) -> Option<u64> {
        self.remaining
    }

    /// The time until the binding limit resets.
    #[must_use]
    pub const fn reset(&self) -> Option<Duration> {
        self.reset
    }

    /// The dialect of the [`cooldown`](Self::cooldown).
    #[must_use]
    pub const fn dialect(&self) -> Option<Dialect> {
        match self.cooldown {
            Some((_, dialect)) => dialect,
            None => None,
        }
    }
}
