//! Regression tests: each test is a bug that a hostile review found.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use http::Method;
use tokio::sync::Notify;
use tower::{Layer, Service, ServiceExt, limit::ConcurrencyLimit, service_fn};
use tower_ratelimit::{
    Algorithm, Decision, Descriptor, Policy, Quota, RateLimitLayer, RateLimiter, Rule,
    backend::{Backend, Decide, Local, Outcome, Receipt, Request},
    testing::{ManualClock, TokioClock},
    time::Timestamp,
};

fn ask(limiter: &RateLimiter, request: &Descriptor<'_>) -> Decision {
    let mut check = std::pin::pin!(limiter.check(request));
    match check.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(decision) => decision,
        Poll::Pending => panic!("a local decision is ready at once"),
    }
}

/// Polls once. Returns whether the future is still pending.
fn is_pending(future: &mut (impl Future + Unpin)) -> bool {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

fn admitted(limiter: &RateLimiter, request: &Descriptor<'_>, tries: usize) -> usize {
    (0..tries).filter(|_| ask(limiter, request).is_allowed()).count()
}

#[test]
fn rules_with_similar_ids_have_separate_counters() {
    let rules = (0..1_000).map(|id| Rule::new(id.to_string()).tier(Quota::per_day(10)));
    let limiter = RateLimiter::new(rules.fold(Policy::new(), Policy::rule)).unwrap();
    assert_eq!(admitted(&limiter, &Descriptor::new("/").tenant("acme"), 20), 10);
    assert_eq!(limiter.stats().keys(), 1_000);
}

#[test]
fn entries_are_reused_over_a_long_run() {
    let clock = ManualClock::new();
    let policy = Policy::new()
        .rule(Rule::new("1").tier(Quota::per_second(10)))
        .rule(Rule::new("11").tier(Quota::per_second(10)));
    let local = Local::builder().max_keys(1_000).build();
    let limiter = RateLimiter::builder().policy(policy).backend(local).clock(clock.clone()).build().unwrap();
    for tenant in 0..3_000 {
        let tenant = tenant.to_string();
        assert!(ask(&limiter, &Descriptor::new("/").tenant(&*tenant)).is_allowed());
        clock.advance(Duration::from_secs(60));
    }
    assert_eq!(limiter.stats().backend.overflowed, 0);
    assert!(limiter.stats().keys() < 100, "{}", limiter.stats().keys());
}

#[test]
fn head_counts_as_get_unless_the_rule_names_it() {
    let head = Descriptor::new("/search").method("HEAD");
    let rule = || Rule::new("search").path("/search").tier(Quota::per_hour(1));
    let limiter = RateLimiter::new(Policy::new().rule(rule().methods([Method::GET]))).unwrap();
    assert!(ask(&limiter, &Descriptor::new("/search").method("GET")).is_allowed());
    assert!(!ask(&limiter, &head).is_allowed());

    let limiter = RateLimiter::new(Policy::new().rule(rule().methods([Method::GET, Method::HEAD]))).unwrap();
    assert!(ask(&limiter, &Descriptor::new("/search").method("GET")).is_allowed());
    assert!(ask(&limiter, &head).is_allowed(), "HEAD has its own counter");

    let limiter = RateLimiter::new(Policy::new().rule(rule().methods([Method::POST]))).unwrap();
    assert_eq!(admitted(&limiter, &head, 5), 5, "a rule for POST does not apply");
}

#[test]
fn extra_slashes_do_not_bypass_a_rest_pattern() {
    let rule = Rule::new("rest").path("/v1/{*rest}").tier(Quota::per_hour(1));
    let limiter = RateLimiter::new(Policy::new().rule(rule)).unwrap();
    assert!(ask(&limiter, &Descriptor::new("/v1/a")).is_allowed());
    for path in ["/v1//", "/v1///", "//v1//", "/v1/%2F"] {
        assert!(!ask(&limiter, &Descriptor::new(path)).is_allowed(), "{path}");
    }
}

#[test]
fn racing_threads_are_not_rejected_below_the_limit() {
    for algorithm in [Algorithm::SlidingLog, Algorithm::SlidingWindow, Algorithm::FixedWindow] {
        let limiter = RateLimiter::new(Quota::per_day(20_000).algorithm(algorithm)).unwrap();
        let rejected = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let rejections = 2_000 - admitted(&limiter, &Descriptor::new("/").tenant("acme"), 2_000);
                    rejected.fetch_add(rejections, Ordering::Relaxed);
                });
            }
        });
        assert_eq!(rejected.into_inner(), 0, "{algorithm}");
    }
}

#[test]
fn a_tenant_in_a_path_matches_in_any_case_if_case_is_ignored() {
    let rule = Rule::new("org").path("/{org}/x").tenant_param("org").tier(Quota::per_hour(1)).unlimited("ACME");
    let limiter = RateLimiter::new(Policy::new().ignore_case(true).rule(rule)).unwrap();
    assert_eq!(admitted(&limiter, &Descriptor::new("/Acme/x"), 3), 3);
    assert_eq!(admitted(&limiter, &Descriptor::new("/other/x"), 3), 1);
}

#[test]
fn windows_beyond_the_last_timestamp_have_separate_counters() {
    const YEAR: u64 = 365 * 86_400;
    let tier = |years| Quota::new(1_000, Duration::from_secs(years * YEAR)).algorithm(Algorithm::FixedWindow);
    let limiter = RateLimiter::new(Policy::new().rule(Rule::new("long").tier(tier(600)).tier(tier(700)))).unwrap();
    let decision = ask(&limiter, &Descriptor::new("/"));
    assert!(decision.tiers().iter().all(|tier| tier.remaining() == 999));
}

/// A backend that answers when the test notifies it, and records refunds.
#[derive(Debug, Default)]
struct SlowBackend {
    answer_now: Arc<Notify>,
    wait: Duration,
    refunded: Mutex<Vec<String>>,
}

impl Backend for SlowBackend {
    fn decide(&self, _: &Request<'_>) -> Decide {
        let (answer_now, wait) = (Arc::clone(&self.answer_now), self.wait);
        Decide::Later(Box::pin(async move {
            answer_now.notified().await;
            Ok(Outcome::admitted(wait))
        }))
    }

    fn refund(&self, receipt: &Receipt, _: Timestamp) {
        self.refunded
            .lock()
            .expect("a lock that is not poisoned")
            .extend(receipt.charges().map(|charge| charge.rule().to_owned()));
    }
}

#[tokio::test]
async fn the_policy_may_change_while_the_backend_decides() {
    let backend = Arc::new(SlowBackend { wait: Duration::from_secs(3_600), ..SlowBackend::default() });
    let rule = |id| Rule::new(id).tier(Quota::per_hour(1));
    let policy = Policy::new().rule(rule("first")).rule(rule("old").path("/old").max_wait(Duration::MAX));
    let limiter = RateLimiter::builder().policy(policy).backend(Arc::clone(&backend)).build().unwrap();
    let layer = RateLimitLayer::keyed(limiter.clone(), |_: &()| Descriptor::new("/old"));
    let mut service = layer.layer(service_fn(async |()| Ok::<_, Infallible>(())));
    let mut waiting = Box::pin(service.ready().await.unwrap().call(()));
    assert!(is_pending(&mut waiting));
    limiter.set_policy(Policy::new()).unwrap();
    backend.answer_now.notify_one();
    assert!(is_pending(&mut waiting));
    drop(waiting);
    assert_eq!(*backend.refunded.lock().unwrap(), ["first", "old"]);
}

#[tokio::test]
async fn a_shadow_rule_may_be_removed_while_the_backend_decides() {
    let backend = Arc::new(SlowBackend::default());
    let rule = |id| Rule::new(id).tier(Quota::per_hour(1));
    let policy = Policy::new().rule(rule("one")).rule(rule("shadow").shadow(true));
    let limiter = RateLimiter::builder().policy(policy).backend(Arc::clone(&backend)).build().unwrap();
    let request = Descriptor::new("/");
    let mut check = Box::pin(limiter.check(&request));
    assert!(is_pending(&mut check));
    limiter.set_policy(Policy::new()).unwrap();
    backend.answer_now.notify_one();
    assert!(is_pending(&mut check));
    backend.answer_now.notify_one();
    assert!(check.await.is_allowed());
}

#[tokio::test(start_paused = true)]
async fn a_waiting_request_holds_no_permit_of_the_inner_service() {
    let rule = Rule::new("paced").path("/paced").tier(Quota::per_hour(1)).max_wait(Duration::MAX);
    let limiter = RateLimiter::builder().policy(Policy::new().rule(rule)).clock(TokioClock::default()).build().unwrap();
    let layer = RateLimitLayer::keyed(limiter, |path: &&'static str| Descriptor::new(path));
    let inner = ConcurrencyLimit::new(service_fn(async |path: &'static str| Ok::<_, Infallible>(path)), 1);
    let service = layer.layer(inner);
    let call = async |path| service.clone().oneshot(path).await.unwrap();
    assert_eq!(call("/paced").await, "/paced");
    let mut waiting = Box::pin(call("/paced"));
    assert!(is_pending(&mut waiting));
    assert_eq!(call("/free").await, "/free");
    assert_eq!(waiting.await, "/paced");
}

#[tokio::test(start_paused = true)]
async fn a_charge_of_the_overflow_counter_is_not_refunded_to_another_counter() {
    let rule = Rule::new("paced")
        .path("/")
        .tier(Quota::per_minute(5).algorithm(Algorithm::AnchoredWindow))
        .max_wait(Duration::MAX);
    let held = Rule::new("held").path("/held").tier(Quota::concurrent(1));
    let local = Local::builder().max_keys(1).build();
    let limiter =
        RateLimiter::builder().policy(Policy::new().rule(rule).rule(held)).backend(local).clock(TokioClock::default());
    let limiter = limiter.build().unwrap();
    let layer = RateLimitLayer::keyed(limiter.clone(), |tenant: &&'static str| Descriptor::new("/").tenant(*tenant));
    let service = layer.layer(service_fn(async |tenant: &'static str| Ok::<_, Infallible>(tenant)));
    // The only entry is in flight, so the newcomer uses the overflow counter.
    let resident = limiter.acquire(&Descriptor::new("/held"), Duration::ZERO).await.unwrap();
    for _ in 0..5 {
        service.clone().oneshot("newcomer").await.unwrap();
    }
    let mut waiting: Vec<_> = (0..5).map(|_| Box::pin(service.clone().oneshot("newcomer"))).collect();
    for wait in &mut waiting {
        assert!(is_pending(wait));
    }
    drop(resident);
    tokio::time::advance(Duration::from_secs(61)).await;
    let newcomer = Descriptor::new("/").tenant("newcomer");
    assert_eq!(admitted(&limiter, &newcomer, 5), 5, "the newcomer has its own entry by now");
    drop(waiting);
    assert_eq!(admitted(&limiter, &newcomer, 5), 0);
}
