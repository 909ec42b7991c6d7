//! A tonic server with limits of its own for each method, health checks, and
//! reflection, so that any client can find out what to call:
//!
//! ```sh
//! cargo run --example tonic_server --features tonic,yaml
//! grpcurl -plaintext -H 'x-api-key: acme' -d '{"id": "lamp"}' 127.0.0.1:50051 shop.v1.Products/Get
//! ```
//!
//! `PORT` is another port; 0 is any that is free.

#[path = "proto/mod.rs"]
mod proto;
#[path = "proto/shop.rs"]
mod shop;

use std::{env, error::Error};

use tonic::transport::{Server, server::TcpIncoming};
use tower_ratelimit::{Policy, RateLimitLayer, RateLimiter, http::tenant};

use self::{proto::products_server::ProductsServer, shop::Shop};

const POLICY: &str = r"
rules:
  # Five at once, and then one each twelve seconds.
  - id: get
    match: { paths: [/shop.v1.Products/Get] }
    tiers: [{ limit: 5, window: 1m }]
  # One each half second; the next wait for their turn, if their deadline lets
  # them.
  - id: list
    match: { paths: [/shop.v1.Products/List] }
    tiers: [{ limit: 2, window: 1s, burst: 1 }, { concurrent: 10 }]
    max_wait: 10s
  # Whatever else the service has, all methods together.
  - id: products
    fallback: true
    match: { paths: [/shop.v1.Products/*] }
    tiers: [{ limit: 100, window: 1s }]
  # All of that, and health and reflection, which are no tenant's.
  - id: others
    fallback: true
    per: []
    tiers: [{ limit: 1000, window: 1s }]
";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limiter = RateLimiter::new(Policy::from_yaml(POLICY)?)?;
    let limits = RateLimitLayer::new(limiter)
        .tenant(tenant::header("x-api-key").or(tenant::peer_ip()))
        // Clients with a retry policy come back when we say so.
        .grpc_pushback(true);

    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<ProductsServer<Shop>>().await;
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(proto::DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()?;

    let port = env::var("PORT").unwrap_or_else(|_| "50051".into());
    let incoming = TcpIncoming::bind(format!("127.0.0.1:{port}").parse()?)?;
    println!("listening on {}", incoming.local_addr()?);
    Server::builder()
        .layer(limits)
        .add_service(health_service)
        .add_service(reflection)
        .add_service(ProductsServer::new(Shop))
        .serve_with_incoming(incoming)
        .await?;
    Ok(())
}
