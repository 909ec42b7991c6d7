//! API keys with limits from a database: a middleware looks the key up and hands
//! the limits to the layer. Run it with
//! `cargo run --example own_limits --features axum`.

use std::{collections::HashMap, error::Error, net::SocketAddr, sync::Arc};

use axum::{
    Router,
    extract::{Request, State},
    http::StatusCode,
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::get,
};
use tower_ratelimit::{Headers, MissingTenant, Quota, RateLimitLayer, RateLimiter, Tenant};

/// A row of the table of keys.
struct Row {
    account: &'static str,
    per_minute: u64,
    searches_per_minute: Option<u64>,
}

/// Stands for a database behind a cache.
type Keys = Arc<HashMap<&'static str, Row>>;

/// Puts the tenant with its own limits into the request's extensions.
async fn identify(State(keys): State<Keys>, mut request: Request, next: Next) -> Response {
    let key = request.headers().get("x-api-key").and_then(|key| key.to_str().ok());
    let Some(row) = key.and_then(|key| keys.get(key)) else { return StatusCode::UNAUTHORIZED.into_response() };
    let mut tenant = Tenant::new(row.account).tiers([Quota::per_minute(row.per_minute)]);
    if let Some(searches) = row.searches_per_minute {
        tenant = tenant.tiers_for("search", [Quota::per_minute(searches)]);
    }
    request.extensions_mut().insert(tenant);
    next.run(request).await
}

fn app() -> Result<Router, Box<dyn Error>> {
    use tower_ratelimit::{Dimension, Policy, Rule};

    let keys: Keys = Arc::new(HashMap::from([
        ("k-small", Row { account: "acme", per_minute: 3, searches_per_minute: None }),
        ("k-large", Row { account: "initech", per_minute: 500, searches_per_minute: Some(2) }),
    ]));
    // The limits of accounts for which the database has none.
    let policy = Policy::new()
        .rule(Rule::new("everything").per([Dimension::Tenant]).tier(Quota::per_minute(60)))
        .rule(Rule::new("search").path("/search").tier(Quota::per_minute(10)));
    let layer = RateLimitLayer::new(RateLimiter::new(policy)?)
        .tenant(tower_ratelimit::tenant::extension::<Tenant>())
        .on_missing_tenant(MissingTenant::Reject)
        .headers(Headers::ALL);
    let routes = Router::new().route("/", get(|| async { "hello" })).route("/search", get(|| async { "found" }));
    // The layer that is added last runs first.
    Ok(routes.layer(layer).layer(from_fn_with_state(keys, identify)))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address: SocketAddr = listener.local_addr()?;
    let app = app()?;
    tokio::spawn(async move { axum::serve(listener, app).await });
    let client = reqwest::Client::new();
    for (key, path, tries) in [("k-small", "/", 5), ("k-large", "/", 5), ("k-large", "/search", 4), ("unknown", "/", 1)]
    {
        for _ in 0..tries {
            let response = client.get(format!("http://{address}{path}")).header("x-api-key", key).send().await?;
            let policy = response.headers().get("ratelimit-policy").and_then(|policy| policy.to_str().ok());
            println!("{key:8} {path:8} {} {}", response.status(), policy.unwrap_or_default());
        }
    }
    Ok(())
}
