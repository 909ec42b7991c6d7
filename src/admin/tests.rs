use http::Request;

use super::Access;
use crate::http::{RequestHead, tenant::PeerAddr};

/// What a request with these headers is told, from this peer.
fn denied(method: &str, peer: &str, headers: &[(&str, &str)]) -> Option<&'static str> {
    let mut request = Request::builder().method(method).uri("/admin");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.extension(PeerAddr(peer.parse().unwrap())).body(()).unwrap();
    Access::Loopback.denies(&RequestHead::new(&request))
}

const HERE: &str = "127.0.0.1:50123";

#[test]
fn this_machine_reads_by_a_name_of_its_own() {
    for host in ["localhost", "LOCALHOST:3000", "127.0.0.1:3000", "127.1.2.3", "[::1]:3000"] {
        assert_eq!(denied("GET", HERE, &[("host", host)]), None, "{host}");
    }
    assert_eq!(denied("GET", "[::1]:50123", &[("host", "localhost")]), None);
    assert_eq!(denied("GET", "[::ffff:127.0.0.1]:50123", &[("host", "localhost")]), None);
}

#[test]
fn other_peers_are_denied() {
    for peer in ["192.0.2.7:50123", "10.0.0.1:50123", "[2001:db8::1]:50123", "[::ffff:192.0.2.7]:50123"] {
        assert!(denied("GET", peer, &[("host", "localhost")]).is_some(), "{peer}");
    }
    let unknown = Request::get("/admin").header("host", "localhost").body(()).unwrap();
    assert!(Access::Loopback.denies(&RequestHead::new(&unknown)).is_some());
}

#[test]
fn a_name_that_someone_else_owns_is_denied() {
    let hosts =
        ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "192.0.2.7", "user@", "", "0x7f.1"];
    for host in hosts {
        assert!(denied("GET", HERE, &[("host", host)]).is_some(), "{host}");
    }
    assert!(denied("GET", HERE, &[]).is_some(), "no host");
    assert!(denied("GET", HERE, &[("host", "localhost"), ("host", "evil.example")]).is_some(), "two hosts");
}

#[test]
fn a_forwarded_request_is_denied() {
    for name in ["forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip"] {
        assert!(denied("GET", HERE, &[("host", "localhost"), (name, "x")]).is_some(), "{name}");
    }
}

#[test]
fn an_action_needs_its_header_and_its_own_origin() {
    let host = ("host", "localhost");
    assert!(denied("POST", HERE, &[host]).is_some());
    let acts = ("x-tower-ratelimit", "1");
    assert_eq!(denied("POST", HERE, &[host, acts]), None);
    assert_eq!(denied("POST", HERE, &[host, acts, ("sec-fetch-site", "same-origin")]), None);
    for site in ["cross-site", "same-site"] {
        assert!(denied("POST", HERE, &[host, acts, ("sec-fetch-site", site)]).is_some(), "{site}");
    }
}

#[test]
fn behind_authentication_only_actions_are_checked() {
    let request = |method: &str| Request::builder().method(method).uri("/admin").body(()).unwrap();
    assert_eq!(Access::Authenticated.denies(&RequestHead::new(&request("GET"))), None);
    assert!(Access::Authenticated.denies(&RequestHead::new(&request("POST"))).is_some());
}
