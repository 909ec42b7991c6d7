//! hyper-util's client against an axum server that this crate limits.

use axum::{Router, routing::get};
use bytes::Bytes;
use http_body_util::Full;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use tokio::net::TcpListener;
use tower::ServiceBuilder;
use tower_ratelimit::{
    Headers, Quota, RateLimitLayer, RateLimiter, RetryPolicy, Rule,
    middleware::{ErrorAnswer, Http},
};

use super::*;

#[tokio::test]
async fn a_limited_server_is_retried_until_it_admits() {
    let policy = Policy::new()
        .rule(Rule::new("read").methods([Method::GET]).tier(Quota::new(1, seconds(1))))
        .rule(Rule::new("write").methods([Method::POST]).tier(Quota::per_minute(1)));
    let limiter = RateLimiter::new(policy).unwrap();
    let app = Router::new().route("/", get(async || "found").post(async || "made"));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let uri = format!("http://{}/", listener.local_addr().unwrap());
    let server = tokio::spawn(
        axum::serve(listener, app.layer(RateLimitLayer::new(limiter).headers(Headers::ALL))).into_future(),
    );

    let client = ServiceBuilder::new()
        .layer(RetryLayer::new(RetryPolicy::new()))
        .layer(RateLimitLayer::with(RateLimiter::new(Quota::per_second(1_000)).unwrap(), Http::client(), ErrorAnswer))
        .service(Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>());
    let call = |method: Method| {
        client.clone().oneshot(Request::builder().method(method).uri(&uri).body(Full::default()).unwrap())
    };

    let start = Instant::now();
    assert_eq!(call(Method::GET).await.unwrap().status(), 200);
    assert_eq!(call(Method::GET).await.unwrap().status(), 200, "retried");
    assert!(start.elapsed() >= seconds(1), "{:?}", start.elapsed());

    assert_eq!(call(Method::POST).await.unwrap().status(), 200);
    let rejected = call(Method::POST).await.unwrap();
    assert_eq!(rejected.status(), 429, "not retried");
    assert!(rejected.headers().contains_key("retry-after") && rejected.headers().contains_key("ratelimit"));
    server.abort();
}
