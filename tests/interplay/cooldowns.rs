//! Cooldowns, and what else a request waits for or is decided by meanwhile.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use http::{Request, Response};
use tokio::time::Instant;
use tower::{Layer, ServiceExt, service_fn};
use tower_ratelimit::{
    AdaptiveRate, FailureMode, Policy, Quota, RateLimitLayer, RateLimiter, Rule, Tenant,
    backend::{Backend, Local},
    tenant,
    testing::{FaultyBackend, TokioClock},
    time::{Clock, Timestamp},
};

use super::{DOWN, MILLI, SECOND, admission_times, arrives, by, limiter, on, shared};

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

/// A request that waits for a cooldown is charged nothing yet: when that is over,
/// the limits of that time decide.
#[tokio::test(start_paused = true)]
async fn a_request_of_a_cooldown_is_admitted_by_the_policy_in_force() {
    let policy = |limit| Policy::new().rule(shared("upstream").tier(Quota::per_second(limit).burst(1)));
    let (limiter, call) = (on(FaultyBackend::new(Local::new()), policy(1_000)), by("acme"));
    limiter.cool_down(&call, SECOND * 10);
    let end = Instant::now() + limiter.cooldown(&call).unwrap();
    let tasks = admission_times(&limiter, 40, SECOND * 600);
    tokio::time::advance(SECOND).await;
    limiter.set_policy(policy(10)).unwrap();
    let mut at_once = 0;
    for task in tasks {
        at_once += usize::from(task.await.unwrap() <= end + MILLI * 45);
    }
    assert!(at_once <= 2, "{at_once} in 45 ms, at 10 a second");
}

/// Upstream feedback by a permit does not depend on the store.
#[tokio::test(start_paused = true)]
async fn a_permit_that_failed_open_reports_upstream_feedback() {
    let backend = FaultyBackend::new(Local::new());
    let adapt = AdaptiveRate::between(Quota::per_second(1), Quota::per_second(1_000)).start(Quota::per_second(100));
    let rule = shared("upstream").adaptive_rate(adapt).on_backend_failure(FailureMode::Open);
    let limiter = on(backend.clone(), Policy::new().rule(rule));
    backend.set(DOWN);
    let permit = limiter.acquire(&by("acme"), Duration::ZERO).await.unwrap();
    permit.report_rejection();
    let rate = limiter.adaptive_rates(&by("acme"))[0].rate();
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
