//! Streams whose messages are charged one by one.

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tokio::{sync::mpsc, time::Instant};
use tokio_stream::{StreamExt, wrappers::UnboundedReceiverStream};
use tonic::{
    Code, Status, Streaming,
    transport::{Channel, Server},
};
use tonic_types::StatusExt;
use tower::{Layer, ServiceExt, service_fn, util::MapRequestLayer};
use tower_ratelimit::{
    FailureMode, Policy, Quota, RateLimitLayer, RateLimiter, Rule,
    backend::Local,
    error::BackendErrorKind,
    middleware,
    policy::Messages,
    testing::{Fault, FaultyBackend, TokioClock},
};

use super::{
    GET, ListRequest, Product, ProductsClient, ProductsServer, Shop, connect, everyone, hourly, product, start,
};

const SECOND: Duration = Duration::from_secs(1);

/// A shop that charges messages in both directions, if a rule asks for it.
async fn counting(layer: RateLimitLayer) -> ProductsClient<Channel> {
    let router = Server::builder()
        .layer(layer)
        .layer(MapRequestLayer::new(middleware::charge_client_messages))
        .add_service(ProductsServer::new(Shop));
    connect(&start(|incoming| router.serve_with_incoming(incoming)).await).await
}

fn ten(messages: Messages) -> Rule {
    Rule::new("products").tier(hourly(10)).per_message(messages)
}

/// The number of messages, and the end of the stream.
async fn drained(mut products: Streaming<Product>) -> (u64, Result<(), Status>) {
    let mut came = 0;
    loop {
        match products.message().await {
            Ok(Some(_)) => came += 1,
            Ok(None) => return (came, Ok(())),
            Err(status) => return (came, Err(status)),
        }
    }
}

fn products(count: u64) -> impl tokio_stream::Stream<Item = Product> + Send + 'static {
    tokio_stream::iter((0..count).map(|cents| Product { id: "lamp".repeat(20), cents }))
}

#[tokio::test]
async fn server_messages_are_charged_and_end_over_the_limit() {
    let mut shop = counting(everyone(ten(Messages::Server))).await;
    let (came, end) = drained(shop.list(ListRequest { most: 4 }).await.unwrap().into_inner()).await;
    assert!((came, end.is_ok()) == (4, true));
    // Six remain: one for the call and its first message, five for others.
    let (came, end) = drained(shop.list(ListRequest { most: u32::MAX }).await.unwrap().into_inner()).await;
    let status = end.unwrap_err();
    assert_eq!((came, status.code()), (6, Code::ResourceExhausted), "{status:?}");
    assert!(status.message().starts_with("rate limit exceeded: products; retry after "), "{status:?}");
    assert_eq!(status.get_details_quota_failure().unwrap().violations[0].subject, "products");
    assert!(status.get_details_retry_info().unwrap().retry_delay.unwrap() > 60 * SECOND);
    assert_eq!(shop.get(product("a")).await.unwrap_err().code(), Code::ResourceExhausted);
}

#[tokio::test]
async fn client_messages_are_charged_and_end_over_the_limit() {
    let mut shop = counting(everyone(ten(Messages::Client))).await;
    assert_eq!(shop.import(products(4)).await.unwrap().into_inner().products, 4);
    let status = shop.import(products(1_000)).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    assert_eq!(status.get_details_quota_failure().unwrap().violations[0].subject, "products");
    // All ten are used.
    assert_eq!(shop.get(product("a")).await.unwrap_err().code(), Code::ResourceExhausted);
}

#[tokio::test]
async fn each_direction_is_charged_separately_or_both() {
    // Four in and four out; the first of each is charged with the call.
    for (messages, left) in [(Messages::Client, 6), (Messages::Server, 6), (Messages::Both, 3)] {
        let mut shop = counting(everyone(ten(messages))).await;
        let (came, end) = drained(shop.appraise(products(4)).await.unwrap().into_inner()).await;
        assert!((came, end.is_ok()) == (4, true), "{messages:?}");
        for n in 0..=left {
            assert_eq!(shop.get(product("a")).await.is_ok(), n < left, "{n} after {messages:?}");
        }
    }
}

#[tokio::test]
async fn yaml_configures_messages_too() {
    for (direction, came) in [("server", 10), ("both", 10), ("client", 50)] {
        let yaml = format!(
            "rules: [{{ id: list, per: [], per_message: {direction}, tiers: [{{ limit: 240, window: 1d, burst: 10 }}] }}]"
        );
        let policy = Policy::from_yaml(&yaml).unwrap();
        assert_eq!(serde_json::to_value(&policy).unwrap()["rules"][0]["per_message"], direction);
        let mut shop = counting(super::layer(policy)).await;
        assert_eq!(
            drained(shop.list(ListRequest { most: 50 }).await.unwrap().into_inner()).await.0,
            came,
            "{direction}"
        );
    }
    for (keys, key) in [
        ("per_message: client, shadow: true", "per_message"),
        ("per_message: all", "per_message"),
        ("per_message: server, plans: { pro: [{ concurrent: 1 }] }", "plans.pro[0]"),
    ] {
        let yaml = format!("rules: [{{ id: list, tiers: [{{ limit: 1, window: 1s }}], {keys} }}]");
        let error = Policy::from_yaml(&yaml).unwrap_err();
        assert_eq!(error.key(), key, "{error}");
    }
}

/// The backend knows nothing of the call.
#[tokio::test]
async fn messages_of_a_call_that_the_fallback_limiter_admitted_are_not_charged() {
    let backend = FaultyBackend::new(Local::new());
    let rule = ten(Messages::Both).per([]).on_backend_failure(FailureMode::Local);
    let limiter = RateLimiter::builder().policy(Policy::new().rule(rule)).backend(backend.clone()).build().unwrap();
    let mut shop = counting(RateLimitLayer::new(limiter)).await;
    backend.set(Fault::Error(BackendErrorKind::Unavailable));
    let call = shop.appraise(products(30)).await.unwrap().into_inner();
    backend.set(Fault::None);
    let (came, end) = drained(call).await;
    assert!((came, end.is_ok()) == (30, true), "{came}");
    // A later call is charged for all of its messages.
    let (came, _) = drained(shop.list(ListRequest { most: 30 }).await.unwrap().into_inner()).await;
    assert_eq!(came, 10);
}

/// A concurrency limit on streams, in another rule.
#[tokio::test]
async fn a_stream_ended_by_a_rejection_releases_its_permit() {
    let streams = Rule::new("streams").per([]).tier(Quota::concurrent(1));
    let layer = super::layer(Policy::new().rule(ten(Messages::Server).path(super::LIST).per([])).rule(streams));
    let mut shop = counting(layer).await;
    let (came, end) = drained(shop.list(ListRequest { most: u32::MAX }).await.unwrap().into_inner()).await;
    assert_eq!((came, end.unwrap_err().code()), (10, Code::ResourceExhausted));
    shop.get(product("a")).await.unwrap();
}

/// Delays messages if the rule permits, on a manual clock.
#[tokio::test(start_paused = true)]
async fn messages_are_delayed_without_copies() {
    let rule = Rule::new("paced").per([]).tier(Quota::per_second(1)).max_wait(3 * SECOND).per_message(Messages::Server);
    let limiter = RateLimiter::builder().policy(Policy::new().rule(rule)).clock(TokioClock::default());
    let (sender, receiver) = mpsc::unbounded_channel::<Bytes>();
    let stream = std::sync::Arc::new(std::sync::Mutex::new(Some(receiver)));
    let service = service_fn(move |_: Request<()>| {
        let chunks = UnboundedReceiverStream::new(stream.lock().unwrap().take().unwrap());
        async move {
            let body = StreamBody::new(chunks.map(|chunk| Ok::<_, Infallible>(Frame::data(chunk))));
            Response::builder().header("content-type", "application/grpc").body(body)
        }
    });
    let call = Request::post(GET).header("content-type", "application/grpc").body(()).unwrap();
    let service = RateLimitLayer::new(limiter.build().unwrap()).layer(service);
    let begin = Instant::now();
    let mut body = service.oneshot(call).await.unwrap().into_body();

    // Two messages and a half, and then the rest of the third.
    let sent = Bytes::from_static(&[0, 0, 0, 0, 1, 7, 0, 0, 0, 0, 1, 8, 0, 0, 0]);
    sender.send(sent.clone()).unwrap();
    sender.send(Bytes::from_static(&[0, 2, 9, 9])).unwrap();
    let mut next = async || {
        let frame = body.frame().await?.unwrap();
        Some((frame, begin.elapsed().as_secs()))
    };
    for (from, to, second) in [(0, 6, 0), (6, 12, 1), (12, 15, 2)] {
        let (frame, at) = next().await.unwrap();
        let data = frame.into_data().unwrap();
        // The same bytes at the same address.
        assert_eq!((data.as_ptr(), data.len(), at), (sent[from..].as_ptr(), to - from, second));
    }
    let (frame, at) = next().await.unwrap();
    assert_eq!((&*frame.into_data().unwrap(), at), (&[0, 2, 9, 9][..], 2));

    // A message that is due.
    tokio::time::advance(SECOND).await;

    sender.send(Bytes::from_static(&[0; 5])).unwrap();
    assert_eq!(next().await.unwrap().1, 3);
    drop(sender);
    assert!(next().await.is_none());
}

/// A call's own deadline bounds the wait of its messages.
#[tokio::test(start_paused = true)]
async fn messages_do_not_wait_beyond_the_deadline() {
    let rule =
        Rule::new("paced").per([]).tier(Quota::per_second(1)).max_wait(60 * SECOND).per_message(Messages::Server);
    let limiter = RateLimiter::builder().policy(Policy::new().rule(rule)).clock(TokioClock::default());
    let message = Bytes::from_static(&[0, 0, 0, 0, 0]);
    let service = service_fn(move |_: Request<()>| {
        let chunks = tokio_stream::iter(vec![message.clone(); 9]);
        async move {
            let body = StreamBody::new(chunks.map(|chunk| Ok::<_, Infallible>(Frame::data(chunk))));
            Response::builder().header("content-type", "application/grpc").body(body)
        }
    });
    let call = Request::post(GET).header("content-type", "application/grpc").header("grpc-timeout", "2500m");
    let service = RateLimitLayer::new(limiter.build().unwrap()).layer(service);
    let begin = Instant::now();
    let mut body = service.oneshot(call.body(()).unwrap()).await.unwrap().into_body();
    let mut came = 0;
    let trailers = loop {
        match body.frame().await.unwrap().unwrap().into_data() {
            Ok(_) => came += 1,
            Err(frame) => break frame.into_trailers().unwrap(),
        }
    };
    assert_eq!((came, begin.elapsed().as_secs()), (3, 2));
    assert_eq!(trailers["grpc-status"], "8");
    assert!(body.frame().await.is_none());
}
