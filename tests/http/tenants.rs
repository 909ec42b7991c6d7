//! Tenants of requests, and requests that are exempt.

use http::{Method, Request, StatusCode};
use tower::{Layer, ServiceExt};
use tower_ratelimit::{
    Dimension, MissingTenant, Policy, Quota, RateLimitLayer, RequestHead, Rule, Tenant,
    tenant::{self, TrustedProxies},
};

use super::{
    common::{Caller, limiter},
    hello, limited,
};

const OK: StatusCode = StatusCode::OK;
const REJECTED: StatusCode = StatusCode::TOO_MANY_REQUESTS;

/// One request a minute for each tenant.
async fn one_a_minute(change: impl FnOnce(RateLimitLayer) -> RateLimitLayer) -> Caller {
    limited(change(RateLimitLayer::new(limiter(Quota::per_minute(1)).0))).await
}

#[tokio::test]
async fn each_tenant_has_a_counter_of_its_own() {
    let server = one_a_minute(|layer| layer.tenant(tenant::header("x-api-key"))).await;
    for (key, status) in [("a", OK), ("b", OK), ("a", REJECTED), ("A", OK), ("b", REJECTED)] {
        assert_eq!(server.get_as(key).await.status, status, "{key}");
    }
}

#[tokio::test]
async fn a_plan_chooses_the_quota() {
    let rule = Rule::new("r").tier(Quota::per_minute(1)).plan("pro", [Quota::per_minute(50)]);
    let (limiter, _) = limiter(Policy::new().rule(rule));
    let by_key = tenant::from_fn(|request: &RequestHead<'_>| {
        let key = request.headers().get("x-api-key")?.to_str().ok()?;
        Some(if key == "gold" { Tenant::new("acme").plan("pro") } else { Tenant::new(key) })
    });
    let server = limited(RateLimitLayer::new(limiter).tenant(by_key)).await;
    assert_eq!(server.get_as("gold").await.trio()[..2], [50, 49]);
    assert_eq!(server.get_as("tin").await.trio()[..2], [1, 0]);
}

#[tokio::test]
async fn a_missing_tenant_is_anonymous_rejected_or_exempt() {
    for (choice, statuses) in [
        (MissingTenant::Anonymous, [OK, REJECTED]),
        (MissingTenant::Reject, [StatusCode::UNAUTHORIZED; 2]),
        (MissingTenant::Allow, [OK, OK]),
    ] {
        let layer = |layer: RateLimitLayer| layer.tenant(tenant::header("x-api-key")).on_missing_tenant(choice);
        let server = one_a_minute(layer).await;
        for status in statuses {
            let reply = server.get("/").await;
            assert_eq!(reply.status, status, "{choice:?}");
            if status == StatusCode::UNAUTHORIZED {
                assert_eq!(reply.field("content-type"), "application/problem+json");
                assert_eq!(reply.json()["status"], 401);
                assert_eq!(reply.field("retry-after"), "");
            }
        }
        assert_eq!(server.get_as("somebody").await.status, OK);
    }
}

#[tokio::test]
async fn a_rule_with_one_counter_for_all_needs_no_tenant() {
    let everyone = Rule::new("everyone").per([] as [Dimension; 0]).tier(Quota::per_minute(1));
    let (limiter, _) = limiter(Policy::new().rule(everyone));
    let layer = RateLimitLayer::new(limiter).tenant(tenant::header("x-api-key"));
    let server = limited(layer.on_missing_tenant(MissingTenant::Reject)).await;
    assert_eq!(server.get("/").await.status, OK);
    assert_eq!(server.get_as("another").await.status, REJECTED);
}

#[tokio::test]
async fn mistake_4_a_missing_peer_address_is_no_error() {
    let service = RateLimitLayer::new(limiter(Quota::per_minute(1)).0).layer(hello());
    for status in [OK, REJECTED] {
        let response = service.clone().oneshot(Request::new(())).await.unwrap();
        assert_eq!(response.status(), status, "they share the anonymous tenant");
    }
}

async fn behind(proxies: TrustedProxies) -> Caller {
    one_a_minute(|layer| layer.tenant(tenant::client_ip(proxies))).await
}

async fn forwarded(server: &Caller, lines: &[&str]) -> StatusCode {
    let lines: Vec<_> = lines.iter().map(|line| ("x-forwarded-for", line.as_bytes())).collect();
    server.call(Method::GET, "/", &lines).await.status
}

#[tokio::test]
async fn mistake_5_the_leftmost_forwarded_address_is_ignored() {
    let server = behind(TrustedProxies::cidrs(["127.0.0.0/8", "10.0.0.0/8"]).unwrap()).await;
    assert_eq!(forwarded(&server, &["192.0.2.1, 10.0.0.1"]).await, OK);
    for invented in ["6.6.6.6", "7.7.7.7, 8.8.8.8", "unknown", "192.0.2.200"] {
        let line = format!("{invented}, 192.0.2.1, 10.0.0.1");
        assert_eq!(forwarded(&server, &[&line]).await, REJECTED, "{line}");
        assert_eq!(
            forwarded(&server, &[invented, "192.0.2.1", "10.0.0.1"]).await,
            REJECTED,
            "{line}, in several lines"
        );
    }
    assert_eq!(forwarded(&server, &["192.0.2.2, 10.0.0.1"]).await, OK);
}

#[tokio::test]
async fn forwarded_addresses_count_only_from_trusted_proxies() {
    for proxies in [TrustedProxies::none(), TrustedProxies::cidrs(["10.0.0.0/8"]).unwrap()] {
        let server = behind(proxies).await;
        assert_eq!(forwarded(&server, &["192.0.2.1"]).await, OK);
        assert_eq!(forwarded(&server, &["192.0.2.2"]).await, REJECTED);
        assert_eq!(forwarded(&server, &[]).await, REJECTED);
    }
}

#[tokio::test]
async fn a_tenant_may_be_a_key_or_an_address() {
    let server = one_a_minute(|layer| layer.tenant(tenant::header("x-api-key").or(tenant::peer_ip()))).await;
    for (reply, status) in [
        (server.get_as("a").await, OK),
        (server.get("/").await, OK),
        (server.get("/").await, REJECTED),
        (server.get_as("a").await, REJECTED),
        // A name equal to an address's text is another tenant.
        (server.get_as("127.0.0.1").await, OK),
    ] {
        assert_eq!(reply.status, status);
    }
}

/// A key that is sent twice must not count as none: the request would escape
/// the limit of its account by another tenant's.
#[tokio::test]
async fn a_key_that_is_sent_twice_is_rejected() {
    let (limiter, _) = limiter(Quota::per_minute(1));
    let layer = RateLimitLayer::new(limiter.clone()).tenant(tenant::header("x-api-key").or(tenant::peer_ip()));
    let server = limited(layer).await;
    for twice in [[("x-api-key", &b"a"[..]), ("x-api-key", b"a")], [("x-api-key", b"a"), ("x-api-key", b"")]] {
        let reply = server.call(Method::GET, "/", &twice).await;
        assert_eq!((reply.status, reply.field("retry-after")), (StatusCode::BAD_REQUEST, String::new()), "{twice:?}");
        let body = String::from_utf8(reply.body.to_vec()).unwrap();
        assert!(body.contains(r#""status":400"#) && body.contains("more than one tenant"), "{body}");
    }
    assert_eq!(limiter.stats().allowed, 0);
    for status in [OK, REJECTED] {
        assert_eq!(server.get("/").await.status, status, "the address was not charged");
        assert_eq!(server.get_as("a").await.status, status, "the key was not charged");
    }
    // A call over gRPC has a status of its own.
    let twice = [("x-api-key", &b"a"[..]), ("x-api-key", b"b"), ("content-type", b"application/grpc")];
    let reply = server.call(Method::POST, "/shop.v1.Products/Get", &twice).await;
    assert_eq!((reply.status, reply.field("grpc-status")), (OK, "3".to_owned()));
}

#[tokio::test]
async fn of_a_key_that_is_sent_twice_the_first_or_the_last_can_count() {
    let twice: &[(&str, &[u8])] = &[("x-api-key", b"a"), ("x-api-key", b"b")];
    for (key, counted, other) in
        [(tenant::header("x-api-key").first(), "a", "b"), (tenant::header("x-api-key").last(), "b", "a")]
    {
        let server = one_a_minute(|layer| layer.tenant(key)).await;
        assert_eq!(server.call(Method::GET, "/", twice).await.status, OK);
        assert_eq!(server.call(Method::GET, "/", twice).await.status, REJECTED);
        assert_eq!(server.get_as(counted).await.status, REJECTED);
        assert_eq!(server.get_as(other).await.status, OK);
    }
}

/// Rules that count no tenants apply to all requests alike.
#[tokio::test]
async fn a_key_that_is_sent_twice_matters_only_to_rules_that_count_per_tenant() {
    let rule = Rule::new("all").per([]).tier(Quota::per_minute(1));
    let layer = RateLimitLayer::new(limiter(Policy::new().rule(rule)).0).tenant(tenant::header("x-api-key"));
    let server = limited(layer).await;
    for status in [OK, REJECTED] {
        let twice: &[(&str, &[u8])] = &[("x-api-key", b"a"), ("x-api-key", b"b")];
        assert_eq!(server.call(Method::GET, "/", twice).await.status, status);
    }
}
