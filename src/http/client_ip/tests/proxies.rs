use std::net::SocketAddr;

use http::Request;

use super::*;
use crate::http::tenant::PeerAddr;

const TRUSTED: [&str; 3] = ["10.0.0.0/8", "2001:db8::/32", "192.0.2.1"];

fn networks() -> TrustedProxies {
    TrustedProxies::cidrs(TRUSTED).unwrap()
}

fn request(peer: &str, headers: &[(&str, &str)]) -> Request<()> {
    let mut request = Request::get("/");
    if !peer.is_empty() {
        request = request.extension(PeerAddr(SocketAddr::new(peer.parse().unwrap(), 50_123)));
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(()).unwrap()
}

fn client(proxies: &TrustedProxies, peer: &str, headers: &[(&str, &str)]) -> String {
    let request = request(peer, headers);
    proxies.client(&RequestHead::new(&request)).map_or_else(String::new, |address| address.to_string())
}

const XFF: &str = "x-forwarded-for";

#[test]
fn a_header_from_an_untrusted_peer_is_ignored() {
    for proxies in [networks(), networks().forwarded(), networks().header("cf-connecting-ip"), TrustedProxies::none()] {
        let headers = [(XFF, "6.6.6.6"), ("forwarded", "for=6.6.6.6"), ("cf-connecting-ip", "6.6.6.6")];
        assert_eq!(client(&proxies, "198.51.100.9", &headers), "198.51.100.9");
    }
}

#[test]
fn none_trusts_no_proxy() {
    for proxies in [TrustedProxies::none(), TrustedProxies::none().header("x-real-ip")] {
        assert_eq!(client(&proxies, "10.0.0.1", &[(XFF, "6.6.6.6"), ("x-real-ip", "6.6.6.6")]), "10.0.0.1");
    }
}

#[test]
fn the_first_untrusted_address_from_the_right_is_the_client() {
    for (list, address) in [
        ("198.51.100.9", "198.51.100.9"),
        ("6.6.6.6, 198.51.100.9", "198.51.100.9"),
        ("10.0.0.9, 6.6.6.6, 198.51.100.9, 10.0.0.2, 192.0.2.1, 2001:db8::5", "198.51.100.9"),
        ("6.6.6.6, [2001:db9::1]:4711, 10.0.0.2:80", "2001:db9::1"),
        ("6.6.6.6, ::ffff:198.51.100.9, ::ffff:10.0.0.2", "198.51.100.9"),
        // All trusted: an internal request.
        ("10.0.0.3, 10.0.0.2", "10.0.0.3"),
        // The search ends at an entry without an address.
        ("6.6.6.6, unknown, 10.0.0.2", "10.0.0.2"),
        ("6.6.6.6, garbage", "10.0.0.1"),
        ("198.51.100.9,, ,", "198.51.100.9"),
        ("", "10.0.0.1"),
    ] {
        assert_eq!(client(&networks(), "10.0.0.1", &[(XFF, list)]), address, "{list}");
    }
    assert_eq!(client(&networks(), "10.0.0.1", &[]), "10.0.0.1");
}

#[test]
fn all_lines_form_one_list() {
    let headers = [(XFF, "6.6.6.6"), (XFF, "198.51.100.9, 10.0.0.3"), (XFF, "10.0.0.2")];
    assert_eq!(client(&networks(), "10.0.0.1", &headers), "198.51.100.9");
}

#[test]
fn a_mapped_peer_is_the_ipv4_address() {
    assert_eq!(client(&networks(), "::ffff:10.0.0.1", &[(XFF, "198.51.100.9")]), "198.51.100.9");
    assert_eq!(client(&networks(), "::ffff:198.51.100.9", &[(XFF, "6.6.6.6")]), "198.51.100.9");
    let mapped = TrustedProxies::cidrs(["::ffff:10.0.0.0/104"]).unwrap();
    assert_eq!(client(&mapped, "10.0.0.1", &[(XFF, "198.51.100.9")]), "198.51.100.9");
    assert_eq!(client(&mapped, "11.0.0.1", &[(XFF, "6.6.6.6")]), "11.0.0.1");
}

#[test]
fn one_of_the_two_lists_is_read() {
    let headers = [(XFF, "1.1.1.1"), ("forwarded", r#"for=6.6.6.6, for="198.51.100.9:1";by=10.0.0.2, for=10.0.0.2"#)];
    assert_eq!(client(&networks(), "10.0.0.1", &headers), "1.1.1.1");
    assert_eq!(client(&networks().forwarded(), "10.0.0.1", &headers), "198.51.100.9");
    assert_eq!(client(&networks().forwarded(), "10.0.0.1", &headers[..1]), "10.0.0.1");
    let hidden = [("forwarded", "for=6.6.6.6, for=_hidden, for=10.0.0.2")];
    assert_eq!(client(&networks().forwarded(), "10.0.0.1", &hidden), "10.0.0.2");
}

#[test]
fn hops_count_from_the_right_and_include_the_peer() {
    let list = [(XFF, "6.6.6.6, 3.3.3.3, 2.2.2.2")];
    for (hops, address) in [(0, "198.51.100.9"), (1, "2.2.2.2"), (2, "3.3.3.3"), (3, "6.6.6.6"), (4, "6.6.6.6")] {
        assert_eq!(client(&TrustedProxies::hops(hops), "198.51.100.9", &list), address, "{hops}");
    }
    assert_eq!(client(&TrustedProxies::hops(usize::MAX), "198.51.100.9", &list), "6.6.6.6");
    assert_eq!(client(&TrustedProxies::hops(1), "198.51.100.9", &[]), "198.51.100.9");
    assert_eq!(client(&TrustedProxies::hops(3), "198.51.100.9", &[(XFF, "6.6.6.6, ?, 2.2.2.2")]), "2.2.2.2");
}

#[test]
fn an_unknown_peer() {
    assert_eq!(client(&networks(), "", &[(XFF, "6.6.6.6")]), "");
    assert_eq!(client(&TrustedProxies::none(), "", &[(XFF, "6.6.6.6")]), "");
    // As behind a Unix socket.
    assert_eq!(client(&TrustedProxies::hops(1), "", &[(XFF, "6.6.6.6, 198.51.100.9")]), "198.51.100.9");
}

#[test]
fn a_single_value_counts_once_and_from_a_trusted_peer() {
    let proxies = networks().header("CF-Connecting-IP");
    let name = "cf-connecting-ip";
    assert_eq!(client(&proxies, "10.0.0.1", &[(name, "198.51.100.9"), (XFF, "6.6.6.6")]), "198.51.100.9");
    assert_eq!(client(&proxies, "10.0.0.1", &[(name, "::ffff:198.51.100.9")]), "198.51.100.9");
    for headers in [
        &[][..],
        &[(name, "198.51.100.9"), (name, "6.6.6.6")],
        &[(name, "198.51.100.9"), (name, "198.51.100.9")],
        &[(name, "198.51.100.9, 6.6.6.6")],
        &[(name, "")],
        &[(name, "localhost")],
    ] {
        assert_eq!(client(&proxies, "10.0.0.1", headers), "10.0.0.1", "{headers:?}");
    }
    assert!(std::panic::catch_unwind(|| networks().header("no header")).is_err());
}

#[test]
fn ten_thousand_hops_are_not_read() {
    let list = format!("198.51.100.9{}", ", 10.0.0.2".repeat(10_000));
    assert_eq!(client(&networks(), "10.0.0.1", &[(XFF, &list)]), "10.0.0.2");
    let within = format!("6.6.6.6, 198.51.100.9{}", ", 10.0.0.2".repeat(63));
    assert_eq!(client(&networks(), "10.0.0.1", &[(XFF, &within)]), "198.51.100.9");
}

#[test]
fn an_invalid_network_is_an_error() {
    for text in ["", "10.0.0.0/33", "10.0.0/8", "2001:db8::/129", "example.com", "10.0.0.1:80", "*"] {
        let error = TrustedProxies::cidrs(["10.0.0.0/8", text]).unwrap_err();
        assert_eq!((error.key(), error.value()), ("trusted_proxies", Some(text)));
    }
}
