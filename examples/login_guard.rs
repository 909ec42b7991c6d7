//! Brute-force protection: five failed logins a day for each account.
//! Successful logins and server errors are not charged.
//!
//! ```text
//! cargo run --example login_guard --features axum
//! curl -i -X POST 'http://127.0.0.1:3000/login?account=ada&password=wrong'      # 401, five times, then 429
//! curl -i -X POST 'http://127.0.0.1:3000/login?account=bob&password=lovelace'   # 200, as often as you like
//! ```

use std::collections::HashMap;

use axum::{Router, extract::Query, routing::post};
use http::StatusCode;
use tokio::net::TcpListener;
use tower_ratelimit::{MissingTenant, Policy, Quota, RateLimitLayer, RateLimiter, RequestHead, Rule, Tenant, tenant};

type Form = HashMap<String, String>;

async fn login(Query(form): Query<Form>) -> StatusCode {
    match form.get("password").map(String::as_str) {
        Some("lovelace") => StatusCode::OK,
        Some(_) => StatusCode::UNAUTHORIZED,
        None => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// Identifies the tenant by the account that the request names, in lower case.
fn account(request: &RequestHead<'_>) -> Option<Tenant> {
    let Query(mut form) = Query::<Form>::try_from_uri(request.uri()).ok()?;
    Some(Tenant::new(form.remove("account")?.to_lowercase()))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The layer charges each login on admission, so that concurrent guesses
    // cannot exceed the limit, and refunds it unless the response is 401.
    let rule = Rule::new("login").path("/login").tier(Quota::per_day(5)).charge_on([StatusCode::UNAUTHORIZED]);
    let layer = RateLimitLayer::new(RateLimiter::new(Policy::new().rule(rule))?)
        .tenant(tenant::from_fn(account))
        .on_missing_tenant(MissingTenant::Reject);

    let app = Router::new().route("/login", post(login)).layer(layer);
    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}
