//! Each vendor's fields, as it documents them.

use tower_ratelimit::headers::parse::{Dialect, Parser, Signal};

use super::{Lines, millis, read, read_by, secs};

/// Limit, remaining and reset of a signal.
fn quota(signal: Signal) -> (Option<u64>, Option<u64>, Option<u128>) {
    (signal.limit(), signal.remaining(), signal.reset().map(|reset| reset.as_millis()))
}

#[track_caller]
fn asks_for_cooldown(status: u16, lines: Lines<'_>, secs: f64, dialect: Dialect) {
    let expected = Some(std::time::Duration::from_secs_f64(secs));
    for parser in [Parser::new(), Parser::new().dialect(dialect)] {
        let signal = read_by(parser, status, lines);
        assert_eq!((signal.cooldown(), signal.dialect()), (expected, Some(dialect)), "{parser:?}: {signal:?}");
        assert_eq!(signal.is_rejection(), status != 200, "{signal:?}");
        assert_eq!(signal.reset(), expected, "{signal:?}");
    }
}

/// Asks for no cooldown, whatever the status; a 403 is no rejection.
#[track_caller]
fn asks_for_none(lines: Lines<'_>) {
    assert_eq!(read(200, lines).cooldown(), None, "{lines:?}");
    assert_eq!(read(429, lines).cooldown(), None, "{lines:?}");
    let forbidden = read(403, lines);
    assert!(!forbidden.is_rejection() && forbidden.cooldown().is_none(), "{lines:?}");
}

#[test]
fn github() {
    let at = |remaining, reset| {
        [
            ("x-ratelimit-limit", "60"),
            ("x-ratelimit-remaining", remaining),
            ("x-ratelimit-used", "60"),
            ("x-ratelimit-resource", "core"),
            ("x-ratelimit-reset", reset),
        ]
    };
    for status in [200, 403, 429] {
        asks_for_cooldown(status, &at("0", "1700049660"), 60.0, Dialect::GitHub);
    }
    assert_eq!(quota(read(200, &at("56", "1700049660"))), (Some(60), Some(56), Some(60_000)));
    // A secondary limit has no reset: the primary one's does not apply.
    assert!(read(429, &at("56", "1700049660")).is_rejection());
    asks_for_none(&at("56", "1700049660"));
    asks_for_none(&at("-1", "soon"));
    asks_for_none(&at("zero", "-1700049660"));
    asks_for_none(&at("", "1700049660.5.5"));
    // In the past: a rejection without a cooldown.
    let past = read(403, &at("0", "1700049000"));
    assert!(past.is_rejection() && past.cooldown().is_none());
    // The date of a server whose clock is an hour ahead.
    let mut skewed = at("0", "1700053205").to_vec();
    skewed.push(("date", "Wed, 15 Nov 2023 13:00:00 GMT"));
    asks_for_cooldown(429, &skewed, 5.0, Dialect::GitHub);
    // Pinned, a small number is a second of 1970.
    let pinned = Parser::new().dialect(Dialect::GitHub);
    assert_eq!(read_by(pinned, 429, &at("0", "5")).cooldown(), None);
}

#[test]
fn x() {
    let at = |remaining, reset| {
        [("x-rate-limit-limit", "900"), ("x-rate-limit-remaining", remaining), ("x-rate-limit-reset", reset)]
    };
    asks_for_cooldown(429, &at("0", "1700049900"), 300.0, Dialect::X);
    asks_for_cooldown(200, &at("0", "1700049601"), 1.0, Dialect::X);
    assert_eq!(quota(read(200, &at("899", "1700049900"))), (Some(900), Some(899), Some(300_000)));
    asks_for_none(&at("10", "1700049900"));
    asks_for_none(&at("0x0", "1700049900s1"));
    assert_eq!(read(429, &at("0", "17000499OO")).cooldown(), None);
}

#[test]
fn envoy() {
    let at = |remaining, reset| {
        [
            ("x-ratelimit-limit", "10, 10;w=1;name=\"per-ip\", 1000;w=3600"),
            ("x-ratelimit-remaining", remaining),
            ("x-ratelimit-reset", reset),
        ]
    };
    asks_for_cooldown(429, &at("0", "1"), 1.0, Dialect::Envoy);
    asks_for_cooldown(200, &at("0", "30"), 30.0, Dialect::Envoy);
    assert_eq!(quota(read(200, &at("7", "1"))), (Some(10), Some(7), Some(1_000)));
    // Reddit's have fractions.
    asks_for_cooldown(200, &at("0.0", "12"), 12.0, Dialect::Envoy);
    asks_for_none(&at("9", "1"));
    asks_for_none(&at("1e0", "-1"));
    assert_eq!(read(429, &at("0", "99999999")).cooldown(), secs(600));
    // Pinned, a large number is many seconds.
    let pinned = Parser::new().dialect(Dialect::Envoy);
    assert_eq!(read_by(pinned, 429, &at("0", "1700049601")).cooldown(), secs(600));
    assert_eq!(read(429, &at("0", "1700049601")).cooldown(), secs(1));
    for limit in ["", ";w=1", "ten", "-10", "10 10"] {
        let lines = [("x-ratelimit-limit", limit), ("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1")];
        assert_eq!(read(200, &lines).limit(), None, "{limit}");
    }
}

#[test]
fn openai() {
    let at = |requests, tokens| {
        [
            ("x-ratelimit-limit-requests", "60"),
            ("x-ratelimit-limit-tokens", "150000"),
            ("x-ratelimit-remaining-requests", "59"),
            ("x-ratelimit-remaining-tokens", "0"),
            ("x-ratelimit-reset-requests", requests),
            ("x-ratelimit-reset-tokens", tokens),
        ]
    };
    for (tokens, secs) in [
        ("6m0s", 360.0),
        ("1s", 1.0),
        ("12ms", 0.012),
        ("2m59.56s", 179.56),
        ("0h0m7.66s", 7.66),
        ("1.5m", 90.0),
        ("250us", 0.000_25),
        ("250\u{b5}s", 0.000_25),
        ("3", 3.0),
    ] {
        asks_for_cooldown(429, &at("1s", tokens), secs, Dialect::OpenAi);
        assert_eq!(quota(read(200, &at("1s", tokens))).0, Some(150_000));
    }
    // The exhausted limit binds, not the last to reset.
    assert_eq!(read(200, &at("5m", "1s")).cooldown(), secs(1));
    for tokens in ["", "s", "1", "1x", "1s1", "-1s", "1 s", "1s ago", "ms", "1.s", "1..5s", "\u{b5}s", "1\u{b5}"] {
        let lines = at("1s", tokens);
        assert_eq!(read(200, &lines).cooldown(), if tokens == "1" { secs(1) } else { None }, "{tokens}");
    }
    assert_eq!(read(429, &at("1s", "99999999999999999999h9999999999999999999d")).cooldown(), secs(600));
    // Both are exhausted.
    let mut both = at("4s", "2s");
    both[2].1 = "0";
    assert_eq!(read(429, &both).cooldown(), secs(4));
    assert_eq!(quota(read(429, &both)), (Some(60), Some(0), Some(4_000)));
}

#[test]
fn anthropic() {
    for class in ["requests", "tokens", "input-tokens", "output-tokens"] {
        let names = ["limit", "remaining", "reset"].map(|field| format!("anthropic-ratelimit-{class}-{field}"));
        let at = |remaining, reset| {
            let [limit, left, until] = [&names[0], &names[1], &names[2]];
            [(limit.as_str(), "4000"), (left.as_str(), remaining), (until.as_str(), reset)]
        };
        asks_for_cooldown(429, &at("0", "2023-11-15T12:00:17Z"), 17.0, Dialect::Anthropic);
        asks_for_cooldown(200, &at("0", "2023-11-15T12:00:17.25Z"), 17.25, Dialect::Anthropic);
        asks_for_cooldown(200, &at("0", "2023-11-15T14:00:17+02:00"), 17.0, Dialect::Anthropic);
        assert_eq!(quota(read(200, &at("3999", "2023-11-15T12:00:17Z"))), (Some(4000), Some(3999), Some(17_000)));
        asks_for_none(&at("1000", "2023-11-15T12:00:17Z"));
        asks_for_none(&at("none", "2023-11-15T25:00:17Z"));
        assert_eq!(read(429, &at("0", "2023-11-15")).cooldown(), None);
        assert_eq!(read(429, &at("0", "9999-12-31T23:59:59Z")).cooldown(), secs(600));
    }
}

#[test]
fn discord() {
    let at = |remaining, reset, after| {
        [
            ("x-ratelimit-limit", "5"),
            ("x-ratelimit-remaining", remaining),
            ("x-ratelimit-reset", reset),
            ("x-ratelimit-reset-after", after),
            ("x-ratelimit-bucket", "abcd1234"),
        ]
    };
    asks_for_cooldown(429, &at("0", "1700049665", "64.57"), 64.57, Dialect::Discord);
    asks_for_cooldown(200, &at("0", "1700049600.123", "0.123"), 0.123, Dialect::Discord);
    asks_for_cooldown(200, &at("0", "1700049601.000", "1"), 1.0, Dialect::Discord);
    assert_eq!(quota(read(200, &at("4", "1700049601", "1.5"))), (Some(5), Some(4), Some(1_500)));
    // The delay precedes the date, which depends on two clocks.
    assert_eq!(read(200, &at("0", "1700049700", "1.5")).cooldown(), millis(1_500));
    assert_eq!(read(200, &at("0", "1700049603.5", "soon")).cooldown(), millis(3_500));
    asks_for_none(&at("1", "1700049700", "1.5"));
    asks_for_none(&at("", "-1", "1.5.0"));
    let global = [("x-ratelimit-global", "true"), ("retry-after", "0.64")];
    assert_eq!(read(429, &global).cooldown(), millis(640));
}

#[test]
fn shopify() {
    let at = |calls| [("X-Shopify-Shop-Api-Call-Limit", calls)];
    assert_eq!(quota(read(200, &at("32/40"))), (Some(40), Some(8), None));
    assert_eq!(quota(read(200, &at("40/40"))), (Some(40), Some(0), None));
    assert_eq!(quota(read(200, &at("41/40"))), (Some(40), Some(0), None));
    for calls in ["40/40", "32/40", "", "/", "40", "40/", "/40", "a/b", "-1/40", "1/2/3", "40/40s"] {
        assert_eq!(read(200, &at(calls)).cooldown(), None, "{calls}");
        assert_eq!(read(403, &at(calls)).is_rejection(), calls == "40/40", "{calls}");
    }
    let rejected = [at("40/40")[0], ("retry-after", "2.0")];
    let signal = read(429, &rejected);
    assert_eq!((signal.cooldown(), signal.dialect()), (secs(2), Some(Dialect::RetryAfter)));
}

#[test]
fn vimeo() {
    let at = |remaining, reset| {
        [("x-ratelimit-limit", "250"), ("x-ratelimit-remaining", remaining), ("x-ratelimit-reset", reset)]
    };
    asks_for_cooldown(429, &at("0", "Wed, 15 Nov 2023 12:01:00 GMT"), 60.0, Dialect::Vimeo);
    asks_for_cooldown(200, &at("0", "2023-11-15T12:01:00+00:00"), 60.0, Dialect::Vimeo);
    asks_for_cooldown(200, &at("0", "Wednesday, 15-Nov-23 12:00:01 GMT"), 1.0, Dialect::Vimeo);
    asks_for_none(&at("5", "Wed, 15 Nov 2023 12:01:00 GMT"));
    asks_for_none(&at("?", "Wed, 15 Nov 2023 12:61:00 GMT"));
    assert_eq!(read(429, &at("0", "Wed, 15 Nov 2023")).cooldown(), None);
}

#[test]
fn akamai() {
    let at = |remaining, next| {
        [("X-RateLimit-Limit", "500"), ("X-RateLimit-Remaining", remaining), ("X-RateLimit-Next", next)]
    };
    asks_for_cooldown(429, &at("0", "2023-11-15T12:00:45Z"), 45.0, Dialect::Akamai);
    asks_for_cooldown(200, &at("0", "2023-11-15T12:00:45.500Z"), 45.5, Dialect::Akamai);
    asks_for_cooldown(429, &at("0", "2023-11-15T13:00:45+0100"), 45.0, Dialect::Akamai);
    // Without the other fields, a rejection shows that nothing remains.
    asks_for_cooldown(429, &at("0", "2023-11-15T12:00:45Z")[2..], 45.0, Dialect::Akamai);
    assert_eq!(read(200, &at("0", "2023-11-15T12:00:45Z")[2..]).cooldown(), None);
    asks_for_none(&at("499", "2023-11-15T12:00:45Z"));
    asks_for_none(&at("many", "2023-11-15T12:00:99Z"));
}

#[test]
fn ietf_03() {
    let at = |remaining, reset| {
        [("RateLimit-Limit", "100, 100;w=60"), ("RateLimit-Remaining", remaining), ("RateLimit-Reset", reset)]
    };
    asks_for_cooldown(429, &at("0", "50"), 50.0, Dialect::Ietf03);
    asks_for_cooldown(200, &at("0", "1"), 1.0, Dialect::Ietf03);
    // GitLab.
    asks_for_cooldown(429, &at("0", "1700049660"), 60.0, Dialect::Ietf03);
    assert_eq!(quota(read(200, &at("99", "50"))), (Some(100), Some(99), Some(50_000)));
    asks_for_none(&at("1", "50"));
    asks_for_none(&at("-0", "-50"));
    assert_eq!(read(429, &at("0", "a minute")).cooldown(), None);
}

/// As Docker Hub sends them, and as proxies join them. Of several values the most
/// cautious counts.
#[test]
fn all_fields_may_have_parameters_and_be_joined() {
    let at = |limit, remaining, reset| {
        [("ratelimit-limit", limit), ("ratelimit-remaining", remaining), ("ratelimit-reset", reset)]
    };
    let of_docker_hub = [("ratelimit-limit", "100;w=21600"), ("ratelimit-remaining", "76;w=21600")];
    assert_eq!(quota(read(200, &of_docker_hub)), (Some(100), Some(76), None));
    asks_for_cooldown(429, &at("100;w=21600", "0;w=21600", "30;w=21600"), 30.0, Dialect::Ietf03);
    asks_for_cooldown(200, &at("10, 10", "0,0", "30, 30"), 30.0, Dialect::Ietf03);
    asks_for_cooldown(200, &at("10", "0, 5", "30s"), 30.0, Dialect::Ietf03);
    asks_for_cooldown(200, &at("10", " 7 , 0;w=1", "1m, 30"), 60.0, Dialect::Ietf03);
    let envoy = [("x-ratelimit-remaining", "0, 0;w=1"), ("x-ratelimit-reset", "1, 7;w=1")];
    asks_for_cooldown(200, &envoy, 7.0, Dialect::Envoy);
    let x = [("x-rate-limit-remaining", "0,0"), ("x-rate-limit-reset", "1700049660, 1700049630")];
    asks_for_cooldown(200, &x, 60.0, Dialect::X);
    let anthropic = "2023-11-15T12:00Z, 2023-11-15T12:00:17Z";
    let anthropic = [("anthropic-ratelimit-tokens-remaining", "0"), ("anthropic-ratelimit-tokens-reset", anthropic)];
    asks_for_cooldown(200, &anthropic, 17.0, Dialect::Anthropic);
    let millis = [("retry-after", "1, 1"), ("retry-after-ms", "20, 40")];
    assert_eq!(read(429, &millis).cooldown(), secs(1));
    assert_eq!(read(429, &millis[1..]).cooldown(), Some(std::time::Duration::from_millis(40)));
    assert_eq!(read(200, &[("x-shopify-shop-api-call-limit", "39/40, 40/40")]).remaining(), Some(0));
}
