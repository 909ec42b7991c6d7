//! The layer under a generated client: it stays within its upstream's limit.

use std::{error::Error, time::Duration};

use tokio::time::Instant;
use tonic::{
    Code,
    transport::{Endpoint, Server},
};
use tower::{Layer, ServiceBuilder};
use tower_ratelimit::{Policy, Quota, RateLimitLayer, RateLimited, RateLimiter, Rule};

use super::{GET, ProductsClient, ProductsServer, Shop, layer, product, start};

const SECOND: Duration = Duration::from_secs(1);

fn client(rule: Rule) -> RateLimiter {
    RateLimiter::new(Policy::new().rule(rule)).unwrap()
}

/// The upstream admits a burst of ten, then twenty per second. A client within
/// that is never rejected.
#[tokio::test]
async fn a_client_waits_so_that_its_upstream_never_rejects() {
    let upstream = layer(Quota::new(20, SECOND).burst(10));
    let router = Server::builder().layer(upstream).add_service(ProductsServer::new(Shop));
    let address = start(|incoming| router.serve_with_incoming(incoming)).await;
    let channel = Endpoint::try_from(format!("http://{address}")).unwrap().connect().await.unwrap();
    // Fewer, since the two clocks do not start together.
    let limited = client(Rule::new("get").path(GET).tier(Quota::new(19, SECOND).burst(5)).max_wait(60 * SECOND));
    let shop = ProductsClient::new(ServiceBuilder::new().layer(RateLimitLayer::client(limited)).service(channel));

    let start = Instant::now();
    let calls = (0..15).map(|n| {
        let mut shop = shop.clone();
        tokio::spawn(async move { shop.get(product(&n.to_string())).await })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap().unwrap();
    }
    // A burst of five, and ten more at nineteen per second.
    assert!(start.elapsed() >= Duration::from_millis(520), "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_call_that_would_wait_too_long_is_not_sent() {
    let router = Server::builder().add_service(ProductsServer::new(Shop));
    let address = start(|incoming| router.serve_with_incoming(incoming)).await;
    let channel = Endpoint::try_from(format!("http://{address}")).unwrap().connect().await.unwrap();
    let limited = client(Rule::new("get").tier(Quota::per_hour(1)).max_wait(7_200 * SECOND));
    let mut shop = ProductsClient::new(RateLimitLayer::client(limited).layer(channel));
    shop.get(product("a")).await.unwrap();

    let start = Instant::now();
    let mut hurried = tonic::Request::new(product("b"));
    hurried.set_timeout(60 * SECOND);
    let status = shop.get(hurried).await.unwrap_err();
    assert!(start.elapsed() < 50 * SECOND, "{:?}", start.elapsed());
    // The rejection is behind tonic's error.
    let mut cause: Option<&(dyn Error + 'static)> = Some(&status);
    while let Some(error) = cause.filter(|error| !error.is::<RateLimited>()) {
        cause = error.source();
    }
    let rejected = cause.and_then(|error| error.downcast_ref::<RateLimited>()).unwrap();
    assert!(rejected.retry_after().unwrap() > 3_000 * SECOND);
    assert_ne!(status.code(), Code::Ok);
}
