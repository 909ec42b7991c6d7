//! What a provider said about its limits, from its response: [`Parser`] reads
//! the fields, [`Signal`] is what they come to.
//!
//! | dialect | fields | its times are |
//! |---|---|---|
//! | [RFC 9110] | `Retry-After` | seconds, or a date |
//! | [IETF draft], 08 to 11 | `RateLimit: "burst";r=0;t=30`, `RateLimit-Policy` | seconds |
//! | IETF draft, 07 | `RateLimit: limit=100, remaining=0, reset=5` | seconds |
//! | IETF draft, 03 to 06 | `RateLimit-Limit`, `-Remaining`, `-Reset` | seconds; GitLab's since the epoch |
//! | GitHub | `x-ratelimit-limit`, `-remaining`, `-reset` | seconds since the epoch |
//! | X | `x-rate-limit-limit`, `-remaining`, `-reset` | seconds since the epoch |
//! | Envoy, and this crate | `x-ratelimit-limit`, `-remaining`, `-reset` | seconds |
//! | OpenAI | `x-ratelimit-limit-requests` and so on, `-tokens` | such as `6m0s`, `12ms` |
//! | Anthropic | `anthropic-ratelimit-requests-limit` and so on, `-tokens`, `-input-tokens`, `-output-tokens` | dates of RFC 3339 |
//! | Discord | `x-ratelimit-reset-after` beside GitHub's | seconds |
//! | Shopify | `X-Shopify-Shop-Api-Call-Limit: 32/40` | not told |
//! | Vimeo | as Envoy | dates |
//! | Akamai | `X-RateLimit-Next` beside `-limit`, `-remaining` | dates |
//! | gRPC, where the trailers are all there is | `grpc-retry-pushback-ms`; `RetryInfo` in `grpc-status-details-bin` | milliseconds; seconds and nanoseconds |
//!
//! 1. A rejection is a 429; a 503 with a `Retry-After`; a 403 with a
//!    `Retry-After`, or where nothing remains; gRPC's `RESOURCE_EXHAUSTED`, or
//!    `UNAVAILABLE` with a time.
//! 2. A rejection that says when holds back until then, and so does any answer
//!    that says that nothing remains, and when there is more.
//! 3. `Retry-After` goes before gRPC's pushback, its `RetryInfo`, the draft's
//!    `RateLimit` (08 and later), a vendor's seconds from now, and a vendor's
//!    points in time, in this order. Among equals the longest counts, be
//!    they quotas that are exhausted or lines of one field.
//! 4. A rejection by a quota that has some left is of another limit, which is
//!    not told: GitHub's secondary one. When that quota is reset does not
//!    matter then. Where it is not said how much is left, a rejection shows
//!    that nothing is.
//! 5. A signal only slows. What is malformed says nothing: it is neither
//!    permission nor a reason to wait. What says "now", or names a time that
//!    has passed, does not hold back: the next in precedence is asked.
//! 6. Nothing is longer than the [cap](Parser::cap).
//! 7. A point in time is counted from the response's own `Date`, so that it
//!    does not matter whose clock is wrong; without one from `now`.
//! 8. Where fields of one name have different forms, letters other than those
//!    of a unit are a date, a number above 1,000,000,000 is the second of the
//!    Unix epoch, and any other is seconds from now. Where that is wrong,
//!    [pin](Parser::dialect) the dialect.
//!
//! Work is bounded: a field's first 16 lines are looked at, and a list's first
//! 64 items. A line counts as malformed where it is longer than anything of
//! its kind: 128 bytes, 4,096 for the draft's lists, 8,192 for gRPC's details.
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

mod date;
mod dialect;
mod dimension;
mod fields;
mod form;
mod grpc;
mod ietf;
mod retry_info;
mod signal;
mod vendor;

use std::time::Duration;

use http::{
    HeaderMap, StatusCode,
    header::{DATE, RETRY_AFTER},
};

pub use self::{
    dialect::{Dialect, UnknownDialect},
    signal::Signal,
};
use self::{dimension::Survey, fields::Fields, form::Form, grpc::Trailers};
use crate::time::Timestamp;

/// Reads what providers say about their limits; see [the module](self).
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::headers::parse::{Dialect, Parser};
///
/// const PARSER: Parser = Parser::new().cap(Duration::from_secs(60)).dialect(Dialect::GitHub);
/// # let _ = PARSER;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parser {
    cap: Duration,
    dialect: Option<Dialect>,
}

impl Parser {
    /// Reads every [`Dialect`], and holds back for 10 minutes at most.
    #[must_use]
    pub const fn new() -> Self {
        Self { cap: Duration::from_secs(600), dialect: None }
    }

    /// What is longer is cut to this: everything that a [`Signal`] says.
    #[must_use]
    pub const fn cap(mut self, most: Duration) -> Self {
        self.cap = most;
        self
    }

    /// Reads this dialect only, and takes its times for what it says they
    /// are, rather than for what they look like. `Retry-After` is always
    /// read.
    #[must_use]
    pub const fn dialect(mut self, dialect: Dialect) -> Self {
        self.dialect = Some(dialect);
        self
    }

    /// What a response with this status and these headers, received at `now`,
    /// says.
    #[must_use]
    pub fn read(&self, status: StatusCode, headers: &HeaderMap, now: Timestamp) -> Signal {
        let fields = Fields::new(headers);
        // Of several dates, the one from which it is longest.
        let date = fields.lines(&DATE).filter_map(date::http).min();
        let from = date.unwrap_or(now);
        let retry_after = fields.lines(&RETRY_AFTER).filter_map(|line| Form::NumberOrDate.read(line));
        let retry_after = retry_after.map(|when| when.after(from)).max();
        let mut survey = Survey::default();
        ietf::read(fields, self.dialect, &mut survey);
        vendor::read(fields, self.dialect, from, &mut survey);
        let trailers = match self.dialect {
            None | Some(Dialect::Grpc) => grpc::read(fields),
            Some(_) => Trailers::default(),
        };

        let rejection = match status {
            StatusCode::TOO_MANY_REQUESTS => true,
            StatusCode::SERVICE_UNAVAILABLE => retry_after.is_some(),
            StatusCode::FORBIDDEN => retry_after.is_some() || survey.is_exhausted(),
            _ => false,
        };
        let rejection = rejection || trailers.rejection;
        let asked = retry_after.filter(|after| rejection && !after.is_zero());
        let asked = asked.map(|after| (after, Dialect::RetryAfter));
        let asked = asked.or(trailers.after.map(|after| (after, Dialect::Grpc)));
        let binding = survey.binding();
        let signal = Signal {
            rejection,
            no_retry: trailers.no_retry,
            cooldown: asked.or_else(|| survey.wait(rejection)),
            limit: binding.and_then(|binding| binding.limit),
            remaining: binding.and_then(|binding| binding.remaining),
            reset: binding.and_then(|binding| Some(binding.reset?.after)),
        };
        signal.cut(self.cap)
    }
}

impl Default for Parser {
    fn default() -> Self {
        Self::new()
    }
}
