//! The layer reads no body before the decision, and forwards bodies unchanged.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full};
use tower::{Layer, ServiceExt, service_fn};
use tower_ratelimit::{Quota, RateLimitLayer, Rule};

use super::{GET, everyone, hourly};

/// A body that must not be polled.
#[derive(Debug)]
struct Untouchable;

impl Body for Untouchable {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        panic!("the body was read")
    }

    fn is_end_stream(&self) -> bool {
        panic!("the body was looked at")
    }
}

fn call<B>(body: B) -> Request<B> {
    Request::post(GET).header("content-type", "application/grpc").body(body).unwrap()
}

fn shut() -> RateLimitLayer {
    everyone(Rule::new("shut").tier(Quota::per_second(0)))
}

#[tokio::test]
async fn no_body_is_read_before_the_decision_or_for_a_rejection() {
    let echo =
        service_fn(async |request: Request<Untouchable>| Ok::<_, Infallible>(Response::new(request.into_body())));
    let rejected = shut().layer(echo).oneshot(call(Untouchable)).await.unwrap();
    assert_eq!(rejected.headers()["grpc-status"], "8");
    assert!(rejected.into_body().is_end_stream());
    // An admitted body reaches the service unchanged.
    let went = everyone(Rule::new("open").tier(hourly(1))).layer(echo).oneshot(call(Untouchable)).await.unwrap();
    assert_eq!(went.status(), 200);
}

#[tokio::test(start_paused = true)]
async fn a_delayed_call_is_not_read_either() {
    let echo = service_fn(async |_: Request<Untouchable>| Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())));
    let rule = Rule::new("paced").tier(Quota::per_second(1)).max_wait(Duration::from_secs(9));
    let limiter = tower_ratelimit::RateLimiter::builder().policy(tower_ratelimit::Policy::new().rule(rule));
    let limiter = limiter.clock(tower_ratelimit::testing::TokioClock::default()).build().unwrap();
    let service = RateLimitLayer::new(limiter).layer(echo);
    for _ in 0..3 {
        assert_eq!(service.clone().oneshot(call(Untouchable)).await.unwrap().status(), 200);
    }
}

/// The same bytes at the same address.
#[tokio::test]
async fn forwarded_bytes_are_not_copied() {
    let sent = Bytes::from(vec![0_u8; 100_000]);
    let answer = sent.clone();
    let echo = service_fn(move |_: Request<Full<Bytes>>| {
        let answer = answer.clone();
        async move { Ok::<_, Infallible>(Response::new(Full::new(answer))) }
    });
    // With a concurrency limit, which watches the body.
    let service = everyone(Rule::new("get").tier(hourly(9)).tier(Quota::concurrent(1))).layer(echo);
    let response = service.oneshot(call(Full::default())).await.unwrap();
    let received = response.into_body().frame().await.unwrap().unwrap().into_data().unwrap();
    assert_eq!((received.as_ptr(), received.len()), (sent.as_ptr(), sent.len()));
}
