//! A reverse proxy in front of a service that has a limit. It passes on what
//! the service says of it, or keeps the limit itself, so that the service is
//! never asked for more.
//!
//! `cargo run --example proxy --features axum [-- HOST:PORT]`
//!
//! The upstream is at `HOST:PORT`, or else one of its own, which admits five
//! requests of a customer at once and then one every ten seconds.

mod forward;

use std::env;

use axum::{Router, http::uri::Authority, routing::any};
use tokio::net::TcpListener;
use tower_ratelimit::{Policy, Quota, RateLimitLayer, RateLimiter, Rule, http::tenant};

type AnyError = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), AnyError> {
    let upstream: Authority = match env::args().nth(1) {
        Some(authority) => authority.parse()?,
        None => start_upstream().await?,
    };
    // One less in a burst than the upstream has: requests may arrive there
    // closer together than they left.
    let rule = Rule::new("guard").tier(Quota::per_minute(6).burst(4));
    let limiter = RateLimiter::new(Policy::new().rule(rule))?;

    let port: u16 = env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    let url = format!("http://{}", listener.local_addr()?);
    println!("listening on {url}");
    println!("in front of http://{upstream}; try, six times each:");
    println!("  curl -i -H 'x-api-key: ada' {url}/pass/hello    # the upstream's 429");
    println!("  curl -i -H 'x-api-key: bob' {url}/guard/hello   # our own, and the upstream is not asked");
    axum::serve(listener, forward::proxy(upstream, limiter)).await?;
    Ok(())
}

/// A service that is not ours, with a limit that it tells its callers.
async fn start_upstream() -> Result<Authority, AnyError> {
    let rule = Rule::new("upstream").tier(Quota::per_minute(6).burst(5));
    let limiter = RateLimiter::new(Policy::new().rule(rule))?;
    let app = Router::new()
        .route("/hello", any(|| async { "hello\n" }))
        .layer(RateLimitLayer::new(limiter).tenant(tenant::header("x-api-key")));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let authority = listener.local_addr()?.to_string().parse()?;
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok(authority)
}
