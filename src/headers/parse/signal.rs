use std::time::Duration;

use super::Dialect;

/// What a response says about its provider's limits.
///
/// It is made by [`Parser::read`](super::Parser::read). No time in it is longer than the
/// parser's cap; the default is of a response that says nothing.
///
/// ```
/// use http::{HeaderMap, StatusCode};
/// use tower_ratelimit::{headers::parse::{Parser, Signal}, time::Timestamp};
///
/// let silent = Parser::new().read(StatusCode::OK, &HeaderMap::new(), Timestamp::UNIX_EPOCH);
/// assert_eq!(silent, Signal::default());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signal {
    pub(super) rejection: bool,
    pub(super) no_retry: bool,
    /// Of which dialect, and not zero once it is cut.
    pub(super) cooldown: Option<(Duration, Dialect)>,
    pub(super) limit: Option<u64>,
    pub(super) remaining: Option<u64>,
    pub(super) reset: Option<Duration>,
}

impl Signal {
    /// This, with nothing in it that is longer than `cap`.
    pub(super) fn cut(mut self, cap: Duration) -> Self {
        let cut = self.cooldown.map(|(after, dialect)| (after.min(cap), dialect));
        self.cooldown = cut.filter(|(after, _)| !after.is_zero());
        self.reset = self.reset.map(|after| after.min(cap));
        self
    }

    /// How long the key is to be held back, counted from the `now` that was
    /// read at. Never zero; `None`: the response gives no reason to wait, or
    /// does not say how long.
    #[must_use]
    pub const fn cooldown(&self) -> Option<Duration> {
        match self.cooldown {
            Some((after, _)) => Some(after),
            None => None,
        }
    }

    /// Whether the request was rejected because of a limit. It may be and say
    /// no time.
    #[must_use]
    pub const fn is_rejection(&self) -> bool {
        self.rejection
    }

    /// Whether the provider asks not to be sent the same request again: by a
    /// gRPC pushback that is negative, or that cannot be read (gRFC A6 has it
    /// so).
    #[must_use]
    pub const fn no_retry(&self) -> bool {
        self.no_retry
    }

    /// How much the binding dimension admits in all: of those that are
    /// exhausted the one to wait for, or else the one of which the least is
    /// left.
    #[must_use]
    pub const fn limit(&self) -> Option<u64> {
        self.limit
    }

    /// How much of it is left.
    #[must_use]
    pub const fn remaining(&self) -> Option<u64> {
        self.remaining
    }

    /// After what time there is more of it.
    #[must_use]
    pub const fn reset(&self) -> Option<Duration> {
        self.reset
    }

    /// Who said how long to [hold back](Self::cool_down).
    #[must_use]
    pub const fn dialect(&self) -> Option<Dialect> {
        match self.cooldown {
            Some((_, dialect)) => Some(dialect),
            None => None,
        }
    }
}
