//! The smallest server: one quota, one layer, one route.
//!
//! `cargo run --example quickstart --features axum`

use std::net::SocketAddr;

use axum::{Router, routing::get};
use tower_ratelimit::{Quota, RateLimitLayer, RateLimiter};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A burst of 5, then one request every 6 seconds, for each client address.
    let limiter = RateLimiter::new(Quota::per_minute(10).burst(5))?;
    let app = Router::new().route("/", get(|| async { "hello\n" })).layer(RateLimitLayer::new(limiter));

    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
