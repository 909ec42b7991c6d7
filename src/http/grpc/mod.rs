//! The gRPC side: what a gRPC or gRPC-Web client sees of a rejection.
//!
//! Clients read a bare 429 as `UNAVAILABLE` and retry at once, so the status is always in
//! `grpc-status`: as headers ([`rejection`]), as trailers of a stream ([`trailers`]) or
//! as a `tonic::Status`. The invariant: all three have the same code, message and details.

mod details;

use std::{fmt::Write, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, header::CONTENT_TYPE};
use http_body_util::Full;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use self::details::{base64, code, details};
use crate::{
    decision::RateLimited,
    headers::{Headers, delay},
    jitter::draw,
    time::nanos,
};

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_STATUS_DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
const GRPC_RETRY_PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// Visible ASCII and spaces are not escaped, except for the escape character.
const ESCAPED: &AsciiSet = &CONTROLS.add(b'%');

/// The longest message. Callers accept about 8 KiB of headers in all, and a
/// rule's name may have any length.
const LONGEST_MESSAGE: usize = 1_024;

/// The capacity of a new header map.
const HEADERS: usize = 11;

/// The whole response, in headers alone (trailers-only). The rejection is in
/// its extensions.
pub(crate) fn rejection(
    rejection: RateLimited,
    headers: &Headers,
    content_type: HeaderValue,
    pushback: bool,
) -> Response<Full<Bytes>> {
    let mut map = HeaderMap::with_capacity(HEADERS);
    map.insert(CONTENT_TYPE, content_type);
    let after = headers.stamp_rejection(&mut map, &rejection).exactly();
    put_status(&mut map, &rejection, after);
    if pushback {
        map.insert(GRPC_RETRY_PUSHBACK, pushback_of(after));
    }
    let mut response = Response::new(Full::default());
    *response.headers_mut() = map;
    response.extensions_mut().insert(rejection);
    response
}

/// The trailers that end a stream early. They carry no rate limit headers and
/// no pushback.
pub(crate) fn trailers(rejection: &RateLimited) -> HeaderMap {
    let mut map = HeaderMap::with_capacity(3);
    put_status(&mut map, rejection, delay(rejection));
    map
}

/// Adds the status, as headers or trailers.
fn put_status(map: &mut HeaderMap, rejection: &RateLimited, after: Option<Duration>) {
    let message = message(rejection);
    map.insert(GRPC_STATUS, HeaderValue::from(code(rejection.kind())));
    if let Some(details) = details(rejection, after, &message) {
        insert(map, GRPC_STATUS_DETAILS, base64(&details));
    }
    insert(map, GRPC_MESSAGE, utf8_percent_encode(&message, ESCAPED).to_string());
}

/// Inserts visible ASCII.
fn insert(map: &mut HeaderMap, name: HeaderName, value: String) {
    if let Ok(value) = HeaderValue::from_maybe_shared(Bytes::from(value)) {
        map.insert(name, value);
    }
}

/// The rejection's message, cut to the longest one.
fn message(rejection: &RateLimited) -> String {
    let mut message = String::with_capacity(96);
    let _ = write!(message, "{rejection}");
    let end = (0..=LONGEST_MESSAGE.min(message.len())).rev().find(|&end| message.is_char_boundary(end));
    message.truncate(end.unwrap_or(0));
    message
}

/// Whole milliseconds, rounded up; negative if the call must not be retried.
/// Clients return after exactly this time, without a jitter of their own. So a
/// random time is added, of up to a tenth and at most ten seconds.
fn pushback_of(after: Option<Duration>) -> HeaderValue {
    const MOST_JITTER: u64 = 10_000_000_000;
    let Some(after) = after else { return HeaderValue::from_static("-1") };
    let jitter = draw((nanos(after) / 10).min(MOST_JITTER));
    // Clients parse it as 32 bits.
    let millis = after.as_nanos().saturating_add(jitter.into()).div_ceil(1_000_000).min(i32::MAX as u128);
    HeaderValue::from(u32::try_from(millis).unwrap_or(u32::MAX))
}

#[cfg(feature = "tonic")]
impl RateLimited {
    /// The rejection as a gRPC status, as the layer answers it. For handlers
    /// that ask a [`RateLimiter`](crate::RateLimiter) themselves.
    ///
    /// | reason | code |
    /// |---|---|
    /// | a quota | `RESOURCE_EXHAUSTED` |
    /// | a failed backend, or a [`Backoff`](crate::Backoff) | `UNAVAILABLE` |
    /// | a missing tenant | `UNAUTHENTICATED` |
    /// | an ambiguous tenant | `INVALID_ARGUMENT` |
    ///
    /// Its details are `google.rpc.RetryInfo`, unless a retry can never pass,
    /// and `google.rpc.QuotaFailure` with the names of the tiers that rejected.
    ///
    /// ```
    /// use tonic::{Request, Response, Status};
    /// use tower_ratelimit::{Descriptor, RateLimiter};
    ///
    /// async fn export(limiter: &RateLimiter, request: Request<()>) -> Result<Response<()>, Status> {
    ///     let export = Descriptor::new("/shop.v1.Products/Export").tenant("acme").cost(50);
    ///     let _permit = limiter.acquire(&export, std::time::Duration::ZERO).await?;
    ///     Ok(Response::new(()))
    /// }
    /// ```
    #[must_use]
    pub fn to_status(&self) -> tonic::Status {
        let (code, message) = (code(self.kind()), message(self));
        let details = details(self, delay(self), &message).unwrap_or_default();
        tonic::Status::with_details(i32::from(code).into(), message, details.into())
    }
}

/// See [`RateLimited::to_status`].
#[cfg(feature = "tonic")]
impl From<RateLimited> for tonic::Status {
    fn from(rejection: RateLimited) -> Self {
        rejection.to_status()
    }
}

#[cfg(test)]
mod tests;
