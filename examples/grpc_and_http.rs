//! axum and tonic on one port, behind one limiter. The layer rejects HTTP
//! requests with a status, gRPC calls with a gRPC status.
//!
//! ```sh
//! cargo run --example grpc_and_http --features axum,tonic
//! curl -i -H 'x-api-key: acme' 127.0.0.1:3000/products/lamp
//! ```
//!
//! `PORT` sets the port; 0 chooses a free one.

#[path = "proto/mod.rs"]
mod proto;
#[path = "proto/shop.rs"]
mod shop;

use std::{env, error::Error, net::SocketAddr};

use axum::{Router, extract::Path, routing::get};
use tokio::net::TcpListener;
use tonic::service::Routes;
use tower_ratelimit::{Dimension, Policy, Quota, RateLimitLayer, RateLimiter, Rule, tenant};

use self::{proto::products_server::ProductsServer, shop::Shop};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // Both protocols share one counter for each tenant.
    let products = Rule::new("products")
        .path("/products/{id}")
        .path("/shop.v1.Products/Get")
        .per([Dimension::Tenant])
        .tier(Quota::per_minute(6).burst(4));
    let others = Rule::new("others").fallback(true).tier(Quota::per_second(100));
    let limiter = RateLimiter::new(Policy::new().rule(products).rule(others))?;

    let grpc = Routes::new(ProductsServer::new(Shop)).prepare().into_axum_router();
    let app = Router::new()
        .route("/products/{id}", get(async |Path(id): Path<String>| format!("{id}: 9.99\n")))
        .merge(grpc)
        .layer(
            RateLimitLayer::new(limiter)
                .tenant(tenant::header("x-api-key").or(tenant::peer_ip()))
                // tonic accepts any HTTP method, so a call that looks like a
                // CORS preflight must be counted.
                .exempt_preflight(false),
        );

    let port = env::var("PORT").unwrap_or_else(|_| "3000".into());
    let listener = TcpListener::bind(format!("127.0.0.1:{port}")).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
