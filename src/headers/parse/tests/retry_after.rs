use http::{HeaderName, HeaderValue, StatusCode};

use super::*;

/// The bounds of a rejection's cooldown, in milliseconds.
fn bounds(fields: &[(&'static str, &'static str)]) -> Option<(u128, u128)> {
    let fields = fields.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
    let headers = HeaderMap::from_iter(fields);
    let signal = Parser::new().read(StatusCode::TOO_MANY_REQUESTS, &headers, Timestamp::from_secs(1_700_000_000));
    Some((signal.least_cooldown()?.as_millis(), signal.cooldown()?.as_millis()))
}

#[test]
fn only_a_single_whole_second_may_be_less() {
    assert_eq!(bounds(&[("retry-after", "1")]), Some((0, 1_000)));
    assert_eq!(bounds(&[("ratelimit", "\"a\";r=0;t=1")]), Some((0, 1_000)));
    for (value, millis) in [("2", 2_000), ("60", 60_000), ("0.5", 500), ("1.5", 1_500)] {
        assert_eq!(bounds(&[("retry-after", value)]), Some((millis, millis)), "{value}");
    }
    assert_eq!(
        bounds(&[("content-type", "application/grpc"), ("grpc-status", "8"), ("grpc-retry-pushback-ms", "1000")]),
        Some((1_000, 1_000))
    );
}

#[test]
fn a_finer_field_counts_within_the_second_that_the_coarse_one_leaves_open() {
    assert_eq!(bounds(&[("retry-after", "1"), ("retry-after-ms", "20")]), Some((20, 1_000)));
    assert_eq!(bounds(&[("retry-after", "2"), ("retry-after-ms", "1500")]), Some((1_500, 2_000)));
    let discord = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset-after", "0.64")];
    assert_eq!(bounds(&[("retry-after", "1"), discord[0], discord[1]]), Some((640, 1_000)));
    // Of another limit, or out of date.
    assert_eq!(bounds(&[("retry-after", "5"), ("retry-after-ms", "20")]), Some((5_000, 5_000)));
    assert_eq!(bounds(&[("retry-after", "1"), ("retry-after-ms", "1400")]), Some((1_400, 1_400)));
    assert_eq!(bounds(&[("retry-after-ms", "20")]), Some((20, 20)));
    for malformed in ["-1", "x", ""] {
        assert_eq!(bounds(&[("retry-after-ms", malformed)]), None, "{malformed}");
    }
}
