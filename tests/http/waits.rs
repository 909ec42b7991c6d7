//! Rules with a `max_wait`: requests are delayed in order. Tokio's time is
//! paused: it advances only while all tasks wait.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use http::{Request, Response, StatusCode};
use http_body_util::Full;
use tokio::time::Instant;
use tower::{Layer, Service, ServiceExt};
use tower_ratelimit::{Dimension, Policy, Quota, RateLimitLayer, RateLimiter, Rule, tenant, testing::TokioClock};

use super::hello;

const SECOND: Duration = Duration::from_secs(1);

/// One request per second, with waits of up to `max_wait`.
fn one_a_second(max_wait: Duration) -> RateLimitLayer {
    let rule = Rule::new("paced").tier(Quota::per_second(1)).max_wait(max_wait);
    let limiter = RateLimiter::builder().policy(Policy::new().rule(rule)).clock(TokioClock::default());
    RateLimitLayer::new(limiter.build().unwrap())
}

#[tokio::test(start_paused = true)]
async fn delayed_requests_are_admitted_in_order_and_rejected_beyond_max_wait() {
    let service = one_a_second(2 * SECOND).layer(hello());
    let start = Instant::now();
    let calls: Vec<_> = (0..4)
        .map(|_| {
            let mut call = Box::pin(service.clone().oneshot(Request::new(())));
            // The slot is reserved when the request arrives.
            let now = poll_once(&mut call);
            async move {
                let response = match now {
                    Some(response) => response,
                    None => call.await,
                };
                (response.unwrap().status(), start.elapsed().as_secs())
            }
        })
        .collect();
    let mut outcomes = Vec::new();
    for call in calls {
        outcomes.push(call.await);
    }
    let rejected = StatusCode::TOO_MANY_REQUESTS;
    assert_eq!(outcomes, [(StatusCode::OK, 0), (StatusCode::OK, 1), (StatusCode::OK, 2), (rejected, 2)]);
}

/// Polls once.
fn poll_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    let mut cx = Context::from_waker(std::task::Waker::noop());
    match std::pin::Pin::new(future).poll(&mut cx) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_waiter_is_refunded() {
    let service = one_a_second(SECOND).layer(hello());
    let start = Instant::now();
    service.clone().oneshot(Request::new(())).await.unwrap();

    let mut waits = Box::pin(service.clone().oneshot(Request::new(())));
    assert!(poll_once(&mut waits).is_none());
    let rejected = service.clone().oneshot(Request::new(())).await.unwrap();
    assert_eq!(rejected.status(), StatusCode::TOO_MANY_REQUESTS, "the slot is reserved");

    drop(waits);
    let waited = service.clone().oneshot(Request::new(())).await.unwrap();
    assert_eq!((waited.status(), start.elapsed()), (StatusCode::OK, SECOND), "and free again");
}

#[tokio::test(start_paused = true)]
async fn a_used_slot_is_not_refunded() {
    let service = one_a_second(SECOND).layer(hello());
    let start = Instant::now();
    for second in 0..5 {
        assert_eq!(service.clone().oneshot(Request::new(())).await.unwrap().status(), StatusCode::OK);
        assert_eq!(start.elapsed(), second * SECOND);
    }
}

#[tokio::test(start_paused = true)]
async fn the_layer_caps_the_wait() {
    let service = one_a_second(10 * SECOND).max_wait(SECOND / 2).layer(hello());
    service.clone().oneshot(Request::new(())).await.unwrap();
    let rejected = service.clone().oneshot(Request::new(())).await.unwrap();
    assert_eq!(rejected.status(), StatusCode::TOO_MANY_REQUESTS);
    tokio::time::advance(SECOND * 6 / 10).await;
    assert_eq!(service.clone().oneshot(Request::new(())).await.unwrap().status(), StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn a_delayed_request_gets_headers_too() {
    let service = one_a_second(SECOND).layer(hello());
    service.clone().oneshot(Request::new(())).await.unwrap();
    let waited = service.clone().oneshot(Request::new(())).await.unwrap();
    assert_eq!(waited.headers()["x-ratelimit-limit"], "1");
    assert_eq!(waited.headers()["x-ratelimit-remaining"], "0");
    assert!(!waited.headers().contains_key("retry-after"));
}

/// Fails a call without its own `poll_ready`. Clones start unready, as tower's
/// contract says.
struct Strict {
    ready: bool,
    calls: Arc<Mutex<Vec<bool>>>,
}

impl Clone for Strict {
    fn clone(&self) -> Self {
        Self { ready: false, calls: Arc::clone(&self.calls) }
    }
}

impl Service<Request<()>> for Strict {
    type Response = Response<Full<bytes::Bytes>>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        self.calls.lock().unwrap().push(std::mem::take(&mut self.ready));
        std::future::ready(Ok(Response::default()))
    }
}

#[tokio::test(start_paused = true)]
async fn mistake_12_only_a_service_that_was_polled_ready_is_called() {
    let calls = Arc::default();
    let mut service = one_a_second(SECOND).layer(Strict { ready: false, calls: Arc::clone(&calls) });
    for _ in 0..4 {
        service.ready().await.unwrap().call(Request::new(())).await.unwrap();
    }
    assert_eq!(*calls.lock().unwrap(), [true; 4], "at once, then after waits");
}

#[tokio::test(start_paused = true)]
async fn mistake_12_poll_ready_charges_nothing() {
    let mut idle: Vec<_> = Vec::new();
    let service = one_a_second(Duration::ZERO).layer(hello::<()>());
    for _ in 0..5 {
        let mut connection = service.clone();
        connection.ready().await.unwrap();
        idle.push(connection);
    }
    let response = service.oneshot(Request::new(())).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
}

/// All tenants share one rule; in the other, a tenant may wait for its own slot.
fn shared_and_own() -> RateLimiter {
    let own = Rule::new("own").tier(Quota::new(1, 5 * SECOND)).max_wait(8 * SECOND);
    let shared = Rule::new("shared").per([] as [Dimension; 0]).tier(Quota::per_second(50));
    let limiter = RateLimiter::builder().policy(Policy::new().rule(own).rule(shared)).clock(TokioClock::default());
    limiter.build().unwrap()
}

fn of(tenant: &'static str) -> Request<()> {
    Request::builder().header("x-tenant", tenant).body(()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_waiter_reserves_its_slot_in_every_rule() {
    let limiter = shared_and_own();
    let service = RateLimitLayer::new(limiter).tenant(tenant::header("x-tenant")).layer(hello());
    assert_eq!(service.clone().oneshot(of("acme")).await.unwrap().status(), StatusCode::OK);

    let mut waits = Box::pin(service.clone().oneshot(of("acme")));
    assert!(poll_once(&mut waits).is_none());
    let other = service.clone().oneshot(of("initech")).await.unwrap();
    assert_eq!(other.status(), StatusCode::TOO_MANY_REQUESTS, "the next slot of the shared rule is behind the waiter");

    assert_eq!(waits.await.unwrap().status(), StatusCode::OK);
    assert_eq!(service.clone().oneshot(of("initech")).await.unwrap().status(), StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_reserves_nothing_in_a_rule_of_an_inner_layer() {
    let (limiter, start) = (shared_and_own(), Instant::now());
    let layer = |rule| RateLimitLayer::new(limiter.clone()).tenant(tenant::header("x-tenant")).rule(rule);
    let service = layer("own").layer(layer("shared").layer(hello()));
    assert_eq!(service.clone().oneshot(of("acme")).await.unwrap().status(), StatusCode::OK);

    let mut waits = Box::pin(service.clone().oneshot(of("acme")));
    assert!(poll_once(&mut waits).is_none());
    assert_eq!(service.clone().oneshot(of("initech")).await.unwrap().status(), StatusCode::OK);
    assert_eq!(start.elapsed(), Duration::ZERO);

    assert_eq!(waits.await.unwrap().status(), StatusCode::OK);
    assert_eq!(start.elapsed(), 5 * SECOND);
}
