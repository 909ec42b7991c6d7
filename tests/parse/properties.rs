//! Properties of every response.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use proptest::{collection::vec, prelude::*, sample::select};
use tower_ratelimit::{
    headers::parse::{Dialect, Parser, Signal},
    time::Timestamp,
};

use super::NOON;

const CAP: Duration = Duration::from_secs(600);

const FIELDS: [&str; 21] = [
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
    "x-rate-limit-remaining",
    "x-rate-limit-reset",
    "x-ratelimit-remaining-tokens",
    "x-ratelimit-reset-tokens",
    "anthropic-ratelimit-tokens-remaining",
    "anthropic-ratelimit-tokens-reset",
    "x-shopify-shop-api-call-limit",
    "grpc-status",
    "grpc-status-details-bin",
];

/// Malformed values for every field.
const MALFORMED: [&[u8]; 8] = [b"", b"-5", b"soon", b"1e3", b"\"x;r=0;t=9", b"\xff\xfe", b"0 0", b"+1"];

type Line = (&'static str, Vec<u8>);

fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        vec(any::<u8>(), 0..40),
        "[0-9]{1,12}(\\.[0-9]{1,12})?".prop_map(String::into_bytes),
        "([0-9]{1,4}(\\.[0-9]{0,3})?(h|m|s|ms|us|ns)){1,3}".prop_map(String::into_bytes),
        "[a-z\"]{1,3};r=[0-9]{1,3};t=[0-9]{1,4}".prop_map(String::into_bytes),
        "limit=[0-9], remaining=[0-9], reset=[0-9]{1,3}".prop_map(String::into_bytes),
        "20[0-9]{2}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-6][0-9](Z|[+-][0-9]{2}:?[0-9]{2})"
            .prop_map(String::into_bytes),
        (0_u64..4_000_000_000).prop_map(|at| date(at).into_bytes()),
        Just(b"0".to_vec()),
        Just(b"8".to_vec()),
    ]
}

fn lines() -> impl Strategy<Value = Vec<Line>> {
    vec((select(&FIELDS[..]), value()), 0..10)
}

fn status() -> impl Strategy<Value = StatusCode> {
    select(&[StatusCode::OK, StatusCode::FORBIDDEN, StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE][..])
}

fn parser() -> impl Strategy<Value = Parser> {
    let dialect = select(Dialect::ALL);
    proptest::option::of(dialect).prop_map(|pinned| pinned.map_or_else(Parser::new, |by| Parser::new().dialect(by)))
}

fn date(secs: u64) -> String {
    httpdate::fmt_http_date(SystemTime::UNIX_EPOCH + Duration::from_secs(secs))
}

fn read(parser: Parser, status: StatusCode, lines: &[Line]) -> Signal {
    let mut headers = HeaderMap::new();
    headers.insert("content-type", HeaderValue::from_static("application/grpc"));
    for (name, value) in lines {
        if let Ok(value) = HeaderValue::from_bytes(value) {
            headers.append(HeaderName::from_static(name), value);
        }
    }
    parser.read(status, &headers, Timestamp::from_secs(NOON))
}

fn rejected(lines: &[Line]) -> Option<Duration> {
    read(Parser::new(), StatusCode::TOO_MANY_REQUESTS, lines).cooldown()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn the_cap_cuts_every_time_and_nothing_else(
        lines in lines(), status in status(), parser in parser(), caps in [0_u64..700_000_000_000, 0..700_000_000_000],
    ) {
        let [less, more] = [caps[0].min(caps[1]), caps[0].max(caps[1])].map(Duration::from_nanos);
        let (short, long) = (read(parser.cap(less), status, &lines), read(parser.cap(more), status, &lines));
        prop_assert!(long.cooldown().is_none_or(|after| !after.is_zero() && after <= more));
        prop_assert!(long.reset().is_none_or(|after| after <= more));
        let cut = |after: Duration| Some(after.min(less)).filter(|after| !after.is_zero());
        prop_assert_eq!(short.cooldown(), long.cooldown().and_then(cut));
        prop_assert_eq!(short.reset(), long.reset().map(|after| after.min(less)));
        prop_assert_eq!(
            (short.is_rejection(), short.no_retry(), short.limit(), short.remaining()),
            (long.is_rejection(), long.no_retry(), long.limit(), long.remaining())
        );
    }

    #[test]
    fn malformed_fields_change_nothing(
        mut lines in lines(), status in status(), parser in parser(),
        name in select(&FIELDS[..]), malformed in select(&MALFORMED[..]), at in any::<prop::sample::Index>(),
    ) {
        let before = read(parser, status, &lines);
        lines.insert(at.index(lines.len() + 1), (name, malformed.to_vec()));
        prop_assert_eq!(read(parser, status, &lines), before);
    }

    /// A second line of a single-valued field.
    #[test]
    fn another_line_never_shortens(mut lines in lines(), value in value()) {
        lines.push(("retry-after", b"1".to_vec()));
        let before = rejected(&lines);
        lines.push(("retry-after", value));
        prop_assert!(rejected(&lines) >= before);
    }

    /// The longest of a precedence, and the highest precedence.
    #[test]
    fn the_longest_of_the_first_in_precedence_decides(
        seconds in vec(1_u64..600, 1..6), quotas in vec((0_usize..6, 1_u64..600), 0..12),
    ) {
        // Two per precedence: remaining, reset, and form.
        let rank = |quota: usize| quota / 2;
        let lines_of = |&(quota, after): &(usize, u64)| -> Vec<Line> {
            let at = NOON + after;
            match quota {
                0 | 1 => vec![("ratelimit", format!("\"{quota}\";r=0;t={after}").into_bytes())],
                2 => vec![("ratelimit-remaining", b"0".to_vec()), ("ratelimit-reset", after.to_string().into_bytes())],
                3 => vec![
                    ("x-ratelimit-remaining-tokens", b"0".to_vec()),
                    ("x-ratelimit-reset-tokens", format!("{after}s").into_bytes()),
                ],
                4 => vec![("x-rate-limit-remaining", b"0".to_vec()), ("x-rate-limit-reset", at.to_string().into_bytes())],
                _ => vec![("x-ratelimit-remaining", b"0".to_vec()), ("x-ratelimit-next", date(at).into_bytes())],
            }
        };
        let mut lines: Vec<_> = quotas.iter().flat_map(lines_of).collect();
        let first = quotas.iter().map(|&(quota, _)| rank(quota)).min();
        let longest = quotas.iter().filter(|&&(quota, _)| Some(rank(quota)) == first).map(|&(_, after)| after).max();
        prop_assert_eq!(rejected(&lines), longest.map(Duration::from_secs));
        let answered = read(Parser::new(), StatusCode::OK, &lines).cooldown();
        prop_assert_eq!(answered, longest.map(Duration::from_secs));

        lines.extend(seconds.iter().map(|after| ("retry-after", after.to_string().into_bytes())));
        prop_assert_eq!(rejected(&lines), seconds.into_iter().max().map(Duration::from_secs));
    }

    /// Every form yields the same time.
    #[test]
    fn the_forms_agree(millis in 1_u64..600_000) {
        let (after, secs) = (Duration::from_millis(millis), millis.div_ceil(1_000));
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(NOON) + after;
        let of = |name, value: String| rejected(&[("x-ratelimit-remaining-tokens", b"0".to_vec()), (name, value.into_bytes())]);
        let reset = "x-ratelimit-reset-tokens";
        prop_assert_eq!(of(reset, format!("{millis}ms")), Some(after));
        prop_assert_eq!(of(reset, format!("{}m{}.{:03}s", millis / 60_000, millis / 1_000 % 60, millis % 1_000)), Some(after));
        prop_assert_eq!(of(reset, format!("{}.{:03}", millis / 1_000, millis % 1_000)), Some(after));
        prop_assert_eq!(of(reset, format!("{}.{:03}", NOON + millis / 1_000, millis % 1_000)), Some(after));
        prop_assert_eq!(of(reset, humantime::format_rfc3339_millis(at).to_string()), Some(after));
        prop_assert_eq!(of("retry-after", date(NOON + secs)), Some(Duration::from_secs(secs)));
        prop_assert_eq!(of("retry-after", secs.to_string()), Some(Duration::from_secs(secs)));
        prop_assert!(after <= CAP);
    }

    /// Clock skew of the upstream does not matter if it affects all its dates.
    #[test]
    fn clock_skew_does_not_matter(ahead in 0_u64..800_000_000, after in 1_u64..600) {
        let there = NOON - 100_000_000 + ahead;
        let epoch = (there + after).to_string().into_bytes();
        let lines: Vec<Line> = vec![("date", date(there).into_bytes()), ("x-ratelimit-remaining", b"0".to_vec())];
        for reset in [epoch, date(there + after).into_bytes()] {
            let lines = [&lines[..], &[("x-ratelimit-reset", reset)]].concat();
            prop_assert_eq!(rejected(&lines), Some(Duration::from_secs(after)));
        }
    }
}
