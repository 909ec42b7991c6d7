//! Combinations of features: bugs that a hostile review found although each
//! feature worked alone. Tokio's time is paused wherever a request waits.
#![allow(clippy::unwrap_used)]

#[path = "combined/store.rs"]
mod store;

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use axum::{Extension, Router, body::Body, routing::get};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tokio::{sync::watch, time::Instant};
use tower::{Layer, ServiceExt, service_fn};
use tower_ratelimit::{
    Adapt, ChargeHandle, Descriptor, Dimension, FailureMode, Permit, Policy, Quota, RateLimitLayer, RateLimited,
    RateLimiter, Rule, Tenant,
    backend::{Backend, Local, Share, Split},
    error::BackendErrorKind,
    http::tenant,
    policy::Messages,
    testing::{Fault, FaultyBackend, TokioClock},
    time::{Clock, Timestamp},
};

const SECOND: Duration = Duration::from_secs(1);
const MILLI: Duration = Duration::from_millis(1);
const DOWN: Fault = Fault::Error(BackendErrorKind::Unavailable);

fn on(backend: impl Backend, policy: impl Into<Policy>) -> RateLimiter {
    RateLimiter::builder().policy(policy).backend(backend).clock(TokioClock::default()).build().unwrap()
}

fn limiter(policy: impl Into<Policy>) -> RateLimiter {
    on(Local::new(), policy)
}

fn by(tenant: &str) -> Descriptor<'_> {
    Descriptor::new("/").tenant(tenant)
}

type Outcome = Result<Permit, RateLimited>;

/// Arrives when this is called; a task polls the returned future.
fn arrives(
    limiter: &RateLimiter,
    tenant: &'static str,
    max_wait: Duration,
) -> Pin<Box<dyn Future<Output = Outcome> + Send>> {
    let limiter = limiter.clone();
    let mut future: Pin<Box<dyn Future<Output = Outcome> + Send>> =
        Box::pin(async move { limiter.acquire(&by(tenant), max_wait).await });
    match poll(&mut future) {
        Poll::Ready(outcome) => Box::pin(async move { outcome }),
        Poll::Pending => future,
    }
}

fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

fn shared(id: &str) -> Rule {
    Rule::new(id).per([] as [Dimension; 0])
}

/// Waiters exchange slots, but not the terms on which those were reserved: how
/// long the request may wait, since when, and its tenant.
#[tokio::test(start_paused = true)]
async fn fair_waiters_of_a_cooldown_keep_their_own_bounds() {
    let limiter = limiter(Policy::new().rule(shared("shared").fair(true).tier(Quota::per_second(1))));
    let start = Instant::now();
    let waits = |tenant, max_wait| tokio::spawn(arrives(&limiter, tenant, max_wait));
    let _first = waits("greedy", Duration::MAX).await.unwrap().unwrap();
    let greedy: Vec<_> = (0..4).map(|_| waits("greedy", Duration::MAX)).collect();
    let modest = waits("modest", SECOND * 10);
    limiter.cool_down(&by("greedy"), SECOND * 30);
    let modest = modest.await.unwrap();
    let waited = start.elapsed();
    let mut admitted = 0;
    for waiter in greedy {
        admitted += usize::from(waiter.await.unwrap().is_ok());
    }
    assert!(
        (modest.is_err(), admitted) == (true, 4),
        "one waited for {waited:?} that may for 10 s; of the four that may wait for ever {admitted} were admitted"
    );
}

/// A request that waits for its own limit is at the head of the shared rate's
/// queue, although that rate would admit it and all others.
#[tokio::test(start_paused = true)]
async fn a_request_delayed_by_its_own_limit_blocks_no_other_at_an_adaptive_rate() {
    let adapt = Adapt::between(Quota::per_second(1), Quota::per_second(1_000)).start(Quota::per_second(100));
    let policy = Policy::new().rule(shared("upstream").adapt(adapt)).rule(Rule::new("own").tier(Quota::per_hour(1)));
    let limiter = limiter(policy);
    let _permit = limiter.acquire(&by("acme"), Duration::ZERO).await.unwrap();
    tokio::time::advance(SECOND).await;
    let waits = tokio::spawn(arrives(&limiter, "acme", SECOND * 7_200));
    tokio::time::advance(SECOND).await;
    let other = limiter.acquire(&by("other"), SECOND * 60).await;
    assert!(other.is_ok(), "both its limits are free: {other:?}");
    waits.abort();
}

/// A rejection starts a cooldown and lowers the rate. After the cooldown, requests
/// are admitted at the lowered rate.
#[tokio::test(start_paused = true)]
async fn a_request_of_a_cooldown_is_admitted_at_the_current_adaptive_rate() {
    let (rule, call) = (shared("upstream").adapt(steep()), by("acme"));
    let limiter = on(FaultyBackend::new(Local::new()), Policy::new().rule(rule));
    let sent = limiter.check(&call).await;
    assert!(sent.is_allowed());
    limiter.cool_down(&call, SECOND * 10);
    let end = Instant::now() + limiter.cooldown(&call).unwrap();
    let tasks: Vec<_> = (0..40)
        .map(|_| {
            let waits = arrives(&limiter, "acme", SECOND * 60);
            tokio::spawn(async move {
                drop(waits.await.unwrap());
                Instant::now()
            })
        })
        .collect();
    limiter.report_rejection(&call, &sent);
    let rate = limiter.adapted(&call)[0].rate();
    assert!(rate <= 100.0, "{rate}");
    let mut at_once = 0;
    for task in tasks {
        at_once += usize::from(task.await.unwrap() <= end + MILLI * 45);
    }
    assert!(at_once <= 8, "{at_once} in 45 ms, at {rate} a second");
}

/// A thousand a second, and a tenth of it after a rejection.
fn steep() -> Adapt {
    Adapt::between(Quota::per_second(1), Quota::per_second(1_000)).start(Quota::per_second(1_000)).decrease(0.1)
}

/// Messages of a stream that began before the rejection, too.
#[tokio::test(start_paused = true)]
async fn messages_are_charged_at_the_current_adaptive_rate() {
    let rule = shared("upstream").adapt(steep()).per_message(Messages::Server).max_wait(SECOND * 60);
    let (limiter, call) = (limiter(Policy::new().rule(rule)), by("acme"));
    let sent = limiter.check(&call).await;
    tokio::time::advance(SECOND).await;
    let layer = RateLimitLayer::new(limiter.clone()).tenant(tenant::header("x-api-key"));
    let service = layer.layer(service_fn(|_: Request<()>| async {
        let messages = (0..40).map(|_| Ok::<_, std::convert::Infallible>(Frame::data(Bytes::from_static(&[0; 5]))));
        let response = Response::builder().header("content-type", "application/grpc");
        Ok::<_, std::convert::Infallible>(response.body(StreamBody::new(tokio_stream::iter(messages))).unwrap())
    }));
    let request = Request::post("/").header("content-type", "application/grpc").header("x-api-key", "acme");
    let response = service.oneshot(request.body(()).unwrap()).await.unwrap();
    limiter.report_rejection(&call, &sent);
    let rate = limiter.adapted(&call)[0].rate();
    assert!(rate <= 100.0, "{rate}");
    let start = Instant::now();
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes().len(), 200);
    let took = start.elapsed();
    assert!(took >= MILLI * 350, "39 messages in {took:?}, at {rate} a second");
}

/// The queue of a concurrency limit is called when units are released, when the
/// policy changes, and when the share grows.
#[tokio::test(start_paused = true)]
async fn a_larger_share_admits_queued_requests() {
    let (shares, receiver) = watch::channel(Share::new(0, 4).unwrap());
    let limiter = on(Split::watch(receiver), Policy::new().rule(shared("jobs").tier(Quota::concurrent(4))));
    let _held = limiter.acquire(&by("acme"), Duration::ZERO).await.unwrap();
    let mut waits = tokio::spawn(arrives(&limiter, "acme", SECOND * 600));
    tokio::time::advance(SECOND).await;
    shares.send_replace(Share::new(0, 1).unwrap());
    let outcome = tokio::time::timeout(SECOND * 60, &mut waits).await;
    assert!(outcome.is_ok(), "three of four units are free, and it has waited for a minute");
}

async fn add_one(Extension(charge): Extension<ChargeHandle>) -> &'static str {
    charge.add(1);
    "done"
}

async fn status(limiter: RateLimiter, tenant: &str) -> StatusCode {
    let layer = RateLimitLayer::new(limiter).tenant(tenant::header("x-api-key"));
    let app = Router::new().route("/", get(add_one)).layer(layer);
    let request = Request::get("/").header("x-api-key", tenant).body(Body::empty()).unwrap();
    app.oneshot(request).await.unwrap().status()
}

/// The handler is the one from the example of `ChargeHandle`.
#[tokio::test]
async fn a_rule_with_settlement_fails_open() {
    let backend = FaultyBackend::new(Local::new());
    let rule = Rule::new("tokens").tier(Quota::per_hour(100)).settle(true).on_backend_failure(FailureMode::Open);
    let limiter = on(backend.clone(), Policy::new().rule(rule));
    assert_eq!(status(limiter.clone(), "acme").await, StatusCode::OK);
    backend.set(DOWN);
    assert_eq!(status(limiter, "acme").await, StatusCode::OK);
}

#[tokio::test]
async fn a_rule_with_settlement_admits_unlimited_tenants() {
    let rule = Rule::new("tokens").tier(Quota::per_hour(100)).settle(true).unlimited("internal");
    let limiter = limiter(Policy::new().rule(rule));
    assert_eq!(status(limiter.clone(), "acme").await, StatusCode::OK);
    assert_eq!(status(limiter, "internal").await, StatusCode::OK);
}

/// Requests that share the overflow counter are admitted in the order of its
/// queue.
#[tokio::test(start_paused = true)]
async fn no_request_overtakes_the_queue_of_the_overflow_counter() {
    let local = Local::builder().max_keys(1).build();
    let limiter = on(local, Policy::new().rule(Rule::new("jobs").tier(Quota::concurrent(1))));
    let _own = limiter.acquire(&by("own"), Duration::ZERO).await.unwrap();
    let held = limiter.acquire(&by("one"), Duration::ZERO).await.unwrap();
    assert!(limiter.acquire(&by("two"), Duration::ZERO).await.is_err(), "they share a counter");
    let mut first = arrives(&limiter, "two", SECOND * 60);
    drop(held);
    let overtakes = limiter.acquire(&by("three"), Duration::ZERO).await;
    assert!(overtakes.is_err(), "\"two\" came before it");
    assert!(poll(&mut first).is_ready());
}

/// A clock that can be set, in seconds.
#[derive(Clone, Debug, Default)]
struct Skewed {
    clock: TokioClock,
    moved: Arc<AtomicI64>,
}

impl Clock for Skewed {
    fn now(&self) -> Timestamp {
        let moved = self.moved.load(Ordering::Relaxed) * 1_000_000_000;
        Timestamp::from_nanos(self.clock.now().as_nanos().saturating_add_signed(moved))
    }
}

/// The bound of a wait counts elapsed time, not the clock's time.
#[tokio::test(start_paused = true)]
async fn a_clock_set_ahead_rejects_no_request_of_a_cooldown() {
    let clock = Skewed::default();
    let builder = RateLimiter::builder().policy(Quota::per_second(1)).clock(clock.clone());
    let limiter = builder.backend(FaultyBackend::new(Local::new())).build().unwrap();
    limiter.cool_down(&by("acme"), SECOND * 10);
    let tasks: Vec<_> = (0..5).map(|_| tokio::spawn(arrives(&limiter, "acme", SECOND * 120))).collect();
    tokio::time::advance(SECOND * 5).await;
    clock.moved.store(3_600, Ordering::Relaxed);
    let mut admitted = 0;
    for task in tasks {
        admitted += usize::from(task.await.unwrap().is_ok());
    }
    assert_eq!(admitted, 5, "each may wait for two minutes");
}

/// Upstream feedback by a permit does not depend on the store.
#[tokio::test(start_paused = true)]
async fn a_permit_that_failed_open_reports_upstream_feedback() {
    let backend = FaultyBackend::new(Local::new());
    let adapt = Adapt::between(Quota::per_second(1), Quota::per_second(1_000)).start(Quota::per_second(100));
    let rule = shared("upstream").adapt(adapt).on_backend_failure(FailureMode::Open);
    let limiter = on(backend.clone(), Policy::new().rule(rule));
    backend.set(DOWN);
    let permit = limiter.acquire(&by("acme"), Duration::ZERO).await.unwrap();
    permit.report_rejection();
    let rate = limiter.adapted(&by("acme"))[0].rate();
    assert!(rate < 100.0, "it was rejected, and stays at {rate}");
}

/// While the store fails, some rules fail local and others open: upstream
/// feedback concerns all of them.
#[tokio::test(start_paused = true)]
async fn upstream_feedback_applies_in_every_failure_mode() {
    let backend = FaultyBackend::new(Local::new());
    let upstream = shared("upstream").tier(Quota::per_second(100)).on_backend_failure(FailureMode::Open);
    let own = Rule::new("own").tier(Quota::per_second(100)).on_backend_failure(FailureMode::Local);
    let limiter = on(backend.clone(), Policy::new().rule(upstream).rule(own));
    backend.set(DOWN);
    let layer = RateLimitLayer::client(limiter.clone()).tenant(tenant::extension::<Tenant>());
    let client = layer.layer(service_fn(|_: Request<()>| async {
        let rejection = Response::builder().status(429).header("retry-after", "30").body(()).unwrap();
        Ok::<_, std::convert::Infallible>(rejection)
    }));
    let mut request = Request::get("http://api.example.com/").body(()).unwrap();
    request.extensions_mut().insert(Tenant::from("acme"));
    assert_eq!(client.oneshot(request).await.unwrap().status(), 429);
    assert!(limiter.cooldown(&by("acme")).is_some());
    assert!(limiter.cooldown(&by("other")).is_some(), "all tenants share the upstream's key");
}

/// In a queue, for a slot, and once more behind a cooldown.
#[tokio::test(start_paused = true)]
async fn a_decision_includes_the_wait_in_the_queue() {
    let rule = shared("jobs").tier(Quota::concurrent(1)).tier(Quota::new(1, SECOND * 10));
    let limiter = limiter(Policy::new().rule(rule));
    let held = limiter.acquire(&by("acme"), Duration::ZERO).await.unwrap();
    let start = Instant::now();
    let waits = tokio::spawn(arrives(&limiter, "acme", SECOND * 600));
    tokio::time::advance(SECOND * 5).await;
    drop(held);
    tokio::time::advance(SECOND).await;
    limiter.cool_down(&by("acme"), SECOND * 20);
    let permit = waits.await.unwrap().unwrap();
    let (reported, waited) = (permit.decision().wait(), start.elapsed());
    assert!(reported + MILLI * 10 >= waited, "it reports {reported:?}, and waited for {waited:?}");
}

/// A shadow rule counts a request in flight for as long as it is, however often
/// it reserved another slot.
#[tokio::test(start_paused = true)]
async fn a_shadow_rule_counts_a_request_that_reserved_another_slot_in_flight() {
    let shadow = shared("shadow").tier(Quota::concurrent(1)).shadow(true);
    let limiter = limiter(Policy::new().rule(shared("rate").tier(Quota::new(1, SECOND * 10))).rule(shadow));
    drop(limiter.acquire(&by("acme"), Duration::ZERO).await.unwrap());
    let waits = tokio::spawn(arrives(&limiter, "acme", SECOND * 600));
    tokio::time::advance(SECOND).await;
    limiter.cool_down(&by("acme"), SECOND * 20);
    let permit = waits.await.unwrap().unwrap();
    tokio::time::advance(SECOND * 60).await;
    let before = limiter.stats().shadow_rejected;
    assert!(limiter.check(&by("acme")).await.is_allowed());
    assert_eq!(limiter.stats().shadow_rejected - before, 1, "one is in flight, which is the limit");
    drop(permit);
}

/// A request that waits for a cooldown is charged nothing yet: when that is over,
/// the limits of that time decide.
#[tokio::test(start_paused = true)]
async fn a_request_of_a_cooldown_is_admitted_by_the_policy_in_force() {
    let policy = |limit| Policy::new().rule(shared("upstream").tier(Quota::per_second(limit).burst(1)));
    let (limiter, call) = (on(FaultyBackend::new(Local::new()), policy(1_000)), by("acme"));
    limiter.cool_down(&call, SECOND * 10);
    let end = Instant::now() + limiter.cooldown(&call).unwrap();
    let tasks: Vec<_> = (0..40)
        .map(|_| {
            let waits = arrives(&limiter, "acme", SECOND * 600);
            tokio::spawn(async move {
                drop(waits.await.unwrap());
                Instant::now()
            })
        })
        .collect();
    tokio::time::advance(SECOND).await;
    limiter.set_policy(policy(10)).unwrap();
    let mut at_once = 0;
    for task in tasks {
        at_once += usize::from(task.await.unwrap() <= end + MILLI * 45);
    }
    assert!(at_once <= 2, "{at_once} in 45 ms, at 10 a second");
}

/// A shadow rule never affects the requests that it would reject.
#[tokio::test]
async fn a_settled_shadow_rule_admits_requests_that_it_would_reject() {
    let rule = Rule::new("tokens").tier(Quota::per_hour(1)).settle(true).shadow(true);
    let limiter = limiter(Policy::new().rule(rule));
    assert_eq!(status(limiter.clone(), "acme").await, StatusCode::OK);
    assert_eq!(status(limiter, "acme").await, StatusCode::OK);
}

async fn set_back(backend: impl Backend) -> (bool, Duration) {
    let clock = Skewed::default();
    let builder = RateLimiter::builder().policy(Quota::per_second(1)).clock(clock.clone());
    let limiter = builder.backend(backend).build().unwrap();
    limiter.cool_down(&by("acme"), SECOND * 10);
    let start = Instant::now();
    let waits = tokio::spawn(arrives(&limiter, "acme", SECOND * 120));
    tokio::time::advance(SECOND * 5).await;
    clock.moved.store(-3_600, Ordering::Relaxed);
    (waits.await.unwrap().is_ok(), start.elapsed())
}

/// The docs of `acquire`: a clock that is set back extends a wait by at most a
/// quarter.
#[tokio::test(start_paused = true)]
async fn a_clock_set_back_rejects_no_request_of_a_cooldown() {
    for (admitted, waited) in [set_back(Local::new()).await, set_back(FaultyBackend::new(Local::new())).await] {
        assert!(admitted && waited <= SECOND * 16, "admitted: {admitted}, after {waited:?}");
    }
}

/// Each rule bounds the wait for its own limit.
#[tokio::test(start_paused = true)]
async fn an_adaptive_rate_does_not_bound_the_wait_for_another_limit() {
    let adapt = Adapt::between(Quota::per_second(1), Quota::per_second(1_000)).start(Quota::per_second(100));
    let upstream = shared("upstream").adapt(adapt).max_wait(SECOND * 10);
    let own = Rule::new("own").tier(Quota::per_minute(1)).max_wait(SECOND * 120);
    let limiter = limiter(Policy::new().rule(upstream).rule(own));
    drop(limiter.acquire(&by("acme"), Duration::MAX).await.unwrap());
    tokio::time::advance(SECOND).await;
    let outcome = limiter.acquire(&by("acme"), Duration::MAX).await;
    assert!(outcome.is_ok(), "a minute for its own limit, and nothing for the upstream's: {outcome:?}");
}
