//! Reads the limits that an upstream reports: [`Parser`] reads the fields of a
//! response, [`Signal`] is the result.
//!
//! | dialect | fields | form of times |
//! |---|---|---|
//! | [RFC 9110] | `Retry-After` | seconds, or a date |
//! | Azure, OpenAI | `retry-after-ms`, beside `Retry-After` | milliseconds |
//! | [IETF draft], 08 to 11 | `RateLimit: "burst";r=0;t=30`, `RateLimit-Policy` | seconds |
//! | IETF draft, 07 | `RateLimit: limit=100, remaining=0, reset=5` | seconds |
//! | IETF draft, 03 to 06 | `RateLimit-Limit`, `-Remaining`, `-Reset` | seconds; GitLab's since the epoch |
//! | GitHub | `x-ratelimit-limit`, `-remaining`, `-reset` | seconds since the epoch |
//! | X | `x-rate-limit-limit`, `-remaining`, `-reset` | seconds since the epoch |
//! | Envoy, and this crate | `x-ratelimit-limit`, `-remaining`, `-reset` | seconds |
//! | OpenAI | `x-ratelimit-limit-requests` and so on, `-tokens` | such as `6m0s`, `12ms` |
//! | Anthropic | `anthropic-ratelimit-requests-limit` and so on, `-tokens`, `-input-tokens`, `-output-tokens` | dates of RFC 3339 |
//! | Discord | `x-ratelimit-reset-after` beside GitHub's | seconds |
//! | Shopify | `X-Shopify-Shop-Api-Call-Limit: 32/40` | none |
//! | Vimeo | as Envoy | dates |
//! | Akamai | `X-RateLimit-Next` beside `-limit`, `-remaining` | dates |
//! | gRPC, trailers-only | `grpc-retry-pushback-ms`; `RetryInfo` in `grpc-status-details-bin` | milliseconds; seconds and nanoseconds |
//!
//! 1. A rejection is a 429; a 503 with `Retry-After`; a 403 with `Retry-After`
//!    or with nothing remaining; gRPC's `RESOURCE_EXHAUSTED`; `UNAVAILABLE`
//!    with a time; and every status that the parser is
//!    [told of](Parser::rejection_statuses).
//! 2. A rejection with a time asks for a cooldown until then. So does any
//!    response that reports nothing remaining and a reset.
//! 3. Precedence: `Retry-After`, gRPC's pushback, its `RetryInfo`, the draft's
//!    `RateLimit` (08 and later), a vendor's seconds from now, a vendor's
//!    points in time. Among equals the longest counts.
//! 4. A rejection with units remaining comes from a limit that is not reported,
//!    such as GitHub's secondary limit. The reported reset is then ignored. If
//!    no remainder is reported, a rejection shows that nothing remains.
//! 5. A signal only slows. Malformed fields are ignored: they neither permit
//!    nor delay. A field that says "now", or names a time that has passed, asks
//!    for no cooldown: the next in precedence counts.
//! 6. Every time is cut to the [cap](Parser::cap). A number that is a point in time
//!    more than a year (366 days) away is malformed.
//! 7. Points in time are counted from the response's own `Date`, so that clock
//!    skew does not matter. Without `Date` they are counted from `now`.
//! 8. If a field name is used with several forms, letters other than a unit are
//!    a date, a number above 1,000,000,000 is a Unix timestamp, and any other
//!    number is seconds from now. If that is wrong, [pin](Parser::dialect) the
//!    dialect. A timestamp above 10^11 is in milliseconds, above 10^14 in
//!    microseconds, above 10^17 in nanoseconds.
//! 9. All fields but the draft's lists and gRPC's are read leniently. A value may have
//!    parameters (`76;w=21600`), which are ignored. Of values that a proxy has joined
//!    (`30, 30`) the most cautious counts: the least remaining, the latest time; of
//!    `-limit`, as Envoy sends it, the first. A number may lack its whole part (`.5`), a
//!    time may have units (`30s`), an HTTP-date `UTC` or an offset in place of `GMT`, and
//!    a date of RFC 3339 may lack its seconds.
//!
//! Work is bounded: the parser reads the first 16 lines of a field and the
//! first 64 items of a list. Longer lines count as malformed: 128 bytes, 4,096
//! for the draft's lists, 8,192 for gRPC's details.
//!
//! ```
//! use std::time::Duration;
//! use http::{HeaderMap, HeaderValue, StatusCode, header::RETRY_AFTER};
//! use tower_ratelimit::{headers::parse::{Dialect, Parser}, time::Timestamp};
//!
//! let headers = HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static("2"))]);
//! let now = Timestamp::from_secs(1_700_000_000);
//!
//! let signal = Parser::new().read(StatusCode::TOO_MANY_REQUESTS, &headers, now);
//! assert!(signal.is_rejection());
//! assert_eq!(signal.cooldown(), Some(Duration::from_secs(2)));
//! assert_eq!(signal.dialect(), Some(Dialect::RetryAfter));
//! ```
//!
//! [IETF draft]: https://datatracker.ietf.org/doc/draft-ietf-httpapi-ratelimit-headers/
//! [RFC 9110]: https://www.rfc-editor.org/rfc/rfc9110#section-10.2.3

mod form;
mod grpc;
mod ietf;
mod limit;
mod vendor;

use std::time::Duration;

use http::{HeaderMap, StatusCode};

pub use self::limit::Dialect;
use self::{
    form::{Form, counts, http_date, lines},
    grpc::Trailers,
    limit::{ReportedLimits, Reset},
};
use super::statuses::Statuses;
use crate::{time::Timestamp, unit::Unit};

/// Reads the limits that upstreams report; see [the module](self).
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::headers::parse::{Dialect, Parser};
///
/// const PARSER: Parser = Parser::new().cap(Duration::from_secs(60)).dialect(Dialect::GitHub);
/// # let _ = PARSER;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Parser {
    cap: Duration,
    dialect: Option<Dialect>,
    /// `None`: 429 and 503.
    rejections: Option<Statuses>,
}

impl Parser {
    /// Reads every [`Dialect`], with a cap of 10 minutes.
    pub const fn new() -> Self {
        Self { cap: Duration::from_secs(600), dialect: None, rejections: None }
    }

    /// The longest time in a [`Signal`]. Longer ones are cut to it.
    pub const fn cap(mut self, most: Duration) -> Self {
        self.cap = most;
        self
    }

    /// Reads only this dialect, and its times only in this dialect's form.
    /// `Retry-After` is always read.
    pub const fn dialect(mut self, dialect: Dialect) -> Self {
        self.dialect = Some(dialect);
        self
    }

    /// The statuses that are rejections, whatever fields the response has, in addition to
    /// what [the module](self) lists. If they have a time, it is obeyed as that of a 429.
    /// [`UpstreamFeedback`](crate::middleware::UpstreamFeedback) and
    /// `RetryPolicy` follow the same list, and add a bare 503 where no list is set.
    ///
    /// ```
    /// use std::time::Duration;
    /// use http::{HeaderMap, HeaderValue, StatusCode, header::RETRY_AFTER};
    /// use tower_ratelimit::{headers::parse::Parser, time::Timestamp};
    ///
    /// // This upstream answers with 529 while it is overloaded.
    /// let parser = Parser::new().rejection_statuses([429, 529]);
    /// let headers = HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static("120"))]);
    /// let signal = parser.read(StatusCode::from_u16(529).unwrap(), &headers, Timestamp::from_secs(1_700_000_000));
    /// assert_eq!(signal.cooldown(), Some(Duration::from_secs(120)));
    /// ```
    pub fn rejection_statuses(mut self, statuses: impl Into<Statuses>) -> Self {
        self.rejections = Some(statuses.into());
        self
    }

    /// The same parser, with the list of another one if it has none.
    pub(crate) const fn or_rejections_of(mut self, other: &Self) -> Self {
        if self.rejections.is_none() {
            self.rejections = other.rejections;
        }
        self
    }

    /// Whether a status is a rejection even without a time.
    pub(crate) fn lists(&self, status: StatusCode) -> bool {
        match &self.rejections {
            Some(statuses) => statuses.contains(status),
            None => matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE),
        }
    }

    /// Reads a response with this status and these headers, received at `now`.
    #[must_use]
    pub fn read(&self, status: StatusCode, headers: &HeaderMap, now: Timestamp) -> Signal {
        self.read_where(status, headers, now, &|_| true)
    }

    /// The same, as if the response reported only the limits whose unit `counts`.
    pub(crate) fn read_where(
        &self,
        status: StatusCode,
        headers: &HeaderMap,
        now: Timestamp,
        counts: &dyn Fn(Option<Unit>) -> bool,
    ) -> Signal {
        // The earliest of several dates gives the longest delay.
        let date = lines(headers, "date").filter_map(http_date).min();
        let from = date.unwrap_or(now);
        let retry_after = RetryAfter::read(headers, from);
        let mut limits = ReportedLimits::new(counts);
        ietf::read(headers, self.dialect, &mut limits);
        vendor::read(headers, self.dialect, from, &mut limits);
        let trailers = match self.dialect {
            None | Some(Dialect::Grpc) => grpc::read(headers),
            Some(_) => Trailers::default(),
        };

        let rejection = match status {
            StatusCode::TOO_MANY_REQUESTS => true,
            _ if self.rejections.is_some() && self.lists(status) => true,
            StatusCode::SERVICE_UNAVAILABLE => retry_after.after.is_some(),
            StatusCode::FORBIDDEN => retry_after.after.is_some() || limits.is_exhausted(),
            _ => false,
        };
        let rejection = rejection || trailers.rejection;
        let asked = retry_after.after.filter(|after| rejection && !after.is_zero());
        let asked = asked.map(|after| (after, Dialect::RetryAfter));
        let asked = asked.or(trailers.after.map(|after| (after, Dialect::Grpc)));
        let binding = limits.binding();
        let wait = limits.wait(rejection);
        let reset = wait.map(|(reset, _)| reset);
        let cooldown = asked.or(wait.map(|(reset, dialect)| (reset.after, dialect)));
        let least = cooldown.map(|(after, dialect)| match dialect {
            Dialect::Grpc => after,
            _ if rejection => retry_after.least(after, reset),
            _ => after.saturating_sub(reset.map_or(Duration::ZERO, Reset::rounding)),
        });
        self.cut(Signal {
            rejection,
            no_retry: trailers.no_retry,
            cooldown: cooldown.map(|(after, dialect)| (after, Some(dialect))),
            least: least.unwrap_or_default(),
            limit: binding.and_then(|binding| binding.limit),
            remaining: binding.and_then(|binding| binding.remaining),
            reset: binding.and_then(|binding| Some(binding.reset?.after)),
        })
    }

    /// The signal, with its times cut to the cap.
    pub(crate) fn cut(&self, mut signal: Signal) -> Signal {
        let cooldown = signal.cooldown.map(|(after, dialect)| (after.min(self.cap), dialect));
        signal.cooldown = cooldown.filter(|(after, _)| !after.is_zero());
        signal.reset = signal.reset.map(|after| after.min(self.cap));
        signal
    }
}

impl Default for Parser {
    fn default() -> Self {
        Self::new()
    }
}

/// What a response says about its upstream's limits.
///
/// [`Parser::read`] returns it. No time in it exceeds the
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
    rejection: bool,
    no_retry: bool,
    /// Never zero once cut to the cap. The dialect is unknown if no field said it.
    cooldown: Option<(Duration, Option<Dialect>)>,
    /// The least time that the cooldown can stand for.
    least: Duration,
    limit: Option<u64>,
    remaining: Option<u64>,
    reset: Option<Duration>,
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

/// What `Retry-After` asks for, and `retry-after-ms` beside it, which some servers add because
/// whole seconds are too coarse for them.
#[derive(Clone, Copy, Debug, Default)]
struct RetryAfter {
    /// The longest of both fields. Zero: now.
    after: Option<Duration>,
    millis: Option<Duration>,
}

impl RetryAfter {
    fn read(headers: &HeaderMap, from: Timestamp) -> Self {
        let seconds = Form::Any.times(headers, "retry-after", from).map(|when| when.after(from)).max();
        let millis = counts(headers, "retry-after-ms").map(Duration::from_millis).max();
        Self { after: seconds.max(millis), millis }
    }

    /// The least time that a rejection's `after` can stand for. A whole second is
    /// the shortest time that the field can name, and says only that it is less,
    /// unless another field is finer. From two seconds on, it is what was asked for.
    fn least(self, after: Duration, reset: Option<Reset>) -> Duration {
        const SECOND: Duration = Duration::from_secs(1);
        if after.subsec_nanos() != 0 {
            return after;
        }
        let reset = reset.filter(|reset| reset.rounding().is_zero()).map(|reset| reset.after);
        let is_finer = |finer: &Duration| *finer < after && finer.saturating_add(SECOND) > after;
        let finer = [self.millis, reset].into_iter().flatten().filter(is_finer).max();
        finer.unwrap_or(if after == SECOND { Duration::ZERO } else { after })
    }
}

#[cfg(test)]
#[path = "tests/retry_after.rs"]
mod tests;
