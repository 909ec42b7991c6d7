//! Clients that follow upstream feedback.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use tokio::time::Instant;
use tonic::Code;
use tower::{ServiceBuilder, ServiceExt, retry::RetryLayer, service_fn};
use tower_ratelimit::{Descriptor, RateLimited, RetryPolicy};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// Counts per method, with a high limit.
fn client_limiter(max_wait: Duration) -> RateLimiter {
    let methods = Rule::new("methods").path(GET).path(LIST).max_wait(max_wait).tier(Quota::per_second(1_000));
    RateLimiter::new(Policy::new().rule(methods)).unwrap()
}

/// A shop that rejects the second `Get` for two seconds.
async fn strict(pushback: bool) -> Channel {
    let get = Rule::new("get").path(GET).per([]).tier(Quota::new(1, 2 * SECOND));
    let layer = layer(Policy::new().rule(get)).headers(tower_ratelimit::Headers::NONE).grpc_pushback(pushback);
    let router = Server::builder().layer(layer).add_service(ProductsServer::new(Shop));
    let address = start(|incoming| router.serve_with_incoming(incoming)).await;
    Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap()
}

/// A generated client sends no host, unless it was built with `with_origin`.
fn calls(path: &'static str) -> Descriptor<'static> {
    Descriptor::new(path).method("POST")
}

#[tokio::test]
async fn a_rejected_call_cools_its_method_down_for_all() {
    for pushback in [false, true] {
        let limiter = client_limiter(10 * SECOND);
        let layer = RateLimitLayer::client(limiter.clone());
        let channel = ServiceBuilder::new().layer(layer).service(strict(pushback).await);
        let mut client = ProductsClient::new(channel);
        client.get(product("lamp")).await.unwrap();
        assert_eq!(limiter.cooldown(&calls(GET)), None);

        let start = Instant::now();
        let rejected = client.clone().get(product("lamp")).await.unwrap_err();
        assert_eq!(rejected.code(), Code::ResourceExhausted);
        let cooldown = limiter.cooldown(&calls(GET)).unwrap();
        assert!(cooldown > SECOND && cooldown <= SECOND * 5 / 2, "{cooldown:?}");
        assert_eq!(limiter.cooldown(&calls(LIST)), None, "another method is another key");
        client.list(ListRequest { most: 1 }).await.unwrap();
        // It waits for the end of the cooldown.
        client.get(product("lamp")).await.unwrap();
        assert!(start.elapsed() > SECOND, "{:?}", start.elapsed());
    }
}

#[tokio::test]
async fn its_own_rejection_is_an_error_or_a_status() {
    let limiter = client_limiter(Duration::ZERO);
    let layer = RateLimitLayer::client(limiter.clone());
    limiter.cool_down(&calls(GET), 3_600 * SECOND);
    let channel = strict(false).await;

    let mut failing = ProductsClient::new(ServiceBuilder::new().layer(layer.clone()).service(channel.clone()));
    let status = failing.get(product("lamp")).await.unwrap_err();
    let source = std::error::Error::source(&status).unwrap();
    assert!(source.downcast_ref::<RateLimited>().unwrap().retry_after().unwrap() > 3_000 * SECOND);

    let mut reject_with_response =
        ProductsClient::new(ServiceBuilder::new().layer(layer.reject_with_response()).service(channel));
    let status = reject_with_response.get(product("lamp")).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    let delay = tonic_types::StatusExt::get_details_retry_info(&status).unwrap().retry_delay.unwrap();
    assert!(delay > 3_000 * SECOND);
    reject_with_response.list(ListRequest { most: 1 }).await.unwrap();
}

/// Requests that can be retried: the caller has buffered their few bytes.
#[tokio::test]
async fn rejected_calls_are_retried_at_the_upstreams_time() {
    let limited = ServiceBuilder::new()
        .layer(RetryLayer::new(RetryPolicy::new().methods([http::Method::POST])))
        .layer(RateLimitLayer::client(client_limiter(10 * SECOND)))
        .map_request(|request: http::Request<Full<Bytes>>| request.map(tonic::body::Body::new))
        .service(strict(false).await);
    let channel = service_fn(move |request: http::Request<tonic::body::Body>| {
        let limited = limited.clone();
        async move {
            let (head, body) = request.into_parts();
            let body = Full::new(body.collect().await?.to_bytes());
            limited.oneshot(http::Request::from_parts(head, body)).await
        }
    });
    let mut client = ProductsClient::new(channel);
    let start = Instant::now();
    client.get(product("lamp")).await.unwrap();
    client.get(product("lamp")).await.unwrap();
    assert!(start.elapsed() > SECOND, "{:?}", start.elapsed());
}
