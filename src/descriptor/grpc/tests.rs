use super::*;

#[test]
fn only_grpc_content_types_are_grpc() {
    for grpc in [
        "application/grpc",
        "application/grpc+proto",
        "application/grpc+json;charset=utf-8",
        "application/grpc;x=y",
        "application/grpc ; x=y",
        "Application/gRPC",
        "application/grpc-web",
        "application/grpc-web+proto",
        "application/grpc-web-text",
        "application/grpc-web-text+proto",
        "application/grpc-Web;x",
    ] {
        assert!(is_grpc(grpc.as_bytes()), "{grpc}");
    }
    for other in [
        "",
        "application/grp",
        "application/grpcfoo",
        "application/grpc2",
        "application/grpc.web",
        "application/grpc-",
        "application/grpc-webfoo",
        "application/grpc-web-textual",
        "application/grpc-web-",
        "application/grpc/",
        "xapplication/grpc",
        " application/grpc",
        "application/json",
        "text/grpc",
    ] {
        assert!(!is_grpc(other.as_bytes()), "{other}");
    }
}

#[test]
fn a_timeout_has_at_most_eight_digits_and_a_unit() {
    for (text, nanos) in [
        ("1n", 1),
        ("0S", 0),
        ("5u", 5_000),
        ("00000250m", 250_000_000),
        ("3S", 3_000_000_000),
        ("2M", 120_000_000_000),
        ("99999999H", 99_999_999 * 3_600_000_000_000),
    ] {
        assert_eq!(parse_timeout(text.as_bytes()).map(|timeout| timeout.as_nanos()), Some(nanos), "{text}");
    }
    for text in ["", "S", "5", "123456789n", "-1S", "+1S", "1 S", "1.5S", "1s", "1h", "1x", "1S ", "S1", "1\u{b5}"] {
        assert_eq!(parse_timeout(text.as_bytes()), None, "{text}");
    }
}

#[test]
fn only_grpc_calls_have_a_timeout() {
    let mut headers = HeaderMap::new();
    headers.insert(GRPC_TIMEOUT, HeaderValue::from_static("1S"));
    assert_eq!(timeout(&headers), None);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    assert_eq!(timeout(&headers), Some(Duration::from_secs(1)));
}

#[test]
fn a_written_timeout_is_at_most_and_nearly_the_duration() {
    for nanos in [1, 99_999_999, 100_000_000, 1_234_567_891, 86_400_000_000_123, u64::MAX] {
        let left = Duration::from_nanos(nanos);
        let read = parse_timeout(timeout_of(left).as_bytes()).unwrap();
        assert!(read <= left && read.as_secs_f64() > left.as_secs_f64() * 0.999_999, "{left:?}: {read:?}");
    }
    assert_eq!(timeout_of(Duration::ZERO), "1n");
    assert_eq!(timeout_of(Duration::MAX), "99999999H");
}
