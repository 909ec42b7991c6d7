//! An axum server with a policy file and hot reload.
//!
//! `cargo run --example server --features axum,yaml,metrics [-- POLICY]`
//!
//! | variable | meaning |
//! |---|---|
//! | `PORT` | the port on 127.0.0.1; default 3000 |
//! | `TRUSTED_PROXIES` | networks whose `X-Forwarded-For` is trusted: `10.0.0.0/8,192.0.2.1` |

use std::{
    collections::HashMap,
    env, fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use axum::{
    Router,
    routing::{get, post},
};
use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::net::TcpListener;
use tower_ratelimit::{
    Headers, Policy, RateLimitLayer, RateLimiter, Tenant,
    http::{
        RequestHead, TrustedProxies,
        tenant::{self, TenantExtractor},
    },
};

type Error = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let file = PathBuf::from(env::args().nth(1).unwrap_or_else(|| "examples/policy.yaml".into()));
    let metrics = PrometheusBuilder::new().install_recorder()?;
    let limiter = RateLimiter::new(read(&file)?)?;
    tokio::spawn(reload(file, limiter.clone()));

    let limited = Router::new()
        .route("/", get(|| async { "hello\n" }))
        .route("/v1/organizations/{org}/product/{id}", get(|| async { "a product\n" }))
        .route("/v1/organizations/{org}/export", post(|| async { "an export\n" }))
        .route("/v1/search", get(|| async { "results\n" }))
        .route("/login", post(|| async { "welcome\n" }))
        .layer(RateLimitLayer::new(limiter).tenant(caller()?).headers(Headers::ALL));
    let app = limited.route(
        "/metrics",
        get(async move || {
            metrics.run_upkeep();
            metrics.render()
        }),
    );

    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>())
        .with_graceful_shutdown(stopped())
        .await?;
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

fn read(file: &Path) -> Result<Policy, Error> {
    let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(Policy::from_yaml(&text).map_err(|error| format!("{}: {error}", file.display()))?)
}

fn modified(file: &Path) -> Option<SystemTime> {
    fs::metadata(file).and_then(|metadata| metadata.modified()).ok()
}

/// Reloads the policy when the file changes, and on SIGHUP. An invalid policy is
/// reported, and the last good one stays in force.
async fn reload(file: PathBuf, limiter: RateLimiter) {
    let mut seen = modified(&file);
    let mut every_second = tokio::time::interval(Duration::from_secs(1));
    let mut hangup = Hangup::new();
    loop {
        let forced = tokio::select! {
            () = hangup.recv() => true,
            _ = every_second.tick() => false,
        };
        let now = modified(&file);
        if !forced && now == seen {
            continue;
        }
        seen = now;
        match read(&file).and_then(|policy| Ok(limiter.set_policy(policy)?)) {
            Ok(()) => println!("policy reloaded: {} rules", limiter.policy().rules().len()),
            Err(error) => eprintln!("policy rejected, the last good one stays in force: {error}"),
        }
    }
}

#[cfg(unix)]
struct Hangup(Option<tokio::signal::unix::Signal>);

#[cfg(unix)]
impl Hangup {
    fn new() -> Self {
        Self(tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup()).ok())
    }

    async fn recv(&mut self) {
        match &mut self.0 {
            Some(signal) => drop(signal.recv().await),
            None => std::future::pending().await,
        }
    }
}

#[cfg(not(unix))]
struct Hangup;

#[cfg(not(unix))]
impl Hangup {
    fn new() -> Self {
        Self
    }

    async fn recv(&mut self) {
        std::future::pending().await
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
