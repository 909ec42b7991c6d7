//! Mistakes that other rate limiters make, one test each, and the correct
//! behaviour.
#![cfg(feature = "test-util")]
#![allow(clippy::unwrap_used)]

use std::{
    future::{Future, Ready, ready},
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    thread,
    time::Duration,
};

use tower::{Layer, Service};
use tower_ratelimit::{
    Algorithm, Decision, Descriptor, Policy, Quota, RateLimitLayer, RateLimitedKind, RateLimiter, Rule,
    backend::Local,
    testing::{Fault, FaultyBackend, ManualClock, TokioClock},
};

struct Bench {
    limiter: RateLimiter,
    clock: ManualClock,
}

impl Bench {
    fn new(policy: impl Into<Policy>) -> Self {
        Self::on(Local::new(), policy)
    }

    fn on(backend: Local, policy: impl Into<Policy>) -> Self {
        let clock = ManualClock::new();
        let limiter = RateLimiter::builder().policy(policy).backend(backend).clock(clock.clone()).build().unwrap();
        Self { limiter, clock }
    }

    fn ask(&self, tenant: &str, cost: u64) -> Decision {
        now(self.limiter.check(&Descriptor::new("/").tenant(tenant).cost(cost)))
    }

    fn admitted(&self, tenant: &str, tries: usize) -> usize {
        (0..tries).filter(|_| self.ask(tenant, 1).is_allowed()).count()
    }

    fn pass(&self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
    }
}

fn now<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("a local decision took more than one poll"),
    }
}

/// Of a hundred rapid calls, one is admitted per second. The hourly limit is
/// charged for those, not for the 99 rejected ones.
#[test]
fn mistake_1_sequential_tiers_drain_the_big_budget() {
    let rule = Rule::new("both").tier(Quota::per_hour(100)).tier(Quota::per_second(1));
    let bench = Bench::new(Policy::new().rule(rule));
    for second in 0..50 {
        assert_eq!(bench.admitted("acme", 100), 1, "second {second}");
        bench.pass(1);
    }
    let hour = |decision: &Decision| decision.tiers().iter().find(|tier| tier.limit() == 100).unwrap().remaining();
    // 50 were charged, and in 50 seconds one is refilled.
    assert_eq!(hour(&bench.ask("acme", 0)), 51);
}

/// The same with windows, which do not refill meanwhile.
#[test]
fn mistake_1_sequential_windows_drain_the_big_budget() {
    let hour = Quota::per_hour(100).algorithm(Algorithm::FixedWindow);
    let second = Quota::per_second(1).algorithm(Algorithm::FixedWindow);
    let bench = Bench::new(Policy::new().rule(Rule::new("both").tier(hour).tier(second)));
    assert_eq!(bench.admitted("acme", 100), 1);
    assert_eq!(bench.ask("acme", 1).tiers()[0].remaining(), 99);
}

/// Four threads, a limit of 20, thousands of keys: 20 each.
#[test]
fn mistake_2_check_then_update() {
    const KEYS: usize = 4_000;
    let bench = Bench::new(Quota::per_hour(20));
    let admitted: Vec<_> = (0..KEYS).map(|_| AtomicUsize::new(0)).collect();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for (key, admitted) in admitted.iter().enumerate() {
                    admitted.fetch_add(bench.admitted(&key.to_string(), 7), Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(admitted.iter().filter(|admitted| admitted.load(Ordering::Relaxed) != 20).count(), 0);
}

/// `per_second(100)` is a hundred a second, not one every hundred seconds.
#[test]
fn mistake_6_per_second_means_per_second() {
    for (quota, window) in [
        (Quota::per_second(100), 1),
        (Quota::per_minute(100), 60),
        (Quota::per_hour(100), 60 * 60),
        (Quota::per_day(100), 24 * 60 * 60),
    ] {
        let bench = Bench::new(quota);
        assert_eq!(bench.admitted("acme", 1_000), 100, "at once, in {window} s");
        bench.pass(window);
        assert_eq!(bench.admitted("acme", 1_000), 100, "after {window} s");
        bench.clock.advance(Duration::from_secs(window) / 100);
        assert_eq!(bench.admitted("acme", 1_000), 1, "after a hundredth of {window} s");
    }
}

/// 5,000 tenants, at most a hundred keys. The flood neither locks newcomers out
/// nor returns the quota of a tenant that has used it up.
#[test]
fn mistake_7_the_key_cap_that_does_not_cap() {
    let bench = Bench::on(Local::builder().max_keys(100).build(), Quota::per_hour(2));
    assert_eq!(bench.admitted("acme", 5), 2);
    for tenant in 0..5_000 {
        assert_eq!(bench.admitted(&format!("tenant-{tenant}"), 1), 1, "newcomer {tenant}");
        assert!(bench.limiter.stats().keys() <= 100);
        assert_eq!(bench.admitted("acme", 1), 0, "after {tenant}");
    }
    assert_eq!(bench.limiter.stats().backend.overflowed, 0);
}

/// Raised from 60 to 600 a minute after 1,000 s: no debt of 1,000 s, and the
/// reported limit is the one in force.
#[test]
fn mistake_9_a_changed_quota_takes_no_effect() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingLog] {
        let minute = |limit| Quota::per_minute(limit).algorithm(algorithm);
        let bench = Bench::new(minute(60));
        bench.pass(1_020);
        assert_eq!(bench.admitted("acme", 40), 40);

        bench.limiter.set_policy(minute(600)).unwrap();
        assert_eq!((bench.ask("acme", 0).limit(), bench.ask("acme", 0).remaining()), (600, 560), "{algorithm}");
        assert_eq!(bench.admitted("acme", 1_000), 560, "{algorithm}");

        bench.limiter.set_policy(minute(60)).unwrap();
        let rejected = bench.ask("acme", 1);
        assert_eq!((rejected.limit(), rejected.remaining()), (60, 0), "{algorithm}");
        assert!(!rejected.is_allowed(), "{algorithm}");
    }
}

/// One request, an idle time just too short to be forgotten, a burst: a hundred
/// plus the refill, not 197.
#[test]
fn mistake_10_an_idle_key_gets_a_second_burst() {
    let quota = Quota::per_minute(60).burst(100);
    for idle in [1, 98, 99, 100, 101, 102, 119, 120, 200, 3_600] {
        let bench = Bench::new(quota);
        assert_eq!(bench.admitted("acme", 1), 1);
        bench.pass(idle);
        // Other tenants' requests evict idle keys.
        for other in 0..200 {
            bench.admitted(&format!("other-{other}"), 1);
        }
        assert_eq!(bench.admitted("acme", 500), 100, "after {idle} s");
        bench.pass(1);
        assert_eq!(bench.admitted("acme", 500), 1, "after {idle} s and one more");
    }
}

#[test]
fn mistake_11_arithmetic() {
    let burst = u64::from(u32::MAX);
    let bench = Bench::new(Quota::per_day(1).burst(burst));
    assert!(bench.ask("acme", burst).is_allowed());
    assert_eq!(bench.ask("acme", 1).retry_after(), Some(Duration::from_secs(86_400)));

    for algorithm in [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingWindow, Algorithm::SlidingLog] {
        let bench = Bench::new(Quota::new(5, Duration::from_secs(u64::MAX)).algorithm(algorithm));
        assert_eq!(bench.admitted("acme", 10), 5, "{algorithm}: a window of u64::MAX seconds");
    }

    let bench = Bench::new(Quota::per_second(600_000_000));
    assert!(bench.ask("acme", 600_000_000).is_allowed());
    bench.clock.advance(Duration::from_millis(1));
    assert_eq!(bench.ask("acme", 0).remaining(), 600_000, "a millisecond of 600 million a second");
}

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
    let layer = RateLimitLayer::keyed(limiter.clone(), |request: &&'static str| Descriptor::new(request));
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
async fn mistake_12_a_clone_that_was_not_polled_ready_is_called() {
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
async fn mistake_12_poll_ready_charges_quota() {
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

/// A limit below usage rejects until usage has dropped. A limit of zero always
/// rejects.
#[test]
fn mistake_15_a_limit_below_usage_or_of_zero() {
    for algorithm in [
        Algorithm::TokenBucket,
        Algorithm::FixedWindow,
        Algorithm::AnchoredWindow,
        Algorithm::SlidingWindow,
        Algorithm::SlidingLog,
    ] {
        let minute = |limit| Quota::per_minute(limit).algorithm(algorithm);
        let bench = Bench::new(minute(100));
        assert_eq!(bench.admitted("acme", 200), 100, "{algorithm}");

        bench.limiter.set_policy(minute(10)).unwrap();
        let rejected = bench.ask("acme", 1);
        assert!(!rejected.is_allowed(), "{algorithm}");
        assert_eq!(rejected.remaining(), 0, "{algorithm}");
        bench.clock.advance(rejected.retry_after().unwrap() - Duration::from_nanos(1));
        assert!(!bench.ask("acme", 1).is_allowed(), "{algorithm}: before retry_after");
        bench.clock.advance(Duration::from_nanos(1));
        assert!(bench.ask("acme", 1).is_allowed(), "{algorithm}: at retry_after");

        bench.limiter.set_policy(minute(0)).unwrap();
        bench.pass(86_400);
        let rejected = bench.ask("acme", 1);
        assert_eq!(rejected.rejection(), Some(RateLimitedKind::NeverFits), "{algorithm}");
        assert_eq!(rejected.retry_after(), None, "{algorithm}");

        bench.limiter.set_policy(minute(10)).unwrap();
        assert_eq!(bench.admitted("acme", 20), 10, "{algorithm}: in force again");
    }
}
