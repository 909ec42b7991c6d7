//! No wait exceeds `grpc-timeout`, on a server or a client.

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tokio::time::Instant;
use tonic::Code;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_ratelimit::{Policy, Quota, RateLimitLayer, RateLimited, RateLimiter, Rule, testing::TokioClock};

use super::{GET, everyone, product, shop};

const SECOND: Duration = Duration::from_secs(1);

/// One call per second, without a bound on waiters.
fn paced() -> RateLimiter {
    let rule = Rule::new("paced").per([]).tier(Quota::per_second(1)).max_wait(1_000 * SECOND);
    RateLimiter::builder().policy(Policy::new().rule(rule)).clock(TokioClock::default()).build().unwrap()
}

fn call(timeout: Option<&'static str>) -> Request<()> {
    let mut request = Request::post(GET).header("content-type", "application/grpc").body(()).unwrap();
    if let Some(timeout) = timeout {
        request.headers_mut().insert("grpc-timeout", timeout.parse().unwrap());
    }
    request
}

/// Responds with the timeout that it received.
fn echo() -> impl Service<Request<()>, Response = Response<Full<Bytes>>, Error = Infallible> + Clone {
    service_fn(|request: Request<()>| async move {
        let mut response = Response::new(Full::default());
        let left = request.headers().get("grpc-timeout").cloned();
        if let Some(left) = left {
            response.headers_mut().insert("left", left);
        }
        Ok(response)
    })
}

/// Whether it was admitted, when, and with which timeout.
type Outcome = (bool, u64, Option<String>);

async fn ask_server<S, B>(service: &S, start: Instant, request: Request<()>) -> Outcome
where
    S: Service<Request<()>, Response = Response<B>, Error = Infallible> + Clone,
{
    let response = service.clone().oneshot(request).await.unwrap();
    let left = response.headers().get("left").map(|left| left.to_str().unwrap().to_owned());
    let status = response.headers().get("grpc-status").map(|status| status.as_bytes());
    assert!(status.is_none_or(|status| status == b"8"));
    (status.is_none(), start.elapsed().as_secs(), left)
}

async fn ask_client<S>(service: &S, start: Instant, request: Request<()>) -> Outcome
where
    S: Service<Request<()>, Response = Response<Full<Bytes>>, Error = tower::BoxError> + Clone,
{
    match service.clone().oneshot(request).await {
        Ok(response) => {
            let left = response.headers().get("left").map(|left| left.to_str().unwrap().to_owned());
            (true, start.elapsed().as_secs(), left)
        }
        Err(error) => {
            assert!(error.is::<RateLimited>(), "{error}");
            (false, start.elapsed().as_secs(), None)
        }
    }
}

/// Outcomes of successive callers: none waits beyond its timeout, and one that
/// would is rejected at once.
macro_rules! in_order {
    ($ask:ident, $service:expr) => {{
        let (service, start) = ($service, Instant::now());
        let left = |text: &str| Some(text.to_owned());
        assert_eq!($ask(&service, start, call(None)).await, (true, 0, None));
        assert_eq!($ask(&service, start, call(Some("999m"))).await, (false, 0, None));
        assert_eq!($ask(&service, start, call(Some("0n"))).await, (false, 0, None));
        assert_eq!($ask(&service, start, call(Some("2500m"))).await, (true, 1, left("1500000u")));
        assert_eq!($ask(&service, start, call(Some("1S"))).await, (true, 2, left("1n")));
        assert_eq!($ask(&service, start, call(Some("1M"))).await, (true, 3, left("59000000u")));
        // A malformed timeout is ignored and forwarded.
        for (n, malformed) in (4..).zip(["1s", "1", "S", "-1S", "123456789n", "1 S", "", "1.5S"]) {
            assert_eq!($ask(&service, start, call(Some(malformed))).await, (true, n, left(malformed)));
        }
        // A similar content type has no gRPC timeout.
        let mut other = call(Some("1m"));
        other.headers_mut().insert("content-type", "application/grpc2".parse().unwrap());
        assert_eq!($ask(&service, start, other).await, (true, 12, left("1m")));
    }};
}

#[tokio::test(start_paused = true)]
async fn no_wait_on_a_server_exceeds_grpc_timeout() {
    in_order!(ask_server, RateLimitLayer::new(paced()).layer(echo()));
}

#[tokio::test(start_paused = true)]
async fn no_wait_on_a_client_exceeds_grpc_timeout() {
    in_order!(ask_client, RateLimitLayer::client(paced()).layer(echo()));
}

/// Over sockets, on the system clock.
#[tokio::test]
async fn a_call_that_would_wait_too_long_is_rejected_at_once() {
    let rule = Rule::new("get").tier(Quota::per_hour(1)).max_wait(3_600 * SECOND);
    let mut shop = shop(everyone(rule)).await;
    shop.get(product("a")).await.unwrap();
    let start = Instant::now();
    let mut hurried = tonic::Request::new(product("a"));
    hurried.set_timeout(60 * SECOND);
    let status = shop.get(hurried).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    assert!(start.elapsed() < 50 * SECOND, "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_call_within_its_timeout_is_delayed() {
    let rule = Rule::new("get").tier(Quota::new(10, SECOND).burst(1)).max_wait(60 * SECOND);
    let mut shop = shop(everyone(rule)).await;
    let start = Instant::now();
    for _ in 0..5 {
        let mut patient = tonic::Request::new(product("a"));
        patient.set_timeout(60 * SECOND);
        shop.get(patient).await.unwrap();
    }
    assert!(start.elapsed() >= Duration::from_millis(400), "{:?}", start.elapsed());
}
