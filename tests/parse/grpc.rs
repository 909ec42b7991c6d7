//! gRPC responses that are trailers-only.

use std::time::Duration;

use tower_ratelimit::headers::parse::{Dialect, Parser, Signal};

use super::{millis, read, read_by, secs};

/// A status with a `RetryInfo` of 30 s, as protobuf in base64.
const THIRTY_SECONDS: &str = "CAgSCXNsb3cgZG93bhowCih0eXBlLmdvb2dsZWFwaXMuY29tL2dvb2dsZS5ycGMuUmV0cnlJbmZvEgQKAgge";

/// A padded status with a `QuotaFailure`, then a `RetryInfo` of 1.5 s.
const AND_A_QUOTA_FAILURE: &str = "CAgSCXNsb3cgZG93bhpICit0eXBlLmdvb2dsZWFwaXMuY29tL2dvb2dsZS5ycGMuUXVvdGFGYWlsdXJlEhkKFwoLdGVuYW50OmFjbWUSCHRvbyBtYW55GjYKKHR5cGUuZ29vZ2xlYXBpcy5jb20vZ29vZ2xlLnJwYy5SZXRyeUluZm8SCgoICAEQgMq17gE=";

const GRPC: (&str, &str) = ("content-type", "application/grpc");

fn status(code: &str, more: &[(&str, &str)]) -> Signal {
    read(200, &[&[GRPC, ("grpc-status", code)], more].concat())
}

fn details(details: &str) -> Option<Duration> {
    status("8", &[("grpc-status-details-bin", details)]).cooldown()
}

#[test]
fn pushback() {
    for (pushback, cooldown, no_retry) in [
        ("1500", millis(1_500), false),
        ("1", millis(1), false),
        ("0", None, false),
        ("99999999", secs(600), false),
        ("99999999999999999999999", secs(600), false),
        ("-1", None, true),
        ("-99999999999999999999999", None, true),
        // gRFC A6: an unreadable pushback asks for no retry.
        ("", None, true),
        ("soon", None, true),
        ("1.5", None, true),
        ("+5", None, true),
    ] {
        for code in ["8", "14"] {
            let signal = status(code, &[("grpc-retry-pushback-ms", pushback)]);
            assert_eq!((signal.cooldown(), signal.no_retry()), (cooldown, no_retry), "{code} {pushback}");
            assert_eq!(signal.dialect(), cooldown.map(|_| Dialect::Grpc));
            assert_eq!(signal.is_rejection(), code == "8" || !no_retry, "{code} {pushback}");
        }
        // Another failure is no rejection. It may still ask for no retry.
        let aborted = status("10", &[("grpc-retry-pushback-ms", pushback)]);
        assert_eq!((aborted.cooldown(), aborted.is_rejection()), (None, false));
        assert_eq!(aborted.no_retry(), no_retry);
        assert_eq!(status("0", &[("grpc-retry-pushback-ms", pushback)]), Signal::default());
    }
    let lines = ["2000", "5000", "-1"].map(|value| ("grpc-retry-pushback-ms", value));
    assert_eq!(status("8", &lines).cooldown(), secs(5));
    assert!(status("8", &lines).no_retry());
}

#[test]
fn retry_info() {
    for (what, text, cooldown) in [
        ("30 s", THIRTY_SECONDS, secs(30)),
        ("1.5 s", AND_A_QUOTA_FAILURE, millis(1_500)),
        ("without its padding", AND_A_QUOTA_FAILURE.trim_end_matches('='), millis(1_500)),
        (
            "2 s and 7 s",
            "CAgSCXNsb3cgZG93bhowCih0eXBlLmdvb2dsZWFwaXMuY29tL2dvb2dsZS5ycGMuUmV0cnlJbmZvEgQKAggCGjAKKHR5cGUuZ29vZ2xlYXBpcy5jb20vZ29vZ2xlLnJwYy5SZXRyeUluZm8SBAoCCAc=",
            secs(7),
        ),
        (
            "fields of other types in front",
            "TWFiY2RRYWJjZGVmZ2gICBIJc2xvdyBkb3duGjAKKHR5cGUuZ29vZ2xlYXBpcy5jb20vZ29vZ2xlLnJwYy5SZXRyeUluZm8SBAoCCAQ=",
            secs(4),
        ),
        (
            "as long as there can be",
            "CAgSCXNsb3cgZG93bho+Cih0eXBlLmdvb2dsZWFwaXMuY29tL2dvb2dsZS5ycGMuUmV0cnlJbmZvEhIKEAj//////////38Q/5Pr3AM=",
            secs(600),
        ),
        ("no time", "CAgSCXNsb3cgZG93bhouCih0eXBlLmdvb2dsZWFwaXMuY29tL2dvb2dsZS5ycGMuUmV0cnlJbmZvEgIKAA==", None),
        ("no delay", "CAgSCXNsb3cgZG93bhosCih0eXBlLmdvb2dsZWFwaXMuY29tL2dvb2dsZS5ycGMuUmV0cnlJbmZvEgA=", None),
        (
            "none",
            "CAgSCXNsb3cgZG93bhpICit0eXBlLmdvb2dsZWFwaXMuY29tL2dvb2dsZS5ycGMuUXVvdGFGYWlsdXJlEhkKFwoLdGVuYW50OmFjbWUSCHRvbyBtYW55",
            None,
        ),
        (
            "negative seconds",
            "CAgSCXNsb3cgZG93bho5Cih0eXBlLmdvb2dsZWFwaXMuY29tL2dvb2dsZS5ycGMuUmV0cnlJbmZvEg0KCwj7//////////8B",
            None,
        ),
        (
            "negative nanoseconds",
            "CAgSCXNsb3cgZG93bho7Cih0eXBlLmdvb2dsZWFwaXMuY29tL2dvb2dsZS5ycGMuUmV0cnlJbmZvEg8KDQgFEP///////////wE=",
            None,
        ),
        (
            "a second of nanoseconds",
            "CAgSCXNsb3cgZG93bho2Cih0eXBlLmdvb2dsZWFwaXMuY29tL2dvb2dsZS5ycGMuUmV0cnlJbmZvEgoKCAgFEICU69wD",
            None,
        ),
        ("cut short", "CAgSCXNsb3cgZG93bhowCih0eXBlLmdvb2dsZWFwaXMuY29tL2dvb2dsZS5ycGMuUmV0cnlJbmZvEgQKAgg=", None),
        ("a group", "SwgIEglzbG93IGRvd24aMAoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLlJldHJ5SW5mbxIECgIIBA==", None),
        ("a number without an end", "CP////////////8B", None),
        ("nothing", "", None),
        ("one digit", "C", None),
        ("padding alone", "====", None),
        ("not base64", "CAgS*XNs", None),
        ("not ASCII", "CAgS\u{b5}XNs", None),
    ] {
        assert_eq!(details(text), cooldown, "{what}");
        // A rejection, with or without a time.
        assert!(status("8", &[("grpc-status-details-bin", text)]).is_rejection());
        let unavailable = status("14", &[("grpc-status-details-bin", text)]);
        assert_eq!(unavailable.cooldown(), cooldown, "{what}");
        assert!(unavailable.is_rejection() || cooldown.is_none(), "{what}");
        for code in ["0", "10", "9999999999999999999999", "eight", "-8", ""] {
            let other = status(code, &[("grpc-status-details-bin", text)]);
            assert_eq!(other, Signal::default(), "{code} {what}");
        }
    }
    let joined = format!("{AND_A_QUOTA_FAILURE}, nonsense,{THIRTY_SECONDS}");
    assert_eq!(details(&joined), secs(30));
    assert_eq!(details(&format!("{}{THIRTY_SECONDS}", "A".repeat(1 << 20))), None);
}

#[test]
fn truncated_status_details_are_ignored() {
    for end in 0..AND_A_QUOTA_FAILURE.len() - 3 {
        assert_eq!(details(&AND_A_QUOTA_FAILURE[..end]), None, "{end}");
    }
}

#[test]
fn precedence() {
    let said = [("grpc-retry-pushback-ms", "2000"), ("grpc-status-details-bin", THIRTY_SECONDS)];
    assert_eq!(status("8", &said).cooldown(), secs(2));
    let negative = [("grpc-retry-pushback-ms", "-1"), said[1]];
    let signal = status("8", &negative);
    // Neither this call nor others for a while.
    assert_eq!((signal.cooldown(), signal.no_retry()), (secs(30), true));
    let retry_after = [said[0], said[1], ("retry-after", "5")];
    assert_eq!(status("8", &retry_after).cooldown(), secs(5));
    let quota = [said[0], ("ratelimit", r#""default";r=0;t=40"#)];
    assert_eq!(status("8", &quota).cooldown(), secs(2));
    assert_eq!(status("8", &quota[1..]).cooldown(), secs(40));
}

#[test]
fn only_grpc_is_read_as_grpc() {
    let trailers = [("grpc-status", "8"), ("grpc-retry-pushback-ms", "2000")];
    for content_type in
        ["application/grpc+proto", "Application/GRPC", "application/grpc-web+proto", "application/grpc;x"]
    {
        let lines = [("content-type", content_type), trailers[0], trailers[1]];
        assert_eq!(read(200, &lines).cooldown(), secs(2), "{content_type}");
    }
    for content_type in ["application/json", "application/grp", "text/application/grpc", ""] {
        let lines = [("content-type", content_type), trailers[0], trailers[1]];
        assert_eq!(read(200, &lines), Signal::default(), "{content_type}");
    }
    assert_eq!(read(200, &trailers), Signal::default());
    let lines = [GRPC, trailers[0], trailers[1]];
    assert_eq!(read_by(Parser::new().dialect(Dialect::Grpc), 200, &lines).cooldown(), secs(2));
    assert_eq!(read_by(Parser::new().dialect(Dialect::GitHub), 200, &lines), Signal::default());
}
