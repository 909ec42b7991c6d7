//! What handlers, hooks and outer layers of axum get from the layer.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Extension, Json, Router,
    extract::State,
    response::{IntoResponse, Response},
    routing::get,
};
use http::{Method, StatusCode};
use serde_json::json;
use tower_ratelimit::{
    Decision, Descriptor, Policy, Quota, RateLimitLayer, RateLimited, RateLimitedKind, RateLimiter, RequestHead, Rule,
    Tenant, middleware::Rejection, tenant,
};

use super::{
    answer,
    common::{Reply, limiter},
    layer, serve,
};

#[tokio::test]
async fn a_hook_returns_a_response_of_axum() {
    let hook = |rejection: &Rejection<'_>| -> Response {
        let retry_after = rejection.retry_after().map(|after| after.as_secs());
        let body = json!({ "error": "slow down", "path": rejection.head().uri().path(), "retry_after": retry_after });
        (StatusCode::TOO_MANY_REQUESTS, Json(body)).into_response()
    };
    let server = serve(Router::new().route("/a", answer()).layer(layer(Quota::per_minute(1)).on_rejected(hook))).await;
    server.get("/a").await;
    let rejected = server.get("/a").await;
    assert_eq!(rejected.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(rejected.json(), json!({ "error": "slow down", "path": "/a", "retry_after": 60 }));
    assert_eq!(
        (rejected.field("content-type"), rejected.field("retry-after")),
        ("application/json".into(), "60".into())
    );
    assert_eq!(rejected.trio(), [1, 0, 60]);
}

/// A handler that limits by what it has read of the body.
#[tokio::test]
async fn a_handler_returns_a_rejection_as_it_is() {
    async fn query(State(limiter): State<RateLimiter>, body: String) -> Result<&'static str, RateLimited> {
        let query = Descriptor::new("/graphql").tenant("acme").cost(body.len() as u64);
        limiter.check(&query).await.into_result()?;
        Ok("data")
    }
    let (limiter, _) = limiter(Policy::new().rule(Rule::new("complexity").tier(Quota::per_minute(10))));
    let server = serve(Router::new().route("/graphql", axum::routing::any(query)).with_state(limiter)).await;
    let send = async |body: &'static str| server.send(Method::POST, "/graphql", &[], body.into()).await;
    assert_eq!(send("{ me }").await.body, "data");
    let rejected = send("{ me }").await;
    assert_eq!((rejected.status, rejected.field("retry-after")), (StatusCode::TOO_MANY_REQUESTS, "24".into()));
    assert_eq!(rejected.json()["violated-policies"], json!(["complexity"]));
}

async fn exposed(tenant: Option<Extension<Tenant>>, decision: Option<Extension<Decision>>) -> Json<serde_json::Value> {
    let tenant = tenant.map(|tenant| tenant.id().to_string());
    let decision = decision.map(|decision| (decision.limit(), decision.remaining(), decision.wait().as_secs()));
    Json(json!({ "tenant": tenant, "decision": decision }))
}

async fn exposing(layer: RateLimitLayer) -> Reply {
    serve(Router::new().route("/", get(exposed)).layer(layer)).await.get_as("acme").await
}

fn by_key() -> impl tenant::TenantExtractor {
    tenant::from_fn(|head: &RequestHead<'_>| Some(head.headers().get("x-api-key")?.to_str().ok()?.to_owned()))
}

#[tokio::test]
async fn a_handler_sees_the_tenant_and_the_decision() {
    let limits = || layer(Quota::per_minute(5)).tenant(by_key());
    assert_eq!(exposing(limits().expose(true)).await.json(), json!({ "tenant": "acme", "decision": [5, 4, 0] }));
    assert_eq!(exposing(limits()).await.json(), json!({ "tenant": null, "decision": null }));

    // The peer's address, if no extractor is set. Whatever headers are written.
    let by_address = layer(Quota::per_minute(5)).headers(tower_ratelimit::Headers::NONE).expose(true);
    assert_eq!(exposing(by_address).await.json(), json!({ "tenant": "127.0.0.1", "decision": [5, 4, 0] }));

    // No rule applies: no limit.
    let unlimited = layer(Policy::new()).tenant(by_key()).expose(true);
    let limits = json!({ "tenant": "acme", "decision": [null, null, 0] });
    assert_eq!(exposing(unlimited).await.json(), limits);

    // In flight.
    let in_flight = layer(Quota::concurrent(3)).tenant(by_key()).expose(true);
    assert_eq!(exposing(in_flight).await.json()["decision"], json!([3, 2, 0]));
}

#[tokio::test]
async fn a_handler_sees_the_decision_of_a_request_that_waited() {
    let rule = Rule::new("slow").tier(Quota::new(1, Duration::from_millis(1_100)).burst(1)).max_wait(Duration::MAX);
    let limiter = RateLimiter::new(Policy::new().rule(rule)).unwrap();
    let layer = RateLimitLayer::new(limiter).tenant(by_key()).expose(true);
    let server = serve(Router::new().route("/", get(exposed)).layer(layer)).await;
    let (first, second) = tokio::join!(server.get_as("acme"), server.get_as("acme"));
    let mut waits = [first, second].map(|reply| reply.json()["decision"][2].as_u64());
    waits.sort();
    assert_eq!(waits, [Some(0), Some(1)]);
}

/// The handler and a hook see whom a rule in shadow mode would have rejected, and the
/// client does not.
#[tokio::test]
async fn a_shadow_rule_says_whom_it_would_have_rejected() {
    let trial = Rule::new("trial").shadow(true).tier(Quota::per_minute(1));
    let policy = Policy::new().rule(Rule::new("r").tier(Quota::per_minute(5))).rule(trial);
    let reported = Arc::new(Mutex::new(Vec::new()));
    let report = Arc::clone(&reported);
    let layer = layer(policy).tenant(by_key()).on_shadow_rejected(move |rejection: &Rejection<'_>| {
        let (head, error) = (rejection.head(), rejection.error());
        let tenant = head.extensions().get::<Tenant>().unwrap().id().to_string();
        let rule = error.decision().unwrap().tiers()[0].rule().to_owned();
        assert_eq!((error.kind(), rejection.retry_after().is_some()), (RateLimitedKind::QuotaExceeded, true));
        report.lock().unwrap().push((tenant, rule, head.uri().path().to_owned()));
    });
    let answer = async |Extension(decision): Extension<Decision>| {
        Json(decision.shadows().iter().map(Decision::is_allowed).collect::<Vec<_>>())
    };
    let server = serve(Router::new().route("/search", get(answer)).layer(layer)).await;
    for (tenant, remaining, shadows) in [("acme", 4, true), ("acme", 3, false), ("globex", 4, true)] {
        let reply = server.call(Method::GET, "/search", &[("x-api-key", tenant.as_bytes())]).await;
        assert_eq!((reply.json(), reply.integer("x-ratelimit-remaining")), (json!([shadows]), remaining), "{tenant}");
    }
    let second = ("acme".to_owned(), "trial".to_owned(), "/search".to_owned());
    assert_eq!(*reported.lock().unwrap(), [second]);
}

/// The hook of a rejection sees the tenant too.
#[tokio::test]
async fn a_hook_sees_the_tenant() {
    let hook = |rejection: &Rejection<'_>| {
        let tenant = rejection.head().extensions().get::<Tenant>().map(|tenant| tenant.id().to_string());
        Response::new(tenant.unwrap_or_default())
    };
    let layer = layer(Quota::per_minute(0)).tenant(by_key()).expose(true).on_rejected(hook);
    assert_eq!(exposing(layer).await.body, "acme");
}
