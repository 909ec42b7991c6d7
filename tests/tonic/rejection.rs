//! Rejected calls, and headers of admitted ones.

use std::time::Duration;

use tonic::{Code, metadata::MetadataMap};
use tonic_types::StatusExt;
use tower_ratelimit::{
    FailureMode, Headers, MissingTenant, Policy, Quota, RateLimitLayer, RateLimiter, Rule,
    backend::Local,
    error::BackendErrorKind,
    middleware::Rejection,
    tenant,
    testing::{Fault, FaultyBackend, ManualClock},
};

use super::{Shop, by, common::limiter, everyone, hourly, layer, product, shop, start};

fn field<'a>(metadata: &'a MetadataMap, name: &str) -> &'a str {
    metadata.get(name).map_or("", |value| value.to_str().unwrap())
}

#[tokio::test]
async fn a_rejected_call_has_details_and_a_retry_delay() {
    let (limiter, clock) = limiter(Policy::new().rule(Rule::new("get").per([]).tier(Quota::per_minute(2).burst(1))));
    let mut shop = shop(RateLimitLayer::new(limiter).headers(Headers::ALL)).await;
    let response = shop.get(product("a")).await.unwrap();
    assert_eq!(field(response.metadata(), "x-ratelimit-limit"), "1");
    assert_eq!(field(response.metadata(), "ratelimit-policy"), r#""get";q=2;w=60"#);
    assert!(!response.metadata().contains_key("retry-after"));

    clock.advance(Duration::from_millis(500));
    let status = shop.get(product("a")).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(status.message(), "rate limit exceeded: get; retry after 30s");
    assert_eq!(status.get_details_retry_info().unwrap().retry_delay, Some(Duration::from_millis(29_500)));
    let violations = status.get_details_quota_failure().unwrap().violations;
    assert_eq!(violations.len(), 1);
    assert_eq!((&*violations[0].subject, &*violations[0].description), ("get", "Too little of the quota is left."));
    assert_eq!(field(status.metadata(), "retry-after"), "30");
    assert_eq!(field(status.metadata(), "x-ratelimit-remaining"), "0");
    assert_eq!(field(status.metadata(), "ratelimit"), r#""get";r=0;t=30"#);
    assert!(!status.metadata().contains_key("grpc-retry-pushback-ms"));

    clock.advance(Duration::from_millis(29_500));
    shop.get(product("a")).await.unwrap();
}

#[tokio::test]
async fn header_families_apply_to_metadata() {
    let mut shop = shop(everyone(Rule::new("get").tier(hourly(1))).headers(Headers::NONE).grpc_pushback(true)).await;
    let response = shop.get(product("a")).await.unwrap();
    assert!(!response.metadata().contains_key("ratelimit"), "{:?}", response.metadata());
    let status = shop.get(product("a")).await.unwrap_err();
    let pushback: u64 = field(status.metadata(), "grpc-retry-pushback-ms").parse().unwrap();
    assert!((3_590_000..=3_610_000).contains(&pushback), "{pushback}");
    assert!(!status.metadata().contains_key("ratelimit"), "{:?}", status.metadata());
    assert!(status.metadata().contains_key("retry-after"));
}

/// Clients obey it exactly, so those that were rejected together would return
/// together.
#[tokio::test]
async fn pushback_has_jitter_by_default() {
    let mut shop = shop(everyone(Rule::new("get").tier(hourly(1))).grpc_pushback(true)).await;
    shop.get(product("a")).await.unwrap();
    let mut sent = Vec::new();
    for _ in 0..40 {
        let status = shop.get(product("a")).await.unwrap_err();
        sent.push(field(status.metadata(), "grpc-retry-pushback-ms").parse::<u64>().unwrap());
    }
    // Up to a tenth, and at most ten seconds.
    let (first, last) = (*sent.iter().min().unwrap(), *sent.iter().max().unwrap());
    assert!(first > 3_590_000 && last <= 3_610_000 && last - first > 3_000, "{sent:?}");
}

#[tokio::test]
async fn a_call_that_never_passes_has_no_retry_delay() {
    let mut shop = shop(everyone(Rule::new("shut").tier(Quota::per_second(0))).grpc_pushback(true)).await;
    let status = shop.get(product("a")).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(field(status.metadata(), "grpc-retry-pushback-ms"), "-1");
    assert!(!status.metadata().contains_key("retry-after"));
    assert!(status.get_details_retry_info().is_none());
    let violations = status.get_details_quota_failure().unwrap().violations;
    assert_eq!(violations[0].description, "The quota can never hold this request.");
}

#[tokio::test]
async fn a_rule_that_fails_closed_is_unavailable() {
    let backend = FaultyBackend::new(Local::new());
    let rule = Rule::new("get").per([]).tier(hourly(1)).on_backend_failure(FailureMode::Closed);
    let builder = RateLimiter::builder().policy(Policy::new().rule(rule)).backend(backend.clone());
    let mut shop = shop(RateLimitLayer::new(builder.clock(ManualClock::new()).build().unwrap())).await;
    backend.set(Fault::Error(BackendErrorKind::Unavailable));
    let status = shop.get(product("a")).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Unavailable, "the rate limit could not be decided"));
    assert_eq!(status.get_details_retry_info().unwrap().retry_delay, Some(Duration::from_secs(1)));
    assert!(status.get_details_quota_failure().is_none());
}

#[tokio::test]
async fn a_missing_tenant_is_unauthenticated() {
    let layer = layer(hourly(1)).tenant(tenant::header("x-api-key")).on_missing_tenant(MissingTenant::Reject);
    let mut shop = shop(layer).await;
    let status = shop.get(product("a")).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Unauthenticated, "no tenant to limit the request by"));
    assert!(status.details().is_empty());
    shop.get(by("acme", product("a"))).await.unwrap();
}

/// A hook applies to HTTP; calls get a gRPC status.
#[tokio::test]
async fn a_hook_does_not_apply_to_calls() {
    let hook = |_: &Rejection<'_>| http::Response::builder().status(418).body(String::from("no")).unwrap();
    let mut shop = shop(everyone(Rule::new("get").tier(hourly(1))).on_rejected(hook)).await;
    shop.get(product("a")).await.unwrap();
    assert_eq!(shop.get(product("a")).await.unwrap_err().code(), Code::ResourceExhausted);
}

/// A handler that asks the limiter returns the same status.
#[tokio::test]
async fn a_handler_can_return_a_rejection() {
    use super::proto::{
        GetRequest, Product,
        products_server::{Products, ProductsServer},
    };
    use tonic::{Request, Response, Status, Streaming, transport::Server};
    use tower_ratelimit::Descriptor;

    struct Limited(RateLimiter);

    #[tonic::async_trait]
    impl Products for Limited {
        type ListStream = <Shop as Products>::ListStream;
        type AppraiseStream = <Shop as Products>::AppraiseStream;

        async fn get(&self, request: Request<GetRequest>) -> Result<Response<Product>, Status> {
            let _permit = self.0.acquire(&Descriptor::new("/"), Duration::ZERO).await?;
            Shop.get(request).await
        }

        async fn list(&self, request: Request<super::ListRequest>) -> Result<Response<Self::ListStream>, Status> {
            Shop.list(request).await
        }

        async fn import(&self, request: Request<Streaming<Product>>) -> Result<Response<super::Imported>, Status> {
            Shop.import(request).await
        }

        async fn appraise(
            &self,
            request: Request<Streaming<Product>>,
        ) -> Result<Response<Self::AppraiseStream>, Status> {
            Shop.appraise(request).await
        }
    }

    let router =
        Server::builder().add_service(ProductsServer::new(Limited(RateLimiter::new(Quota::per_hour(1)).unwrap())));
    let mut shop = super::connect(&start(|incoming| router.serve_with_incoming(incoming)).await).await;
    shop.get(product("a")).await.unwrap();
    let status = shop.get(product("a")).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(status.get_details_quota_failure().unwrap().violations[0].subject, "default");
    assert!(status.get_details_retry_info().unwrap().retry_delay.unwrap() > Duration::from_secs(3_000));
}
