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

mod dialect;
mod form;
mod grpc;
mod ietf;
mod limit;
mod retry_after;
mod signal;
mod vendor;

use std::time::Duration;

use http::{HeaderMap, StatusCode};

pub use self::{dialect::Dialect, signal::Signal};
use self::{
    form::{http_date, lines},
    grpc::Trailers,
    limit::{ReportedLimits, Reset},
    retry_after::RetryAfter,
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
            _ if rejection => retry_after::least(after, retry_after, reset),
            _ => after.saturating_sub(reset.map_or(Duration::ZERO, Reset::rounding)),
        });
        let signal = Signal {
            rejection,
            no_retry: trailers.no_retry,
            cooldown: cooldown.map(|(after, dialect)| (after, Some(dialect))),
            least: least.unwrap_or_default(),
            limit: binding.and_then(|binding| binding.limit),
            remaining: binding.and_then(|binding| binding.remaining),
            reset: binding.and_then(|binding| Some(binding.reset?.after)),
        };
        self.cut(signal)
    }

    /// The signal, with its times cut to the cap.
    pub(crate) fn cut(&self, signal: Signal) -> Signal {
        signal.cut(self.cap)
    }
}

impl Default for Parser {
    fn default() -> Self {
        Self::new()
    }
}
