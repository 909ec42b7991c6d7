//! Concurrency limits: a request is in flight until its body has ended.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::Instant,
};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_ratelimit::{Headers, Policy, Quota, RateLimitLayer, RateLimiter, Rule, middleware, testing::TokioClock};

use super::common::{params, serve};

const SECOND: Duration = Duration::from_secs(1);

/// A body that ends when its sender is dropped.
#[derive(Debug)]
struct Stream(mpsc::UnboundedReceiver<Result<Bytes, &'static str>>);

impl Body for Stream {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
        self.0.poll_recv(cx).map(|chunk| chunk.map(|chunk| chunk.map(Frame::data)))
    }
}

type Sender = mpsc::UnboundedSender<Result<Bytes, &'static str>>;
type Streamed = Response<middleware::Body<Stream>>;

/// Responds at once with a stream, and returns its sender.
fn streams() -> (
    impl Service<Request<()>, Response = Response<Stream>, Error = Infallible, Future: Send> + Clone,
    mpsc::UnboundedReceiver<Sender>,
) {
    let (opened, senders) = mpsc::unbounded_channel();
    let service = service_fn(move |_: Request<()>| {
        let (sender, receiver) = mpsc::unbounded_channel();
        opened.send(sender).unwrap();
        async { Ok(Response::new(Stream(receiver))) }
    });
    (service, senders)
}

fn limited(rule: Rule) -> RateLimitLayer {
    let limiter = RateLimiter::builder().policy(Policy::new().rule(rule)).clock(TokioClock::default());
    RateLimitLayer::new(limiter.build().unwrap()).headers(Headers::ALL)
}

fn one_at_once() -> Rule {
    Rule::new("streams").tier(Quota::concurrent(1))
}

async fn get(service: &(impl Service<Request<()>, Response = Streamed, Error = Infallible> + Clone)) -> Streamed {
    service.clone().oneshot(Request::new(())).await.unwrap()
}

#[tokio::test]
async fn a_request_is_in_flight_until_its_body_has_ended_or_failed_or_is_dropped() {
    let (service, mut senders) = streams();
    let service = limited(one_at_once()).layer(service);
    for end in ["ends", "fails", "is dropped", "is dropped unread"] {
        let mut response = get(&service).await;
        let sender = senders.recv().await.unwrap();
        assert_eq!(get(&service).await.status(), StatusCode::TOO_MANY_REQUESTS, "the headers are there, it {end}");

        if end != "is dropped unread" {
            sender.send(Ok(Bytes::from("a chunk"))).unwrap();
            assert!(response.frame().await.unwrap().is_ok());
        }
        assert_eq!(get(&service).await.status(), StatusCode::TOO_MANY_REQUESTS, "some of it has come, it {end}");
        match end {
            "ends" => drop(sender),
            "fails" => sender.send(Err("broken")).unwrap(),
            _ => {}
        }
        match end {
            "ends" => assert!(response.frame().await.is_none()),
            "fails" => assert!(response.frame().await.unwrap().is_err()),
            _ => drop(response),
        }
        let next = get(&service).await;
        assert_eq!(next.status(), StatusCode::OK, "after one {end}");
        drop((next, senders.recv().await));
    }
}

#[tokio::test]
async fn a_dropped_or_panicked_call_releases_its_permit() {
    let hangs = service_fn(|request: Request<()>| async move {
        assert!(request.uri().path() != "/panic", "requested");
        std::future::pending::<()>().await;
        Ok::<_, Infallible>(Response::new(Stream(mpsc::unbounded_channel().1)))
    });
    let service = limited(one_at_once()).layer(hangs);
    for _ in 0..3 {
        let call = tokio::time::timeout(SECOND / 50, service.clone().oneshot(Request::new(())));
        assert!(call.await.is_err(), "admitted, and dropped while it was being served");

        let request = Request::get("/panic").body(()).unwrap();
        assert!(tokio::spawn(service.clone().oneshot(request)).await.unwrap_err().is_panic());
    }
}

#[tokio::test]
async fn the_headers_describe_a_concurrency_limit() {
    let (service, _senders) = streams();
    let service = limited(one_at_once().tier(Quota::per_minute(10))).layer(service);
    let first = get(&service).await;
    assert_eq!(first.headers()["x-ratelimit-limit"], "1", "the tier with the least left");
    assert_eq!(first.headers()["x-ratelimit-remaining"], "0");
    let policy = first.headers()["ratelimit-policy"].to_str().unwrap();
    assert!(policy.contains("q=1;qu=\"concurrent-requests\""), "{policy}");

    let second = get(&service).await;
    assert_eq!(second.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(second.headers()["retry-after"], "1", "unknown, but not at once");
    assert_eq!(second.headers()["ratelimit"].to_str().unwrap().matches("r=9").count(), 1, "the rate was not charged");
}

#[tokio::test(start_paused = true)]
async fn a_waiter_gets_the_permit_when_a_body_has_ended() {
    let (service, mut senders) = streams();
    let service = limited(one_at_once().max_wait(10 * SECOND)).layer(service);
    let start = Instant::now();
    let first = get(&service).await;
    let waiting = {
        let service = service.clone();
        tokio::spawn(async move { (get(&service).await.status(), start.elapsed()) })
    };
    tokio::task::yield_now().await;
    tokio::time::advance(3 * SECOND).await;
    assert!(!waiting.is_finished());
    drop((first, senders.recv().await));
    assert_eq!(waiting.await.unwrap(), (StatusCode::OK, 3 * SECOND));
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_times_out_is_rejected_and_holds_nothing() {
    let (service, mut senders) = streams();
    let service = limited(one_at_once().max_wait(2 * SECOND)).layer(service);
    let start = Instant::now();
    let first = get(&service).await;
    assert_eq!(get(&service).await.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(start.elapsed(), 2 * SECOND);
    drop((first, senders.recv().await));
    assert_eq!(get(&service).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn over_a_socket_the_permit_is_free_once_the_client_has_the_body() {
    let (open, gate) = watch::channel(false);
    let service = service_fn(move |_: Request<hyper::body::Incoming>| {
        let mut gate = gate.clone();
        async move {
            gate.wait_for(|open| *open).await.unwrap();
            Ok::<_, Infallible>(Response::new(http_body_util::Full::<Bytes>::from("hello")))
        }
    });
    let limiter = RateLimiter::new(Quota::concurrent(2)).unwrap();
    let server = serve(RateLimitLayer::new(limiter.clone()).headers(Headers::ALL).layer(service)).await;
    let mut calls = JoinSet::new();
    for _ in 0..3 {
        let server = server.clone();
        calls.spawn(async move { server.get("/").await.status });
    }
    assert_eq!(calls.join_next().await.unwrap().unwrap(), StatusCode::TOO_MANY_REQUESTS);
    open.send(true).unwrap();
    assert_eq!(calls.join_all().await, [StatusCode::OK; 2]);
    // The server may drop the last body shortly after the client has received
    // it.
    let mut statuses = std::iter::repeat_with(|| server.get("/"));
    let alone = [("default".to_owned(), params([("r", 1)]))];
    for _ in 0..100 {
        if statuses.next().unwrap().await.statuses() == alone {
            return;
        }
    }
    panic!("a permit was not released");
}
