//! The HTTP response to a rejection: problem details, RFC 9457. Its texts are
//! also those of gRPC.
//!
//! It must not be stored by caches (RFC 6585).

use std::convert::identity;

use bytes::Bytes;
use http::{Extensions, HeaderMap, HeaderValue, Response, StatusCode};
use http_body_util::Full;

use crate::{
    decision::{RateLimited, RateLimitedKind, TierStatus},
    headers::{Field, Headers, RenderedPolicy, Values},
};

const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// The status, and the body up to its `detail`. Types and titles are from IANA's
/// registry of problem types.
const fn opening(kind: RateLimitedKind) -> (StatusCode, &'static str) {
    match kind {
        RateLimitedKind::QuotaExceeded | RateLimitedKind::QueueFull | RateLimitedKind::NeverFits => (
            StatusCode::TOO_MANY_REQUESTS,
            concat!(
                r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","#,
                r#""title":"Quota Exceeded","status":429,"detail":""#
            ),
        ),
        RateLimitedKind::BackingOff | RateLimitedKind::BackendUnavailable => (
            StatusCode::SERVICE_UNAVAILABLE,
            concat!(
                r#"{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity","#,
                r#""title":"Temporary Reduced Capacity","status":503,"detail":""#
            ),
        ),
        // No problem type is registered for tenants, so only the status
        // describes it (RFC 9457, section 4.2.1).
        RateLimitedKind::MissingTenant => {
            (StatusCode::UNAUTHORIZED, r#"{"type":"about:blank","title":"Unauthorized","status":401,"detail":""#)
        }
        RateLimitedKind::NoRuntime | RateLimitedKind::Misconfigured | RateLimitedKind::InvalidTiers => (
            StatusCode::INTERNAL_SERVER_ERROR,
            r#"{"type":"about:blank","title":"Internal Server Error","status":500,"detail":""#,
        ),
        RateLimitedKind::AmbiguousTenant => {
            (StatusCode::BAD_REQUEST, r#"{"type":"about:blank","title":"Bad Request","status":400,"detail":""#)
        }
    }
}

impl RateLimited {
    /// The HTTP response to the rejection, as the layer answers it: problem
    /// details, `Retry-After` and the default [`Headers`]. The rejection is in its
    /// extensions. For handlers that ask a [`RateLimiter`](crate::RateLimiter)
    /// themselves; in axum (feature `axum`) they may return the error as it is.
    ///
    /// ```
    /// use bytes::Bytes;
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
        rejection(self.clone(), &Headers::default(), Extensions::new(), identity)
    }
}

/// See [`RateLimited::to_response`].
#[cfg(feature = "axum")]
impl axum::response::IntoResponse for RateLimited {
    fn into_response(self) -> axum::response::Response {
        rejection(self, &Headers::default(), Extensions::new(), axum::body::Body::new)
    }
}

/// The headers of any response to a rejection, whatever its body is.
pub(crate) fn headers(rejection: &RateLimited, headers: &Headers) -> HeaderMap {
    let headers = headers.of_rejection(rejection);
    Values::with(|values| {
        let mut fields = values.fields();
        fields.push(Field::CacheControl, NO_STORE);
        headers.push(&mut fields, values);
        if let Some(seconds) = headers.retry_after {
            fields.push(Field::RetryAfter, values.integer(seconds));
        }
        values.map(fields)
    })
}

/// The whole response. The rejection is in its extensions, which are those given, emptied.
pub(crate) fn rejection<B>(
    rejection: RateLimited,
    headers: &Headers,
    mut extensions: Extensions,
    body: impl FnOnce(Full<Bytes>) -> B,
) -> Response<B> {
    let kind = rejection.kind();
    let (status, opening) = opening(kind);
    let tiers = rejection.decision().map_or(&[][..], |decision| decision.tiers());
    let headers = headers.of_rejection(&rejection);
    let document = Document { kind, opening, tiers, seconds: headers.retry_after };
    let make = |values: &mut Values, text: &Bytes, retry_after| {
        let mut fields = values.fields();
        fields.push(Field::CacheControl, NO_STORE);
        headers.push(&mut fields, values);
        if let Some(seconds) = retry_after {
            fields.push(Field::RetryAfter, seconds);
        }
        fields.push(Field::ContentType, PROBLEM);
        fields.push(Field::ContentLength, values.integer(text.len() as u64));
        fields
    };
    let render = |policy: &RenderedPolicy| document.parts(policy);
    let (map, text) = Values::with(|values| values.rejection(tiers, headers.key(document.form()), render, make));
    extensions.clear();
    extensions.insert(rejection);
    let mut response = Response::new(body(Full::new(text)));
    *response.status_mut() = status;
    *response.headers_mut() = map;
    *response.extensions_mut() = extensions;
    response
}

/// The most tiers of a document that is rendered once, in a bit each.
const MOST_TIERS: usize = 56;

/// The body of a rejection.
struct Document<'d> {
    kind: RateLimitedKind,
    opening: &'static str,
    tiers: &'d [TierStatus],
    /// When to retry.
    seconds: Option<u64>,
}

impl Document<'_> {
    /// Equal for documents about equal tiers that differ in nothing but a number. `None`
    /// for too many tiers to tell.
    fn form(&self) -> Option<u64> {
        let retry = match self.seconds {
            None => 0,
            Some(1) => 1,
            Some(_) => 2,
        };
        let violated = |form: u64, tier: &TierStatus| form << 1 | u64::from(tier.violated);
        (self.tiers.len() <= MOST_TIERS)
            .then(|| self.tiers.iter().fold(0, violated) << 8 | (self.kind as u64) << 2 | retry)
    }

    /// What is before and behind the number of seconds.
    fn parts(&self, policy: &RenderedPolicy) -> [Vec<u8>; 2] {
        let (before, unit) = match self.seconds {
            None => ("", ""),
            Some(1) => (" Try again in ", " second."),
            Some(_) => (" Try again in ", " seconds."),
        };
        let mut behind = [unit, "\""].concat().into_bytes();
        if is_quota(self.kind) {
            let violated = self.tiers.iter().zip(policy.names()).filter(|(tier, _)| tier.violated);
            let names: Vec<_> = violated.map(|(_, name)| name).collect();
            behind.extend([br#","violated-policies":["#, &names.join(&b","[..])[..], b"]"].concat());
        }
        behind.extend(b"}");
        [[self.opening, detail(self.kind), before].concat().into_bytes(), behind]
    }
}

/// A sentence for the client.
pub(super) fn detail(kind: RateLimitedKind) -> &'static str {
    match kind {
        RateLimitedKind::QuotaExceeded => "Too little of the quota is left.",
        RateLimitedKind::QueueFull => "Too many requests are waiting already.",
        RateLimitedKind::NeverFits => "The quota can never hold this request.",
        RateLimitedKind::BackingOff => "It has failed recently.",
        RateLimitedKind::BackendUnavailable => "The rate limit could not be decided.",
        RateLimitedKind::MissingTenant => "The request does not identify its tenant.",
        RateLimitedKind::AmbiguousTenant => "The request names more than one tenant.",
        RateLimitedKind::Misconfigured => "The rate limit is set up wrongly: the log says how.",
        RateLimitedKind::InvalidTiers => "The limits of the tenant are invalid.",
        RateLimitedKind::NoRuntime => "The rate limiter has no timer to wait by.",
    }
}

/// The tiers that rejected the request, if a quota was the reason.
pub(super) fn violated_tiers(rejection: &RateLimited) -> Option<impl Iterator<Item = &TierStatus>> {
    let tiers = rejection.decision().map_or(&[][..], |decision| decision.tiers());
    is_quota(rejection.kind()).then(|| tiers.iter().filter(|tier| tier.is_violated()))
}

/// Whether a quota was the reason.
pub(super) fn is_quota(kind: RateLimitedKind) -> bool {
    matches!(kind, RateLimitedKind::QuotaExceeded | RateLimitedKind::QueueFull | RateLimitedKind::NeverFits)
}

#[cfg(test)]
mod tests;
