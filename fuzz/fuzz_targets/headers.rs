//! Fuzzes `headers::parse` with the response of an arbitrary upstream.
//!
//! The input is four bytes, which choose the status, the dialect, the cap and a
//! second cap, then lines: one byte that chooses the field, then its value.
#![no_main]

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header::RETRY_AFTER};
use libfuzzer_sys::fuzz_target;
use tower_ratelimit::{
    headers::parse::{Dialect, Parser, Signal},
    time::Timestamp,
};

const NOW: Timestamp = Timestamp::from_secs(1_700_049_600);

const STATUSES: [StatusCode; 5] = [
    StatusCode::TOO_MANY_REQUESTS,
    StatusCode::OK,
    StatusCode::FORBIDDEN,
    StatusCode::SERVICE_UNAVAILABLE,
    StatusCode::NOT_FOUND,
];

const CAPS: [Duration; 5] =
    [Duration::from_secs(600), Duration::ZERO, Duration::from_nanos(1), Duration::from_secs(86_400), Duration::MAX];

const FIELDS: [&str; 39] = [
    "retry-after",
    "date",
    "ratelimit",
    "ratelimit-policy",
    "ratelimit-limit",
    "ratelimit-remaining",
    "ratelimit-reset",
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "x-ratelimit-reset-after",
    "x-ratelimit-next",
    "x-ratelimit-bucket",
    "x-rate-limit-limit",
    "x-rate-limit-remaining",
    "x-rate-limit-reset",
    "x-ratelimit-limit-requests",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-reset-requests",
    "x-ratelimit-limit-tokens",
    "x-ratelimit-remaining-tokens",
    "x-ratelimit-reset-tokens",
    "anthropic-ratelimit-requests-limit",
    "anthropic-ratelimit-requests-remaining",
    "anthropic-ratelimit-requests-reset",
    "anthropic-ratelimit-tokens-limit",
    "anthropic-ratelimit-tokens-remaining",
    "anthropic-ratelimit-tokens-reset",
    "anthropic-ratelimit-input-tokens-limit",
    "anthropic-ratelimit-input-tokens-remaining",
    "anthropic-ratelimit-input-tokens-reset",
    "anthropic-ratelimit-output-tokens-limit",
    "anthropic-ratelimit-output-tokens-remaining",
    "anthropic-ratelimit-output-tokens-reset",
    "x-shopify-shop-api-call-limit",
    "content-type",
    "grpc-status",
    "grpc-retry-pushback-ms",
    "grpc-status-details-bin",
];

fn choose<T: Copy>(from: &[T], byte: u8) -> T {
    from[usize::from(byte) % from.len()]
}

fn check(signal: &Signal, cap: Duration) {
    assert!(signal.cooldown().is_none_or(|after| !after.is_zero() && after <= cap), "{signal:?}");
    assert!(signal.reset().is_none_or(|after| after <= cap), "{signal:?}");
    assert_eq!(signal.cooldown().is_some(), signal.dialect().is_some(), "{signal:?}");
}

fuzz_target!(|input: &[u8]| {
    let Some(([status, dialect, cap, other_cap], lines)) = input.split_first_chunk() else { return };
    let (status, cap) = (choose(&STATUSES, *status), choose(&CAPS, *cap));
    let pinned = Dialect::ALL.get(usize::from(*dialect)).copied();

    let mut headers = HeaderMap::new();
    for line in lines.split(|&byte| byte == b'\n') {
        let Some((&field, value)) = line.split_first() else { continue };
        if let Ok(value) = HeaderValue::from_bytes(value) {
            headers.append(HeaderName::from_static(choose(&FIELDS, field)), value);
        }
    }

    let any_dialect = Parser::new().cap(cap);
    let parser = pinned.map_or(any_dialect, |dialect| any_dialect.dialect(dialect));
    let signal = parser.read(status, &headers, NOW);
    check(&signal, cap);

    // A cap shortens the cooldown and changes nothing else.
    let other = choose(&CAPS, *other_cap);
    let longer = parser.cap(cap.max(other)).read(status, &headers, NOW);
    check(&longer, cap.max(other));
    let cut = longer.cooldown().map(|after| after.min(cap)).filter(|after| !after.is_zero());
    assert_eq!(signal.cooldown(), cut);
    assert_eq!(signal.is_rejection(), longer.is_rejection());

    // A malformed `Retry-After` line changes nothing. A valid one raises the
    // cooldown to at least its value, up to the cap. The parser reads both,
    // because there are fewer lines than its limit.
    if headers.get_all(RETRY_AFTER).iter().count() < 15 {
        headers.append(RETRY_AFTER, HeaderValue::from_static("-5"));
        assert_eq!(parser.read(status, &headers, NOW), signal);
        headers.append(RETRY_AFTER, HeaderValue::from_static("86400"));
        let slowed = parser.read(StatusCode::TOO_MANY_REQUESTS, &headers, NOW);
        let least = cap.min(Duration::from_secs(86_400));
        assert!(slowed.is_rejection() && slowed.cooldown().unwrap_or_default() >= least, "{slowed:?}");
    }
});
