//! The HTTP response to a rejection: problem details, RFC 9457. Its texts are
//! also those of gRPC.
//!
//! It must not be stored by caches (RFC 6585).

use std::convert::identity;

use bytes::{BufMut, Bytes, BytesMut};
use http::{
    HeaderMap, HeaderValue, Response, StatusCode,
    header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE},
};
use http_body_util::Full;

use crate::{
    decision::{RateLimited, RateLimitedKind, TierStatus},
    headers::{Buffer, Delays, Headers, put_integer, put_name},
};

const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

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
        rejection(self.clone(), &Headers::default(), Response::default(), identity)
    }
}

/// See [`RateLimited::to_response`].
#[cfg(feature = "axum")]
impl axum::response::IntoResponse for RateLimited {
    fn into_response(self) -> axum::response::Response {
        rejection(self, &Headers::default(), Response::default(), axum::body::Body::new)
    }
}

/// The headers of any response to a rejection, whatever its body is.
pub(crate) fn headers(rejection: &RateLimited, headers: &Headers) -> HeaderMap {
    let mut map = HeaderMap::new();
    stamp(&mut map, rejection, headers);
    map
}

/// Adds these headers. Returns the delays that they report.
fn stamp(map: &mut HeaderMap, rejection: &RateLimited, headers: &Headers) -> Delays {
    // `Retry-After` and those of here, and five of `Headers` where it has any.
    map.reserve(if headers.describe_admissions() { 9 } else { 4 });
    map.insert(CACHE_CONTROL, NO_STORE);
    headers.stamp_rejection(map, rejection)
}

/// The whole response, in the memory of a message's headers and extensions. The rejection
/// is in its extensions.
pub(crate) fn rejection<B>(
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

/// A sentence for the client.
pub(super) fn detail(kind: RateLimitedKind) -> &'static str {
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
pub(super) fn violated_tiers(rejection: &RateLimited) -> Option<impl Iterator<Item = &TierStatus>> {
    let tiers = rejection.decision().map_or(&[][..], |decision| decision.tiers());
    rejection.kind().is_limit().then(|| tiers.iter().filter(|tier| tier.is_violated()))
}

#[cfg(test)]
mod tests;
