//! Calls a server that has a limit, through the client layer, and prints how much
//! of that limit it used. `scripts/interop` runs it against third-party servers.
//!
//! `cargo run --example interop_client -- URL LIMIT SECONDS BURST`
//!
//! LIMIT is the server's limit in requests a second. BURST is the burst of the
//! client's rule, or `adapt` for a rule with an adaptive rate.

use std::{
    convert::Infallible,
    env,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::http::{Request, Response};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use tokio::time::{Instant, timeout_at};
use tower::{BoxError, Layer, Service, ServiceExt};
use tower_ratelimit::{Adapt, Policy, Quota, RateLimitLayer, RateLimiter, Rule};

const TASKS: u64 = 16;

/// Responses by kind: success, rejection by the server, anything else.
#[derive(Default)]
struct Counts([AtomicU64; 3]);

impl Counts {
    fn add(&self, status: u16) {
        let kind = match status {
            200 => 0,
            429 | 503 => 1,
            _ => 2,
        };
        self.0[kind].fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [url, limit, seconds, burst] = arguments.as_slice() else {
        return Err("usage: interop_client URL LIMIT SECONDS BURST|adapt".into());
    };
    let (url, limit, seconds): (Arc<str>, u64, u64) = (url.as_str().into(), limit.parse()?, seconds.parse()?);
    let rule = Rule::new("upstream").max_wait(Duration::from_secs(60));
    let rule = match burst.as_str() {
        "adapt" => {
            let bounds = Adapt::between(Quota::per_second(1), Quota::per_second(10_000));
            rule.adapt(bounds.start(Quota::per_second(20)))
        }
        burst => rule.tier(Quota::per_second(limit).burst(burst.parse()?)),
    };
    let client = RateLimitLayer::client(RateLimiter::new(Policy::new().rule(rule))?)
        .layer(Client::builder(TokioExecutor::new()).build_http());

    let counts = Arc::new(Counts::default());
    let deadline = Instant::now() + Duration::from_secs(seconds);
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| call_repeatedly(client.clone(), Arc::clone(&url), Arc::clone(&counts)))
        .map(|calls| tokio::spawn(timeout_at(deadline, calls)))
        .collect();
    for task in tasks {
        if let Ok(Err(error)) = task.await? {
            return Err(error);
        }
    }
    let [answered, rejected, other] = [0, 1, 2].map(|kind: usize| counts.0[kind].load(Ordering::Relaxed));
    println!("answered {answered} rejected {rejected} other {other} allowed {}", limit * seconds);
    Ok(())
}

/// Calls as fast as the layer admits, until the caller drops this or a call fails.
async fn call_repeatedly<S>(mut client: S, url: Arc<str>, counts: Arc<Counts>) -> Result<Infallible, BoxError>
where
    S: Service<Request<Empty<Bytes>>, Response = Response<Incoming>, Error = BoxError>,
{
    loop {
        let request = Request::get(&*url).body(Empty::new())?;
        let response = client.ready().await?.call(request).await?;
        counts.add(response.status().as_u16());
        response.into_body().collect().await?;
    }
}
