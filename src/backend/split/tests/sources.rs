use std::net::IpAddr;

use super::*;

fn rejected<T>(result: Result<T, crate::ConfigError>) -> String {
    result.err().expect("an error").to_string()
}

#[test]
fn invalid_shares_are_rejected() {
    assert_eq!(rejected(Share::new(0, 0)), "share.count: `0`: must be from 1 to 1048576");
    assert_eq!(rejected(Share::new(0, u64::MAX)), format!("share.count: `{}`: must be from 1 to 1048576", u64::MAX));
    assert_eq!(rejected(Share::new(0, -5)), "share.count: `-5`: must be from 1 to 1048576");
    assert_eq!(rejected(Share::new(96, 96)), "share.index: `96`: must be below the count, 96");
    assert_eq!(rejected(Share::new(-1i8, 96u32)), "share.index: `-1`: must be below the count, 96");
    assert_eq!(rejected(Share::weighted(2, [1.0, 2.0])), "share.index: `2`: must be below the number of weights, 2");
    assert_eq!(rejected(Share::weighted(0, [f64::NAN])), "share.weights[0]: `NaN`: must be finite, and not negative");
}

#[test]
fn the_index_is_the_ordinal_of_the_host_name() {
    for name in ["web-3", "web-3.web.default.svc", "a-1-3\n", "web-03"] {
        assert_eq!(Share::from_host_name(name, 5), Share::new(3, 5), "{name}");
    }
    for name in ["", "web", "web-", "web-x", "web-+3", "3", "web-3x", "web-99999999999999999999", "web.a-3"] {
        let error = rejected(Share::from_host_name(name, 5));
        assert!(error.starts_with("host name: "), "{error}");
    }
    assert_eq!(rejected(Share::from_host_name("web-5", 5)), "host name: `5`: must be below the count, 5");
    assert_eq!(rejected(Share::from_host_name("web-5", 0)), "share.count: `0`: must be from 1 to 1048576");
}

/// Only reads variables that Cargo sets: tests must not set any.
#[test]
fn invalid_variables_are_named() {
    assert_eq!(rejected(Share::from_env("SPLIT_NONE", "PATH")), "SPLIT_NONE: is not set in the environment");
    let error = rejected(Share::from_env("CARGO_PKG_NAME", "PATH"));
    assert_eq!(error, "CARGO_PKG_NAME: `tower-ratelimit`: must be a whole number");
    // The version of this crate is numbers.
    let minor = std::env::var("CARGO_PKG_VERSION_MINOR").unwrap();
    let major = std::env::var("CARGO_PKG_VERSION_MAJOR").unwrap();
    let shared = Share::from_env("CARGO_PKG_VERSION_MAJOR", "CARGO_PKG_VERSION_MINOR");
    assert_eq!(shared.is_ok(), major.parse::<u64>().unwrap() < minor.parse::<u64>().unwrap());
    let error = rejected(Share::from_env("CARGO_PKG_VERSION_MINOR", "CARGO_PKG_VERSION_PATCH"));
    assert!(error.starts_with("CARGO_PKG_VERSION_"), "{error}");
    let error = rejected(Share::from_stateful_set("CARGO_PKG_NAME"));
    assert!(error.starts_with("CARGO_PKG_NAME: "), "{error}");
}

#[test]
fn duplicate_addresses_count_once() {
    let address = |text: &str| text.parse::<IpAddr>().unwrap();
    let all = || ["10.0.0.9", "10.0.0.1", "::ffff:10.0.0.5", "10.0.0.9", "2001:db8::1"].map(address);
    for (own, index, count) in
        [("10.0.0.1", 0, 3), ("10.0.0.5", 1, 3), ("::ffff:10.0.0.9", 2, 3), ("2001:db8::1", 0, 1)]
    {
        assert_eq!(Share::among(address(own), all()), Share::new(index, count), "{own}");
    }
    let error = rejected(Share::among(address("10.0.0.2"), all()));
    assert_eq!(error, "share.address: `10.0.0.2`: is not among the 3 addresses of its kind");
}
