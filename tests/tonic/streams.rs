//! Streams are in flight until they end, for whatever reason.

use std::time::Duration;

use tokio::{runtime::Builder, sync::mpsc, time::Instant};
use tokio_stream::{StreamExt, pending, wrappers::UnboundedReceiverStream};
use tonic::{
    Code, Streaming,
    transport::{Channel, Server},
};
use tower_ratelimit::{Policy, Quota, RateLimitLayer, RateLimiter, Rule};

use super::{ListRequest, Product, ProductsClient, ProductsServer, Shop, connect, product, shop, start};

const LONG: Duration = Duration::from_secs(60);

async fn one_at_once() -> (ProductsClient<Channel>, RateLimiter) {
    let limiter = RateLimiter::new(Policy::new().rule(Rule::new("shop").per([]).tier(Quota::concurrent(1)))).unwrap();
    (shop(RateLimitLayer::new(limiter.clone())).await, limiter)
}

/// Polls until the server has noticed, and the permit is released.
async fn until_free(shop: &mut ProductsClient<Channel>) {
    let start = Instant::now();
    while let Err(status) = shop.get(product("a")).await {
        assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
        assert!(start.elapsed() < LONG, "the permit did not come back");
        tokio::task::yield_now().await;
    }
}

async fn listed(shop: &mut ProductsClient<Channel>, most: u32) -> Streaming<Product> {
    shop.list(ListRequest { most }).await.unwrap().into_inner()
}

#[tokio::test]
async fn a_stream_is_in_flight_until_it_has_ended() {
    let (mut shop, limiter) = one_at_once().await;
    let (sender, products) = mpsc::unbounded_channel();
    sender.send(Product::default()).unwrap();
    let mut appraised = shop.appraise(UnboundedReceiverStream::new(products)).await.unwrap().into_inner();
    assert!(appraised.message().await.unwrap().is_some());
    assert_eq!(shop.get(product("a")).await.unwrap_err().code(), Code::ResourceExhausted);
    assert_eq!(limiter.stats().permits, 1);
    drop(sender);
    assert!(appraised.message().await.unwrap().is_none());
    until_free(&mut shop).await;
}

#[tokio::test]
async fn a_cancelled_server_stream_releases_its_permit() {
    let (mut shop, limiter) = one_at_once().await;
    for taken in [0, 1, 100] {
        let mut endless = listed(&mut shop, u32::MAX).await;
        for _ in 0..taken {
            assert!(endless.message().await.unwrap().is_some());
        }
        assert_eq!(shop.get(product("a")).await.unwrap_err().code(), Code::ResourceExhausted);
        drop(endless);
        until_free(&mut shop).await;
    }
    assert_eq!(limiter.stats().permits, 0);
}

#[tokio::test]
async fn a_cancelled_client_stream_releases_its_permit() {
    let (mut shop, _) = one_at_once().await;
    let mut other = shop.clone();
    let sends = async {
        let one = tokio_stream::once(Product::default());
        shop.import(one.chain(pending())).await.map(|_| ())
    };
    let mut sends = Box::pin(sends);
    // Until the server has noticed.
    let busy = async {
        while other.get(product("a")).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        result = &mut sends => panic!("it does not end: {result:?}"),
        () = busy => {}
    }
    drop(sends);
    until_free(&mut other).await;
}

#[tokio::test]
async fn a_disconnected_caller_releases_its_permit() {
    let limiter = RateLimiter::new(Policy::new().rule(Rule::new("shop").per([]).tier(Quota::concurrent(1)))).unwrap();
    let router = Server::builder().layer(RateLimitLayer::new(limiter)).add_service(ProductsServer::new(Shop));
    let address = start(|incoming| router.serve_with_incoming(incoming)).await;
    let mut other = connect(&address).await;
    for both in [false, true] {
        // Another process, as far as the server can see.
        let process = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let address = address.clone();
        let calls = process.spawn(async move {
            let mut gone = connect(&address).await;
            let mut endless = match both {
                false => listed(&mut gone, u32::MAX).await,
                true => {
                    let products = tokio_stream::iter((0..).map(|cents| Product { cents, ..Product::default() }));
                    gone.appraise(products).await.unwrap().into_inner()
                }
            };
            assert!(endless.message().await.unwrap().is_some());
            endless
        });
        let endless = calls.await.unwrap();
        assert_eq!(other.get(product("a")).await.unwrap_err().code(), Code::ResourceExhausted);
        process.shutdown_background();
        drop(endless);
        until_free(&mut other).await;
    }
}
