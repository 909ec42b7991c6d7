//! The trailers of a gRPC response that has nothing else: [`Trailers`]. They are sent as
//! headers.
//!
//! The delay of a `google.rpc.RetryInfo` stands in the details of a `google.rpc.Status`.
//! Both are decoded by hand: these are the only fields of protocol buffers that this
//! crate reads. A status that is malformed anywhere is ignored whole.
//!
//! ```proto
//! message Status    { int32 code = 1; string message = 2; repeated Any details = 3; }
//! message Any       { string type_url = 1; bytes value = 2; }
//! message RetryInfo { Duration retry_delay = 1; }
//! message Duration  { int64 seconds = 1; int32 nanos = 2; }
//! ```

use std::time::Duration;

use base64::Engine as _;
use http::HeaderMap;

use super::form::{digits, lines, lines_up_to};
use crate::descriptor::grpc::BASE64;

/// The default limit of gRPC implementations for all headers.
const MOST_BYTES: usize = 8_192;

const OK: u64 = 0;
const RESOURCE_EXHAUSTED: u64 = 8;
const UNAVAILABLE: u64 = 14;

/// The end of the type URL of a `RetryInfo`, after `type.googleapis.com`.
const RETRY_INFO: &[u8] = b"/google.rpc.RetryInfo";

/// The signal of the trailers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Trailers {
    pub(super) rejection: bool,
    pub(super) no_retry: bool,
    /// Not zero.
    pub(super) after: Option<Duration>,
}

pub(super) fn read(headers: &HeaderMap) -> Trailers {
    let is_grpc = |line: &str| line.get(..16).is_some_and(|start| start.eq_ignore_ascii_case("application/grpc"));
    if !lines(headers, "content-type").any(is_grpc) {
        return Trailers::default();
    }
    let statuses = || lines(headers, "grpc-status").filter_map(digits);
    if !statuses().any(|status| status != OK) {
        return Trailers::default();
    }
    let pushbacks = || lines(headers, "grpc-retry-pushback-ms").map(digits);
    // gRFC A6: a pushback that is negative or unreadable asks for no retry.
    let no_retry = pushbacks().any(|pushback| pushback.is_none());
    let pushback = pushbacks().flatten().max().map(Duration::from_millis);
    let after = pushback.filter(|after| !after.is_zero()).or_else(|| {
        let details = lines_up_to(MOST_BYTES, headers, "grpc-status-details-bin");
        details.flat_map(|line| line.split(',')).filter_map(retry_delay).max()
    });
    let rejection = statuses().any(|status| match status {
        RESOURCE_EXHAUSTED => true,
        UNAVAILABLE => pushback.is_some() || after.is_some(),
        _ => false,
    });
    Trailers { rejection, no_retry, after: after.filter(|after| rejection && !after.is_zero()) }
}

/// The longest delay in a base64 status, padded or not.
fn retry_delay(status: &str) -> Option<Duration> {
    let status = BASE64.decode(status.trim()).ok()?;
    let mut longest = None;
    for (field, value) in fields(&status)? {
        if let (3, Value::Bytes(any)) = (field, value) {
            longest = longest.max(retry_info(any)?);
        }
    }
    longest
}

/// The delay, if this is a `RetryInfo`. The outer `None`: malformed.
fn retry_info(any: &[u8]) -> Option<Option<Duration>> {
    let (mut name, mut info) = (&[][..], &[][..]);
    for field in fields(any)? {
        match field {
            (1, Value::Bytes(bytes)) => name = bytes,
            (2, Value::Bytes(bytes)) => info = bytes,
            _ => {}
        }
    }
    if !name.ends_with(RETRY_INFO) {
        return Some(None);
    }
    let mut delay = None;
    for field in fields(info)? {
        if let (1, Value::Bytes(bytes)) = field {
            delay = Some(duration(bytes)?);
        }
    }
    Some(delay)
}

fn duration(message: &[u8]) -> Option<Duration> {
    let (mut seconds, mut nanos) = (0, 0);
    for field in fields(message)? {
        match field {
            (1, Value::Number(number)) => seconds = number,
            (2, Value::Number(number)) => nanos = number,
            _ => {}
        }
    }
    // Negative numbers have their highest bit set.
    let seconds = i64::try_from(seconds).ok()?.unsigned_abs();
    let nanos = u32::try_from(nanos).ok().filter(|&nanos| nanos < 1_000_000_000)?;
    Some(Duration::new(seconds, nanos))
}

enum Value<'m> {
    Number(u64),
    Bytes(&'m [u8]),
}

/// The fields of a message, without those of a fixed size.
fn fields(mut message: &[u8]) -> Option<Vec<(u64, Value<'_>)>> {
    let mut fields = Vec::new();
    while !message.is_empty() {
        let tag = varint(&mut message)?;
        let field = tag >> 3;
        match tag & 7 {
            0 => fields.push((field, Value::Number(varint(&mut message)?))),
            1 => _ = message.split_off(..8)?,
            2 => {
                let length = usize::try_from(varint(&mut message)?).ok()?;
                fields.push((field, Value::Bytes(message.split_off(..length)?)));
            }
            5 => _ = message.split_off(..4)?,
            _ => return None,
        }
    }
    Some(fields)
}

/// Seven bits per byte, the lowest first. The highest bit says that more bytes follow.
fn varint(message: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = *message.split_off_first()?;
        let bits = u64::from(byte & 0x7f);
        number |= Some(bits << shift).filter(|shifted| shifted >> shift == bits)?;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}
