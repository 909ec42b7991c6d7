//! The same quota at a client and at its upstream: 50 a second. Upstreams are
//! simulated as other servers count and report, in paused time.
//!
//! Their times are whole seconds, while their windows last one second. So each
//! time that they report is an upper bound, and most of it is rounding.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::{Duration, SystemTime},
};

use http::{HeaderMap, HeaderValue, Request, Response};
use tokio::time::{Instant, sleep};
use tower::{BoxError, Layer, Service, ServiceExt, service_fn, util::BoxCloneService};
use tower_ratelimit::{
    AdaptiveRate, Descriptor, Headers, Policy, Quota, RateLimitLayer, RateLimiter, Rule,
    middleware::UpstreamFeedback,
    testing::{SeededJitter, TokioClock},
};

const RATE: u64 = 50;
const RUN: Duration = Duration::from_secs(20);

fn micros(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

/// The fields of a response: whether it is a rejection, what remains, and the
/// time until the reset.
type Fields = fn(&mut HeaderMap, bool, u64, Duration);

/// Seconds since the Unix epoch, on the upstream's clock.
fn epoch(start: Instant) -> Duration {
    Duration::from_millis(1_700_000_000_370) + start.elapsed()
}

#[allow(clippy::needless_pass_by_value, reason = "shorter calls")]
fn put(headers: &mut HeaderMap, name: &'static str, value: impl ToString) {
    headers.insert(name, HeaderValue::from_str(&value.to_string()).unwrap());
}

fn ceil(time: Duration) -> u64 {
    time.as_nanos().div_ceil(1_000_000_000).try_into().unwrap()
}

fn put_retry_after(headers: &mut HeaderMap, rejected: bool, reset: Duration) {
    if rejected {
        put(headers, "retry-after", ceil(reset));
    }
}

/// An upstream in which a window of a second starts with its first request.
#[derive(Clone)]
struct Windows {
    start: Instant,
    fields: Fields,
    /// How often the server looks at the clock for its `Date`.
    date_every: Duration,
    /// The end of the window, and the requests in it.
    window: Arc<Mutex<(Duration, u64)>>,
}

impl Windows {
    fn new(fields: Fields, date_every: Duration) -> Self {
        Self { start: Instant::now(), fields, date_every, window: Arc::default() }
    }

    /// The time of the last look at the clock, up to one period ago. The seconds
    /// are late by most of another second.
    fn date(&self, now: Duration) -> SystemTime {
        let period = self.date_every.as_nanos().max(1);
        let ago = (now + Duration::from_millis(40)).as_nanos() % period;
        SystemTime::UNIX_EPOCH + now - Duration::from_nanos(ago.try_into().unwrap())
    }

    fn respond(&self) -> Response<()> {
        let now = epoch(self.start);
        let mut window = self.window.lock().unwrap();
        if now >= window.0 {
            *window = (now + Duration::from_secs(1), 0);
        }
        window.1 += 1;
        let (end, count) = *window;
        let rejected = count > RATE;
        let mut response = Response::new(());
        if rejected {
            *response.status_mut() = http::StatusCode::TOO_MANY_REQUESTS;
        }
        put(response.headers_mut(), "date", httpdate::fmt_http_date(self.date(now)));
        // Fields name the time until the reset, or the reset itself. The latter
        // is this time, counted from the date of the response.
        put(response.headers_mut(), "x-now", now.as_nanos());
        (self.fields)(response.headers_mut(), rejected, RATE.saturating_sub(count), end - now);
        response.headers_mut().remove("x-now");
        response
    }
}

/// The time of the response, on the upstream's clock.
fn now(headers: &HeaderMap) -> Duration {
    Duration::from_nanos(headers["x-now"].to_str().unwrap().parse().unwrap())
}

fn express_draft_6(headers: &mut HeaderMap, rejected: bool, remaining: u64, reset: Duration) {
    put(headers, "ratelimit-policy", "50;w=1");
    put(headers, "ratelimit-limit", RATE);
    put(headers, "ratelimit-remaining", remaining);
    put(headers, "ratelimit-reset", ceil(reset));
    put_retry_after(headers, rejected, reset);
}

fn express_draft_7(headers: &mut HeaderMap, rejected: bool, remaining: u64, reset: Duration) {
    put(headers, "ratelimit", format!("limit=50, remaining={remaining}, reset={}", ceil(reset)));
    put_retry_after(headers, rejected, reset);
}

fn express_draft_8(headers: &mut HeaderMap, rejected: bool, remaining: u64, reset: Duration) {
    put(headers, "ratelimit-policy", "\"50-in-1sec\"; q=50; w=1; pk=:YzE2ZDM=:");
    put(headers, "ratelimit", format!("\"50-in-1sec\"; r={remaining}; t={}", ceil(reset)));
    put_retry_after(headers, rejected, reset);
}

fn express_legacy(headers: &mut HeaderMap, rejected: bool, remaining: u64, reset: Duration) {
    put(headers, "x-ratelimit-limit", RATE);
    put(headers, "x-ratelimit-remaining", remaining);
    put(headers, "x-ratelimit-reset", ceil(now(headers) + reset));
    put_retry_after(headers, rejected, reset);
}

fn flask_limiter(headers: &mut HeaderMap, _: bool, remaining: u64, reset: Duration) {
    put(headers, "x-ratelimit-limit", RATE);
    put(headers, "x-ratelimit-remaining", remaining);
    put(headers, "x-ratelimit-reset", ceil(now(headers) + reset));
    // On every response.
    put(headers, "retry-after", reset.as_secs().max(1));
}

/// It adds a second to each reset. Its server, uvicorn, looks at the clock once a
/// second for `Date`, which is up to two seconds old as a result.
fn slowapi(headers: &mut HeaderMap, _: bool, remaining: u64, reset: Duration) {
    put(headers, "x-ratelimit-limit", RATE);
    put(headers, "x-ratelimit-remaining", remaining);
    put(headers, "x-ratelimit-reset", (now(headers) + reset + Duration::from_secs(1)).as_secs_f64());
    put(headers, "retry-after", (reset + Duration::from_secs(1)).as_secs());
}

fn rate_limiter_flexible(headers: &mut HeaderMap, rejected: bool, remaining: u64, reset: Duration) {
    put(headers, "x-ratelimit-limit", RATE);
    put(headers, "x-ratelimit-remaining", remaining);
    put(headers, "x-ratelimit-reset", ceil(now(headers) + reset));
    if rejected {
        put(headers, "retry-after", reset.as_secs_f64());
    }
}

type Upstream = BoxCloneService<Request<()>, Response<()>, BoxError>;

/// The servers, each with the name of its dialect.
fn upstreams(burst: u64) -> Vec<(String, Upstream)> {
    let windows: [(&str, Fields); 7] = [
        ("express, draft 6", express_draft_6),
        ("express, draft 7", express_draft_7),
        ("express, draft 8", express_draft_8),
        ("express, legacy", express_legacy),
        ("Flask-Limiter", flask_limiter),
        ("slowapi", slowapi),
        ("rate-limiter-flexible", rate_limiter_flexible),
    ];
    let mut upstreams: Vec<(String, Upstream)> = windows
        .into_iter()
        .map(|(name, fields)| {
            let date_every = Duration::from_secs(u64::from(name == "slowapi"));
            let windows = Windows::new(fields, date_every);
            let respond = move |_| {
                let response = windows.respond();
                async { Ok::<_, BoxError>(response) }
            };
            (name.to_owned(), BoxCloneService::new(service_fn(respond)))
        })
        .collect();
    for (name, headers) in [("x-ratelimit", Headers::X_RATELIMIT), ("ietf", Headers::IETF)] {
        let limiter = limiter(Rule::new("own").tier(Quota::per_second(RATE).burst(burst)));
        let hello = service_fn(|_: Request<()>| async {
            Ok::<_, BoxError>(Response::new(http_body_util::Empty::<bytes::Bytes>::new()))
        });
        let own = RateLimitLayer::new(limiter).headers(headers).layer(hello);
        let own = own.map_response(|response: Response<_>| response.map(drop));
        upstreams.push((format!("this crate, {name}"), BoxCloneService::new(own)));
    }
    upstreams
}

fn limiter(rule: Rule) -> RateLimiter {
    RateLimiter::builder().policy(Policy::new().rule(rule)).clock(TokioClock::default()).build().unwrap()
}

/// A network: each way takes this time and up to twice that.
#[derive(Clone)]
struct Network {
    upstream: Upstream,
    one_way: Duration,
    seed: Arc<Mutex<u64>>,
    /// Admitted, rejected.
    counts: Arc<Mutex<[u64; 2]>>,
}

impl Network {
    fn new(upstream: Upstream, one_way: Duration) -> Self {
        Self { upstream, one_way, seed: Arc::new(Mutex::new(7)), counts: Arc::default() }
    }

    fn delay(&self) -> Duration {
        let mut seed = self.seed.lock().unwrap();
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.one_way.mul_f64(1.0 + (*seed >> 40) as f64 / (1_u64 << 24) as f64)
    }
}

impl Service<Request<()>> for Network {
    type Response = Response<()>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<()>, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<()>) -> Self::Future {
        let (there, back, counts) = (self.delay(), self.delay(), Arc::clone(&self.counts));
        let upstream = self.upstream.clone();
        #[allow(clippy::disallowed_methods, reason = "time is paused, and a network takes some")]
        Box::pin(async move {
            sleep(there).await;
            let response = upstream.oneshot(request).await?;
            counts.lock().unwrap()[usize::from(response.status() != 200)] += 1;
            sleep(back).await;
            Ok(response)
        })
    }
}

/// The share of the limit that `tasks` use, and the share of rejections.
async fn used(
    upstream: Upstream,
    feedback: UpstreamFeedback,
    rule: Rule,
    tasks: usize,
    one_way: Duration,
) -> (f64, f64) {
    let network = Network::new(upstream, one_way);
    let service = RateLimitLayer::client(limiter(rule)).feedback(feedback).layer(network.clone());
    let start = Instant::now();
    let mut set = tokio::task::JoinSet::new();
    for _ in 0..tasks {
        let mut service = service.clone();
        set.spawn(async move {
            while start.elapsed() < RUN {
                let request = Request::get("http://api.example.com/").body(()).unwrap();
                drop(service.ready().await.unwrap().call(request).await);
            }
        });
    }
    let _ = tokio::time::timeout(RUN, async { while set.join_next().await.is_some() {} }).await;
    let [admitted, rejected] = *network.counts.lock().unwrap();
    (admitted as f64 / (RATE * RUN.as_secs()) as f64, rejected as f64 / (admitted + rejected) as f64)
}

fn rule(burst: u64) -> Rule {
    Rule::new("upstream").tier(Quota::per_second(RATE).burst(burst)).max_wait(Duration::from_secs(60))
}

#[tokio::test(start_paused = true)]
async fn an_upstream_with_the_same_quota_is_used_nearly_fully() {
    let mut failures = Vec::new();
    for burst in [1, 10] {
        for (tasks, one_way, least) in [(1, 150, 0.93), (8, 1_500, 0.93), (64, 12_000, 0.85)] {
            for (name, upstream) in upstreams(burst) {
                // It rejects most of what arrives out of order.
                if burst == 1 && one_way > 1_500 && name.starts_with("this crate") {
                    continue;
                }
                let (used, rejected) =
                    used(upstream, UpstreamFeedback::new(), rule(burst), tasks, micros(one_way)).await;
                let line = format!(
                    "{name}, burst {burst}, {tasks} tasks, {one_way} us: {:.1} % used, {:.1} % rejected",
                    used * 100.0,
                    rejected * 100.0
                );
                println!("{line}");
                if used < least || rejected > 0.05 {
                    failures.push(line);
                }
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// nginx's `limit_req`: a leaky bucket in milliseconds. Its rejections say
/// nothing but their status.
fn nginx(status: u16, rate: u64, burst: u64) -> Upstream {
    let start = Instant::now();
    // The time of the last request that was admitted, and the excess then, in
    // thousandths of a request.
    let state = Arc::new(Mutex::new((0_u64, 0_u64)));
    BoxCloneService::new(service_fn(move |_| {
        let now = u64::try_from(start.elapsed().as_millis()).unwrap() + 1_000_000;
        let mut state = state.lock().unwrap();
        let (last, excess) = *state;
        let excess = (excess + 1_000).saturating_sub(rate * (now - last));
        let mut response = Response::new(());
        match excess > burst * 1_000 && last > 0 {
            true => *response.status_mut() = http::StatusCode::from_u16(status).unwrap(),
            false => *state = (now, if last == 0 { 0 } else { excess }),
        }
        async { Ok::<_, BoxError>(response) }
    }))
}

#[tokio::test(start_paused = true)]
async fn a_rejection_without_a_time_pauses_for_the_rules_own_interval() {
    for (burst, tasks, one_way) in [(1, 1, 150), (1, 8, 150), (1, 64, 150), (10, 8, 150), (10, 64, 150), (1, 8, 1_500)]
    {
        for status in [429, 503] {
            let upstream = nginx(status, RATE, 0);
            let (used, rejected) = used(upstream, UpstreamFeedback::new(), rule(burst), tasks, micros(one_way)).await;
            println!("{status}, burst {burst}, {tasks} tasks, {one_way} us: {used:.3} used, {rejected:.3} rejected");
            assert!(used >= 0.8, "{status}, burst {burst}, {tasks} tasks: {used} used, {rejected} rejected");
        }
    }
}

/// An upstream that rejects everything, without a time.
#[tokio::test(start_paused = true)]
async fn the_pause_doubles_with_each_rejection_in_a_row() {
    let times = Arc::new(Mutex::new(Vec::new()));
    let upstream = {
        let times = Arc::clone(&times);
        BoxCloneService::new(service_fn(move |_: Request<()>| {
            times.lock().unwrap().push(Instant::now());
            async { Ok::<_, BoxError>(Response::builder().status(429).body(()).unwrap()) }
        }))
    };
    used(upstream, UpstreamFeedback::new(), rule(1), 8, Duration::ZERO).await;
    let times = times.lock().unwrap();
    let gaps: Vec<u128> = times.windows(2).map(|pair| (pair[1] - pair[0]).as_millis()).collect();
    // One request may be on its way when a pause starts, and from a second on
    // the cooldown has a jitter of up to a quarter.
    let pauses = [20, 40, 80, 160, 320, 640, 1_280, 2_560];
    for (gap, pause) in gaps.iter().zip(pauses) {
        assert!((pause..=pause * 5 / 4 + 22).contains(gap), "{gaps:?}");
    }
    assert!((9..=12).contains(&times.len()), "{gaps:?}");
}

fn adapting() -> Rule {
    let bounds = AdaptiveRate::between(Quota::per_second(1), Quota::per_second(10_000)).start(Quota::per_second(20));
    Rule::new("upstream").adaptive_rate(bounds).max_wait(Duration::from_secs(60))
}

/// Which upstreams an adaptive rate uses too little of, or overloads. The jitter
/// of a cooldown moves what is used by some percent, so that is the mean of several
/// seeds; what is rejected is the most of any. `least` is the share to use of the upstream with that name, `requests`
/// is how many others it has admitted before.
async fn misjudged(burst: u64, requests: u64, least: impl Fn(&str) -> f64) -> Vec<String> {
    const SEEDS: u8 = 4;
    let mut failures = Vec::new();
    for (kind, (name, _)) in upstreams(burst).into_iter().enumerate() {
        // The others have no burst.
        if burst > 1 && !name.starts_with("this crate") {
            continue;
        }
        let (mut used, mut rejected) = (0.0, 0.0_f64);
        for seed in 0..SEEDS {
            let _jitter = SeededJitter::new(seed.into());
            // Each run has its own, so that none depends on the one before.
            let (_, upstream) = upstreams(burst).swap_remove(kind);
            for _ in 0..requests {
                drop(upstream.clone().oneshot(Request::new(())).await);
            }
            let run = self::used(upstream, UpstreamFeedback::new(), adapting(), 16, micros(1_500)).await;
            used += run.0 / f64::from(SEEDS);
            rejected = rejected.max(run.1);
        }
        let line = format!("{name}: {:.1} % used, {:.1} % rejected", used * 100.0, rejected * 100.0);
        println!("{line}");
        if used < least(&name) || rejected > 0.05 {
            failures.push(line);
        }
    }
    failures
}

/// Its own rate is not known to the client, which starts at 20 a second.
#[tokio::test(start_paused = true)]
async fn an_adaptive_rate_finds_the_limit_of_an_upstream_that_reports_what_remains() {
    // A client that overshoots a window waits for more than its rest.
    let least = |name: &str| if name.starts_with("this crate") { 0.75 } else { 0.6 };
    let failures = [misjudged(1, 0, least).await, misjudged(10, 0, least).await].concat();
    assert!(failures.is_empty(), "{failures:#?}");
}

/// As after a restart: its first request is rejected.
#[tokio::test(start_paused = true)]
async fn an_adaptive_rate_finds_the_limit_of_an_upstream_that_another_client_has_used_up() {
    let failures = misjudged(1, RATE + 1, |_| 0.5).await;
    assert!(failures.is_empty(), "{failures:#?}");
}

#[tokio::test(start_paused = true)]
async fn an_adaptive_rate_is_lowered_by_a_bare_503() {
    let (used, rejected) = used(nginx(503, RATE, 10), UpstreamFeedback::new(), adapting(), 64, micros(1_500)).await;
    println!("{used:.3} used, {rejected:.3} rejected");
    assert!(used >= 0.85 && rejected < 0.05, "{used} used, {rejected} rejected");
}

/// The rate of a client whose upstream answers with `status` only.
async fn rate_after(status: u16, feedback: UpstreamFeedback) -> f64 {
    let limiter = limiter(adapting());
    let respond = move |_| async move { Ok::<_, BoxError>(Response::builder().status(status).body(()).unwrap()) };
    let service = RateLimitLayer::client(limiter.clone()).feedback(feedback).layer(service_fn(respond));
    for _ in 0..100 {
        let request = Request::get("http://api.example.com/").body(()).unwrap();
        drop(service.clone().oneshot(request).await);
    }
    limiter.adaptive_rates(&Descriptor::new("/").method("GET").tenant("api.example.com"))[0].rate()
}

#[tokio::test(start_paused = true)]
async fn a_failure_neither_raises_nor_lowers_an_adaptive_rate() {
    assert!(rate_after(200, UpstreamFeedback::new()).await > 20.0);
    assert!(rate_after(404, UpstreamFeedback::new()).await > 20.0);
    for status in [500, 502, 504] {
        assert_eq!(rate_after(status, UpstreamFeedback::new()).await, 20.0, "{status}");
    }
    for status in [429, 503] {
        assert!(rate_after(status, UpstreamFeedback::new()).await < 20.0, "{status}");
    }
    let only_429 = UpstreamFeedback::new().rejection_statuses([429]);
    assert_eq!(rate_after(503, only_429.clone()).await, 20.0);
    assert!(rate_after(429, only_429).await < 20.0);
    assert!(rate_after(520, UpstreamFeedback::new().rejection_statuses([520])).await < 20.0);
}

/// The machine stands still for 50 ms, about three times a second. The timers of
/// that time fire together when it ends.
#[tokio::test(start_paused = true)]
#[allow(clippy::disallowed_methods, reason = "time is paused")]
async fn late_timers_cause_no_trains_of_rejections() {
    let mut failures = Vec::new();
    for burst in [1, 10] {
        for (name, upstream) in upstreams(1) {
            let stalls = tokio::spawn(async {
                for number in 0.. {
                    sleep(Duration::from_millis(250 + number * 37 % 100)).await;
                    tokio::time::advance(Duration::from_millis(50)).await;
                }
            });
            let (used, rejected) = used(upstream, UpstreamFeedback::new(), rule(burst), 16, micros(500)).await;
            stalls.abort();
            let line = format!("{name}, burst {burst}: {:.1} % used, {:.1} % rejected", used * 100.0, rejected * 100.0);
            println!("{line}");
            if used < 0.8 || rejected > 0.05 {
                failures.push(line);
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}
