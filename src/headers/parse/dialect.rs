//! The dialects of rate limit headers, and their names.
//!
//! A dialect pins the fields to read and the form of their times.

use crate::names::names;

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
