//! Precedence of fields.

use tower_ratelimit::headers::parse::{Dialect, Parser};

use super::{Lines, read, read_by, secs};

/// One field per precedence, highest first.
const LADDER: [(Dialect, u64, Lines<'_>); 4] = [
    (Dialect::RetryAfter, 10, &[("retry-after", "10")]),
    (Dialect::Ietf, 20, &[("ratelimit", r#""default";r=0;t=20"#)]),
    (Dialect::OpenAi, 15, &[("x-ratelimit-remaining-requests", "0"), ("x-ratelimit-reset-requests", "15s")]),
    (Dialect::GitHub, 30, &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1700049630")]),
];

#[test]
fn the_first_in_precedence_decides() {
    for first in 0..LADDER.len() {
        let lines: Vec<_> = LADDER[first..].iter().flat_map(|(_, _, lines)| lines.iter().copied()).collect();
        let (dialect, after, _) = LADDER[first];
        for lines in [lines.clone(), lines.into_iter().rev().collect()] {
            let signal = read(429, &lines);
            assert_eq!((signal.cooldown(), signal.dialect()), (secs(after), Some(dialect)), "{lines:?}");
        }
    }
}

#[test]
fn malformed_and_zero_times_defer_to_the_next_field() {
    let beneath = ("ratelimit", r#""default";r=0;t=20"#);
    for retry_after in ["0", "soon", "-1", "Sun, 06 Nov 1994 08:49:37 GMT"] {
        let signal = read(429, &[("retry-after", retry_after), beneath]);
        assert_eq!((signal.cooldown(), signal.dialect()), (secs(20), Some(Dialect::Ietf)), "{retry_after}");
    }
    let over = [("ratelimit", r#""default";r=0;t=0"#), LADDER[3].2[0], LADDER[3].2[1]];
    assert_eq!(read(429, &over).cooldown(), secs(30));
}

#[test]
fn a_response_without_rejection_only_reports_limits() {
    let lines = [("retry-after", "10"), ("ratelimit", r#""default";r=0;t=20"#)];
    let signal = read(200, &lines);
    assert_eq!((signal.cooldown(), signal.is_rejection()), (secs(20), false));
    // Without Retry-After it is no rejection, but the limit is exhausted.
    let signal = read(503, &lines[1..]);
    assert_eq!((signal.cooldown(), signal.is_rejection()), (secs(20), false));
    let signal = read(403, &lines[1..]);
    assert_eq!((signal.cooldown(), signal.is_rejection()), (secs(20), true));
}

#[test]
fn contradictions_resolve_to_the_longest_cooldown() {
    let lines = [
        ("x-ratelimit-limit", "100"),
        ("x-ratelimit-remaining", "99"),
        ("x-ratelimit-reset", "3"),
        ("x-ratelimit-limit", "10"),
        ("x-ratelimit-remaining", "0"),
        ("x-ratelimit-reset", "9"),
        ("x-ratelimit-remaining", "5"),
        ("ratelimit", r#""default";r=50;t=500"#),
    ];
    let signal = read(200, &lines);
    assert_eq!(signal.cooldown(), secs(9));
    assert_eq!((signal.limit(), signal.remaining(), signal.reset()), (Some(10), Some(0), secs(9)));
}

/// A line in an unknown form does not affect the field.
#[test]
fn an_unknown_form_does_not_affect_other_fields() {
    let seconds = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "60")];
    let beside = [("x-ratelimit-remaining-tokens", "0"), ("x-ratelimit-reset-tokens", "5s")];
    let date = ("x-ratelimit-reset", "1700049690");
    assert_eq!(read(429, &[&seconds[..], &beside].concat()).cooldown(), secs(60));
    assert_eq!(read(429, &[&seconds[..], &beside, &[date]].concat()).cooldown(), secs(90));
}

#[test]
fn a_pinned_dialect_is_the_only_one() {
    let lines: Vec<_> = LADDER[1..].iter().flat_map(|(_, _, lines)| lines.iter().copied()).collect();
    for (dialect, after, _) in &LADDER[1..] {
        let signal = read_by(Parser::new().dialect(*dialect), 200, &lines);
        assert_eq!((signal.cooldown(), signal.dialect()), (secs(*after), Some(*dialect)));
    }
    let signal = read_by(Parser::new().dialect(Dialect::RetryAfter), 403, &lines);
    assert!(!signal.is_rejection() && signal.cooldown().is_none() && signal.remaining().is_none());
}

#[test]
fn without_exhaustion_the_smallest_share_binds() {
    let lines = [
        ("x-ratelimit-limit-requests", "100"),
        ("x-ratelimit-remaining-requests", "50"),
        ("x-ratelimit-limit-tokens", "1000000"),
        ("x-ratelimit-remaining-tokens", "1000"),
        ("x-ratelimit-reset-tokens", "6m"),
    ];
    let signal = read(200, &lines);
    assert_eq!((signal.limit(), signal.remaining(), signal.reset()), (Some(1_000_000), Some(1_000), secs(360)));
    assert_eq!(signal.cooldown(), None);
}
