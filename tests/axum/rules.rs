//! Limits beside routes: layers that name the rule that they apply.

use axum::Router;
use http::StatusCode;
use tower::{Layer, ServiceExt, service_fn, util::MapRequestLayer};
use tower_ratelimit::{Descriptor, Dimension, Headers, Policy, Quota, RateLimitLayer, Rule, Tenant, tenant};

use super::{answer, common::limiter, serve};

const OK: StatusCode = StatusCode::OK;
const REJECTED: StatusCode = StatusCode::TOO_MANY_REQUESTS;

fn policy() -> Policy {
    Policy::new()
        .rule(Rule::new("everything").per([]).tier(Quota::per_minute(5)))
        .rule(Rule::new("search").path("/never/{id}").tier(Quota::per_minute(2)))
        .rule(Rule::new("off").tier(Quota::per_minute(1)).enabled(false))
        .rule(Rule::new("health").path("/healthz").exempt(true))
}

#[tokio::test]
async fn a_route_has_the_rule_that_its_layer_names_and_no_other() {
    let (limiter, _) = limiter(policy());
    let layer = |id: &str| RateLimitLayer::new(limiter.clone()).rule(id);
    let app = Router::new()
        .route("/search", answer().layer(layer("search")))
        .route("/healthz", answer().layer(layer("search")))
        .route("/unknown", answer().layer(layer("serach")))
        .route("/off", answer().layer(layer("off")))
        .route("/health", answer().layer(layer("health")))
        .nest("/nested", Router::new().route("/search", answer()).layer(layer("search")));
    let server = serve(app).await;
    // The three routes share the rule's counter of this caller, whatever matches.
    for (path, status) in [
        ("/search", OK),
        ("/nested/search", OK),
        ("/search", REJECTED),
        ("/healthz", REJECTED),
        ("/nested/search", REJECTED),
    ] {
        assert_eq!(server.get(path).await.status, status, "{path}");
    }
    for path in ["/unknown", "/off", "/health"] {
        for _ in 0..10 {
            assert_eq!(server.get(path).await.status, OK, "{path}");
        }
    }
    assert!(limiter.check(&Descriptor::new("/")).await.remaining() == 4, "no other rule was charged");
}

#[tokio::test]
async fn a_reload_changes_the_rule() {
    let (limiter, _) = limiter(Quota::per_minute(100));
    let layer = RateLimitLayer::new(limiter.clone()).rule("search");
    let server = serve(Router::new().route("/search", answer().layer(layer))).await;
    for _ in 0..5 {
        let reply = server.get("/search").await;
        assert_eq!((reply.status, &*reply.field("x-ratelimit-limit")), (OK, ""));
    }
    limiter.set_policy(policy()).unwrap();
    assert_eq!(server.get("/search").await.field("x-ratelimit-limit"), "2");
}

#[tokio::test]
async fn two_layers_report_a_policy_once() {
    let (limiter, _) = limiter(policy());
    let layer = || RateLimitLayer::new(limiter.clone()).headers(Headers::IETF);
    let inner = answer().layer(layer().rule("search"));
    let app = Router::new().route("/search", inner).layer(layer().rule("search")).layer(layer());
    let server = serve(app).await;
    let reply = server.get("/search").await;
    assert_eq!(reply.field("ratelimit-policy"), r#""search";q=2;w=60, "everything";q=5;w=60"#);
    assert!(reply.field("ratelimit").starts_with(r#""search";r=0;"#), "the inner one");
}

#[tokio::test]
async fn any_service_names_its_rule() {
    let (limiter, _) = limiter(policy());
    let layer = RateLimitLayer::keyed(limiter, |tenant: &String| Descriptor::new("/").tenant(tenant.as_str()));
    let service = layer.rule("search").layer(service_fn(async |_: String| Ok::<_, std::io::Error>(())));
    for (tenant, is_admitted) in [("a", true), ("b", true), ("a", true), ("a", false), ("b", true)] {
        assert_eq!(service.clone().oneshot(tenant.to_owned()).await.is_ok(), is_admitted, "{tenant}");
    }
}

#[tokio::test]
async fn a_named_rule_has_the_limits_and_keys_of_the_request() {
    let (limiter, _) = limiter(
        policy()
            .rule(Rule::new("per-device").path("/never").per([Dimension::key("device")]).tier(Quota::per_minute(1))),
    );
    let layer = |id: &str| RateLimitLayer::new(limiter.clone()).tenant(tenant::extension::<Tenant>()).rule(id);
    let device = layer("per-device").key("device", tenant::header("x-device"));
    let own = MapRequestLayer::new(|mut request: axum::extract::Request| {
        let tiers = [Quota::per_minute(3)];
        request.extensions_mut().insert(Tenant::new("acme").tiers_for("search", tiers));
        request
    });
    let app = Router::new()
        .route("/search", answer().layer(layer("search")))
        .route("/device", answer().layer(device))
        .layer(own);
    let server = serve(app).await;
    for status in [OK, OK, OK, REJECTED] {
        assert_eq!(server.get("/search").await.status, status);
    }
    for (device, status) in [("phone", OK), ("laptop", OK), ("phone", REJECTED)] {
        let reply = server.call(http::Method::GET, "/device", &[("x-device", device.as_bytes())]).await;
        assert_eq!(reply.status, status, "{device}");
    }
}
