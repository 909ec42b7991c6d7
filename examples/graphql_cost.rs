//! A GraphQL endpoint that charges a query what it costs: one unit for a request,
//! and one for each field. The cost is known only once the query is parsed, so the
//! handler adds it, and a query that would exceed the limit is rejected before it
//! runs. The same works for the tokens of a language model, added as they stream.
//!
//!     cargo run --example graphql_cost --features axum

use axum::{Extension, Router, routing::post};
use tokio::net::TcpListener;
use tower_ratelimit::{ChargeHandle, Policy, Quota, RateLimitLayer, RateLimited, RateLimiter, Rule, tenant};

/// The number of fields. A real server asks its GraphQL library.
fn fields(query: &str) -> u64 {
    query.split_whitespace().filter(|word| word.starts_with(char::is_alphabetic)).count() as u64
}

async fn graphql(Extension(charge): Extension<ChargeHandle>, query: String) -> Result<String, RateLimited> {
    let fields = fields(&query);
    charge.try_add(fields).await?;
    Ok(format!("charged {}\n", 1 + fields))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // `settle` gives the handler its `ChargeHandle`.
    let rule = Rule::new("complexity").path("/graphql").tier(Quota::per_hour(11)).settle(true);
    let limiter = RateLimiter::new(Policy::new().rule(rule))?;
    let layer = RateLimitLayer::new(limiter).tenant(tenant::header("x-api-key"));
    let app = Router::new().route("/graphql", post(graphql)).layer(layer);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("listening on http://{}", listener.local_addr()?);
    Ok(axum::serve(listener, app).await?)
}
