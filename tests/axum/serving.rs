//! Tenants from axum's connect info, and reloads under its traffic.

use axum::{Router, body::Body, extract::Request};
use http::{Method, StatusCode};
use tokio::net::TcpListener;
use tower::ServiceExt;
use tower_ratelimit::{
    Policy, Quota, RateLimitLayer, Rule, Tenant,
    tenant::{self, TrustedProxies},
};

use super::{
    answer,
    common::{Caller, limiter},
    layer, serve,
};

const OK: StatusCode = StatusCode::OK;
const REJECTED: StatusCode = StatusCode::TOO_MANY_REQUESTS;

#[tokio::test]
async fn the_peers_address_is_the_tenant() {
    let app = Router::new().route("/", answer()).layer(layer(Quota::per_minute(1)).tenant(tenant::peer_ip()));
    let server = serve(app).await;
    assert_eq!(server.get("/").await.status, OK);
    // Another connection from the same address: another port, the same tenant.
    assert_eq!(Caller::new(server.address).get("/").await.status, REJECTED);
}

#[tokio::test]
async fn mistake_4_without_connect_info_callers_are_limited_together() {
    for tenants in
        [tenant::client_ip(TrustedProxies::none()), tenant::client_ip(TrustedProxies::cidrs(["::/0"]).unwrap())]
    {
        let app = Router::new().route("/", answer()).layer(layer(Quota::per_minute(1)).tenant(tenants));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Caller::new(listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        assert_eq!(server.get("/").await.status, OK);
        let spoofed = server.call(Method::GET, "/", &[("x-forwarded-for", b"192.0.2.1")]).await;
        assert_eq!(spoofed.status, REJECTED, "the header is not trusted");
    }
}

#[tokio::test]
async fn mistake_5_behind_a_proxy_the_rightmost_untrusted_address_is_the_tenant() {
    let proxies = TrustedProxies::cidrs(["127.0.0.1"]).unwrap();
    let limit = layer(Quota::per_minute(1)).tenant(tenant::client_ip(proxies));
    let server = serve(Router::new().route("/", answer()).layer(limit)).await;
    for (list, status) in [
        (&b"192.0.2.1"[..], OK),
        (b"6.6.6.6, 192.0.2.1", REJECTED),
        (b"192.0.2.1, 192.0.2.2", OK),
        (b"2001:db8::1", OK),
        (b"2001:db8::2", REJECTED),
        (b"2001:db8:0:1::1", OK),
    ] {
        let reply = server.call(Method::GET, "/", &[("x-forwarded-for", list)]).await;
        assert_eq!(reply.status, status, "{}", String::from_utf8_lossy(list));
    }
}

#[tokio::test]
async fn a_tenant_set_by_a_middleware_comes_first() {
    let policy = Rule::new("r").tier(Quota::per_minute(1)).plan("pro", [Quota::per_minute(9)]);
    let sign_in = axum::middleware::from_fn(async |mut request: Request, next: axum::middleware::Next| {
        if let Some(user) = request.headers().get("x-user").and_then(|user| user.to_str().ok()) {
            let tenant = Tenant::new(user).plan("pro");
            request.extensions_mut().insert(tenant);
        }
        next.run(request).await
    });
    let caller = tenant::extension::<Tenant>().or(tenant::peer_ip());
    let app = Router::new().route("/", answer()).layer(layer(Policy::new().rule(policy)).tenant(caller)).layer(sign_in);
    let server = serve(app).await;
    assert_eq!(server.call(Method::GET, "/", &[("x-user", b"ann")]).await.trio()[..2], [9, 8]);
    assert_eq!(server.call(Method::GET, "/", &[("x-user", b"bob")]).await.trio()[..2], [9, 8]);
    assert_eq!(server.get("/").await.trio()[..2], [1, 0]);
}

#[tokio::test]
async fn a_tenant_is_a_key_or_an_address() {
    let limit = layer(Quota::per_minute(1)).tenant(tenant::header("x-api-key").or(tenant::peer_ip()));
    let server = serve(Router::new().route("/", answer()).layer(limit)).await;
    assert_eq!([server.get_as("k").await.status, server.get("/").await.status], [OK, OK]);
    assert_eq!([server.get_as("k").await.status, server.get("/").await.status], [REJECTED, REJECTED]);
}

#[tokio::test]
async fn a_new_policy_applies_to_open_connections() {
    let (limiter, _) = limiter(Policy::new());
    let server = serve(Router::new().route("/", answer()).layer(RateLimitLayer::new(limiter.clone()))).await;
    assert_eq!(server.get("/").await.field("ratelimit"), "", "no rule");
    limiter.set_policy(Quota::per_minute(2)).unwrap();
    assert_eq!(server.get("/").await.trio()[..2], [2, 1]);
    limiter.set_policy(Quota::per_minute(0)).unwrap();
    assert_eq!(server.get("/").await.status, REJECTED);
    limiter.set_policy(Policy::new()).unwrap();
    assert_eq!(server.get("/").await.status, OK);
}

#[tokio::test]
async fn a_minimal_request_gets_a_response() {
    let limit = layer(Quota::per_minute(1)).tenant(tenant::client_ip(TrustedProxies::hops(2)).or(tenant::peer_ip()));
    let app = Router::new().fallback(answer()).layer(limit);
    for (uri, status) in [("*", OK), ("*", REJECTED), ("example.com:443", REJECTED)] {
        let request = Request::builder().method(Method::OPTIONS).uri(uri).body(Body::empty()).unwrap();
        assert_eq!(app.clone().oneshot(request).await.unwrap().status(), status, "{uri}");
    }
}
