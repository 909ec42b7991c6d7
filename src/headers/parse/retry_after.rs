//! `Retry-After`, and `retry-after-ms` beside it, which some servers add because
//! whole seconds are too coarse for them.

use std::time::Duration;

use http::HeaderMap;

use super::{
    form::{Form, counts},
    limit::Reset,
};
use crate::time::Timestamp;

const SECOND: Duration = Duration::from_secs(1);

/// What a response asks for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RetryAfter {
    /// The longest of both fields. Zero: now.
    pub(super) after: Option<Duration>,
    millis: Option<Duration>,
}

impl RetryAfter {
    pub(super) fn read(headers: &HeaderMap, from: Timestamp) -> Self {
        let seconds = Form::Any.times(headers, "retry-after", from).map(|when| when.after(from)).max();
        let millis = counts(headers, "retry-after-ms").map(Duration::from_millis).max();
        Self { after: seconds.max(millis), millis }
    }
}

/// The least time that a rejection's `after` can stand for. A whole second is
/// the shortest time that the field can name, and says only that it is less,
/// unless another field is finer. From two seconds on, it is what was asked for.
pub(super) fn least(after: Duration, retry_after: RetryAfter, reset: Option<Reset>) -> Duration {
    if after.subsec_nanos() != 0 {
        return after;
    }
    let reset = reset.filter(|reset| reset.rounding().is_zero()).map(|reset| reset.after);
    let is_finer = |finer: &Duration| *finer < after && finer.saturating_add(SECOND) > after;
    let finer = [retry_after.millis, reset].into_iter().flatten().filter(is_finer).max();
    finer.unwrap_or(if after == SECOND { Duration::ZERO } else { after })
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue, StatusCode};

    use super::*;
    use crate::headers::parse::Parser;

    /// The bounds of a rejection's cooldown, in milliseconds.
    fn bounds(fields: &[(&'static str, &'static str)]) -> Option<(u128, u128)> {
        let fields =
            fields.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
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
}
