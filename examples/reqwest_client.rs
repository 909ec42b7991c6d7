//! reqwest behind the layer. The layer uses the types of the `http` crate;
//! reqwest converts from and to them.
//!
//! `cargo run --example reqwest_client [-- URL]`. Without a URL it starts a local
//! server and calls that.

use std::time::Duration;

use reqwest::Body;
use tokio::time::Instant;
use tower::{BoxError, Service, ServiceBuilder, ServiceExt};
use tower_ratelimit::{Policy, Quota, RateLimitLayer, RateLimited, RateLimiter, Rule};

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let url = match std::env::args().nth(1) {
        Some(url) => url,
        None => start_upstream().await?,
    };
    // A burst of 3, then 5 calls a second. A call that would wait for more than
    // half a second is rejected instead.
    let rule = Rule::new("upstream").tier(Quota::per_second(5).burst(3)).max_wait(Duration::from_millis(500));
    let limiter = RateLimiter::new(Policy::new().rule(rule))?;
    let client = ServiceBuilder::new()
        .layer(RateLimitLayer::client(limiter))
        .map_response(http::Response::<Body>::from)
        .service_fn(execute);

    let calls: Vec<_> = (1..=8)
        .map(|call| {
            let (mut client, url) = (client.clone(), url.clone());
            tokio::spawn(async move {
                let start = Instant::now();
                let request = http::Request::get(url).body(Body::default())?;
                let result = match client.ready().await?.call(request).await {
                    Ok(response) => response.status().to_string(),
                    Err(error) => match error.downcast_ref::<RateLimited>() {
                        Some(rejection) => format!("not sent: {rejection}"),
                        None => return Err(error),
                    },
                };
                println!("call {call}, after {:>3} ms: {result}", start.elapsed().as_millis());
                Ok::<_, BoxError>(())
            })
        })
        .collect();
    for call in calls {
        call.await??;
    }
    Ok(())
}

async fn execute(request: http::Request<Body>) -> Result<reqwest::Response, reqwest::Error> {
    static CLIENT: std::sync::LazyLock<reqwest::Client> = std::sync::LazyLock::new(reqwest::Client::new);
    CLIENT.execute(request.try_into()?).await
}

/// Starts a server without a limit and returns its URL.
async fn start_upstream() -> Result<String, BoxError> {
    let app = axum::Router::new().route("/", axum::routing::get(|| async { "hello" }));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/", listener.local_addr()?);
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok(url)
}
