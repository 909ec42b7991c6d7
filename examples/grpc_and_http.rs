//! One process, one port, one limiter: axum and tonic side by side. Who is
//! rejected is told so in what it speaks.
//!
//! ```sh
//! cargo run --example grpc_and_http --features axum,tonic
//! curl -i -H 'x-api-key: acme' 127.0.0.1:3000/products/lamp
//! ```
//!
//! `PORT` is another port; 0 is any that is free.

#[path = "proto/mod.rs"]
mod proto;
#[path = "proto/shop.rs"]
mod shop;

use std::{env, error::Error, net::SocketAddr};

use axum::{Router, extract::Path, routing::get};
use tokio::net::TcpListener;
use tonic::service::Routes;
use tower_ratelimit::{Dimension, Policy, Quota, RateLimitLayer, RateLimiter, Rule, http::tenant};

use self::{proto::products_server::ProductsServer, shop::Shop};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // A product costs its tenant the same, however it is asked for.
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
                // tonic serves a call whatever its HTTP method is: nobody is to
                // call for free as if by a CORS preflight.
                .exempt_preflight(false),
        );

    let port = env::var("PORT").unwrap_or_else(|_| "3000".into());
    let listener = TcpListener::bind(format!("127.0.0.1:{port}")).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
