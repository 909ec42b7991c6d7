//! Any request gets a defined response: never a 500, never a panic.

use http::{Method, Request, StatusCode, Uri};
use tower::{Layer, ServiceExt};
use tower_ratelimit::{
    Policy, Quota, RateLimitLayer, Rule,
    tenant::{self, TrustedProxies},
    time::{Clock, Timestamp},
};

use super::{
    common::{Caller, limiter},
    hello, limited,
};

const OK: StatusCode = StatusCode::OK;
const REJECTED: StatusCode = StatusCode::TOO_MANY_REQUESTS;

/// The first request is admitted and the second rejected: both have one tenant.
async fn same_tenant(server: &Caller, headers: &[(&str, &[u8])]) {
    for status in [OK, REJECTED] {
        assert_eq!(server.call(Method::GET, "/", headers).await.status, status, "{headers:?}");
    }
}

async fn by_key() -> Caller {
    limited(RateLimitLayer::new(limiter(Quota::per_minute(1)).0).tenant(tenant::header("x-api-key"))).await
}

#[tokio::test]
async fn a_key_of_64_kib_is_a_tenant() {
    let server = by_key().await;
    let key = vec![b'k'; 64 * 1024];
    same_tenant(&server, &[("x-api-key", &key)]).await;
    same_tenant(&server, &[("x-api-key", &key[1..])]).await;
}

#[tokio::test]
async fn keys_of_any_bytes_are_tenants() {
    let server = by_key().await;
    for key in [&b"\xff\xfe"[..], b"\xff\xff", "schl\u{fc}ssel".as_bytes(), b"\x80", b"%", b"a\tb", b"\""] {
        same_tenant(&server, &[("x-api-key", key)]).await;
    }
}

#[tokio::test]
async fn an_empty_key_is_none() {
    let server = by_key().await;
    same_tenant(&server, &[]).await;
    let headers: &[(&str, &[u8])] = &[("x-api-key", b"")];
    assert_eq!(server.call(Method::GET, "/", headers).await.status, REJECTED, "the anonymous tenant");
}

#[tokio::test]
async fn any_forwarded_chain_yields_its_last_recognizable_address() {
    let long = vec!["10.0.0.1"; 5_000].join(", ");
    let commas = ",".repeat(10_000);
    let chains: [&[u8]; 12] = [
        b"",
        b",,,,",
        b"unknown",
        b"999.999.999.999",
        b"\xff\xfe",
        b"[::1",
        b"]:[",
        b"127.0.0.1:99999999",
        b"::ffff:127.0.0.1",
        b"\"",
        commas.as_bytes(),
        long.as_bytes(),
    ];
    for proxies in [
        TrustedProxies::cidrs(["127.0.0.0/8", "10.0.0.0/8", "::1"]).unwrap(),
        TrustedProxies::cidrs(["127.0.0.0/8"]).unwrap().forwarded(),
        TrustedProxies::cidrs(["127.0.0.0/8"]).unwrap().header("x-real-ip"),
        TrustedProxies::hops(3),
        TrustedProxies::hops(usize::MAX),
        TrustedProxies::none(),
    ] {
        let extractor = tenant::client_ip(proxies.clone()).or(tenant::peer_ip());
        let (limiter, _) = limiter(Quota::per_minute(1));
        let server = limited(RateLimitLayer::new(limiter).tenant(extractor)).await;
        for name in ["x-forwarded-for", "forwarded", "x-real-ip"] {
            for chain in chains {
                let status = server.call(Method::GET, "/", &[(name, chain), (name, chain)]).await.status;
                assert!([OK, REJECTED].contains(&status), "{status} {proxies:?} {name}: {chain:?}");
            }
        }
        assert_eq!(server.get("/").await.status, REJECTED, "all requests came from this peer");
    }
}

#[tokio::test]
async fn any_path_gets_a_response() {
    let policy = Policy::new()
        .rule(Rule::new("user").path("/users/{id}").tier(Quota::per_minute(1)))
        .rule(Rule::new("rest").fallback(true).tier(Quota::per_minute(1)));
    let (limiter, _) = limiter(policy);
    let service = RateLimitLayer::new(limiter.clone()).layer(hello());
    let long = format!("/{}", "a/".repeat(30_000));
    for uri in
        ["*", "/", "//", "http://example.com", "/?", "/%", "/%zz", "/%00", "/..", "/./../../..", "/users/%2F", &long]
    {
        // The authority form of CONNECT has an empty path.
        for uri in [uri.parse::<Uri>().unwrap(), Uri::from_static("example.com:443")] {
            let request = Request::builder().uri(uri.clone()).body(()).unwrap();
            let status = service.clone().oneshot(request).await.unwrap().status();
            assert!([OK, REJECTED].contains(&status), "{status} {uri}");
        }
    }
    assert!(limiter.stats().rejected > 0);
}

#[tokio::test]
async fn no_form_of_a_path_evades_its_rule() {
    let rule = Rule::new("login").path("/login").tier(Quota::per_hour(1));
    let server = limited(RateLimitLayer::new(limiter(Policy::new().rule(rule)).0)).await;
    assert_eq!(server.get("/login").await.status, OK);
    for path in ["/login/", "//login", "/login?next=/", "/%6cogin", "/%6Cogin", "/./login", "/x/../login"] {
        assert_eq!(server.get(path).await.status, REJECTED, "{path}");
    }
}

/// A counter is moved back with the clock, so that it rejects for an hour and
/// not for a day. So each time that the clock is set forward, it may admit
/// another quota.
#[tokio::test]
async fn a_clock_that_jumps_by_a_day_admits_a_quota_for_each_jump_ahead() {
    const DAY: i64 = 86_400;
    let (limiter, clock) = limiter(Quota::per_hour(2));
    let server = limited(RateLimitLayer::new(limiter)).await;
    let start = clock.now().as_secs();
    let (mut total, mut most, mut before) = (0, 2, 0);
    for time in [0, -DAY, -DAY, -DAY, 0, 0, 0, -DAY, 0, 0, DAY, 0, 0, 0, DAY, -DAY, DAY, DAY] {
        most += if time > before { 2 } else { 0 };
        before = time;
        clock.set(Timestamp::from_secs(start.checked_add_signed(time).unwrap()));
        let reply = server.get("/").await;
        match reply.status {
            OK => total += 1,
            status => assert_eq!((status, reply.integer("retry-after") >= 1), (REJECTED, true)),
        }
        assert!(total <= most, "{total} admitted, at most {most}");
        let retry_after = reply.headers.get("retry-after").map(|_| reply.integer("retry-after"));
        assert!(retry_after.is_none_or(|seconds| seconds <= 3_600), "{retry_after:?}");
    }
    for end in [Timestamp::from_nanos(u64::MAX), Timestamp::UNIX_EPOCH] {
        clock.set(end);
        assert!([OK, REJECTED].contains(&server.get("/").await.status));
    }
}
