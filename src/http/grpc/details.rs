//! `google.rpc.Status` with its details, as protocol buffers. The few messages
//! are encoded by hand, so that a rejection needs no feature.

use std::time::Duration;

use ::http::StatusCode;
use base64::Engine as _;

use crate::{
    decision::{RateLimited, RateLimitedKind},
    descriptor::grpc::BASE64,
    http::problem::{detail, violated_tiers},
};

/// The most bytes of violations: see `LONGEST_MESSAGE`.
const MOST_VIOLATIONS: usize = 2_048;

/// The status code of a rejection.
pub(super) fn code(kind: RateLimitedKind) -> u16 {
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
pub(super) fn details(rejection: &RateLimited, retry_after: Option<Duration>, message: &str) -> Option<Vec<u8>> {
    let failure = quota_failure(rejection);
    if retry_after.is_none() && failure.0.is_empty() {
        return None;
    }
    let mut status = Message::default();
    status.put_integer(1, code(rejection.kind()).into());
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

/// As gRPC metadata.
pub(super) fn base64(bytes: &[u8]) -> String {
    BASE64.encode(bytes)
}
