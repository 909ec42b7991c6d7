//! reqwest behind the layer: 200 tasks share one client, and stay within the limit
//! of the server that they call. The layer uses the types of the `http` crate;
//! reqwest converts from and to them.
//!
//! `cargo run --example reqwest_client [-- URL]`. Without a URL it starts a local
//! server with a limit, and calls that.

use std::{sync::LazyLock, time::Duration};

use reqwest::Body;
use tokio::{task::JoinSet, time::Instant};
use tower::{BoxError, Service, ServiceBuilder, ServiceExt};
use tower_ratelimit::{Policy, Quota, RateLimitLayer, RateLimited, RateLimiter, Rule};

/// The server's limit, in requests a second.
const ALLOWED: u64 = 50;
const CALLS: u64 = 200;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    for max_wait in [Duration::from_secs(60), Duration::from_millis(500)] {
        let url = match std::env::args().nth(1) {
            Some(url) => url,
            None => start_upstream().await?,
        };
        run(&url, max_wait).await?;
    }
    Ok(())
}

/// Makes all calls at once. A call that would wait for more than
/// `max_wait` is rejected instead, and not sent.
async fn run(url: &str, max_wait: Duration) -> Result<(), BoxError> {
    // A smaller burst than the server's, so that network jitter causes no rejection.
    let rule = Rule::new("upstream").tier(Quota::per_second(ALLOWED).burst(5)).max_wait(max_wait);
    let limiter = RateLimiter::new(Policy::new().rule(rule))?;
    // Clones share the limit and the pool of connections.
    let client = ServiceBuilder::new()
        .layer(RateLimitLayer::client(limiter))
        .map_response(http::Response::<Body>::from)
        .service_fn(execute);

    let start = Instant::now();
    let mut calls = JoinSet::new();
    for _ in 0..CALLS {
        let (mut client, request) = (client.clone(), http::Request::get(url).body(Body::default())?);
        calls.spawn(async move { client.ready().await?.call(request).await });
    }
    let (mut answered, mut rejected, mut not_sent) = (0, 0, Vec::new());
    while let Some(call) = calls.join_next().await {
        match call? {
            Ok(response) if response.status() == http::StatusCode::TOO_MANY_REQUESTS => rejected += 1,
            Ok(_) => answered += 1,
            Err(error) => not_sent.push(error.downcast::<RateLimited>()?),
        }
    }
    let (seconds, not_sent_count) = (start.elapsed().as_secs_f64(), not_sent.len());
    println!(
        "max_wait {max_wait:?}: {answered} answered in {seconds:.1} s, {rejected} rejected, {not_sent_count} not sent"
    );
    if let Some(rejection) = not_sent.first() {
        println!("  the first of these: {rejection}");
    }
    Ok(())
}

async fn execute(request: http::Request<Body>) -> Result<reqwest::Response, reqwest::Error> {
    static CLIENT: LazyLock<reqwest::Client> = LazyLock::new(reqwest::Client::new);
    CLIENT.execute(request.try_into()?).await
}

/// Starts a server with a limit, and returns its URL.
async fn start_upstream() -> Result<String, BoxError> {
    let limiter = RateLimiter::new(Policy::new().rule(Rule::new("server").per([]).tier(Quota::per_second(ALLOWED))))?;
    let app = axum::Router::new().route("/", axum::routing::get(|| async { "hello" }));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/", listener.local_addr()?);
    tokio::spawn(async move { axum::serve(listener, app.layer(RateLimitLayer::new(limiter))).await });
    Ok(url)
}
