//! Rules that settle beside failures, unlimited tenants and shadow mode.

use axum::{Extension, Router, body::Body, routing::get};
use http::{Request, StatusCode};
use tower::ServiceExt;
use tower_ratelimit::{
    ChargeHandle, FailureMode, Policy, Quota, RateLimitLayer, RateLimiter, Rule, backend::Local, tenant,
    testing::FaultyBackend,
};

use super::{DOWN, limiter, on};

async fn add_one(Extension(charge): Extension<ChargeHandle>) -> &'static str {
    charge.add(1);
    "done"
}

async fn status(limiter: RateLimiter, tenant: &str) -> StatusCode {
    let layer = RateLimitLayer::new(limiter).tenant(tenant::header("x-api-key"));
    let app = Router::new().route("/", get(add_one)).layer(layer);
    let request = Request::get("/").header("x-api-key", tenant).body(Body::empty()).unwrap();
    app.oneshot(request).await.unwrap().status()
}

/// The handler is the one from the example of `ChargeHandle`.
#[tokio::test]
async fn a_rule_with_settlement_fails_open() {
    let backend = FaultyBackend::new(Local::new());
    let rule = Rule::new("tokens").tier(Quota::per_hour(100)).settle(true).on_backend_failure(FailureMode::Open);
    let limiter = on(backend.clone(), Policy::new().rule(rule));
    assert_eq!(status(limiter.clone(), "acme").await, StatusCode::OK);
    backend.set(DOWN);
    assert_eq!(status(limiter, "acme").await, StatusCode::OK);
}

#[tokio::test]
async fn a_rule_with_settlement_admits_unlimited_tenants() {
    let rule = Rule::new("tokens").tier(Quota::per_hour(100)).settle(true).tenant_unlimited("internal");
    let limiter = limiter(Policy::new().rule(rule));
    assert_eq!(status(limiter.clone(), "acme").await, StatusCode::OK);
    assert_eq!(status(limiter, "internal").await, StatusCode::OK);
}

/// A shadow rule never affects the requests that it would reject.
#[tokio::test]
async fn a_settled_shadow_rule_admits_requests_that_it_would_reject() {
    let rule = Rule::new("tokens").tier(Quota::per_hour(1)).settle(true).shadow(true);
    let limiter = limiter(Policy::new().rule(rule));
    assert_eq!(status(limiter.clone(), "acme").await, StatusCode::OK);
    assert_eq!(status(limiter, "acme").await, StatusCode::OK);
}
