//! An axum server with a policy file that is reloaded when it changes, and a page for
//! operators at `/admin`.
//!
//! `cargo run --example server --features admin,axum,metrics,watch [-- POLICY]`
//!
//! | variable | meaning |
//! |---|---|
//! | `PORT` | the port on 127.0.0.1; default 3000 |
//! | `TRUSTED_PROXIES` | networks whose `X-Forwarded-For` is trusted: `10.0.0.0/8,192.0.2.1` |

use std::{collections::HashMap, env, net::SocketAddr, time::Duration};

use axum::{
    Router,
    routing::{get, post},
};
use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::{net::TcpListener, time::timeout};
use tower_ratelimit::{
    Headers, Policy, RateLimitLayer, RateLimiter, RequestHead, Tenant,
    admin::Admin,
    policy_source::{FileSource, WatchHandle, WatchStatus},
    tenant::{self, TenantExtractor, TrustedProxies},
};

type Error = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let file = env::args().nth(1).unwrap_or_else(|| "examples/policy.yaml".into());
    let metrics = PrometheusBuilder::new().install_recorder()?;
    // In force until the file has been read: a server that restarts while the file is
    // invalid is limited all the same.
    let policy = Policy::from_yaml(include_str!("policy.yaml"))?;
    let limiter = RateLimiter::builder().policy(policy).top_tenants(256).build()?;
    let mut watching = limiter.watch(FileSource::new(file))?;
    let _ = timeout(Duration::from_secs(1), watching.wait_for(WatchStatus::is_current)).await;

    let limited = Router::new()
        .route("/", get(|| async { "hello\n" }))
        .route("/v1/organizations/{org}/product/{id}", get(|| async { "a product\n" }))
        .route("/v1/organizations/{org}/export", post(|| async { "an export\n" }))
        .route("/v1/search", get(|| async { "results\n" }))
        .route("/login", post(|| async { "welcome\n" }))
        .layer(RateLimitLayer::new(limiter.clone()).tenant(caller()?).headers(Headers::ALL));
    // Outside of the layer: an operator is not limited.
    let admin = Admin::new(limiter.clone()).watch(&watching);
    let app = limited.route_service("/admin", admin).route(
        "/metrics",
        get(async move || {
            metrics.run_upkeep();
            metrics.render()
        }),
    );

    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!("listening on http://{}", listener.local_addr()?);
    tokio::spawn(report(watching, limiter.clone()));
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>())
        .with_graceful_shutdown(stopped())
        .await?;
    // With Redis: gives back what is reserved.
    limiter.drain().await;
    Ok(())
}

/// Identifies the tenant by a known API key, else by the client's address. An
/// unknown key is ignored, so inventing keys buys no quota.
fn caller() -> Result<impl TenantExtractor, Error> {
    let customers = HashMap::from([
        ("key-of-initech", Tenant::new("initech").plan("free")),
        ("key-of-globex", Tenant::new("globex").plan("pro")),
        ("key-of-a-job", Tenant::new("internal")),
    ]);
    let by_key = tenant::from_fn(move |request: &RequestHead<'_>| {
        customers.get(request.headers().get("x-api-key")?.to_str().ok()?).cloned()
    });
    let networks = env::var("TRUSTED_PROXIES").unwrap_or_default();
    let proxies = TrustedProxies::cidrs(networks.split(',').map(str::trim).filter(|network| !network.is_empty()))?;
    Ok(by_key.or(tenant::client_ip(proxies)))
}

/// Says which policy is in force. Why a file is rejected, the crate says itself.
async fn report(mut watching: WatchHandle, limiter: RateLimiter) {
    let mut applied = 0;
    while let Some(status) = watching.wait_for(|status| status.applied != applied).await {
        applied = status.applied;
        println!("policy in force: {} rules", limiter.policy().rules().len());
    }
}

/// Completes on Ctrl-C or SIGTERM.
async fn stopped() {
    #[cfg(unix)]
    if let Ok(mut terminate) = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
        return;
    }
    let _ = tokio::signal::ctrl_c().await;
}
