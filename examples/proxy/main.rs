//! A reverse proxy in front of an upstream with a rate limit. It either forwards
//! the upstream's rejections, or enforces the limit itself so that the upstream
//! never has to reject.
//!
//! `cargo run --example proxy --features axum [-- HOST:PORT]`
//!
//! The upstream is at `HOST:PORT`. Without it the example starts its own, which
//! admits a burst of 5 for each customer, then one request every 10 seconds.

mod forward;

use std::env;

use axum::{Router, http::uri::Authority, routing::any};
use tokio::net::TcpListener;
use tower_ratelimit::{Headers, Policy, Quota, RateLimitLayer, RateLimiter, Rule, tenant};

type AnyError = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), AnyError> {
    let upstream: Authority = match env::args().nth(1) {
        Some(authority) => authority.parse()?,
        None => start_upstream().await?,
    };
    // The burst is one less than the upstream's, because network jitter may
    // bring requests closer together.
    let rule = Rule::new("guard").tier(Quota::per_minute(6).burst(4));
    let limiter = RateLimiter::new(Policy::new().rule(rule))?;

    let port: u16 = env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    let url = format!("http://{}", listener.local_addr()?);
    println!("listening on {url}");
    println!("upstream at http://{upstream}; run each command six times:");
    println!("  curl -i -H 'x-api-key: ada' {url}/pass/hello    # the upstream rejects");
    println!("  curl -i -H 'x-api-key: bob' {url}/guard/hello   # the proxy rejects, without calling the upstream");
    axum::serve(listener, forward::proxy(upstream, limiter)).await?;
    Ok(())
}

/// Starts an upstream with a limit that it reports in headers.
async fn start_upstream() -> Result<Authority, AnyError> {
    let rule = Rule::new("upstream").tier(Quota::per_minute(6).burst(5));
    let limiter = RateLimiter::new(Policy::new().rule(rule))?;
    let app = Router::new()
        .route("/hello", any(|| async { "hello\n" }))
        .layer(RateLimitLayer::new(limiter).tenant(tenant::header("x-api-key")).headers(Headers::ALL));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let authority = listener.local_addr()?.to_string().parse()?;
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok(authority)
}
