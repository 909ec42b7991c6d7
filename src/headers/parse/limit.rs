//! The limits that one response reports, each in a [`Dialect`], and the one that binds.
//!
//! A dialect pins the fields to read and the form of their times. Invariant: of several limits,
//! an exhausted one binds; among those, the one to wait for longest.

use std::{cmp::Reverse, time::Duration};

use smallvec::SmallVec;

use super::form::When;
use crate::{names::names, time::Timestamp, unit::Unit};

/// A set of fields in which an upstream reports its limits.
///
/// ```
/// use tower_ratelimit::headers::parse::Dialect;
///
/// assert_eq!("openai".parse(), Ok(Dialect::OpenAi));
/// assert_eq!(Dialect::Ietf07.to_string(), "ietf-07");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dialect {
    /// `Retry-After` of RFC 9110, and no other field.
    RetryAfter,
    /// `RateLimit` and `RateLimit-Policy` of the IETF's Internet-Draft, versions 08
    /// and later.
    Ietf,
    /// `RateLimit` of version 07 of that draft: one dictionary.
    Ietf07,
    /// `RateLimit-Limit`, `-Remaining` and `-Reset` of versions 03 to 06, and
    /// of GitLab.
    Ietf03,
    /// `x-ratelimit-*`, with a reset in seconds since the Unix epoch.
    GitHub,
    /// `x-rate-limit-*`, with a reset in seconds since the Unix epoch.
    X,
    /// `x-ratelimit-*`, with a reset in seconds from now: Envoy, this crate and
    /// many others.
    Envoy,
    /// `x-ratelimit-*-requests` and `-tokens`, with a reset after a duration
    /// such as `6m0s`.
    OpenAi,
    /// `anthropic-ratelimit-*`, with a reset at a date of RFC 3339.
    Anthropic,
    /// `x-ratelimit-*` with a `-reset-after` in seconds, which may have a
    /// fraction.
    Discord,
    /// `X-Shopify-Shop-Api-Call-Limit: 32/40`.
    Shopify,
    /// `x-ratelimit-*`, with a reset at a date.
    Vimeo,
    /// `X-RateLimit-Next`: the date of the next reset.
    Akamai,
    /// The trailers of a trailers-only gRPC response: `grpc-status`,
    /// `grpc-retry-pushback-ms`, and a `RetryInfo` in
    /// `grpc-status-details-bin`.
    Grpc,
}

names!(Dialect, "dialect of rate limit headers", {
    RetryAfter => "retry-after",
    Ietf => "ietf",
    Ietf07 => "ietf-07",
    Ietf03 => "ietf-03",
    GitHub => "github",
    X => "x",
    Envoy => "envoy",
    OpenAi => "openai",
    Anthropic => "anthropic",
    Discord => "discord",
    Shopify => "shopify",
    Vimeo => "vimeo",
    Akamai => "akamai",
    Grpc => "grpc",
});

/// How far to trust a reset, most trusted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Precedence {
    /// The `RateLimit` of the IETF's draft.
    RateLimit,
    /// A vendor's field with seconds from now.
    Delay,
    /// A vendor's field with a point in time, which depends on two clocks.
    Date,
}

/// When a limit resets, and how that was reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reset {
    pub(super) precedence: Precedence,
    pub(super) after: Duration,
}

impl Reset {
    pub(super) const fn new(when: When, from: Timestamp) -> Self {
        let precedence = match when {
            When::After(_) => Precedence::Delay,
            When::Epoch(_) | When::Date(_) => Precedence::Date,
        };
        Self { precedence, after: when.after(from) }
    }

    /// Merges two lines of one field.
    pub(super) fn merge(self, other: Self) -> Self {
        Self { precedence: self.precedence.min(other.precedence), after: self.after.max(other.after) }
    }

    /// By how much at most `after` exceeds the actual time. Servers round whole
    /// seconds up. A point in time is counted from a `Date` that is rounded down,
    /// and that uvicorn, for one, renews only once a second. Some servers also add
    /// a second to the point in time.
    pub(super) const fn rounding(self) -> Duration {
        match self.precedence {
            Precedence::Date => Duration::from_secs(3),
            Precedence::RateLimit | Precedence::Delay if self.after.subsec_nanos() == 0 => Duration::from_secs(1),
            Precedence::RateLimit | Precedence::Delay => Duration::ZERO,
        }
    }
}

/// One limit, such as requests or tokens per minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReportedLimit {
    pub(super) dialect: Dialect,
    /// What it counts, where that is reported and any policy has the unit.
    pub(super) unit: Option<Unit>,
    pub(super) limit: Option<u64>,
    pub(super) remaining: Option<u64>,
    pub(super) reset: Option<Reset>,
}

impl ReportedLimit {
    const fn is_exhausted(&self) -> bool {
        matches!(self.remaining, Some(0))
    }

    /// The reset, if it is not now.
    fn wait(&self) -> Option<Reset> {
        self.reset.filter(|reset| !reset.after.is_zero())
    }

    /// A key that is smallest for the limit that binds.
    fn order(&self) -> impl Ord + use<> {
        let wait = self.wait();
        // Exhausted limits are ordered by trust, the others by their share
        // left.
        let trust = wait.filter(|_| self.is_exhausted()).map_or(Precedence::Date, |wait| wait.precedence);
        let after = wait.map(|wait| wait.after);
        (self.share(), self.is_exhausted() && wait.is_none(), trust, Reverse(after), self.remaining, self.limit)
    }

    /// The share that is left, in millionths. The largest value if it was not
    /// reported.
    fn share(&self) -> u128 {
        match (self.remaining, self.limit) {
            (Some(0), _) => 0,
            (Some(remaining), Some(limit @ 1..)) => (u128::from(remaining) * 1_000_000).div_ceil(u128::from(limit)),
            (Some(_), _) => u128::MAX - 1,
            (None, _) => u128::MAX,
        }
    }
}

/// All limits that a response reports, of those that count.
pub(super) struct ReportedLimits<'f> {
    counts: &'f dyn Fn(Option<Unit>) -> bool,
    limits: SmallVec<[ReportedLimit; 4]>,
}

impl<'f> ReportedLimits<'f> {
    pub(super) fn new(counts: &'f dyn Fn(Option<Unit>) -> bool) -> Self {
        Self { counts, limits: SmallVec::new() }
    }

    pub(super) fn add(&mut self, limit: ReportedLimit) {
        if (self.counts)(limit.unit) {
            self.limits.push(limit);
        }
    }

    pub(super) fn binding(&self) -> Option<&ReportedLimit> {
        self.limits.iter().min_by_key(|limit| limit.order())
    }

    pub(super) fn is_exhausted(&self) -> bool {
        self.binding().is_some_and(ReportedLimit::is_exhausted)
    }

    /// The wait for the exhausted limit. A limit that reports no remainder
    /// counts as exhausted only if the request was rejected; then the longest wait counts.
    pub(super) fn wait(&self, rejection: bool) -> Option<(Reset, Dialect)> {
        let wait = |limit: &ReportedLimit| Some((limit.wait()?, limit.dialect));
        let exhausted = self.binding().filter(|binding| binding.is_exhausted()).and_then(wait);
        let without_remaining = self.limits.iter().filter(|limit| rejection && limit.remaining.is_none());
        let trusted = |(reset, _): &(Reset, Dialect)| (reset.precedence, Reverse(reset.after));
        exhausted.or_else(|| without_remaining.filter_map(wait).min_by_key(trusted))
    }
}
