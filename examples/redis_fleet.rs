//! Three servers that share one limit through Redis: one customer gets 100
//! requests a second in all, whichever servers receive them.
//!
//! `cargo run --example redis_fleet --features axum,redis [-- SECONDS [LEVEL]]`
//!
//! The level of consistency is `exact` or `leased`: whether the store decides each
//! request, or each server on units that it has reserved there.
//!
//! Uses the Redis at `REDIS_URL`, or else starts a `redis-server` on a free port.

use std::{
    env,
    error::Error,
    net::{SocketAddr, TcpListener as FreePort},
    process::{Child, Command, Stdio},
    time::Duration,
};

use axum::{Router, routing::get};
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::Empty;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use tokio::{
    net::TcpListener,
    task::JoinSet,
    time::{Instant, sleep_until},
};
use tower_ratelimit::{
    Algorithm, Consistency, FailureMode, Policy, Quota, RateLimitLayer, RateLimiter, Rule,
    backend::Redis,
    tenant,
    time::{Clock, SystemClock},
};

type AnyError = Box<dyn Error + Send + Sync>;

const SERVERS: usize = 3;
const LIMIT: u64 = 100;
/// Callers of each server, all with the same API key.
const CALLERS: usize = 4;

#[tokio::main]
async fn main() -> Result<(), AnyError> {
    let seconds = env::args().nth(1).map_or(Ok(5), |seconds| seconds.parse())?;
    let level = env::args().nth(2).map_or(Ok(Consistency::Exact), |level| level.parse())?;
    let store = Store::find()?;
    let mut servers = Vec::new();
    for _ in 0..SERVERS {
        servers.push(serve(&store.url, level).await?);
    }
    println!("{LIMIT} a second, {level}, shared by {SERVERS} servers: admitted + rejected, second by second\n");
    print_row("second", servers.iter().map(ToString::to_string), "admitted");

    let mut total = 0;
    for second in 1..=seconds {
        let counts = load(&servers).await?;
        let admitted: u64 = counts.iter().map(|count| count.admitted).sum();
        let cells = counts.iter().map(|count| format!("{} + {}", count.admitted, count.rejected));
        print_row(&second.to_string(), cells, &format!("{admitted} of {LIMIT}"));
        total += admitted;
    }
    println!("\nadmitted {total} of {} in {seconds} seconds", LIMIT * seconds);
    Ok(())
}

/// Starts one instance of the service, with its own limiter and its own
/// connection to the shared store.
async fn serve(store: &str, level: Consistency) -> Result<SocketAddr, AnyError> {
    let quota = Quota::per_second(LIMIT).algorithm(Algorithm::FixedWindow);
    // If the store fails, each server applies the limit locally.
    let rule = Rule::new("api").tier(quota).consistency(level).on_backend_failure(FailureMode::Local);
    let backend = connect(store).await?;
    let limiter = RateLimiter::builder().policy(Policy::new().rule(rule)).backend(backend).build()?;
    let app = Router::new()
        .route("/", get(|| async { "hello\n" }))
        .layer(RateLimitLayer::new(limiter).tenant(tenant::header("x-api-key")));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok(address)
}

/// Tries for five seconds: a new server needs a moment to accept connections.
async fn connect(store: &str) -> Result<Redis, AnyError> {
    let patience = Instant::now() + Duration::from_secs(5);
    loop {
        match Redis::connect(store).await {
            Ok(redis) => return Ok(redis),
            Err(error) if Instant::now() > patience => return Err(error.into()),
            Err(_) => sleep_until(Instant::now() + Duration::from_millis(50)).await,
        }
    }
}

#[derive(Clone, Copy, Default)]
struct Count {
    admitted: u64,
    rejected: u64,
}

/// Sends requests to all servers for most of the next second, and counts the
/// responses of each. A window of the limit is one second of the Redis server's
/// clock.
async fn load(servers: &[SocketAddr]) -> Result<Vec<Count>, AnyError> {
    let into_second = SystemClock::new().now().as_nanos() % 1_000_000_000;
    let start = Instant::now() + Duration::from_nanos(1_000_000_000 - into_second) + Duration::from_millis(20);
    sleep_until(start).await;
    let mut callers = JoinSet::new();
    for (index, server) in servers.iter().enumerate() {
        for _ in 0..CALLERS {
            let (server, end) = (*server, start + Duration::from_millis(900));
            callers.spawn(async move { Ok::<_, AnyError>((index, call(server, end).await?)) });
        }
    }
    let mut counts = vec![Count::default(); servers.len()];
    while let Some(called) = callers.join_next().await {
        let (index, count) = called??;
        counts[index].admitted += count.admitted;
        counts[index].rejected += count.rejected;
    }
    Ok(counts)
}

/// About 200 requests a second, one after the other.
async fn call(server: SocketAddr, end: Instant) -> Result<Count, AnyError> {
    let client: Client<HttpConnector, Empty<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let mut count = Count::default();
    while Instant::now() < end {
        let request = Request::get(format!("http://{server}/")).header("x-api-key", "key-of-acme");
        match client.request(request.body(Empty::new())?).await?.status() {
            StatusCode::OK => count.admitted += 1,
            StatusCode::TOO_MANY_REQUESTS => count.rejected += 1,
            other => return Err(format!("{server} answered {other}").into()),
        }
        sleep_until(Instant::now() + Duration::from_millis(4)).await;
    }
    Ok(count)
}

fn print_row(first: &str, cells: impl Iterator<Item = String>, last: &str) {
    let cells: String = cells.map(|cell| format!(" | {cell:>15}")).collect();
    println!("{first:>6}{cells} | {last:>10}");
}

/// The store. Dropping this ends the server, if the example has started it.
struct Store {
    url: String,
    server: Option<Child>,
}

impl Store {
    fn find() -> Result<Self, AnyError> {
        if let Ok(url) = env::var("REDIS_URL") {
            return Ok(Self { url, server: None });
        }
        let port = FreePort::bind("127.0.0.1:0")?.local_addr()?.port().to_string();
        let server = Command::new("redis-server")
            .args(["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| format!("set REDIS_URL, or install `redis-server`: {error}"))?;
        Ok(Self { url: format!("redis://127.0.0.1:{port}"), server: Some(server) })
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if let Some(server) = &mut self.server {
            // It may have ended already.
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}
