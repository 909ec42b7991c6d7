//! Rate limits an HTTP client: 16 tasks call a server that has its own limit, as fast
//! as the layer admits, and print how much of that limit they used.
//!
//! `cargo run --release --example client [-- SECONDS [URL LIMIT BURST]]`
//!
//! LIMIT is the server's, in requests a second. BURST is the burst of the client's rule,
//! or `adapt` for a rule with an adaptive rate. Without them it starts a server, and
//! calls it with a rule at its limit, one at twice its limit, and an adaptive rate.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::{convert::Infallible, env, sync::Arc, time::Duration};

use axum::{Router, http::Request, routing::get};
use http_body_util::{BodyExt, Empty};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use tokio::{net::TcpListener, task::JoinSet, time::timeout};
use tower::{BoxError, Layer, Service, ServiceExt};
use tower_ratelimit::{AdaptiveRate, Policy, Quota, RateLimitLayer, RateLimiter, Rule};

const TASKS: usize = 16;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let time = Duration::from_secs(arguments.first().map_or(Ok(5), |seconds| seconds.parse())?);
    let bounds = AdaptiveRate::between(Quota::per_second(1), Quota::per_second(10_000));
    let adaptive = Rule::new("upstream").adaptive_rate(bounds.start(Quota::per_second(20)));
    let fixed = |limit, burst| Rule::new("upstream").tier(Quota::per_second(limit).burst(burst));
    if let [_, url, limit, burst] = &arguments[..] {
        let limit = limit.parse()?;
        let rule = if burst == "adapt" { adaptive } else { fixed(limit, burst.parse()?) };
        return run(rule, url, limit, time).await;
    }
    for (title, rule) in [("limit", fixed(200, 10)), ("twice the limit", fixed(400, 10)), ("adaptive", adaptive)] {
        print!("{title}: ");
        run(rule, &start_upstream(200).await?, 200, time).await?;
    }
    Ok(())
}

/// Starts a server with a limit, and returns its URL.
async fn start_upstream(limit: u64) -> Result<String, BoxError> {
    let limiter = RateLimiter::new(Policy::new().rule(Rule::new("server").per([]).tier(Quota::per_second(limit))))?;
    let app = Router::new().route("/", get(|| async { "hello" })).layer(RateLimitLayer::new(limiter));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/", listener.local_addr()?);
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok(url)
}

async fn run(rule: Rule, url: &str, limit: u64, time: Duration) -> Result<(), BoxError> {
    let limiter = RateLimiter::new(Policy::new().rule(rule.max_wait(Duration::from_secs(60))))?;
    // Clones share the limiter and the pool of connections.
    let client = RateLimitLayer::client(limiter).layer(Client::builder(TokioExecutor::new()).build_http());
    let counts = Arc::new([const { AtomicU64::new(0) }; 3]);
    let mut tasks = JoinSet::<Result<Infallible, BoxError>>::new();
    for _ in 0..TASKS {
        let (mut client, url, counts) = (client.clone(), url.to_owned(), Arc::clone(&counts));
        tasks.spawn(async move {
            loop {
                let request = Request::get(&url).body(Empty::<bytes::Bytes>::new())?;
                let response = client.ready().await?.call(request).await?;
                let kind = match response.status().as_u16() {
                    200 => 0,
                    429 | 503 => 1,
                    _ => 2,
                };
                counts[kind].fetch_add(1, Relaxed);
                response.into_body().collect().await?;
            }
        });
    }
    // A task ends only if it fails.
    if let Ok(Some(failed)) = timeout(time, tasks.join_next()).await {
        failed??;
    }
    let [answered, rejected, other] = [0, 1, 2].map(|kind: usize| counts[kind].load(Relaxed));
    println!("answered {answered} rejected {rejected} other {other} allowed {}", limit * time.as_secs());
    Ok(())
}
