//! Adaptive concurrency limits: what they are found by, who is rejected, what is measured, and
//! that no unit in flight is lost. The law itself is tested beside it.

use std::{
    convert::Infallible,
    future::Future,
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use metrics_exporter_prometheus::PrometheusBuilder;
use tower::{Layer as _, ServiceExt, service_fn};
use tower_ratelimit::{
    AdaptiveLimitStatus, Descriptor, Permit, Policy, Priority, Quota, RateLimitLayer, RateLimited, RateLimitedKind,
    RateLimiter, Rule,
    backend::{Backend, Decide, Local, Receipt, Request as Charges, Share, Split},
    error::{BackendError, BackendErrorKind},
    testing::{ManualClock, TokioClock},
    time::Timestamp,
};

const MS: Duration = Duration::from_millis(1);

fn adaptive(quota: Quota) -> Rule {
    Rule::new("server").per([]).tier(quota)
}

fn limiter(rule: Rule) -> (RateLimiter, ManualClock) {
    let clock = ManualClock::new();
    let limiter = RateLimiter::builder().policy(Policy::new().rule(rule)).clock(clock.clone()).build().unwrap();
    (limiter, clock)
}

fn request() -> Descriptor<'static> {
    Descriptor::new("/")
}

fn found(limiter: &RateLimiter) -> AdaptiveLimitStatus {
    limiter.adaptive_limits(&request())[0]
}

async fn acquire(limiter: &RateLimiter, class: Priority) -> Result<Permit, RateLimited> {
    limiter.acquire(&request().priority(class), Duration::ZERO).await
}

/// A window in which so many at once take `latency`; returns the limit after it. Until the
/// limit first shrinks, it lasts a fifth of a second.
async fn window((limiter, clock): &(RateLimiter, ManualClock), at_once: usize, latency: Duration) -> u64 {
    let ends = clock.now_nanos() + 220_000_000;
    while clock.now_nanos() < ends {
        let mut permits = Vec::new();
        for _ in 0..at_once {
            permits.extend(acquire(limiter, Priority::Normal).await.ok());
        }
        clock.advance(latency);
    }
    found(limiter).limit()
}

trait Now {
    fn now_nanos(&self) -> u64;
}

impl Now for ManualClock {
    fn now_nanos(&self) -> u64 {
        use tower_ratelimit::time::Clock;
        self.now().as_nanos()
    }
}

#[tokio::test]
async fn it_grows_while_latency_stays_and_shrinks_as_it_rises() {
    let process = limiter(adaptive(Quota::adaptive_concurrency(10..=500).start(20)));
    assert_eq!(found(&process.0).baseline(), None);
    let mut grown = 20;
    for _ in 0..7 {
        let next = window(&process, 300, 10 * MS).await;
        assert!(next > grown, "{next} after {grown}");
        grown = next;
    }
    assert_eq!(found(&process.0).baseline(), Some(10 * MS));
    window(&process, 30, 10 * MS).await;
    let unused = window(&process, 30, 10 * MS).await;
    assert!(
        grown > 200 && (146..=150).contains(&unused),
        "{unused}: five times what is in flight, a step at most below"
    );
    assert_eq!(window(&process, 30, 10 * MS).await, unused, "it is not used up");
    // The first of them takes back the latest step. From then on windows last a second.
    for _ in 0..15 {
        window(&process, 300, 80 * MS).await;
    }
    let status = found(&process.0);
    assert!(status.limit() < unused && status.in_flight() == 0 && status.samples() > 1_000, "{status:?}");
}

/// What it rejects is the lowest priority first, as its part of the found limit is used up
/// first.
#[tokio::test]
async fn reserves_are_parts_of_the_found_limit() {
    let rule = adaptive(Quota::adaptive_concurrency(10..=500).start(20)).reserve(Priority::Critical, 0.5);
    let process = limiter(rule);
    let (limiter, _) = &process;
    let mut held = Vec::new();
    for _ in 0..30 {
        held.extend(acquire(limiter, Priority::Low).await.ok());
    }
    assert_eq!(held.len(), 10);
    for _ in 0..30 {
        held.extend(acquire(limiter, Priority::Critical).await.ok());
    }
    assert_eq!((held.len(), found(limiter).in_flight()), (20, 20));
    drop(held);
    assert_eq!(found(limiter).in_flight(), 0);
    // Though only the part of `normal` is used up, the limit grows.
    assert_eq!(window(&process, 300, 10 * MS).await, 30);
    assert_eq!(window(&process, 300, 10 * MS).await, 45);
}

#[tokio::test]
async fn a_rejection_says_that_the_server_is_overloaded() {
    let (limiter, _) = limiter(adaptive(Quota::adaptive_concurrency(1..=5)));
    let _held = acquire(&limiter, Priority::Normal).await.unwrap();
    let rejected = acquire(&limiter, Priority::Normal).await.unwrap_err();
    assert_eq!(rejected.kind(), RateLimitedKind::Overloaded);
    assert!((1..=2).contains(&rejected.retry_after().unwrap().as_secs()), "{rejected:?}");
    let costly = limiter.check(&request().cost(3)).await;
    assert_eq!(costly.rejection(), Some(RateLimitedKind::Overloaded), "the limit may grow");

    let inner =
        service_fn(async |_: Request<Full<Bytes>>| Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("served"))));
    let service = RateLimitLayer::new(limiter).layer(inner);
    let response = service.clone().oneshot(Request::new(Full::from("x"))).await.unwrap();
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    let after: u64 = response.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=2).contains(&after), "{after}");
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert!(std::str::from_utf8(&body).unwrap().contains("#temporary-reduced-capacity"), "{body:?}");
    let call = Request::builder().header("content-type", "application/grpc").body(Full::from("x")).unwrap();
    let response = service.oneshot(call).await.unwrap();
    assert_eq!(response.headers()["grpc-status"], "14", "UNAVAILABLE");
    assert!(response.headers().contains_key("grpc-status-details-bin"), "RetryInfo");
}

/// What the layer measures of an answer.
#[tokio::test]
async fn only_answers_of_the_handler_are_measured() {
    let (limiter, clock) = limiter(adaptive(Quota::adaptive_concurrency(5..=50)));
    let inner = {
        let clock = clock.clone();
        service_fn(move |request: Request<Full<Bytes>>| {
            let clock = clock.clone();
            async move {
                clock.advance(10 * MS);
                match request.uri().path() {
                    "/pending" => std::future::pending().await,
                    "/fails" => Err("connection refused"),
                    status => Ok(Response::builder().status(&status[1..]).body(Full::<Bytes>::from("body")).unwrap()),
                }
            }
        })
    };
    let service = RateLimitLayer::new(limiter.clone()).layer(inner);
    let call = |path: &str| service.clone().oneshot(Request::builder().uri(path).body(Full::from("")).unwrap());
    let samples = || found(&limiter).samples();
    let response = call("/200").await.unwrap();
    assert_eq!((samples(), found(&limiter).in_flight()), (1, 1), "at the head; the body is in flight");
    drop(response);
    assert_eq!((samples(), found(&limiter).in_flight()), (1, 0), "once");
    drop(call("/500").await.unwrap());
    assert_eq!(samples(), 2);
    for rejects in ["/429", "/503"] {
        drop(call(rejects).await.unwrap());
    }
    assert!(call("/fails").await.is_err());
    {
        let mut pending = pin!(call("/pending"));
        assert!(pending.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert_eq!(found(&limiter).in_flight(), 1);
    }
    assert_eq!((samples(), found(&limiter).in_flight()), (2, 0), "rejected, failed, cancelled");
}

#[tokio::test]
async fn a_rejection_further_in_is_not_measured_whatever_its_status() {
    let (limiter, _) = limiter(adaptive(Quota::adaptive_concurrency(5..=50)));
    let inner = Rule::new("inner").tier(Quota::per_hour(1)).status(StatusCode::IM_A_TEAPOT);
    let inner = RateLimitLayer::new(RateLimiter::new(Policy::new().rule(inner)).unwrap());
    let handler = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())));
    let service = RateLimitLayer::new(limiter.clone()).layer(inner.layer(handler));
    for status in [StatusCode::OK, StatusCode::IM_A_TEAPOT, StatusCode::IM_A_TEAPOT] {
        assert_eq!(service.clone().oneshot(Request::new(())).await.unwrap().status(), status);
    }
    assert_eq!((found(&limiter).samples(), found(&limiter).in_flight()), (1, 0));
}

#[tokio::test]
async fn a_permit_is_measured_when_it_is_dropped_unless_it_is_refunded() {
    let (limiter, _) = limiter(adaptive(Quota::adaptive_concurrency(5..=50)));
    let samples = || found(&limiter).samples();
    drop(acquire(&limiter, Priority::Normal).await.unwrap());
    acquire(&limiter, Priority::Normal).await.unwrap().finish(StatusCode::OK);
    assert_eq!(samples(), 2);
    acquire(&limiter, Priority::Normal).await.unwrap().refund();
    acquire(&limiter, Priority::Normal).await.unwrap().finish(StatusCode::SERVICE_UNAVAILABLE);
    assert!(limiter.check(&request()).await.is_allowed());
    assert_eq!((samples(), found(&limiter).in_flight()), (2, 0));
}

#[tokio::test]
async fn a_share_does_not_divide_it() {
    let rule = adaptive(Quota::adaptive_concurrency(8..=50));
    let quarter = Share::new(1, 4).unwrap();
    let limiter = RateLimiter::builder().policy(Policy::new().rule(rule)).backend(Split::new(quarter)).build().unwrap();
    let mut held = Vec::new();
    while let Ok(permit) = acquire(&limiter, Priority::Normal).await {
        held.push(permit);
    }
    assert_eq!(held.len(), 8);
}

/// A concurrency limit that becomes adaptive counts what is in flight.
#[tokio::test]
async fn a_reload_keeps_what_is_in_flight_and_applies_its_bounds() {
    let (limiter, _) = limiter(adaptive(Quota::concurrent(30)));
    let mut held = Vec::new();
    for _ in 0..12 {
        held.push(acquire(&limiter, Priority::Normal).await.unwrap());
    }
    limiter.set_policy(Policy::new().rule(adaptive(Quota::adaptive_concurrency(10..=500).start(20)))).unwrap();
    assert_eq!((found(&limiter).limit(), found(&limiter).in_flight()), (20, 12));
    limiter.set_policy(Policy::new().rule(adaptive(Quota::adaptive_concurrency(10..=14)))).unwrap();
    assert_eq!((found(&limiter).limit(), found(&limiter).in_flight()), (14, 12));
    drop(held);
    assert_eq!(found(&limiter).in_flight(), 0);
}

/// A window is long enough by the requests in flight, not by their units: 60 answers to 20
/// requests of ten units each.
#[tokio::test]
async fn a_window_is_no_longer_where_a_request_costs_several_units() {
    let process = limiter(adaptive(Quota::adaptive_concurrency(100..=500).start(200)).cost(10));
    assert_eq!(window(&process, 30, 100 * MS).await, 300);
}

/// A request under two limits teaches both, also after it has waited.
#[tokio::test(start_paused = true)]
async fn each_rule_finds_a_limit_of_its_own() {
    let server = adaptive(Quota::adaptive_concurrency(1..=50).start(20));
    let export = Rule::new("export").path("/export").per([]).tier(Quota::adaptive_concurrency(1..=50).start(1));
    let policy = Policy::new().rule(server.max_wait(1_000 * MS)).rule(export.max_wait(1_000 * MS));
    let limiter = RateLimiter::builder().policy(policy).clock(TokioClock::default()).build().unwrap();
    let acquire = async || limiter.acquire(&Descriptor::new("/export"), 1_000 * MS).await;
    let samples = |path| {
        let found = limiter.adaptive_limits(&Descriptor::new(path));
        found.iter().map(|limit| (limit.rule().to_owned(), limit.samples())).collect::<Vec<_>>()
    };
    let others = limiter.acquire(&request(), Duration::ZERO).await.unwrap();
    let first = acquire().await.unwrap();
    let mut second = Box::pin(acquire());
    assert!(second.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    drop((others, first));
    assert_eq!(samples("/export"), [("server".to_owned(), 2), ("export".to_owned(), 1)]);
    drop(second.await.unwrap());
    assert_eq!(samples("/export"), [("server".to_owned(), 3), ("export".to_owned(), 2)]);
}

/// The limit that is found stays within the bounds of the policy in force, also under requests
/// that were admitted under another.
#[tokio::test]
async fn a_limit_keeps_to_new_bounds_once_it_has_learned() {
    let process = limiter(adaptive(Quota::adaptive_concurrency(10..=500).start(20)));
    for _ in 0..3 {
        window(&process, 300, 10 * MS).await;
    }
    let (limiter, _) = &process;
    assert!(found(limiter).limit() > 60, "{:?}", found(limiter));
    limiter.set_policy(Policy::new().rule(adaptive(Quota::adaptive_concurrency(10..=40)))).unwrap();
    assert_eq!(window(&process, 300, 10 * MS).await, 40);
    limiter.set_policy(Policy::new().rule(adaptive(Quota::adaptive_concurrency(10..=500)))).unwrap();
    assert_eq!(found(limiter).limit(), 40);
}

#[tokio::test]
async fn metrics_show_what_was_found() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let process = limiter(adaptive(Quota::adaptive_concurrency(10..=500).start(20)));
    let metrics = recorder.handle();
    let _guard = metrics::set_default_local_recorder(&recorder);
    window(&process, 300, 10 * MS).await;
    let shown = metrics.render();
    for line in [
        r#"rate_limiting_concurrency_limit{rule="server"} 30"#,
        r#"rate_limiting_concurrency_in_flight{rule="server"} 20"#,
        r#"rate_limiting_concurrency_baseline{rule="server"} 0.01"#,
    ] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    let samples =
        shown.lines().find_map(|line| line.strip_prefix(r#"rate_limiting_concurrency_samples{rule="server"} "#));
    assert!(samples.unwrap().parse::<u64>().unwrap() >= 400, "{samples:?}");
}

type Acquiring = Pin<Box<dyn Future<Output = Result<Permit, RateLimited>> + Send>>;

fn waiting(limiter: &RateLimiter, class: Priority, max_wait: Duration) -> Acquiring {
    let limiter = limiter.clone();
    Box::pin(async move { limiter.acquire(&request().priority(class), max_wait).await })
}

fn poll(acquiring: &mut Acquiring) -> Poll<Result<Permit, RateLimited>> {
    acquiring.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

fn on_tokio(quota: Quota) -> RateLimiter {
    let policy = Policy::new().rule(adaptive(quota));
    RateLimiter::builder().policy(policy).clock(TokioClock::default()).build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn waiters_are_served_in_order_while_there_is_no_overload() {
    let limiter = on_tokio(Quota::adaptive_concurrency(1..=5));
    let held = acquire(&limiter, Priority::Normal).await.unwrap();
    let mut waiters: Vec<_> = (0..3).map(|_| waiting(&limiter, Priority::Normal, 1_000 * MS)).collect();
    assert!(waiters.iter_mut().all(|waiter| poll(waiter).is_pending()));
    tokio::time::advance(50 * MS).await;
    drop(held);
    let served: Vec<_> = waiters.iter_mut().map(poll).collect();
    assert_eq!(served.iter().map(Poll::is_ready).collect::<Vec<_>>(), [true, false, false]);
}

/// Though the request that lets the limit grow, by the head of its response, is in flight.
#[tokio::test(start_paused = true)]
async fn a_limit_that_grows_admits_the_next_waiter_at_once() {
    let rule = adaptive(Quota::adaptive_concurrency(1..=9).start(2)).max_wait(1_000 * MS);
    let limiter = RateLimiter::builder().policy(Policy::new().rule(rule)).clock(TokioClock::default()).build().unwrap();
    let waiter = std::sync::Arc::new(std::sync::Mutex::new(None::<Acquiring>));
    let inner = service_fn(|_: Request<Full<Bytes>>| {
        let (limiter, waiter) = (limiter.clone(), waiter.clone());
        async move {
            tokio::time::advance(5 * MS).await;
            // The fiftieth answer ends the window.
            if found(&limiter).samples() == 49 {
                let mut waits = waiting(&limiter, Priority::Normal, 1_000 * MS);
                assert!(poll(&mut waits).is_pending());
                *waiter.lock().unwrap() = Some(waits);
            }
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("body")))
        }
    });
    let service = RateLimitLayer::new(limiter.clone()).layer(inner);
    let _held = acquire(&limiter, Priority::Normal).await.unwrap();
    while found(&limiter).samples() < 49 {
        service.clone().oneshot(Request::new(Full::from(""))).await.unwrap();
    }
    let response = service.clone().oneshot(Request::new(Full::from(""))).await.unwrap();
    assert_eq!((found(&limiter).limit(), found(&limiter).in_flight()), (3, 2));
    let mut waits = waiter.lock().unwrap().take().unwrap();
    assert!(poll(&mut waits).is_ready());
    drop(response);
}

/// The queue has not been empty for 100 ms: the newest is served first, and all others wait
/// for at most 10 ms.
#[tokio::test(start_paused = true)]
async fn under_overload_waits_are_short_and_the_newest_is_served_first() {
    let limiter = on_tokio(Quota::adaptive_concurrency(1..=5));
    let held = acquire(&limiter, Priority::Normal).await.unwrap();
    let early = tokio::spawn(waiting(&limiter, Priority::Normal, 1_000 * MS));
    let began = tokio::time::Instant::now();
    let rejected = early.await.unwrap().unwrap_err();
    assert_eq!(rejected.kind(), RateLimitedKind::Overloaded);
    let waited = began.elapsed();
    assert!((100 * MS..=102 * MS).contains(&waited), "{waited:?}");

    // A queue that was empty starts again: this one waits.
    let mut first = waiting(&limiter, Priority::Normal, 1_000 * MS);
    assert!(poll(&mut first).is_pending());
    tokio::time::advance(99 * MS).await;
    assert!(poll(&mut first).is_pending());
    let keeps = waiting(&limiter, Priority::Normal, 1_000 * MS);
    let mut keeps = keeps;
    assert!(poll(&mut keeps).is_pending());
    tokio::time::advance(2 * MS).await;
    let mut newest = waiting(&limiter, Priority::Normal, 1_000 * MS);
    assert!(poll(&mut newest).is_pending());
    drop(held);
    assert!(poll(&mut keeps).is_pending(), "an older one is behind the newest");
    let permit = poll(&mut newest);
    assert!(matches!(permit, Poll::Ready(Ok(_))), "{permit:?}");
    let late = tokio::spawn(waiting(&limiter, Priority::Normal, 1_000 * MS));
    let began = tokio::time::Instant::now();
    assert!(late.await.unwrap().is_err());
    let waited = began.elapsed();
    assert!((10 * MS..=12 * MS).contains(&waited), "{waited:?}");
}

/// A static limit is not affected by the discipline of the queue.
#[tokio::test(start_paused = true)]
async fn a_static_limit_waits_as_before() {
    let limiter = on_tokio(Quota::concurrent(1));
    let held = acquire(&limiter, Priority::Normal).await.unwrap();
    let mut waiters: Vec<_> = (0..2).map(|_| waiting(&limiter, Priority::Normal, 1_000 * MS)).collect();
    assert!(poll(&mut waiters[0]).is_pending());
    tokio::time::advance(500 * MS).await;
    assert!(poll(&mut waiters[1]).is_pending());
    drop(held);
    assert!(poll(&mut waiters[1]).is_pending());
    assert!(poll(&mut waiters[0]).is_ready());
}

/// Whatever becomes of requests, what is in flight is what is held.
#[tokio::test(start_paused = true)]
async fn no_unit_in_flight_is_lost_by_cancellation() {
    let limiter = on_tokio(Quota::adaptive_concurrency(3..=9));
    let (mut held, mut waiters) = (Vec::<Permit>::new(), Vec::<Acquiring>::new());
    let mut random = 7_u64;
    for step in 0..5_000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (what, which) = (random >> 60, (random >> 20) as usize);
        match what {
            0..=5 => waiters.push(waiting(&limiter, Priority::ALL[which % 4], (which % 200) as u32 * MS)),
            6..=8 if !held.is_empty() => drop(held.swap_remove(which % held.len())),
            9 if !held.is_empty() => held.swap_remove(which % held.len()).refund(),
            10..=11 if !waiters.is_empty() => drop(waiters.swap_remove(which % waiters.len())),
            _ => tokio::time::advance((which % 20) as u32 * MS).await,
        }
        waiters.retain_mut(|waiter| match poll(waiter) {
            Poll::Ready(permit) => {
                held.extend(permit.ok());
                false
            }
            Poll::Pending => true,
        });
        if what == 15 {
            let in_flight = found(&limiter).in_flight() as usize;
            // Units above a limit that was lowered are not shown.
            assert!(in_flight == held.len().min(in_flight.max(found(&limiter).limit() as usize)), "step {step}");
        }
    }
    drop((held, waiters));
    assert_eq!((found(&limiter).in_flight(), limiter.stats().permits, limiter.stats().waiting), (0, 0, 0));
}

/// A backend elsewhere: its reply comes when the test lets it.
#[derive(Debug, Default)]
struct Elsewhere {
    local: Local,
    fails: std::sync::atomic::AtomicBool,
}

impl Backend for Elsewhere {
    fn decide(&self, request: &Charges<'_>) -> Decide {
        assert!(request.charges.iter().all(|charge| charge.rule() != "server"), "it is decided in this process");
        let fails = self.fails.load(std::sync::atomic::Ordering::Relaxed);
        let reply = match self.local.decide(request) {
            Decide::Now(_) if fails => Err(BackendError::new(BackendErrorKind::Unavailable, "down")),
            Decide::Now(reply) => reply,
            Decide::Later(_) => unreachable!(),
            _ => unreachable!(),
        };
        Decide::later(async move {
            tokio::task::yield_now().await;
            reply
        })
    }

    fn refund(&self, receipt: &Receipt, now: Timestamp) {
        self.local.refund(receipt, now);
    }

    fn release(&self, receipt: &Receipt, now: Timestamp) {
        self.local.release(receipt, now);
    }
}

#[tokio::test(start_paused = true)]
async fn beside_a_backend_elsewhere_all_is_charged_or_nothing() {
    let backend = std::sync::Arc::new(Elsewhere::default());
    let rate = Rule::new("rate").per([]).tier(Quota::per_hour(3));
    let policy = Policy::new().rule(rate).rule(adaptive(Quota::adaptive_concurrency(2..=9)));
    let limiter = RateLimiter::builder().policy(policy).backend(std::sync::Arc::clone(&backend));
    let limiter = limiter.clock(TokioClock::default()).build().unwrap();
    let in_flight = || found(&limiter).in_flight();

    let one = acquire(&limiter, Priority::Normal).await.unwrap();
    assert_eq!((in_flight(), one.decision().tiers().len()), (1, 2));
    assert_eq!(one.decision().tiers()[0].remaining(), 2);
    // One whose reply is not awaited.
    let mut cancelled = waiting(&limiter, Priority::Normal, Duration::ZERO);
    assert!(poll(&mut cancelled).is_pending());
    assert_eq!(in_flight(), 2);
    drop(cancelled);
    assert_eq!(in_flight(), 1);
    let two = acquire(&limiter, Priority::Normal).await.unwrap();
    // The limit is full: the backend is not asked.
    let rejected = acquire(&limiter, Priority::Normal).await.unwrap_err();
    assert_eq!(rejected.kind(), RateLimitedKind::Overloaded);
    drop((one, two));
    assert_eq!(in_flight(), 0);
    // The rate rejects: nothing is in flight.
    let rejected = acquire(&limiter, Priority::Normal).await.unwrap_err();
    assert_eq!((rejected.kind(), in_flight()), (RateLimitedKind::QuotaExceeded, 0));
    // It fails open, and the limit holds.
    backend.fails.store(true, std::sync::atomic::Ordering::Relaxed);
    let held = [acquire(&limiter, Priority::Normal).await.unwrap(), acquire(&limiter, Priority::Normal).await.unwrap()];
    assert_eq!(in_flight(), 2);
    assert!(acquire(&limiter, Priority::Normal).await.is_err());
    drop(held);
    assert_eq!(in_flight(), 0);
}
