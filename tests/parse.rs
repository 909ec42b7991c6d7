//! Parsing rate limit headers of upstreams, in documented forms and in
//! malformed ones.
#![allow(clippy::unwrap_used)]

#[path = "parse/grpc.rs"]
mod grpc;
#[path = "parse/ietf.rs"]
mod ietf;
#[path = "parse/ours.rs"]
mod ours;
#[path = "parse/precedence.rs"]
mod precedence;
#[path = "parse/properties.rs"]
mod properties;
#[path = "parse/retry_after.rs"]
mod retry_after;
#[path = "parse/vendors.rs"]
mod vendors;

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use tower_ratelimit::{
    headers::parse::{Parser, Signal},
    time::Timestamp,
};

/// Wednesday, 15 November 2023, 12:00:00 GMT.
const NOON: u64 = 1_700_049_600;

type Lines<'a> = &'a [(&'a str, &'a str)];

fn headers(lines: Lines<'_>) -> HeaderMap {
    let line = |&(name, value): &(&str, &str)| {
        (HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_bytes(value.as_bytes()).unwrap())
    };
    let mut map = HeaderMap::new();
    for (name, value) in lines.iter().map(line) {
        map.append(name, value);
    }
    map
}

fn read_by(parser: Parser, status: u16, lines: Lines<'_>) -> Signal {
    parser.read(StatusCode::from_u16(status).unwrap(), &headers(lines), Timestamp::from_secs(NOON))
}

fn read(status: u16, lines: Lines<'_>) -> Signal {
    read_by(Parser::new(), status, lines)
}

const fn secs(secs: u64) -> Option<Duration> {
    Some(Duration::from_secs(secs))
}

const fn millis(millis: u64) -> Option<Duration> {
    Some(Duration::from_millis(millis))
}
