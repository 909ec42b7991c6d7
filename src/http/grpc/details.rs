//! `google.rpc.Status` with its details, as protocol buffers. The few messages
//! are encoded by hand, so that a rejection needs no feature.

use std::{borrow::Cow, time::Duration};

use base64::{Engine as _, prelude::BASE64_STANDARD_NO_PAD};

use crate::{
    decision::{RateLimited, RateLimitedKind},
    http::problem::{detail, violated_tiers},
};

/// The most bytes of violations: see `LONGEST_MESSAGE`.
const MOST_VIOLATIONS: usize = 2_048;

/// The status code of a rejection.
pub(super) fn code(kind: RateLimitedKind) -> u16 {
    match kind {
        // RESOURCE_EXHAUSTED
        RateLimitedKind::QuotaExceeded | RateLimitedKind::QueueFull | RateLimitedKind::NeverFits => 8,
        // UNAVAILABLE
        RateLimitedKind::BackendUnavailable | RateLimitedKind::BackingOff => 14,
        // UNAUTHENTICATED
        RateLimitedKind::MissingTenant => 16,
        // INVALID_ARGUMENT
        RateLimitedKind::AmbiguousTenant => 3,
        // INTERNAL
        RateLimitedKind::NoRuntime | RateLimitedKind::Misconfigured | RateLimitedKind::InvalidTiers => 13,
    }
}

/// The details of a status, for programs.
#[derive(Debug)]
pub(super) struct Details {
    /// `google.rpc.RetryInfo`.
    pub(super) retry_after: Option<Duration>,
    /// `google.rpc.QuotaFailure`.
    pub(super) violations: Vec<Violation>,
}

/// A tier that rejected. The tenant is left out: it may be a secret.
#[derive(Debug)]
pub(super) struct Violation {
    pub(super) subject: Cow<'static, str>,
    pub(super) description: &'static str,
}

impl Details {
    pub(super) fn of(rejection: &RateLimited, retry_after: Option<Duration>) -> Self {
        let mut capacity = MOST_VIOLATIONS;
        let description = detail(rejection.kind());
        let tiers = violated_tiers(rejection).into_iter().flatten();
        let violations = tiers.map(|tier| Violation { subject: tier.name(), description });
        let fits = |violation: &Violation| {
            let left = capacity.checked_sub(violation.subject.len() + violation.description.len());
            left.inspect(|left| capacity = *left).is_some()
        };
        let violations = violations.take_while(fits).collect();
        Self { retry_after, violations }
    }

    /// `google.rpc.Status`. `None` if code and message are all there is.
    pub(super) fn encode(&self, code: u16, message: &str) -> Option<Vec<u8>> {
        if self.retry_after.is_none() && self.violations.is_empty() {
            return None;
        }
        let mut status = Message::with_capacity(256);
        status.put_integer(1, code.into());
        status.put_bytes(2, message.as_bytes());
        if let Some(after) = self.retry_after {
            let mut delay = Message::with_capacity(16);
            delay.put_integer(1, after.as_secs());
            delay.put_integer(2, after.subsec_nanos().into());
            let mut info = Message::with_capacity(18);
            info.put(1, &delay);
            status.put_any(3, "type.googleapis.com/google.rpc.RetryInfo", &info);
        }
        if !self.violations.is_empty() {
            let mut failure = Message::with_capacity(96);
            for violation in &self.violations {
                let mut of_tier = Message::with_capacity(64);
                of_tier.put_bytes(1, violation.subject.as_bytes());
                of_tier.put_bytes(2, violation.description.as_bytes());
                failure.put(1, &of_tier);
            }
            status.put_any(3, "type.googleapis.com/google.rpc.QuotaFailure", &failure);
        }
        Some(status.0)
    }
}

/// A protocol buffers message. Fields that are 0 or empty are left out.
struct Message(Vec<u8>);

impl Message {
    fn with_capacity(bytes: usize) -> Self {
        Self(Vec::with_capacity(bytes))
    }

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
            self.put_length_delimited(field, bytes);
        }
    }

    /// Adds a message, even an empty one.
    fn put(&mut self, field: u64, message: &Self) {
        self.put_length_delimited(field, &message.0);
    }

    fn put_any(&mut self, field: u64, url: &str, message: &Self) {
        let mut any = Self::with_capacity(url.len() + message.0.len() + 8);
        any.put_bytes(1, url.as_bytes());
        any.put_bytes(2, &message.0);
        self.put(field, &any);
    }

    fn put_length_delimited(&mut self, field: u64, bytes: &[u8]) {
        self.put_varint(field << 3 | 2);
        self.put_varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }
}

/// Base64 without padding, as in gRPC metadata.
pub(super) fn base64(bytes: &[u8]) -> String {
    BASE64_STANDARD_NO_PAD.encode(bytes)
}
