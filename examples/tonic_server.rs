//! A tonic server with a limit for each method, health checks and reflection.
//! Clients discover its methods by reflection:
//!
//! ```sh
//! cargo run --example tonic_server --features tonic,yaml
//! grpcurl -plaintext -H 'x-api-key: acme' -d '{"id": "lamp"}' 127.0.0.1:50051 shop.v1.Products/Get
//! ```
//!
//! `PORT` sets the port; 0 chooses a free one.

#[path = "proto/mod.rs"]
mod proto;
#[path = "proto/shop.rs"]
mod shop;

use std::{env, error::Error};

use tonic::transport::{Server, server::TcpIncoming};
use tower_ratelimit::{Policy, RateLimitLayer, RateLimiter, tenant};

use self::{proto::products_server::ProductsServer, shop::Shop};

const POLICY: &str = r"
rules:
  # A burst of 5, then one call every 12 seconds.
  - id: get
    match: { paths: [/shop.v1.Products/Get] }
    tiers: [{ limit: 5, window: 1m }]
  # One call every half second. Others wait up to 10 s, within their deadlines.
  - id: list
    match: { paths: [/shop.v1.Products/List] }
    tiers: [{ limit: 2, window: 1s, burst: 1 }, { concurrent: 10 }]
    max_wait: 10s
  # The service's other methods, with one counter for all of them.
  - id: products
    fallback: true
    match: { paths: [/shop.v1.Products/*] }
    tiers: [{ limit: 100, window: 1s }]
  # Health and reflection, with one counter for all tenants.
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
        // Clients with a retry policy follow `grpc-retry-pushback-ms`.
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
