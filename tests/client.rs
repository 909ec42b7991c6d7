//! Clients that stay within their upstream's limit, over real sockets and in
//! real time.
#![allow(clippy::unwrap_used, clippy::cast_precision_loss)]

#[path = "client/dialects.rs"]
mod dialects;
#[path = "client/units.rs"]
mod units;

use std::{
    future::Future,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{Router, body::Body, routing::get};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use tokio::{net::TcpListener, time::Instant};
use tower::{Layer, Service, ServiceBuilder, ServiceExt};
use tower_governor::{GovernorLayer, governor::GovernorConfigBuilder, key_extractor::GlobalKeyExtractor};
use tower_ratelimit::{
    AdaptiveRate, Descriptor, Policy, Quota, RateLimitLayer, RateLimited, RateLimitedKind, RateLimiter, Rule, tenant,
};

/// The upstreams' limit per second.
const ALLOWED: u64 = 200;
const TASKS: usize = 64;
const RUN: Duration = Duration::from_secs(20);

async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    address
}

fn hello() -> Router {
    Router::new().route("/", get(|| async { "hello" }))
}

/// An upstream limited by this crate.
async fn own() -> SocketAddr {
    let limiter = RateLimiter::new(Quota::per_second(ALLOWED)).unwrap();
    let layer = RateLimitLayer::new(limiter)
        .tenant(tenant::from_fn(|_: &tower_ratelimit::RequestHead<'_>| Some(tower_ratelimit::Tenant::new("everyone"))));
    serve(hello().layer(layer)).await
}

/// An upstream limited by `tower_governor`.
async fn governor() -> SocketAddr {
    let config = GovernorConfigBuilder::default()
        .period(Duration::from_millis(1_000 / ALLOWED))
        .burst_size(u32::try_from(ALLOWED).unwrap())
        .key_extractor(GlobalKeyExtractor)
        .finish()
        .unwrap();
    serve(hello().layer(GovernorLayer::new(config))).await
}

type Http = Client<HttpConnector, Empty<Bytes>>;

fn http() -> Http {
    Client::builder(TokioExecutor::new()).build_http()
}

#[derive(Debug, Default)]
struct Counts {
    ok: AtomicU64,
    rejected: AtomicU64,
    late_ok: AtomicU64,
    late_rejected: AtomicU64,
}

/// All tasks call the upstream for the whole time. Returns the outcomes, in
/// total and after the first five seconds.
async fn call_for<S>(client: S, upstream: SocketAddr) -> [u64; 4]
where
    S: Service<Request<Empty<Bytes>>, Response = Response<hyper::body::Incoming>> + Clone + Send + 'static,
    S::Error: std::fmt::Debug + Send,
    S::Future: Send,
{
    let counts = Arc::new(Counts::default());
    let start = Instant::now();
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let (mut client, counts) = (client.clone(), Arc::clone(&counts));
            tokio::spawn(async move {
                while start.elapsed() < RUN {
                    let request = Request::get(format!("http://{upstream}/")).body(Empty::new()).unwrap();
                    let response = client.ready().await.unwrap().call(request).await.unwrap();
                    let late = start.elapsed() > Duration::from_secs(5);
                    let [now, later] = match response.status() {
                        StatusCode::OK => [&counts.ok, &counts.late_ok],
                        StatusCode::TOO_MANY_REQUESTS => [&counts.rejected, &counts.late_rejected],
                        other => panic!("{other}"),
                    };
                    now.fetch_add(1, Ordering::Relaxed);
                    later.fetch_add(u64::from(late), Ordering::Relaxed);
                    response.into_body().collect().await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    [&counts.ok, &counts.rejected, &counts.late_ok, &counts.late_rejected].map(|count| count.load(Ordering::Relaxed))
}

/// Real time measures the machine as well. What fails beside other tests is
/// measured again, alone: up to twice.
async fn measure<F>(attempt: impl Fn() -> F)
where
    F: Future<Output = Result<(), String>>,
{
    static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    let Err(first) = attempt().await else { return };
    let _alone = ALONE.lock().await;
    let Err(second) = attempt().await else { return };
    let Err(third) = attempt().await else { return };
    panic!("three times:\n{first}\n{second}\n{third}");
}

fn check(holds: bool, message: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(message.to_owned()) }
}

/// At the upstream's own limit: no rejections, and nearly full use.
async fn keeps_within(name: &str, upstream: SocketAddr) -> Result<(), String> {
    // A small burst: the rest of the upstream's burst absorbs varying latency.
    let rule = Rule::new("upstream").tier(Quota::per_second(ALLOWED).burst(10)).max_wait(Duration::from_secs(60));
    let limiter = RateLimiter::new(Policy::new().rule(rule)).unwrap();
    let [ok, rejected, ..] = call_for(RateLimitLayer::client(limiter).layer(http()), upstream).await;
    let allowance = ALLOWED * RUN.as_secs();
    let found = format!("{name}: {ok} of {allowance}, {rejected} rejected");
    println!("{found}");
    check(rejected == 0, &found)?;
    check(ok * 100 >= allowance * 98, &found)?;
    check(ok <= allowance + 10 + TASKS as u64, &found)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upstream_limited_by_this_crate_is_used_fully_and_never_rejects() {
    measure(|| async { keeps_within("this crate", own().await).await }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upstream_limited_by_tower_governor_is_used_fully_and_never_rejects() {
    measure(|| async { keeps_within("tower_governor", governor().await).await }).await;
}

/// Without knowing the limit: after five seconds it is nearly fully used, with
/// few rejections. How few, and how nearly, is tested in simulated time: a busy
/// machine delays requests here, and an upstream without spare capacity then
/// rejects trains of them.
async fn finds_the_limit(name: &str, upstream: SocketAddr) -> Result<(), String> {
    let bounds = AdaptiveRate::between(Quota::per_second(1), Quota::per_second(100_000)).start(Quota::per_second(20));
    let rule = Rule::new("upstream").adaptive_rate(bounds).max_wait(Duration::from_secs(60));
    let limiter = RateLimiter::new(Policy::new().rule(rule)).unwrap();
    let client = RateLimitLayer::client(limiter.clone()).layer(http());
    let [_, early, ok, rejected] = call_for(client, upstream).await;
    let host = upstream.ip().to_string();
    let found = limiter.adaptive_rates(&Descriptor::new("/").method("GET").tenant(&*host));
    let allowance = ALLOWED * (RUN.as_secs() - 5);
    let found = format!("{name}: {ok} of {allowance}, {rejected} rejected ({early} in all); {found:?}");
    println!("{found}");
    check(ok * 100 >= allowance * 75, &found)?;
    check(rejected * 10 < ok + rejected, &found)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_adaptive_rate_finds_the_limit_of_this_crate() {
    measure(|| async { finds_the_limit("this crate", own().await).await }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_adaptive_rate_finds_the_limit_of_tower_governor() {
    measure(|| async { finds_the_limit("tower_governor", governor().await).await }).await;
}

/// One response on `/busy` is a 429 with `Retry-After: 2`.
async fn busy_once(first: Arc<AtomicU64>, times: Arc<std::sync::Mutex<Vec<(bool, Instant)>>>) -> SocketAddr {
    let busy = {
        let times = Arc::clone(&times);
        move || {
            let rejects = first.fetch_add(1, Ordering::SeqCst) == 200;
            times.lock().unwrap().push((true, Instant::now()));
            async move {
                let response = Response::builder();
                match rejects {
                    true => response.status(429).header("retry-after", "2").body(Body::empty()).unwrap(),
                    false => response.body(Body::empty()).unwrap(),
                }
            }
        }
    };
    let idle = move || {
        times.lock().unwrap().push((false, Instant::now()));
        async {}
    };
    serve(Router::new().route("/busy", get(busy)).route("/idle", get(idle))).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cooldown_of_one_task_applies_to_its_key() {
    measure(one_cooldown).await;
}

async fn one_cooldown() -> Result<(), String> {
    let (first, times) = (Arc::default(), Arc::default());
    let upstream = busy_once(Arc::clone(&first), Arc::clone(&times)).await;
    let rule = |name: &str| {
        let rule = Rule::new(name).path(format!("/{name}")).max_wait(Duration::from_secs(60));
        rule.tier(Quota::per_second(ALLOWED).burst(1))
    };
    let limiter = RateLimiter::new(Policy::new().rule(rule("busy")).rule(rule("idle"))).unwrap();
    let client = RateLimitLayer::client(limiter).layer(http());
    let start = Instant::now();
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (mut client, path) = (client.clone(), if task % 2 == 0 { "busy" } else { "idle" });
            tokio::spawn(async move {
                while start.elapsed() < Duration::from_secs(5) {
                    let request = Request::get(format!("http://{upstream}/{path}")).body(Empty::new()).unwrap();
                    client.ready().await.unwrap().call(request).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let times = times.lock().unwrap();
    let gap = |busy: bool| {
        let own: Vec<_> = times.iter().filter(|(which, _)| *which == busy).map(|(_, time)| *time).collect();
        own.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap()
    };
    let (busy, idle) = (gap(true), gap(false));
    let found = format!("the longest pause of the key that cooled down: {busy:?}; of another: {idle:?}");
    println!("{found}");
    // A busy machine may add to it.
    check(busy >= Duration::from_millis(1_980) && busy <= Duration::from_millis(3_000), &found)?;
    check(idle < Duration::from_millis(1_000), &found)
}

#[tokio::test]
async fn reqwest_goes_through_the_layer() {
    let upstream = own().await;
    let limiter = RateLimiter::new(Quota::per_minute(1)).unwrap();
    let mut client = ServiceBuilder::new()
        .layer(RateLimitLayer::client(limiter))
        .map_request(|request: Request<reqwest::Body>| reqwest::Request::try_from(request).unwrap())
        .map_response(Response::<reqwest::Body>::from)
        .service(reqwest::Client::new());
    let request = || Request::get(format!("http://{upstream}/")).body(reqwest::Body::default()).unwrap();
    let response = client.ready().await.unwrap().call(request()).await.unwrap();
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "hello");
    let error = client.ready().await.unwrap().call(request()).await.unwrap_err();
    assert_eq!(error.downcast_ref::<RateLimited>().unwrap().kind(), RateLimitedKind::QuotaExceeded);
}
