//! The layer as a service of tower: readiness, clones, and permits of the inner service.

use std::{
    convert::Infallible,
    future::{Future, Ready, ready},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use tower::{Layer, Service, ServiceExt, limit::ConcurrencyLimit, service_fn};
use tower_ratelimit::{
    Descriptor, Policy, Quota, RateLimitLayer, RateLimiter, Rule,
    backend::Local,
    testing::{Fault, FaultyBackend, TokioClock},
};

use super::is_pending;

/// Panics when it is called without having been polled ready.
#[derive(Debug, Default)]
struct Strict {
    ready: bool,
    calls: Arc<AtomicUsize>,
    /// While set, it is not ready.
    busy: Arc<AtomicBool>,
}

/// A clone has to be polled ready itself.
impl Clone for Strict {
    fn clone(&self) -> Self {
        Self { ready: false, calls: Arc::clone(&self.calls), busy: Arc::clone(&self.busy) }
    }
}

impl Service<&'static str> for Strict {
    type Response = &'static str;
    type Error = std::convert::Infallible;
    type Future = Ready<Result<&'static str, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        if self.busy.load(Ordering::SeqCst) {
            return Poll::Pending;
        }
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: &'static str) -> Self::Future {
        assert!(std::mem::take(&mut self.ready), "called without having been polled ready");
        self.calls.fetch_add(1, Ordering::SeqCst);
        ready(Ok(request))
    }
}

type Response = Pin<Box<dyn Future<Output = Result<&'static str, tower::BoxError>>>>;

/// A service limited to one per second with waits, on a backend with this
/// fault, and the inner service.
fn limited(
    quota: Quota,
    fault: Fault,
) -> (
    impl Service<&'static str, Response = &'static str, Error = tower::BoxError, Future: 'static> + Clone,
    Strict,
    RateLimiter,
) {
    let backend = FaultyBackend::new(Local::new());
    backend.set(fault);
    let policy = Policy::new().rule(Rule::new("wait").tier(quota).max_wait(Duration::from_secs(3)));
    let limiter = RateLimiter::builder().policy(policy).backend(backend).clock(TokioClock::default()).build().unwrap();
    let strict = Strict::default();
    let layer = RateLimitLayer::keyed(limiter.clone(), |request: &&'static str| Descriptor::new(*request));
    (layer.layer(strict.clone()), strict, limiter)
}

fn call<S>(service: &mut S) -> Response
where
    S: Service<&'static str, Response = &'static str, Error = tower::BoxError, Future: 'static>,
{
    let ready = service.poll_ready(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(ready, Poll::Ready(Ok(()))));
    Box::pin(service.call("/"))
}

/// At once, after a wait, after a slow backend, from clones: only a service
/// that was polled ready is called, once per poll.
#[tokio::test(start_paused = true)]
async fn only_a_service_that_was_polled_ready_is_called() {
    for fault in [Fault::None, Fault::Slow] {
        let (mut service, strict, _) = limited(Quota::per_second(1), fault);
        let mut clone = service.clone();
        let [first, second] = [call(&mut service), call(&mut clone)];
        let [third, fourth] = [call(&mut service), call(&mut clone)];
        let rejected = call(&mut service);
        let start = tokio::time::Instant::now();
        let responses = tokio::join!(first, second, third, fourth);
        for response in [responses.0, responses.1, responses.2, responses.3] {
            assert_eq!(response.unwrap(), "/");
        }
        assert_eq!(start.elapsed().as_secs(), 3, "four, one a second");
        assert!(rejected.await.is_err(), "it would have had to wait longer than its rule allows");
        assert_eq!(strict.calls.load(Ordering::SeqCst), 4);
    }
}

/// Services that are polled ready but not called, dropped, or never ready
/// charge nothing.
#[tokio::test(start_paused = true)]
async fn poll_ready_charges_nothing() {
    let (service, strict, limiter) = limited(Quota::per_hour(2), Fault::None);
    let mut idle: Vec<_> = (0..50).map(|_| service.clone()).collect();
    for service in &mut idle {
        for _ in 0..3 {
            assert!(service.poll_ready(&mut Context::from_waker(Waker::noop())).is_ready());
        }
    }
    strict.busy.store(true, Ordering::SeqCst);
    let mut waiting = service.clone();
    assert!(waiting.poll_ready(&mut Context::from_waker(Waker::noop())).is_pending(), "the inner service is not ready");
    assert_eq!((limiter.stats().allowed, limiter.stats().keys()), (0, 0));

    strict.busy.store(false, Ordering::SeqCst);
    let mut passed = 0;
    for service in &mut idle {
        passed += usize::from(call(service).await.is_ok());
    }
    assert_eq!((passed, strict.calls.load(Ordering::SeqCst)), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn a_waiting_request_holds_no_permit_of_the_inner_service() {
    let rule = Rule::new("paced").path("/paced").tier(Quota::per_hour(1)).max_wait(Duration::MAX);
    let limiter = RateLimiter::builder().policy(Policy::new().rule(rule)).clock(TokioClock::default()).build().unwrap();
    let layer = RateLimitLayer::keyed(limiter, |path: &&'static str| Descriptor::new(*path));
    let inner = ConcurrencyLimit::new(service_fn(async |path: &'static str| Ok::<_, Infallible>(path)), 1);
    let service = layer.layer(inner);
    let call = async |path| service.clone().oneshot(path).await.unwrap();
    assert_eq!(call("/paced").await, "/paced");
    let mut waiting = Box::pin(call("/paced"));
    assert!(is_pending(&mut waiting));
    assert_eq!(call("/free").await, "/free");
    assert_eq!(waiting.await, "/paced");
}
