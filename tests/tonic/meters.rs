//! Message limits across reloads and nested layers.

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, StreamBody};
use tokio::{sync::mpsc, time::Instant};
use tokio_stream::{StreamExt, wrappers::UnboundedReceiverStream};
use tonic::transport::Server;
use tower::{Layer, Service, ServiceExt, service_fn, util::MapRequestLayer};
use tower_ratelimit::{
    Policy, Quota, RateLimitLayer, RateLimiter, Rule, middleware, policy::Messages, testing::TokioClock,
};

use super::{GET, Product, ProductsServer, Shop, connect, everyone, hourly, start};

type Error = Box<dyn std::error::Error + Send + Sync>;

const SECOND: Duration = Duration::from_secs(1);

/// One empty message.
const MESSAGE: Bytes = Bytes::from_static(&[0; 5]);

fn ticking(policy: Policy) -> RateLimiter {
    RateLimiter::builder().policy(policy).clock(TokioClock::default()).build().unwrap()
}

fn call() -> Request<()> {
    Request::post(GET).header("content-type", "application/grpc").body(()).unwrap()
}

/// A service that streams what the test sends.
fn streams() -> (
    mpsc::UnboundedSender<Bytes>,
    impl Service<
        Request<()>,
        Response = Response<impl Body<Data = Bytes, Error = Error> + Send + Unpin>,
        Error = Infallible,
        Future: Send,
    > + Clone
    + Send,
) {
    let (sender, receiver) = mpsc::unbounded_channel::<Bytes>();
    let stream = std::sync::Arc::new(std::sync::Mutex::new(Some(receiver)));
    let service = service_fn(move |_: Request<()>| {
        let chunks = UnboundedReceiverStream::new(stream.lock().unwrap().take().unwrap());
        let body = StreamBody::new(chunks.map(|chunk| Ok::<_, Error>(Frame::data(chunk))));
        let response = Response::builder().header("content-type", "application/grpc").body(body).unwrap();
        std::future::ready(Ok::<_, Infallible>(response))
    });
    (sender, service)
}

/// Whether the next message arrived. If not, the stream ended.
async fn came<B: Body<Data = Bytes, Error = Error> + Unpin>(body: &mut B) -> bool {
    body.frame().await.unwrap().unwrap().is_data()
}

/// Limits for another tenant do not end this stream's limit.
#[tokio::test(start_paused = true)]
async fn a_stream_stays_limited_if_its_rule_gets_another_exception() {
    let rule = || Rule::new("list").tier(hourly(3)).per_message(Messages::Server);
    let limiter = ticking(Policy::new().rule(rule()));
    let (sender, service) = streams();
    let service = RateLimitLayer::new(limiter.clone()).layer(service);
    let mut body = service.oneshot(call()).await.unwrap().into_body();
    for _ in 0..9 {
        sender.send(MESSAGE).unwrap();
    }
    assert!(came(&mut body).await);
    limiter.set_policy(Policy::new().rule(rule().tenant("acme", [hourly(9)]))).unwrap();
    assert!(came(&mut body).await);
    assert!(came(&mut body).await);
    assert!(!came(&mut body).await);
}

#[tokio::test(start_paused = true)]
async fn a_stream_whose_rule_is_removed_is_unlimited() {
    let rule = Rule::new("list").tier(hourly(1)).per_message(Messages::Server);
    let limiter = ticking(Policy::new().rule(rule));
    let (sender, service) = streams();
    let service = RateLimitLayer::new(limiter.clone()).layer(service);
    let mut body = service.oneshot(call()).await.unwrap().into_body();
    limiter.set_policy(Policy::new()).unwrap();
    for _ in 0..9 {
        sender.send(MESSAGE).unwrap();
        assert!(came(&mut body).await);
    }
}

/// The current policy also bounds the wait of a message.
#[tokio::test(start_paused = true)]
async fn messages_wait_within_the_max_wait_of_the_current_policy() {
    let rule = |max_wait| {
        let paced = Rule::new("paced").per([]).tier(Quota::per_second(1)).per_message(Messages::Server);
        Policy::new().rule(paced.max_wait(max_wait))
    };
    for (before, after, comes) in [(Duration::ZERO, 5 * SECOND, true), (5 * SECOND, Duration::ZERO, false)] {
        let limiter = ticking(rule(before));
        let (sender, service) = streams();
        let service = RateLimitLayer::new(limiter.clone()).layer(service);
        let mut body = service.oneshot(call()).await.unwrap().into_body();
        limiter.set_policy(rule(after)).unwrap();
        for _ in 0..2 {
            sender.send(MESSAGE).unwrap();
        }
        assert!(came(&mut body).await);
        assert_eq!(came(&mut body).await, comes, "{before:?} to {after:?}");
    }
}

/// A call's wait for a permit does not reduce the wait of its messages.
#[tokio::test(start_paused = true)]
async fn messages_may_wait_after_their_call_has_waited() {
    let streams_at_once = Rule::new("streams").per([]).tier(Quota::concurrent(1)).max_wait(10 * SECOND);
    let paced =
        Rule::new("paced").per([]).tier(Quota::new(1, 2 * SECOND)).max_wait(3 * SECOND).per_message(Messages::Server);
    let limiter = ticking(Policy::new().rule(streams_at_once).rule(paced));
    let (_first_sender, first) = streams();
    let layer = RateLimitLayer::new(limiter);
    let first = layer.layer(first).oneshot(call()).await.unwrap();
    let (sender, second) = streams();
    let begin = Instant::now();
    let second = tokio::spawn(layer.layer(second).oneshot(call()));
    tokio::task::yield_now().await;
    tokio::time::advance(Duration::from_millis(2_500)).await;
    drop(first);
    let mut body = second.await.unwrap().unwrap().into_body();
    assert_eq!(begin.elapsed().as_millis(), 2_500);
    for _ in 0..3 {
        sender.send(MESSAGE).unwrap();
    }
    assert!(came(&mut body).await);
    assert!(came(&mut body).await);
    assert!(came(&mut body).await);
    assert_eq!(begin.elapsed().as_millis(), 6_500);
}

/// Two layers, and one `charge_client_messages` inside of both.
#[tokio::test]
async fn both_of_two_layers_charge_what_a_client_streams() {
    for (outer, inner) in [(3, 9), (9, 3)] {
        let counts = |limit| everyone(Rule::new("import").tier(hourly(limit)).per_message(Messages::Client));
        let router = Server::builder()
            .layer(counts(outer))
            .layer(counts(inner))
            .layer(MapRequestLayer::new(middleware::charge_client_messages))
            .add_service(ProductsServer::new(Shop));
        let mut shop = connect(&start(|incoming| router.serve_with_incoming(incoming)).await).await;
        let products = (0..5).map(|cents| Product { cents, ..Product::default() });
        let result = shop.import(tokio_stream::iter(products)).await;
        assert!(result.is_err(), "{outer} outside, {inner} inside");
    }
}

/// An upstream's messages are not charged to a client, even with synthetic
/// rejections.
#[tokio::test(start_paused = true)]
async fn a_client_that_gets_responses_is_not_charged_for_messages() {
    let rule = Rule::new("list").tier(hourly(1)).per_message(Messages::Both);
    let (sender, service) = streams();
    let service = RateLimitLayer::client(ticking(Policy::new().rule(rule))).reject_with_response().layer(service);
    let mut body = service.oneshot(call()).await.unwrap().into_body();
    for _ in 0..3 {
        sender.send(MESSAGE).unwrap();
        assert!(came(&mut body).await);
    }
}

/// However HTTP frames split them, the limit of messages is admitted, and the
/// stream ends once.
#[tokio::test]
async fn the_limit_holds_however_frames_split_messages() {
    let (mut stream, mut ends) = (Vec::new(), Vec::new());
    for (compressed, length) in [(0, 0), (1, 3), (0, 300), (1, 0), (0, 700), (1, 1)] {
        stream.push(compressed);
        stream.extend(u32::to_be_bytes(length));
        stream.resize(stream.len() + length as usize, 7);
        ends.push(stream.len());
    }
    // The last frame may be shorter.
    for (sent, size) in [stream.len(), stream.len() - 1].into_iter().flat_map(|sent| (1..310).map(move |n| (sent, n))) {
        for limit in 1..=6 {
            let (sender, service) = streams();
            for chunk in stream[..sent].chunks(size) {
                sender.send(Bytes::copy_from_slice(chunk)).unwrap();
            }
            drop(sender);
            let layer = everyone(Rule::new("list").tier(hourly(limit)).per_message(Messages::Server));
            let body = layer.layer(service).oneshot(call()).await.unwrap().into_body().collect().await.unwrap();
            let trailers = body.trailers().map(|trailers| trailers["grpc-status"].clone());
            let (end, status) = match ends.get(limit as usize - 1) {
                Some(&end) if limit < 6 => (end, Some("8")),
                _ => (sent, None),
            };
            assert_eq!(body.to_bytes(), stream[..end], "{limit} in pieces of {size}");
            assert_eq!(trailers.as_ref().map(|status| status.to_str().unwrap()), status);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_dropped_during_a_wait_holds_nothing() {
    let paced = Rule::new("paced").per([]).tier(Quota::per_second(1)).max_wait(60 * SECOND);
    let at_once = Rule::new("streams").per([]).tier(Quota::concurrent(5));
    let limiter = ticking(Policy::new().rule(paced.per_message(Messages::Server)).rule(at_once));
    let layer = RateLimitLayer::new(limiter.clone());
    let (sender, service) = streams();
    let mut body = layer.layer(service).oneshot(call()).await.unwrap().into_body();
    sender.send(MESSAGE).unwrap();
    sender.send(MESSAGE).unwrap();
    assert!(came(&mut body).await);
    assert!(tokio::time::timeout(SECOND / 2, body.frame()).await.is_err());
    assert_eq!((limiter.stats().permits, limiter.stats().waiting), (1, 1));
    drop(body);
    assert_eq!((limiter.stats().permits, limiter.stats().waiting), (0, 0));
    // The next message gets the freed slot.
    let begin = Instant::now();
    layer.layer(streams().1).oneshot(call()).await.unwrap();
    assert_eq!(begin.elapsed(), SECOND / 2);
}
