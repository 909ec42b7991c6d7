//! The gRPC side: what a rejection looks like to a gRPC or gRPC-Web client.

mod details;
#[cfg(feature = "tonic")]
mod status;

use std::{fmt::Write, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, header::CONTENT_TYPE};
use http_body_util::Full;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use self::details::Details;
use crate::{
    decision::{RateLimited, RateLimitedKind, TierStatus},
    headers::{Headers, delay},
};

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_STATUS_DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
const GRPC_RETRY_PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// Visible ASCII and spaces stand as they are, but for the escape itself.
const ESCAPED: &AsciiSet = &CONTROLS.add(b'%');

/// What a message may take: callers let headers be some 8 KiB in all, and a
/// name may be of any length.
const LONGEST_MESSAGE: usize = 1_024;

/// Room for this many headers is made at once.
const HEADERS: usize = 11;

/// A status of gRPC's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Code {
    ResourceExhausted = 8,
    Unavailable = 14,
    Unauthenticated = 16,
}

impl Code {
    fn of(kind: RateLimitedKind) -> Self {
        match kind {
            RateLimitedKind::QuotaExceeded | RateLimitedKind::QueueFull | RateLimitedKind::NeverFits => {
                Self::ResourceExhausted
            }
            RateLimitedKind::BackendUnavailable | RateLimitedKind::BackingOff => Self::Unavailable,
            RateLimitedKind::MissingTenant => Self::Unauthenticated,
        }
    }

    fn digits(self) -> &'static str {
        match self {
            Self::ResourceExhausted => "8",
            Self::Unavailable => "14",
            Self::Unauthenticated => "16",
        }
    }
}

/// The whole response, in headers alone (Trailers-Only), with the rejection in
/// its extensions.
pub(crate) fn rejection(
    rejection: RateLimited,
    headers: &Headers,
    content_type: HeaderValue,
    pushback: bool,
) -> Response<Full<Bytes>> {
    let mut map = HeaderMap::with_capacity(HEADERS);
    map.insert(CONTENT_TYPE, content_type);
    let after = headers.stamp_rejection(&mut map, &rejection);
    put_status(&mut map, &rejection, after);
    if pushback {
        map.insert(GRPC_RETRY_PUSHBACK, pushback_of(after));
    }
    let mut response = Response::new(Full::default());
    *response.headers_mut() = map;
    response.extensions_mut().insert(rejection);
    response
}

/// The trailers of a stream that is ended in its midst. How to retry, and rate
/// limits, are said in headers alone.
pub(crate) fn trailers(rejection: &RateLimited) -> HeaderMap {
    let mut map = HeaderMap::with_capacity(3);
    put_status(&mut map, rejection, delay(rejection));
    map
}

/// The status as headers or trailers.
fn put_status(map: &mut HeaderMap, rejection: &RateLimited, after: Option<Duration>) {
    let code = Code::of(rejection.kind());
    let message = message(rejection);
    map.insert(GRPC_STATUS, HeaderValue::from_static(code.digits()));
    if let Some(details) = Details::of(rejection, after).encode(code, &message) {
        insert(map, GRPC_STATUS_DETAILS, details::base64(&details));
    }
    insert(map, GRPC_MESSAGE, utf8_percent_encode(&message, ESCAPED).to_string());
}

/// What is visible ASCII.
fn insert(map: &mut HeaderMap, name: HeaderName, value: String) {
    if let Ok(value) = HeaderValue::from_maybe_shared(Bytes::from(value)) {
        map.insert(name, value);
    }
}

/// As the rejection tells of itself, but no longer than a header may be.
fn message(rejection: &RateLimited) -> String {
    let mut message = String::with_capacity(96);
    let _ = write!(message, "{rejection}");
    let end = (0..=LONGEST_MESSAGE.min(message.len())).rev().find(|&end| message.is_char_boundary(end));
    message.truncate(end.unwrap_or(0));
    message
}

/// Whole milliseconds, rounded up; below 0 where the call is not to be made
/// again.
fn pushback_of(after: Option<Duration>) -> HeaderValue {
    let Some(after) = after else { return HeaderValue::from_static("-1") };
    // Clients read it as 32 bits.
    let millis = after.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128);
    HeaderValue::from(u32::try_from(millis).unwrap_or(u32::MAX))
}

/// What is wrong with the tiers that rejected.
fn violation(kind: RateLimitedKind) -> Option<&'static str> {
    match kind {
        RateLimitedKind::QuotaExceeded => Some("The quota is used up."),
        RateLimitedKind::QueueFull => Some("Too many requests are waiting already."),
        RateLimitedKind::NeverFits => Some("The quota can never hold this request."),
        RateLimitedKind::BackingOff | RateLimitedKind::BackendUnavailable | RateLimitedKind::MissingTenant => None,
    }
}

fn violated(rejection: &RateLimited) -> impl Iterator<Item = &TierStatus> {
    let tiers = rejection.decision().map_or(&[][..], |decision| decision.tiers());
    tiers.iter().filter(|tier| tier.is_violated())
}

#[cfg(test)]
mod tests;
