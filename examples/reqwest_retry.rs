//! reqwest behind the layer, with retries. Its client is one of `reqwest-middleware`
//! here; a plain `reqwest::Client` is called by the same line.
//!
//! `cargo run --example reqwest_retry --features retry`
//!
//! The upstream rejects the first two calls, and asks for a second's pause.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use axum::{Router, http::StatusCode, response::IntoResponse, routing::post};
use reqwest::Body;
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware, Middleware, Next};
use tokio::{net::TcpListener, time::Instant};
use tower::{BoxError, Service, ServiceBuilder, ServiceExt, retry::RetryLayer};
use tower_ratelimit::{Quota, RateLimitLayer, RateLimiter, RetryPolicy, retry::clone_head};

/// Copies a request for another attempt. The body is copied if it is in memory; a
/// stream can be sent only once, so its request is not retried.
fn copy(request: &http::Request<Body>) -> Option<http::Request<Body>> {
    let body = request.body().as_bytes()?.to_vec();
    Some(clone_head(request).map(|()| Body::from(body)))
}

/// Each attempt passes the middleware, as it is inside of the layers.
async fn execute(request: http::Request<Body>) -> Result<reqwest::Response, BoxError> {
    static CLIENT: LazyLock<ClientWithMiddleware> =
        LazyLock::new(|| ClientBuilder::new(reqwest::Client::new()).with(Log).build());
    Ok(CLIENT.execute(request.try_into()?).await?)
}

struct Log;

#[async_trait::async_trait]
impl Middleware for Log {
    async fn handle(
        &self,
        request: reqwest::Request,
        extensions: &mut http::Extensions,
        next: Next<'_>,
    ) -> reqwest_middleware::Result<reqwest::Response> {
        let response = next.run(request, extensions).await?;
        println!("middleware: {}", response.status());
        Ok(response)
    }
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let url = start_upstream().await?;
    let retry = RetryPolicy::new().methods([http::Method::POST]).clone_with(copy);
    let mut client = ServiceBuilder::new()
        // Outside: each attempt passes the limiter.
        .layer(RetryLayer::new(retry))
        .layer(RateLimitLayer::client(RateLimiter::new(Quota::per_second(50))?))
        .map_response(http::Response::<Body>::from)
        .service_fn(execute);

    let start = Instant::now();
    let request = http::Request::post(url).body(Body::from("an order"))?;
    let response = client.ready().await?.call(request).await?;
    println!("{} after {} s", response.status(), start.elapsed().as_secs());
    println!("{}", reqwest::Response::from(response).text().await?);
    Ok(())
}

/// Starts a server that rejects its first two requests, and returns its URL.
async fn start_upstream() -> Result<String, BoxError> {
    async fn order(body: String) -> axum::response::Response {
        static CALLS: AtomicU32 = AtomicU32::new(0);
        match CALLS.fetch_add(1, Relaxed) {
            0 | 1 => (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "1")]).into_response(),
            _ => format!("received: {body}").into_response(),
        }
    }
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/", listener.local_addr()?);
    tokio::spawn(async move { axum::serve(listener, Router::new().route("/", post(order))).await });
    Ok(url)
}
