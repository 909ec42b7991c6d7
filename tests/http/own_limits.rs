//! Limits that come with the request, as from a database.

use std::time::Duration;

use http::{Request, Response, StatusCode};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_ratelimit::{
    Descriptor, Dimension, Policy, Quota, RateLimitLayer, RateLimited, RateLimitedKind, RateLimiter, RequestHead, Rule,
    Tenant, tenant,
};

use super::{
    common::{limiter, serve},
    hello, limited,
};

/// The rows of a database, by API key.
fn row(key: &str) -> Option<Tenant> {
    let per_minute = Quota::per_minute;
    Some(match key {
        "five" => Tenant::new("acme").tiers([per_minute(5)]),
        "two-tiers" => Tenant::new("initech").tiers([per_minute(5), Quota::per_hour(2)]),
        "search" => Tenant::new("globex").tiers([per_minute(4)]).tiers_for("search", [per_minute(2)]),
        "none" => Tenant::new("hooli").tiers([]),
        "zero" => Tenant::new("hooli").tiers([Quota::new(5, Duration::ZERO)]),
        "many" => Tenant::new("hooli").tiers((1..40).map(per_minute)),
        "pro" => Tenant::new("umbrella").plan("pro").tiers_for("other", [per_minute(9)]),
        "blocked" => Tenant::new("internal").tiers([per_minute(1)]),
        _ => return None,
    })
}

fn policy() -> Policy {
    let everything = Rule::new("everything")
        .per([Dimension::Tenant])
        .tier(Quota::per_minute(1))
        .plan("pro", [Quota::per_minute(3)])
        .tenant_unlimited("internal");
    let shared = Rule::new("shared").per([]).tier(Quota::per_minute(1_000));
    Policy::new().rule(everything).rule(Rule::new("search").path("/search").tier(Quota::per_minute(1))).rule(shared)
}

async fn admitted(server: &super::common::Caller, path: &str, key: &str) -> usize {
    let mut admitted = 0;
    for _ in 0..10 {
        let reply = server.call(http::Method::GET, path, &[("x-api-key", key.as_bytes())]).await;
        admitted += usize::from(reply.status == StatusCode::OK);
    }
    admitted
}

const EXPECTED: [(&str, &str, usize); 6] = [
    ("/", "five", 5),
    ("/", "two-tiers", 2),
    ("/search", "search", 2),
    ("/", "search", 2),  // What is left of four.
    ("/", "pro", 3),     // Own tiers for another rule: the plan's.
    ("/", "blocked", 1), // The tenant's own come before the policy's `unlimited`.
];

#[tokio::test]
async fn an_extractor_brings_limits() {
    let by_key = tenant::from_fn(|head: &RequestHead<'_>| row(head.headers().get("x-api-key")?.to_str().ok()?));
    let server = limited(RateLimitLayer::new(limiter(policy()).0).tenant(by_key)).await;
    for (path, key, expected) in EXPECTED {
        assert_eq!(admitted(&server, path, key).await, expected, "{path} {key}");
    }
    for key in ["none", "zero", "many"] {
        let reply = server.get_as(key).await;
        assert_eq!(reply.status, StatusCode::INTERNAL_SERVER_ERROR, "{key}");
        assert_eq!(reply.json()["detail"], "The limits of the tenant are invalid.");
        assert_eq!(reply.field("retry-after"), "");
    }
}

#[tokio::test]
async fn a_middleware_brings_limits_in_an_extension() {
    let layer = RateLimitLayer::new(limiter(policy()).0).tenant(tenant::extension::<Tenant>());
    let mut service = layer.layer(hello());
    let signed_in = service_fn(move |mut request: Request<hyper::body::Incoming>| {
        let key = request.headers().get("x-api-key").and_then(|key| key.to_str().ok());
        if let Some(tenant) = key.and_then(row) {
            request.extensions_mut().insert(tenant);
        }
        service.call(request)
    });
    let server = serve(signed_in).await;
    for (path, key, expected) in EXPECTED {
        assert_eq!(admitted(&server, path, key).await, expected, "{path} {key}");
    }
}

#[tokio::test]
async fn jobs_bring_limits() {
    let (limiter, _) = limiter(policy());
    let layer = RateLimitLayer::keyed(limiter, |key: &String| Descriptor::new("/").tenant(row(key).unwrap()));
    let service = layer.layer(service_fn(async |_: String| Ok::<_, std::io::Error>(())));
    for (_, key, expected) in [EXPECTED[0], EXPECTED[1], EXPECTED[4]] {
        let mut admitted = 0;
        for _ in 0..10 {
            admitted += usize::from(service.clone().oneshot(key.to_owned()).await.is_ok());
        }
        assert_eq!(admitted, expected, "{key}");
    }
    let error = service.oneshot("none".to_owned()).await.unwrap_err();
    assert_eq!(error.downcast_ref::<RateLimited>().unwrap().kind(), RateLimitedKind::InvalidTiers);
}

/// The rule has none, so nothing but the request's own limit asks for a lease.
#[tokio::test]
async fn a_concurrency_limit_of_a_tenant_is_released() {
    let limiter = RateLimiter::new(Quota::per_minute(1_000)).unwrap();
    let caller = || Tenant::new("acme").tiers([Quota::concurrent(2)]);
    let service = RateLimitLayer::new(limiter.clone()).tenant(tenant::extension::<Tenant>()).layer(hello::<()>());
    let call = async || {
        let mut request = Request::new(());
        request.extensions_mut().insert(caller());
        service.clone().oneshot(request).await.unwrap()
    };
    let (first, second) = (call().await, call().await);
    assert_eq!(call().await.status(), StatusCode::TOO_MANY_REQUESTS);
    let status: [Response<_>; 2] = [first, second];
    assert!(status.iter().all(|response| response.status() == StatusCode::OK));
    drop(status);
    assert_eq!(call().await.status(), StatusCode::OK);
    let permit = limiter.acquire(&Descriptor::new("/").tenant(caller()).cost(2), Duration::ZERO).await.unwrap();
    assert_eq!(call().await.status(), StatusCode::TOO_MANY_REQUESTS);
    drop(permit);
    // A reload keeps what is in flight, and what comes after it has limits as before.
    limiter.set_policy(Quota::per_minute(500)).unwrap();
    assert_eq!(call().await.status(), StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn a_request_waits_by_its_own_limits() {
    let clock = tower_ratelimit::testing::TokioClock::default();
    let limiter = RateLimiter::builder().policy(Quota::per_minute(1)).clock(clock).build().unwrap();
    let tenant = || Tenant::new("acme").tiers([Quota::per_second(2).burst(1)]);
    let start = tokio::time::Instant::now();
    for _ in 0..5 {
        drop(limiter.acquire(&Descriptor::new("/").tenant(tenant()), Duration::from_secs(10)).await.unwrap());
    }
    assert_eq!(start.elapsed(), Duration::from_secs(2));
}
