//! Rejections as responses: [`problem`] over HTTP, with problem details (RFC 9457), and
//! [`grpc`], which a gRPC or gRPC-Web client understands.
//!
//! gRPC's clients read a bare 429 as `UNAVAILABLE` and retry at once, so the status is always in
//! `grpc-status`: as headers, as trailers of a stream ([`grpc_trailers`]) or as a
//! `tonic::Status`. Invariants: all three have the same code, message and details, and a
//! response over HTTP must not be stored by caches (RFC 6585).

use std::{convert::identity, fmt::Write, time::Duration};

use base64::Engine as _;
use bytes::{BufMut, Bytes, BytesMut};
use http::{
    HeaderMap, HeaderName, HeaderValue, Response, StatusCode,
    header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE},
};
use http_body_util::Full;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use crate::{
    decision::{RateLimited, RateLimitedKind, TierStatus},
    descriptor::grpc::BASE64,
    headers::{Buffer, Delays, Headers, delay, put_integer, put_name},
    jitter::draw,
    time::nanos,
};

const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// The whole response, in the memory of a message's headers and extensions. The rejection
/// is in its extensions.
pub(crate) fn problem<B>(
    rejection: RateLimited,
    headers: &Headers,
    memory: Response<()>,
    body: impl FnOnce(Full<Bytes>) -> B,
) -> Response<B> {
    let (mut parts, ()) = memory.into_parts();
    parts.headers.clear();
    parts.extensions.clear();
    let tiers = rejection.decision().map_or(&[][..], |decision| decision.tiers());
    let seconds = stamp(&mut parts.headers, &rejection, headers).retry_after(tiers);
    let (text, length) = Buffer::with(|buffer| {
        let text = buffer.text(|out| put_document(out, &rejection, seconds));
        let length = buffer.integer(text.len() as u64);
        (text, length)
    });
    parts.headers.insert(CONTENT_TYPE, PROBLEM);
    parts.headers.insert(CONTENT_LENGTH, length);
    parts.status = rejection.status();
    parts.extensions.insert(rejection);
    Response::from_parts(parts, body(Full::new(text)))
}

/// The headers of any response to a rejection, whatever its body is.
pub(crate) fn headers(rejection: &RateLimited, headers: &Headers) -> HeaderMap {
    let mut map = HeaderMap::new();
    stamp(&mut map, rejection, headers);
    map
}

impl RateLimited {
    /// The HTTP response to the rejection, as the layer answers it: problem
    /// details, `Retry-After` and the default [`Headers`]. The rejection is in its
    /// extensions. For handlers that ask a [`RateLimiter`](crate::RateLimiter)
    /// themselves; in axum (feature `axum`) they may return the error as it is.
    ///
    /// ```
    /// use bytes::{BufMut, Bytes, BytesMut};
    /// use http::Response;
    /// use http_body_util::Full;
    /// use tower_ratelimit::{Descriptor, RateLimiter};
    ///
    /// async fn export(limiter: &RateLimiter) -> Response<Full<Bytes>> {
    ///     let export = Descriptor::new("/export").tenant("acme").cost(50);
    ///     match limiter.check(&export).await.into_result() {
    ///         Ok(_) => Response::new(Full::from("exported")),
    ///         Err(rejected) => rejected.to_response(),
    ///     }
    /// }
    /// ```
    #[must_use]
    pub fn to_response(&self) -> Response<Full<Bytes>> {
        problem(self.clone(), &Headers::default(), Response::default(), identity)
    }
}

/// See [`RateLimited::to_response`].
#[cfg(feature = "axum")]
impl axum::response::IntoResponse for RateLimited {
    fn into_response(self) -> axum::response::Response {
        problem(self, &Headers::default(), Response::default(), axum::body::Body::new)
    }
}

/// Adds these headers. Returns the delays that they report.
fn stamp(map: &mut HeaderMap, rejection: &RateLimited, headers: &Headers) -> Delays {
    // `Retry-After` and those of here, and five of `Headers` where it has any.
    map.reserve(if headers.describe_admissions() { 9 } else { 4 });
    map.insert(CACHE_CONTROL, NO_STORE);
    headers.stamp_rejection(map, rejection)
}

/// Appends the body.
fn put_document(out: &mut BytesMut, rejection: &RateLimited, seconds: Option<u64>) {
    out.put_slice(opening(rejection.kind().status()).as_bytes());
    put_integer(out, rejection.status().as_u16().into());
    out.put_slice(br#","detail":""#);
    out.put_slice(detail(rejection.kind()).as_bytes());
    if let Some((cost, capacity)) = rejection.excess() {
        out.put_slice(b" It costs ");
        put_integer(out, cost);
        out.put_slice(b", and at most ");
        put_integer(out, capacity);
        out.put_slice(b" ever fit.");
    }
    if let Some(seconds) = seconds {
        out.put_slice(b" Try again in ");
        put_integer(out, seconds);
        let unit = if seconds == 1 { " second." } else { " seconds." };
        out.put_slice(unit.as_bytes());
    }
    out.put_u8(b'"');
    if let Some(violated) = violated_tiers(rejection) {
        out.put_slice(br#","violated-policies":["#);
        for (index, tier) in violated.enumerate() {
            if index > 0 {
                out.put_u8(b',');
            }
            put_name(out, &tier.name());
        }
        out.put_u8(b']');
    }
    out.put_u8(b'}');
}

/// The body up to its status, by that of its kind. Types and titles are from IANA's
/// registry of problem types.
fn opening(status: StatusCode) -> &'static str {
    match status {
        StatusCode::TOO_MANY_REQUESTS => concat!(
            r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","#,
            r#""title":"Quota Exceeded","status":"#
        ),
        StatusCode::SERVICE_UNAVAILABLE => concat!(
            r#"{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity","#,
            r#""title":"Temporary Reduced Capacity","status":"#
        ),
        // No problem type is registered for tenants, so only the status
        // describes it (RFC 9457, section 4.2.1).
        StatusCode::UNAUTHORIZED => r#"{"type":"about:blank","title":"Unauthorized","status":"#,
        StatusCode::BAD_REQUEST => r#"{"type":"about:blank","title":"Bad Request","status":"#,
        _ => r#"{"type":"about:blank","title":"Internal Server Error","status":"#,
    }
}

/// A sentence for the client.
fn detail(kind: RateLimitedKind) -> &'static str {
    match kind {
        RateLimitedKind::QuotaExceeded => "Too little of the quota is left.",
        RateLimitedKind::Concurrency => "Too many requests are in flight.",
        RateLimitedKind::Cooldown => "The upstream asked for a pause.",
        RateLimitedKind::QueueFull => "Too many requests are waiting already.",
        RateLimitedKind::NeverFits => "The quota can never hold this request.",
        RateLimitedKind::BackingOff => "It has failed recently.",
        RateLimitedKind::Overloaded => "The server is overloaded.",
        RateLimitedKind::BackendUnavailable => "The rate limit could not be decided.",
        RateLimitedKind::MissingTenant => "The request does not identify its tenant.",
        RateLimitedKind::AmbiguousTenant => "The request names more than one tenant.",
        RateLimitedKind::Misconfigured => "The rate limit is set up wrongly: the log says how.",
        RateLimitedKind::Blocked => "The tenant is blocked for a while.",
        RateLimitedKind::InvalidTiers => "The limits of the tenant are invalid.",
        RateLimitedKind::NoRuntime => "The rate limiter has no timer to wait by.",
    }
}

/// The tiers that rejected the request, if a limit was the reason.
fn violated_tiers(rejection: &RateLimited) -> Option<impl Iterator<Item = &TierStatus>> {
    let tiers = rejection.decision().map_or(&[][..], |decision| decision.tiers());
    rejection.kind().is_limit().then(|| tiers.iter().filter(|tier| tier.is_violated()))
}

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

/// The most bytes of violations: see [`LONGEST_MESSAGE`].
const MOST_VIOLATIONS: usize = 2_048;

/// The whole response, in headers alone (trailers-only). The rejection is in
/// its extensions.
pub(crate) fn grpc(
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
pub(crate) fn grpc_trailers(rejection: &RateLimited) -> HeaderMap {
    let mut map = HeaderMap::with_capacity(3);
    put_status(&mut map, rejection, delay(rejection));
    map
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
        let (code, message) = (grpc_code(self.kind()), grpc_message(self));
        let details = grpc_details(self, delay(self), &message).unwrap_or_default();
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

/// Adds the status, as headers or trailers.
fn put_status(map: &mut HeaderMap, rejection: &RateLimited, after: Option<Duration>) {
    let message = grpc_message(rejection);
    map.insert(GRPC_STATUS, HeaderValue::from(grpc_code(rejection.kind())));
    if let Some(details) = grpc_details(rejection, after, &message) {
        insert(map, GRPC_STATUS_DETAILS, BASE64.encode(details));
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
fn grpc_message(rejection: &RateLimited) -> String {
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

/// The status code of a rejection.
fn grpc_code(kind: RateLimitedKind) -> u16 {
    match kind.status() {
        // RESOURCE_EXHAUSTED
        StatusCode::TOO_MANY_REQUESTS => 8,
        // UNAVAILABLE
        StatusCode::SERVICE_UNAVAILABLE => 14,
        // UNAUTHENTICATED
        StatusCode::UNAUTHORIZED => 16,
        // INVALID_ARGUMENT
        StatusCode::BAD_REQUEST => 3,
        // INTERNAL
        _ => 13,
    }
}

/// The `google.rpc.Status` of a rejection, for programs: with a `RetryInfo`, unless a retry
/// can never pass, and a `QuotaFailure` with the tiers that rejected. The tenant is left
/// out: it may be a secret. `None` if code and message are all there is.
fn grpc_details(rejection: &RateLimited, retry_after: Option<Duration>, message: &str) -> Option<Vec<u8>> {
    let failure = quota_failure(rejection);
    if retry_after.is_none() && failure.0.is_empty() {
        return None;
    }
    let mut status = Message::default();
    status.put_integer(1, grpc_code(rejection.kind()).into());
    status.put_bytes(2, message.as_bytes());
    if let Some(after) = retry_after {
        let mut delay = Message::default();
        delay.put_integer(1, after.as_secs());
        delay.put_integer(2, after.subsec_nanos().into());
        let mut info = Message::default();
        info.put_bytes(1, &delay.0);
        status.put_any(3, "type.googleapis.com/google.rpc.RetryInfo", &info);
    }
    if !failure.0.is_empty() {
        status.put_any(3, "type.googleapis.com/google.rpc.QuotaFailure", &failure);
    }
    Some(status.0)
}

fn quota_failure(rejection: &RateLimited) -> Message {
    let (mut failure, mut left) = (Message::default(), MOST_VIOLATIONS);
    let description = detail(rejection.kind());
    for tier in violated_tiers(rejection).into_iter().flatten() {
        let subject = tier.name();
        let Some(rest) = left.checked_sub(subject.len() + description.len()) else { break };
        left = rest;
        let mut violation = Message::default();
        violation.put_bytes(1, subject.as_bytes());
        violation.put_bytes(2, description.as_bytes());
        failure.put_bytes(1, &violation.0);
    }
    failure
}

/// A protocol buffers message. Fields that are 0 or empty are left out.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn put_varint(&mut self, mut n: u64) {
        while n >= 0x80 {
            self.0.push((n & 0x7f) as u8 | 0x80);
            n >>= 7;
        }
        self.0.push(n as u8);
    }

    fn put_integer(&mut self, field: u64, n: u64) {
        if n != 0 {
            self.put_varint(field << 3);
            self.put_varint(n);
        }
    }

    fn put_bytes(&mut self, field: u64, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.put_varint(field << 3 | 2);
            self.put_varint(bytes.len() as u64);
            self.0.extend_from_slice(bytes);
        }
    }

    fn put_any(&mut self, field: u64, url: &str, message: &Self) {
        let mut any = Self::default();
        any.put_bytes(1, url.as_bytes());
        any.put_bytes(2, &message.0);
        self.put_bytes(field, &any.0);
    }
}

#[cfg(test)]
mod tests;
