//! Rate limits an HTTP client: hyper-util's client behind the layer calls a
//! local upstream that has its own limit. Three rules: one at the upstream's
//! limit, one above it that follows upstream feedback, and an adaptive rate.
//!
//! `cargo run --release --example client [-- SECONDS]`

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    http::{Request, StatusCode},
    routing::get,
};
use http_body_util::{BodyExt, Empty};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use tokio::time::Instant;
use tower::{BoxError, Layer, Service, ServiceExt};
use tower_ratelimit::{Adapt, Policy, Quota, RateLimitLayer, RateLimiter, Rule};

/// The upstream's limit, in requests a second.
const ALLOWED: u64 = 200;
const TASKS: u64 = 64;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let seconds = std::env::args().nth(1).map_or(Ok(5), |text| text.parse())?;

    let waiting = |rule: Rule| rule.max_wait(Duration::from_secs(60));
    let known = waiting(Rule::new("known").tier(Quota::per_second(ALLOWED).burst(10)));
    let too_high = waiting(Rule::new("too-high").tier(Quota::per_second(2 * ALLOWED).burst(10)));
    let bounds = Adapt::between(Quota::per_second(1), Quota::per_second(10_000)).start(Quota::per_second(20));
    let unknown = waiting(Rule::new("unknown").adapt(bounds));
    for (title, rule) in [
        ("at its limit", known),
        ("at twice its limit, with upstream feedback", too_high),
        ("with an adaptive rate", unknown),
    ] {
        let upstream = start_upstream().await?;
        let client = RateLimitLayer::client(RateLimiter::new(Policy::new().rule(rule))?)
            .layer(Client::builder(TokioExecutor::new()).build_http());
        run(title, client, upstream, Duration::from_secs(seconds)).await?;
    }
    Ok(())
}

/// Starts a server with a limit and returns its address.
async fn start_upstream() -> Result<SocketAddr, BoxError> {
    let limiter = RateLimiter::new(Quota::per_second(ALLOWED))?;
    let app = Router::new().route("/", get(|| async { "hello" })).layer(RateLimitLayer::new(limiter));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok(address)
}

/// Calls the upstream from all tasks, as fast as the layer admits them.
async fn run<S>(title: &str, client: S, upstream: SocketAddr, time: Duration) -> Result<(), BoxError>
where
    S: Service<Request<Empty<bytes::Bytes>>, Response = axum::http::Response<hyper::body::Incoming>, Error = BoxError>
        + Clone
        + Send
        + 'static,
    S::Future: Send,
{
    let counts = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    let start = Instant::now();
    let task = |mut client: S, counts: Arc<[AtomicU64; 2]>| async move {
        while start.elapsed() < time {
            let request = Request::get(format!("http://{upstream}/")).body(Empty::new())?;
            let response = client.ready().await?.call(request).await?;
            let rejected = response.status() == StatusCode::TOO_MANY_REQUESTS;
            counts[usize::from(rejected)].fetch_add(1, Ordering::Relaxed);
            response.into_body().collect().await?;
        }
        Ok::<_, BoxError>(())
    };
    let tasks: Vec<_> = (0..TASKS).map(|_| tokio::spawn(task(client.clone(), Arc::clone(&counts)))).collect();
    for task in tasks {
        task.await??;
    }
    let [answered, rejected] = [0, 1].map(|index: usize| counts[index].load(Ordering::Relaxed));
    let allowed = ALLOWED as f64 * start.elapsed().as_secs_f64();
    let used = 100.0 * answered as f64 / allowed;
    println!("{title}: {answered} answered ({used:.1}% of the upstream's limit), {rejected} rejected");
    Ok(())
}
