//! Who counts where several speak.

use tower_ratelimit::headers::parse::{Dialect, Parser};

use super::{Lines, read, read_by, secs};

/// One of each, from the first in precedence to the last.
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
fn what_says_nothing_or_now_leaves_it_to_the_next() {
    let beneath = ("ratelimit", r#""default";r=0;t=20"#);
    for retry_after in ["0", "soon", "-1", "Sun, 06 Nov 1994 08:49:37 GMT"] {
        let signal = read(429, &[("retry-after", retry_after), beneath]);
        assert_eq!((signal.cooldown(), signal.dialect()), (secs(20), Some(Dialect::Ietf)), "{retry_after}");
    }
    let over = [("ratelimit", r#""default";r=0;t=0"#), LADDER[3].2[0], LADDER[3].2[1]];
    assert_eq!(read(429, &over).cooldown(), secs(30));
}

#[test]
fn an_answer_that_is_no_rejection_speaks_of_quotas_only() {
    let lines = [("retry-after", "10"), ("ratelimit", r#""default";r=0;t=20"#)];
    let signal = read(200, &lines);
    assert_eq!((signal.cooldown(), signal.is_rejection()), (secs(20), false));
    // It did not say "retry", so it is no rejection for a limit, but the quota is.
    let signal = read(503, &lines[1..]);
    assert_eq!((signal.cooldown(), signal.is_rejection()), (secs(20), false));
    let signal = read(403, &lines[1..]);
    assert_eq!((signal.cooldown(), signal.is_rejection()), (secs(20), true));
}

#[test]
fn contradictions_are_taken_at_their_worst() {
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

/// A line in another form does not make the field count for less.
#[test]
fn another_form_takes_no_field_down() {
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
fn of_others_that_are_left_the_scarcest_binds() {
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
