use std::time::Duration;

use tower_ratelimit::headers::parse::{Dialect, Parser};

use super::{millis, read, read_by, secs};

#[test]
fn every_form() {
    for (value, cooldown) in [
        ("2", secs(2)),
        ("120", secs(120)),
        ("2.0", secs(2)),
        ("0.25", millis(250)),
        (" 7 ", secs(7)),
        ("1.0000000000", secs(1)),
        // Fractions are rounded up.
        ("1.0000000001", Some(Duration::new(1, 1))),
        ("0.99999999999999", secs(1)),
        ("1700049605", secs(5)),
        // The three forms of an HTTP-date.
        ("Wed, 15 Nov 2023 12:00:30 GMT", secs(30)),
        ("Wednesday, 15-Nov-23 12:00:30 GMT", secs(30)),
        ("Wed Nov 15 12:00:30 2023", secs(30)),
        ("2023-11-15T12:00:30Z", secs(30)),
        ("2023-11-15t12:00:30.5z", millis(30_500)),
        ("2023-11-15T14:00:30+02:00", secs(30)),
        ("2023-11-15T04:30:30-0730", secs(30)),
        ("2023-11-15 13:00:30+01", secs(30)),
        // Near misses.
        (".5", millis(500)),
        ("30s", secs(30)),
        ("1m30s", secs(90)),
        ("Wed, 15 Nov 2023 12:00:30 UTC", secs(30)),
        ("Wed, 15 Nov 2023 12:00:30 +0000", secs(30)),
        ("Wed, 15 Nov 2023 14:00:30 +0200", secs(30)),
        ("Wed, 15 Nov 2023 04:30:30 -0730", secs(30)),
        ("2023-11-15T12:01Z", secs(60)),
        ("2023-11-15T14:01+02:00", secs(60)),
        // Joined by a proxy, or with parameters.
        ("30, 30", secs(30)),
        ("30,30", secs(30)),
        ("30, 20", secs(30)),
        ("soon, 30", secs(30)),
        ("30;w=60", secs(30)),
        ("30 ; w=60, 40;w=3600", secs(40)),
        ("Wed, 15 Nov 2023 12:00:30 GMT, Wed, 15 Nov 2023 12:00:30 GMT", secs(30)),
        ("20, Wednesday, 15-Nov-23 12:00:30 GMT,Wed Nov 15 12:00:25 2023", secs(30)),
        // Beyond the cap.
        ("99999999", secs(600)),
        ("Fri, 31 Dec 9999 23:59:59 GMT", secs(600)),
        // Now, or in the past.
        ("0", None),
        ("0.0", None),
        ("1600000000", None),
        ("Sun, 06 Nov 1994 08:49:37 GMT", None),
        ("1994-11-06T08:49:37Z", None),
    ] {
        for status in [429, 503, 403] {
            let signal = read(status, &[("retry-after", value)]);
            assert_eq!(signal.cooldown(), cooldown, "{status} {value}");
            assert_eq!(signal.dialect(), cooldown.map(|_| Dialect::RetryAfter), "{status} {value}");
            assert!(signal.is_rejection(), "{status} {value}");
            assert!(!signal.no_retry());
        }
        for status in [200, 202, 301, 401, 404, 500, 502, 504] {
            assert_eq!(read(status, &[("retry-after", value)]), read(status, &[]), "{status} {value}");
        }
    }
}

#[test]
fn malformed_fields_are_ignored() {
    for value in [
        "",
        " ",
        "soon",
        "-1",
        "+1",
        "1e3",
        "0x10",
        "5.",
        "1.2.3",
        ".",
        "5 s",
        ";5",
        ",",
        "s, ;",
        "Wed, 15 Nov 2023 12:00:30 CET",
        "Wed, 15 Nov 2023 12:00:30 +9900",
        "15 Nov 2023 12:00:30 +0000",
        "2023-11-15T12Z",
        "2023-11-15T12:0Z",
        // More than a year away.
        "99999999999999999999999999999999999999999999",
        "1732000000",
        "1732000000000",
        "1732000000000000000",
        "NaN",
        "inf",
        "٣",
        "\u{b5}",
        "Wed, 15 Nov 2023 12:00:30",
        "Wed, 32 Nov 2023 12:00:30 GMT",
        "2023-11-15",
        "2023-11-15T12:00:30.Z",
        "2023-11-15T12:00:30+",
        "2023-11-15T12:00:30+1",
        "2023-11-15T12:00:30+01:",
        "2023-11-15T12:00:30+24:00",
        "2023-11-15T12:00:30+01:60",
        "2023-11-15T12:00:30+01:00Z",
        "2023-13-15T12:00:30Z",
        "2023-11-15T12:00:30ZZ",
    ] {
        assert_eq!(read(429, &[("retry-after", value)]), read(429, &[]), "{value}");
        for status in [503, 403, 200] {
            assert_eq!(read(status, &[("retry-after", value)]), read(200, &[]), "{status} {value}");
        }
        for lines in [[("retry-after", "3"), ("retry-after", value)], [("retry-after", value), ("retry-after", "3")]] {
            assert_eq!(read(429, &lines).cooldown(), secs(3), "{value}");
        }
    }
}

#[test]
fn a_429_needs_no_time_and_other_statuses_a_signal() {
    let rejections = [200, 400, 403, 404, 429, 500, 503].map(|status| (status, read(status, &[]).is_rejection()));
    assert_eq!(rejections.into_iter().filter(|&(_, rejection)| rejection).collect::<Vec<_>>(), [(429, true)]);
    assert_eq!(read(429, &[]).cooldown(), None);
}

#[test]
fn the_longest_of_several_lines_counts() {
    let lines = ["5", "Wed, 15 Nov 2023 12:00:30 GMT", "0", "20"].map(|value| ("retry-after", value));
    assert_eq!(read(429, &lines).cooldown(), secs(30));
}

#[test]
fn dates_are_relative_to_the_response_date() {
    let at = |date, retry_after| read(429, &[("date", date), ("retry-after", retry_after)]).cooldown();
    // An hour ahead, and an hour behind.
    assert_eq!(at("Wed, 15 Nov 2023 13:00:00 GMT", "Wed, 15 Nov 2023 13:00:07 GMT"), secs(7));
    assert_eq!(at("Wed, 15 Nov 2023 11:00:00 GMT", "1700046008"), secs(8));
    assert_eq!(at("Wed, 15 Nov 2023 11:00:00 GMT", "9"), secs(9));
    assert_eq!(at("yesterday", "Wed, 15 Nov 2023 12:00:07 GMT"), secs(7));
    let twice = [("date", "Wed, 15 Nov 2023 12:00:00 GMT"), ("date", "Wed, 15 Nov 2023 11:59:00 GMT")];
    let twice = [twice[0], twice[1], ("retry-after", "1700049605")];
    assert_eq!(read(429, &twice).cooldown(), secs(65));
}

#[test]
fn a_cap_cuts() {
    let capped = |cap| read_by(Parser::new().cap(cap), 429, &[("retry-after", "90")]).cooldown();
    assert_eq!(capped(Duration::from_secs(60)), secs(60));
    assert_eq!(capped(Duration::MAX), secs(90));
    assert_eq!(capped(Duration::ZERO), None);
    let most = Parser::new().cap(Duration::MAX);
    assert_eq!(read_by(most, 429, &[("retry-after", "99999999")]).cooldown(), secs(99_999_999));
}

#[test]
fn a_pinned_dialect_still_reads_it() {
    for &dialect in Dialect::ALL {
        assert_eq!(dialect.to_string().parse(), Ok(dialect));
        let pinned = Parser::new().dialect(dialect);
        assert_eq!(read_by(pinned, 429, &[("retry-after", "4")]).cooldown(), secs(4));
    }
}

#[test]
fn work_is_bounded() {
    let mut many = vec![("retry-after", "nonsense"); 10_000];
    assert_eq!(read(429, &many).cooldown(), None);
    many.fill(("retry-after", "5"));
    assert_eq!(read(429, &many).cooldown(), secs(5));
    let long = "9".repeat(1 << 20);
    assert_eq!(read(429, &[("retry-after", &long)]).cooldown(), None);
}

/// By their size, as no delay is as long.
#[test]
fn points_in_time_may_be_finer_than_seconds() {
    for (value, cooldown) in [
        ("1700049642", secs(42)),
        ("1700049642.5", millis(42_500)),
        ("1700049642000", secs(42)),
        ("1700049642250", millis(42_250)),
        ("1700049642250.5", Some(Duration::from_micros(42_250_500))),
        ("1700049642250000", millis(42_250)),
        ("1700049642250000000", millis(42_250)),
        ("1700049600000", None),
        ("1600000000000", None),
        ("1700053200000", secs(600)),
    ] {
        assert_eq!(read(429, &[("retry-after", value)]).cooldown(), cooldown, "{value}");
        let reset = [("x-ratelimit-limit", "9"), ("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", value)];
        for parser in [Parser::new(), Parser::new().dialect(Dialect::GitHub)] {
            assert_eq!(read_by(parser, 200, &reset).cooldown(), cooldown, "{value}");
        }
    }
}
