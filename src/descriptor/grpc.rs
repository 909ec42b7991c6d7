//! gRPC in a request's headers: its content types and its timeout.
//!
//! It reads no message. The invariant: a malformed timeout counts as none.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, header::CONTENT_TYPE};

pub(crate) const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// The content type of a gRPC or gRPC-Web call; `None` for anything else.
pub(crate) fn content_type(headers: &HeaderMap) -> Option<&HeaderValue> {
    headers.get(CONTENT_TYPE).filter(|value| is_grpc(value.as_bytes()))
}

/// Whether the type is `application/grpc`, `application/grpc-web` or
/// `application/grpc-web-text`, with or without a message encoding (`+proto`)
/// and parameters. A longer type with the same beginning is another type.
fn is_grpc(content_type: &[u8]) -> bool {
    const GRPC: &[u8] = b"application/grpc";
    let Some((start, rest)) = content_type.split_at_checked(GRPC.len()) else { return false };
    let ends = |rest: &[u8]| matches!(rest, [] | [b'+' | b';' | b' ' | b'\t', ..]);
    let strip = |rest: &'_ [u8], suffix: &[u8]| match rest.split_at_checked(suffix.len()) {
        Some((start, _)) if start.eq_ignore_ascii_case(suffix) => suffix.len(),
        _ => 0,
    };
    let web = match strip(rest, b"-web-text") {
        0 => strip(rest, b"-web"),
        length => length,
    };
    start.eq_ignore_ascii_case(GRPC) && rest.get(web..).is_some_and(ends)
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
    content_type(headers)?;
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
mod tests {
    use super::*;

    #[test]
    fn only_grpc_content_types_are_grpc() {
        for grpc in [
            "application/grpc",
            "application/grpc+proto",
            "application/grpc+json;charset=utf-8",
            "application/grpc;x=y",
            "application/grpc ; x=y",
            "Application/gRPC",
            "application/grpc-web",
            "application/grpc-web+proto",
            "application/grpc-web-text",
            "application/grpc-web-text+proto",
            "application/grpc-Web;x",
        ] {
            assert!(is_grpc(grpc.as_bytes()), "{grpc}");
        }
        for other in [
            "",
            "application/grp",
            "application/grpcfoo",
            "application/grpc2",
            "application/grpc.web",
            "application/grpc-",
            "application/grpc-webfoo",
            "application/grpc-web-textual",
            "application/grpc-web-",
            "application/grpc/",
            "xapplication/grpc",
            " application/grpc",
            "application/json",
            "text/grpc",
        ] {
            assert!(!is_grpc(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn a_timeout_has_at_most_eight_digits_and_a_unit() {
        for (text, nanos) in [
            ("1n", 1),
            ("0S", 0),
            ("5u", 5_000),
            ("00000250m", 250_000_000),
            ("3S", 3_000_000_000),
            ("2M", 120_000_000_000),
            ("99999999H", 99_999_999 * 3_600_000_000_000),
        ] {
            assert_eq!(parse_timeout(text.as_bytes()).map(|timeout| timeout.as_nanos()), Some(nanos), "{text}");
        }
        for text in ["", "S", "5", "123456789n", "-1S", "+1S", "1 S", "1.5S", "1s", "1h", "1x", "1S ", "S1", "1\u{b5}"]
        {
            assert_eq!(parse_timeout(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn only_grpc_calls_have_a_timeout() {
        let mut headers = HeaderMap::new();
        headers.insert(GRPC_TIMEOUT, HeaderValue::from_static("1S"));
        assert_eq!(timeout(&headers), None);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        assert_eq!(timeout(&headers), Some(Duration::from_secs(1)));
    }

    #[test]
    fn a_written_timeout_is_at_most_and_nearly_the_duration() {
        for nanos in [1, 99_999_999, 100_000_000, 1_234_567_891, 86_400_000_000_123, u64::MAX] {
            let left = Duration::from_nanos(nanos);
            let read = parse_timeout(timeout_of(left).as_bytes()).unwrap();
            assert!(read <= left && read.as_secs_f64() > left.as_secs_f64() * 0.999_999, "{left:?}: {read:?}");
        }
        assert_eq!(timeout_of(Duration::ZERO), "1n");
        assert_eq!(timeout_of(Duration::MAX), "99999999H");
    }
}
