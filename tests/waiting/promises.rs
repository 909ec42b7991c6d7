//! The guarantees of queues, slots and waits under adverse conditions.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
    time::Duration,
};

use http::{Request, Response};
use tower::{Layer, Service, ServiceExt};
use tower_ratelimit::{
    Descriptor, Permit, Policy, Quota, RateLimitLayer, RateLimited, RateLimitedKind, RateLimiter, Rule,
    backend::Local,
    middleware::{Http, RateLimit},
    policy::Statuses,
    testing::{Fault, FaultyBackend, TokioClock},
};

use super::{SECOND, by, limiter};

fn rule(quotas: &[Quota]) -> Rule {
    quotas.iter().fold(Rule::new("r"), |rule, quota| rule.tier(*quota))
}

pub(crate) type Acquiring = Pin<Box<dyn Future<Output = Result<Permit, RateLimited>> + Send>>;

pub(crate) fn arrive(limiter: &RateLimiter, tenant: &'static str, cost: u64, max_wait: Duration) -> Acquiring {
    let limiter = limiter.clone();
    Box::pin(async move { limiter.acquire(&by(tenant).cost(cost), max_wait).await })
}

pub(crate) fn poll(acquiring: &mut Acquiring) -> Poll<Result<Permit, RateLimited>> {
    acquiring.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

async fn within(time: Duration, acquiring: Acquiring) -> Option<Result<Permit, RateLimited>> {
    tokio::time::timeout(time, acquiring).await.ok()
}

#[tokio::test(start_paused = true)]
async fn a_unit_of_a_shadow_rule_calls_the_queue_when_released() {
    let rule = || rule(&[Quota::concurrent(1)]);
    let limiter = limiter(Policy::new().rule(rule().shadow(true)));
    let first = limiter.acquire(&by("a"), SECOND).await.unwrap();
    limiter.set_policy(Policy::new().rule(rule())).unwrap();
    let mut second = arrive(&limiter, "a", 1, Duration::MAX);
    assert!(poll(&mut second).is_pending());
    let task = tokio::spawn(second);
    tokio::task::yield_now().await;
    drop(first);
    assert!(tokio::time::timeout(100 * SECOND, task).await.is_ok(), "wedged: no request was called");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_never_fits_does_not_queue() {
    let limiter = limiter(Policy::new().rule(rule(&[Quota::concurrent(1)])));
    let _first = limiter.acquire(&by("a"), SECOND).await.unwrap();
    let rejected = within(SECOND, arrive(&limiter, "a", 2, Duration::MAX)).await.expect("at once").unwrap_err();
    assert_eq!(rejected.kind(), RateLimitedKind::NeverFits, "with an empty queue");
    let mut second = arrive(&limiter, "a", 1, Duration::MAX);
    assert!(poll(&mut second).is_pending());
    let rejected = within(100 * SECOND, arrive(&limiter, "a", 2, Duration::MAX)).await;
    assert!(rejected.is_some(), "queues for what can never fit");
    assert_eq!(rejected.unwrap().unwrap_err().kind(), RateLimitedKind::NeverFits);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_never_fits_is_rejected_behind_a_queue() {
    let limiter = limiter(Policy::new().rule(rule(&[Quota::concurrent(1)])));
    let _first = limiter.acquire(&by("a"), SECOND).await.unwrap();
    let mut second = arrive(&limiter, "a", 1, Duration::MAX);
    assert!(poll(&mut second).is_pending());
    let rejected = limiter.acquire(&by("a").cost(2), Duration::ZERO).await.unwrap_err();
    assert_eq!((rejected.kind(), rejected.retry_after()), (RateLimitedKind::NeverFits, None));
}

#[tokio::test(start_paused = true)]
async fn a_spent_rate_rejects_at_once_behind_a_queue() {
    let slots = Rule::new("slots").per([]).tier(Quota::concurrent(1));
    let hourly = Rule::new("hourly").tier(Quota::per_hour(1));
    let limiter = limiter(Policy::new().rule(slots).rule(hourly));
    let first = limiter.acquire(&by("b"), SECOND).await.unwrap();
    drop(first);
    let _first = limiter.acquire(&by("a"), SECOND).await.unwrap();
    let mut second = arrive(&limiter, "c", 1, Duration::MAX);
    assert!(poll(&mut second).is_pending());
    let start = tokio::time::Instant::now();
    let rejected = limiter.acquire(&by("b"), 10 * SECOND).await.unwrap_err();
    assert_eq!(start.elapsed(), Duration::ZERO, "{:?}", rejected.retry_after());
}

#[tokio::test(start_paused = true)]
async fn a_backend_that_never_replies_blocks_no_queue_beyond_max_wait() {
    let backend = FaultyBackend::new(Local::new());
    let limiter = RateLimiter::builder()
        .policy(Policy::new().rule(rule(&[Quota::concurrent(1)])))
        .clock(TokioClock::default())
        .backend(backend.clone())
        .build()
        .unwrap();
    let first = limiter.acquire(&by("a"), SECOND).await.unwrap();
    let mut second = arrive(&limiter, "a", 1, 10 * SECOND);
    assert!(poll(&mut second).is_pending());
    backend.set(Fault::Never);
    let mut third = arrive(&limiter, "a", 1, Duration::MAX);
    assert!(poll(&mut third).is_pending());
    let second = tokio::spawn(second);
    tokio::time::advance(3 * SECOND).await;
    backend.set(Fault::None);
    drop(first);
    let ended = tokio::time::timeout(1_000 * SECOND, second).await;
    assert!(ended.is_ok(), "10 s were allowed");
}

#[tokio::test(start_paused = true)]
async fn slots_are_not_exchanged_between_counters() {
    let shared = rule(&[Quota::new(1, 10 * SECOND)]).per([]).fair(true).plan("gold", [Quota::new(1, 25 * SECOND)]);
    let limiter = limiter(Policy::new().rule(shared));
    let start = tokio::time::Instant::now();
    let admitted = Arc::new(Mutex::new(Vec::new()));
    let arrive = |tenant: &'static str, plan: &'static str| {
        let (limiter, admitted) = (limiter.clone(), admitted.clone());
        async move {
            drop(limiter.acquire(&by(tenant).plan(plan), Duration::MAX).await.unwrap());
            admitted.lock().unwrap().push((plan, start.elapsed()));
        }
    };
    let mut tasks = tokio::task::JoinSet::new();
    for (tenant, plan) in [("x", "free"), ("y", "gold"), ("x", "free"), ("x", "free"), ("y", "gold"), ("x", "free")] {
        tasks.spawn(arrive(tenant, plan));
        tokio::task::yield_now().await;
    }
    while tasks.join_next().await.is_some() {}
    let admitted = admitted.lock().unwrap().clone();
    for (plan, distance) in [("free", 10 * SECOND), ("gold", 25 * SECOND)] {
        let times: Vec<_> = admitted.iter().filter(|(of, _)| *of == plan).map(|(_, at)| *at).collect();
        assert!(times.windows(2).all(|pair| pair[1] - pair[0] >= distance), "{plan}: {admitted:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn recycled_records_are_cleared() {
    let limiter = limiter(Quota::per_second(1));
    drop(limiter.acquire(&by("a"), SECOND).await.unwrap());
    let delayed = limiter.acquire(&by("a"), 5 * SECOND).await.unwrap();
    assert!(!delayed.decision().wait().is_zero());
    drop(delayed);
    let decision = limiter.check(&by("a").exempt()).await;
    assert_eq!((decision.wait(), decision.retry_after()), (Duration::ZERO, None));
    assert!(decision.tiers().is_empty() && decision.rejection().is_none());
}

fn layer_of<S>(limiter: &RateLimiter, inner: S) -> RateLimit<S, Http>
where
    S: Clone,
{
    RateLimitLayer::new(limiter.clone()).layer(inner)
}

/// Ready when created; a clone fails.
struct Fails {
    cloned: bool,
}

impl Clone for Fails {
    fn clone(&self) -> Self {
        Self { cloned: true }
    }
}

impl Service<Request<()>> for Fails {
    type Response = Response<String>;
    type Error = std::io::Error;
    type Future = std::future::Ready<Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(if self.cloned { Err(std::io::Error::other("gone")) } else { Ok(()) })
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        std::future::ready(Ok(Response::new(String::new())))
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_is_refunded_if_the_inner_service_fails_to_be_ready() {
    let quota = Quota::new(1, 100 * SECOND);
    let limiter =
        limiter(Policy::new().rule(rule(&[quota]).per([]).max_wait(100 * SECOND).refund_on(Statuses::SERVER_ERRORS)));
    let mut service = layer_of(&limiter, Fails { cloned: false });
    assert!(service.ready().await.unwrap().call(Request::new(())).await.is_ok());
    assert!(service.ready().await.unwrap().call(Request::new(())).await.is_err(), "waits, then fails");
    // 100 s have passed, and their unit was not used.
    let decision = limiter.check(&Descriptor::new("/")).await;
    assert!(decision.is_allowed(), "{:?}", decision.retry_after());
}

/// Ready when created; a clone is pending forever.
#[derive(Debug)]
struct Pends {
    cloned: bool,
}

impl Clone for Pends {
    fn clone(&self) -> Self {
        Self { cloned: true }
    }
}

impl Service<Request<()>> for Pends {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        if self.cloned { Poll::Pending } else { Poll::Ready(Ok(())) }
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        std::future::ready(Ok(Response::new(String::new())))
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_is_refunded_if_dropped_while_the_service_is_not_ready() {
    let rule = rule(&[Quota::new(1, 100 * SECOND)]).per([]).max_wait(100 * SECOND);
    let limiter = limiter(Policy::new().rule(rule));
    let mut service = layer_of(&limiter, Pends { cloned: false });
    assert!(service.ready().await.unwrap().call(Request::new(())).await.is_ok());
    let waits = service.ready().await.unwrap().call(Request::new(()));
    assert!(tokio::time::timeout(101 * SECOND, waits).await.is_err());
    assert!(limiter.check(&Descriptor::new("/")).await.is_allowed());
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_never_sent_gives_back_what_a_settled_shadow_rule_charged() {
    let calls = rule(&[Quota::new(1, 100 * SECOND)]).per([]).max_wait(100 * SECOND);
    let tokens = Rule::new("tokens").per([]).tier(Quota::per_day(2)).settle(true).shadow(true);
    let limiter = limiter(Policy::new().rule(calls).rule(tokens));
    let mut service = layer_of(&limiter, Pends { cloned: false });
    assert!(service.ready().await.unwrap().call(Request::new(())).await.is_ok());
    let waits = service.ready().await.unwrap().call(Request::new(()));
    assert!(tokio::time::timeout(101 * SECOND, waits).await.is_err());
    assert!(limiter.check(&Descriptor::new("/")).await.is_allowed());
    assert_eq!(limiter.stats().shadow_rejected, 0, "two of two are spent");
}

/// At the cap on keys, only requests of the overflow counter join its queue: a
/// request with its own counter blocks none of them.
#[tokio::test(start_paused = true)]
async fn a_request_with_its_own_counter_joins_no_other_queue() {
    let builder = RateLimiter::builder().policy(Policy::new().rule(rule(&[Quota::concurrent(1)])));
    let local = Local::builder().max_keys(1).build();
    let limiter = builder.clock(TokioClock::default()).backend(local).build().unwrap();
    let own = limiter.acquire(&by("own"), Duration::ZERO).await.unwrap();
    let shared = limiter.acquire(&by("one"), Duration::ZERO).await.unwrap();
    let mut waits = arrive(&limiter, "two", 1, 10 * SECOND);
    assert!(poll(&mut waits).is_pending());
    drop(own);
    tokio::time::advance(SECOND).await;
    // One of so many keys finds the free entry.
    let mut other = None;
    for number in 0..10_000 {
        let tenant = number.to_string();
        other = other.or(limiter.acquire(&by(&tenant), Duration::ZERO).await.ok());
    }
    assert!(other.is_some());
    drop(shared);
    assert!(limiter.acquire(&by("four"), Duration::ZERO).await.is_err(), "\"two\" came before it");
    assert!(poll(&mut waits).is_ready());
    drop(other);
}
