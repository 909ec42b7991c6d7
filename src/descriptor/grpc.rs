//! gRPC in headers: its content types, its timeout, and the base64 of binary metadata.
//!
//! It reads no message. The invariant: a malformed timeout counts as none.

use std::time::Duration;

use base64::{
    alphabet::STANDARD,
    engine::{DecodePaddingMode, GeneralPurpose, general_purpose::NO_PAD},
};
use http::{HeaderMap, HeaderName, HeaderValue, header::CONTENT_TYPE};

pub(crate) const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// Encodes without padding. Decodes with or without, whatever the unused bits of
/// the last digit are.
pub(crate) const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    NO_PAD.with_decode_allow_trailing_bits(true).with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Whether the type is `application/grpc`, `application/grpc-web` or
/// `application/grpc-web-text`, with or without a message encoding (`+proto`)
/// and parameters. A longer type with the same beginning is another type.
pub(crate) fn is_grpc(content_type: &[u8]) -> bool {
    const GRPC: &[u8] = b"application/grpc";
    let Some((start, rest)) = content_type.split_at_checked(GRPC.len()) else { return false };
    let ends = |rest: &[u8]| matches!(rest, [] | [b'+' | b';' | b' ' | b'\t', ..]);
    let is_next = |web: &&[u8]| rest.get(..web.len()).is_some_and(|start| start.eq_ignore_ascii_case(web));
    let web = [b"-web-text".as_slice(), b"-web"].into_iter().find(is_next).unwrap_or_default();
    start.eq_ignore_ascii_case(GRPC) && ends(&rest[web.len()..])
}

/// Whether a gRPC content type is one of gRPC-Web.
pub(crate) fn is_web(content_type: &HeaderValue) -> bool {
    // After `application/grpc` a hyphen can only start `-web`.
    content_type.as_bytes().get(16) == Some(&b'-')
}

/// The timeout that `grpc-timeout` gives a call; `None` if it is missing or
/// malformed, or if the request is no gRPC call.
pub(crate) fn timeout(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get(GRPC_TIMEOUT)?;
    headers.get(CONTENT_TYPE).filter(|value| is_grpc(value.as_bytes()))?;
    parse_timeout(value.as_bytes())
}

/// Parses at most eight digits and a unit.
fn parse_timeout(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    if !(1..=8).contains(&digits.len()) || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let amount: u64 = str::from_utf8(digits).ok()?.parse().ok()?;
    // Eight digits of hours are 3.6e11 seconds.
    Some(match unit {
        b'H' => Duration::from_secs(amount * 3_600),
        b'M' => Duration::from_secs(amount * 60),
        b'S' => Duration::from_secs(amount),
        b'm' => Duration::from_millis(amount),
        b'u' => Duration::from_micros(amount),
        b'n' => Duration::from_nanos(amount),
        _ => return None,
    })
}

/// The longest timeout that can be written and is at most `left`, but never 0,
/// which is not allowed.
pub(crate) fn timeout_of(left: Duration) -> HeaderValue {
    const MOST: u128 = 99_999_999;
    let nanos = left.as_nanos();
    let units = [(1, 'n'), (1_000, 'u'), (1_000_000, 'm'), (1_000_000_000, 'S'), (60_000_000_000, 'M')];
    let fits = units.into_iter().map(|(length, unit)| (nanos / length, unit)).find(|(amount, _)| *amount <= MOST);
    let (amount, unit) = fits.unwrap_or(((nanos / 3_600_000_000_000).min(MOST), 'H'));
    let text = format!("{}{unit}", amount.max(1));
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("1n"))
}

#[cfg(test)]
mod tests;
