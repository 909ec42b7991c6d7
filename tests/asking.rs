//! Asking what is left, forgetting what was used, and deciding without a future.
#![allow(clippy::unwrap_used)]

#[path = "asking/explain.rs"]
mod explain;

use std::{
    future::Future,
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tower::{Layer, Service};
use tower_ratelimit::{
    Backoff, Descriptor, Dimension, FailureMode, Policy, Quota, RateLimitLayer, RateLimitedKind, RateLimiter, Rule,
    backend::{Backend, Local, Share, Split},
    error::BackendErrorKind,
    testing::{Fault, FaultyBackend, ManualClock},
};

const HOUR: Duration = Duration::from_secs(3_600);

fn on(backend: impl Backend, policy: impl Into<Policy>) -> (RateLimiter, ManualClock) {
    let clock = ManualClock::new();
    (RateLimiter::builder().policy(policy).backend(backend).clock(clock.clone()).build().unwrap(), clock)
}

fn acme() -> Descriptor<'static> {
    Descriptor::new("/").tenant("acme")
}

#[tokio::test]
async fn a_peek_leaves_no_trace() {
    let in_flight = Rule::new("busy").path("/busy").tier(Quota::concurrent(1));
    let (limiter, _) = on(Local::new(), Policy::new().rule(in_flight).rule(Rule::new("r").tier(Quota::per_hour(1))));
    let before = limiter.stats();
    for path in ["/", "/busy"] {
        let seen = limiter.peek(&Descriptor::new(path).tenant("acme")).await;
        assert!(seen.is_allowed() && seen.wait().is_zero());
        assert_eq!((seen.limit(), seen.remaining()), (Some(1), Some(1)), "{path}");
    }
    assert_eq!(limiter.stats(), before, "no decision, no counter, no permit");
}

/// Each by itself, and whatever the other rules say.
#[tokio::test]
async fn a_peek_shows_shadow_rules() {
    let trial = |id: &str| Rule::new(id).shadow(true);
    let policy = Policy::new()
        .rule(Rule::new("r").tier(Quota::per_hour(2)))
        .rule(trial("strict").tier(Quota::per_hour(1)))
        .rule(trial("none").per([]).tier(Quota::concurrent(0)));
    for fault in [Fault::None, Fault::Slow] {
        let backend = FaultyBackend::new(Local::new());
        backend.set(fault);
        let (limiter, _) = on(backend, policy.clone());
        let expected = [(true, true), (true, false), (false, false)];
        for (checked, (is_allowed, is_strict_allowed)) in expected.into_iter().enumerate() {
            let before = limiter.stats();
            let seen = limiter.peek(&acme()).await;
            assert_eq!(limiter.stats(), before, "{fault:?}: it counts nothing");
            assert_eq!((seen.is_allowed(), seen.tiers().len()), (is_allowed, 1), "{fault:?}, {checked}");
            let [strict, none] = seen.shadows() else { panic!("{seen:?}") };
            assert_eq!((strict.is_allowed(), strict.remaining()), (is_strict_allowed, Some(1 - checked.min(1) as u64)));
            assert_eq!(strict.retry_after(), (!is_strict_allowed).then_some(HOUR));
            assert_eq!((none.tiers()[0].rule(), none.rejection()), ("none", Some(RateLimitedKind::NeverFits)));
            let decided = limiter.check(&acme()).await;
            assert_eq!(decided.shadows().len(), if is_allowed { 2 } else { 0 }, "{fault:?}: {decided:?}");
        }
    }
}

#[tokio::test]
async fn a_peek_says_when() {
    let rule = Rule::new("r").tier(Quota::per_hour(2)).tier(Quota::per_day(10));
    let (limiter, clock) = on(Local::new(), Policy::new().rule(rule));
    let twice = acme().cost(2);
    limiter.check(&twice).await;
    let (seen, decided) = (limiter.peek(&twice).await, limiter.check(&twice).await);
    assert_eq!((seen.rejection(), seen.retry_after()), (Some(RateLimitedKind::QuotaExceeded), Some(HOUR)));
    assert_eq!((seen.tiers(), decided.retry_after()), (decided.tiers(), Some(HOUR)));
    clock.advance(HOUR / 2);
    assert_eq!(limiter.peek(&twice).await.retry_after(), Some(HOUR / 2));
    assert!(limiter.peek(&acme()).await.is_allowed());
    assert_eq!(limiter.peek(&acme().cost(3)).await.rejection(), Some(RateLimitedKind::NeverFits));
}

#[tokio::test]
async fn a_peek_sees_units_in_flight_cooldowns_and_waiters() {
    let (limiter, _) = on(Local::new(), Quota::concurrent(1));
    let permit = limiter.acquire(&acme(), Duration::ZERO).await.unwrap();
    assert_eq!(limiter.peek(&acme()).await.rejection(), Some(RateLimitedKind::Concurrency));
    drop(permit);
    assert!(limiter.peek(&acme()).await.is_allowed());

    let (limiter, clock) = on(Local::new(), Quota::per_hour(10));
    limiter.cool_down(&acme(), HOUR);
    let seen = limiter.peek(&acme()).await;
    assert!(!seen.is_allowed() && seen.retry_after() >= Some(HOUR), "{seen:?}");
    assert_eq!(limiter.stats().rejected, 0);
    clock.advance(2 * HOUR);
    assert!(limiter.peek(&acme()).await.is_allowed());
}

/// At the cap, a key that another has displaced is as used as it was.
#[tokio::test]
async fn a_displaced_key_is_remembered_by_a_peek_and_forgotten_by_a_reset() {
    let mut limiters = (0..).map(|other| (on(Local::builder().max_keys(1).build(), Quota::per_hour(3)).0, other));
    // What is remembered of one key may be taken for another's, in so small a store.
    let limiter = loop {
        let (limiter, other) = limiters.next().unwrap();
        limiter.check(&acme().cost(3)).await;
        let is_admitted = limiter.check(&Descriptor::new("/").tenant(format!("other-{other}"))).await.is_allowed();
        if is_admitted && limiter.stats().backend.displaced == 1 {
            break limiter;
        }
    };
    let seen = limiter.peek(&acme()).await;
    assert_eq!((seen.is_allowed(), seen.remaining()), (false, Some(0)), "{seen:?}");
    limiter.reset(&acme()).await.unwrap();
    assert_eq!(limiter.peek(&acme()).await.remaining(), Some(3));
    assert_eq!(limiter.check(&acme()).await.remaining(), Some(2));
}

#[tokio::test]
async fn a_reset_concerns_every_rule_that_applies_and_no_unit_in_flight() {
    let policy = Policy::new()
        .rule(Rule::new("all").tier(Quota::per_hour(2)).tier(Quota::concurrent(1)))
        .rule(Rule::new("search").path("/search").tier(Quota::per_hour(1)))
        .rule(Rule::new("trial").path("/search").shadow(true).tier(Quota::per_hour(1)));
    for backend in [Box::new(Local::new()) as Box<dyn Backend>, Box::new(Split::new(Share::new(0, 1).unwrap()))] {
        let (limiter, _) = on(backend, policy.clone());
        let search = Descriptor::new("/search").tenant("acme");
        let held = limiter.acquire(&search, Duration::ZERO).await.unwrap();
        assert_eq!(limiter.reset(&search).await.unwrap(), 3, "the rates of all three rules");
        assert_eq!(limiter.reset(&search).await.unwrap(), 0, "forgotten already");
        assert_eq!(limiter.check(&search).await.rejection(), Some(RateLimitedKind::Concurrency), "in flight");
        drop(held);
        assert!(limiter.check(&search).await.is_allowed());
        assert_eq!(limiter.check(&search).await.rejection(), Some(RateLimitedKind::QuotaExceeded));
        assert_eq!((limiter.stats().permits, limiter.stats().shadow_rejected), (0, 0));
        limiter.reset(&search).await.unwrap();
        assert_eq!(limiter.stats().backend.keys, 1, "the concurrency limit's");
    }
}

/// As with the tenant of another extractor, or without the key that the layer finds.
#[tokio::test]
async fn a_reset_says_that_it_forgot_nothing_and_an_unknown_rule_is_an_error() {
    let per_device = Rule::new("devices").per([Dimension::key("device")]).tier(Quota::per_hour(1));
    let off = Rule::new("off").tier(Quota::per_hour(1)).enabled(false);
    let (limiter, _) = on(Local::new(), Policy::new().rule(per_device).rule(off));
    let phone = acme().key("device", "phone");
    assert!(limiter.check(&phone).await.is_allowed());
    for mistaken in [acme(), acme().key("device", "Phone"), acme().key("devices", "phone"), phone.clone().rule("off")] {
        assert_eq!(limiter.reset(&mistaken).await.unwrap(), 0, "{mistaken:?}");
    }
    assert!(limiter.peek(&phone.clone().rule("off")).await.is_allowed());
    let mistyped = phone.clone().rule("device");
    let error = limiter.reset(&mistyped).await.unwrap_err();
    assert_eq!((error.kind(), &*error.to_string()), (BackendErrorKind::UnknownRule, "the policy has no rule `device`"));
    assert_eq!(limiter.peek(&mistyped).await.rejection(), Some(RateLimitedKind::Misconfigured));
    assert_eq!(limiter.stats().rejected, 0, "no request was rejected");
    assert_eq!(limiter.reset(&phone.rule("devices")).await.unwrap(), 1);
}

#[tokio::test]
async fn failure_modes_answer_for_a_backend_that_fails() {
    for (mode, expected) in [
        (FailureMode::Open, None),
        (FailureMode::Closed, Some(RateLimitedKind::BackendUnavailable)),
        (FailureMode::Local, None),
    ] {
        let backend = FaultyBackend::new(Local::new());
        let rule = Rule::new("r").tier(Quota::per_hour(1)).on_backend_failure(mode);
        let (limiter, _) = on(backend.clone(), Policy::new().rule(rule));
        backend.set(Fault::Error(BackendErrorKind::Unavailable));
        assert_eq!(limiter.peek(&acme()).await.rejection(), expected, "{mode:?}");
        assert_eq!(limiter.reset(&acme()).await.unwrap_err().kind(), BackendErrorKind::Unavailable);
        if mode == FailureMode::Local {
            limiter.check(&acme()).await;
            assert_eq!(limiter.peek(&acme()).await.rejection(), Some(RateLimitedKind::QuotaExceeded));
            // The fallback limiter forgets, whether or not the backend can.
            limiter.reset(&acme()).await.unwrap_err();
            assert!(limiter.peek(&acme()).await.is_allowed());
        }
        assert_eq!(limiter.stats().rejected, 0);
    }
}

#[test]
fn decisions_in_this_process_need_no_future() {
    let policy = || {
        Policy::new().rule(Rule::new("r").tier(Quota::per_hour(1))).rule(Rule::new("busy").tier(Quota::concurrent(1)))
    };
    for backend in [Box::new(Local::new()) as Box<dyn Backend>, Box::new(FaultyBackend::new(Local::new()))] {
        let (limiter, _) = on(backend, policy());
        assert!(limiter.try_check(&acme()).unwrap().is_allowed());
        assert_eq!(limiter.try_check(&acme()).unwrap().retry_after(), Some(HOUR));
        assert_eq!((limiter.stats().rejected, limiter.stats().permits), (1, 0));
    }
}

#[test]
fn decisions_of_a_remote_backend_need_one_and_charge_nothing_without() {
    let backend = FaultyBackend::new(Local::new());
    backend.set(Fault::Slow);
    let (limiter, _) = on(backend.clone(), Quota::per_hour(1));
    assert!(limiter.try_check(&acme()).is_none());
    assert_eq!((backend.requests(), limiter.stats().backend.keys), (0, 0));
}

/// No runtime: what need not wait is decided, and the rest is an error.
#[test]
fn waiting_without_a_runtime_is_an_error() {
    let mut context = Context::from_waker(Waker::noop());
    let mut acquire = |limiter: &RateLimiter| match pin!(limiter.acquire(&acme(), HOUR)).poll(&mut context) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("it waits"),
    };
    for quota in [Quota::per_hour(1), Quota::concurrent(1)] {
        let (limiter, _) = on(Local::new(), quota);
        let held = acquire(&limiter).unwrap();
        let error = acquire(&limiter).unwrap_err();
        assert_eq!((error.kind(), error.to_response().status().as_u16()), (RateLimitedKind::NoRuntime, 500));
        assert!(error.to_string().contains("needs a Tokio runtime"), "{error}");
        assert_eq!(limiter.stats().waiting, 0);
        held.refund();
        // Nothing of the request that could not wait is left.
        drop(acquire(&limiter).unwrap());
    }
}

#[test]
fn backing_off_without_a_runtime_is_an_error() {
    let (limiter, _) = on(Local::new(), Quota::per_hour(1));
    let backoff = Backoff::new(HOUR, HOUR);
    let acquire = || match pin!(backoff.acquire(&limiter, "pod-7", &acme(), 2 * HOUR))
        .poll(&mut Context::from_waker(Waker::noop()))
    {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("it waits"),
    };
    backoff.failed("pod-7");
    assert_eq!(acquire().unwrap_err().kind(), RateLimitedKind::NoRuntime);
    backoff.succeeded("pod-7");
    drop(acquire().unwrap());
}

#[test]
fn a_layer_without_a_runtime_answers_with_an_error() {
    let rule = Rule::new("r").tier(Quota::per_hour(1)).max_wait(HOUR);
    let (limiter, _) = on(Local::new(), Policy::new().rule(rule));
    let inner = tower::service_fn(async |_: http::Request<()>| {
        Ok::<_, std::convert::Infallible>(http::Response::new(String::new()))
    });
    let mut service = RateLimitLayer::new(limiter).layer(inner);
    let mut context = Context::from_waker(Waker::noop());
    for status in [200, 500] {
        let Poll::Ready(Ok(response)) = pin!(service.call(http::Request::new(()))).poll(&mut context) else {
            panic!("it waits");
        };
        assert_eq!(response.status(), status);
    }
}
