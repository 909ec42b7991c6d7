use std::time::Duration;

use tower_ratelimit::{
    Dimension, Policy, Quota, RateLimitedKind, RateLimiter, Rule, backend::Local, testing::FaultyBackend,
};

use super::{Caller, MILLI, SECOND, builder, by, limiter};

#[tokio::test(start_paused = true)]
async fn a_max_wait_of_zero_admits_now_or_rejects() {
    let limiter = limiter(Quota::per_second(2));
    for _ in 0..2 {
        assert!(limiter.acquire(&by("acme"), Duration::ZERO).await.is_ok());
    }
    let rejected = limiter.acquire(&by("acme"), Duration::ZERO).await.unwrap_err();
    assert_eq!(rejected.kind(), RateLimitedKind::QuotaExceeded);
    assert_eq!(rejected.retry_after(), Some(SECOND / 2));
}

#[tokio::test(start_paused = true)]
async fn a_wait_beyond_its_bound_is_rejected_at_once_and_charges_nothing() {
    let limiter = limiter(Quota::per_second(1));
    let start = tokio::time::Instant::now();
    drop(limiter.acquire(&by("acme"), SECOND).await.unwrap());
    for _ in 0..10 {
        let rejected = limiter.acquire(&by("acme"), SECOND - Duration::from_nanos(1)).await.unwrap_err();
        assert_eq!(rejected.retry_after(), Some(SECOND));
        assert_eq!(rejected.decision().unwrap().limit(), Some(1));
    }
    assert_eq!(start.elapsed(), Duration::ZERO);
    drop(limiter.acquire(&by("acme"), SECOND).await.unwrap());
    assert_eq!(start.elapsed(), SECOND);
}

#[tokio::test(start_paused = true)]
async fn the_longest_possible_wait_does_not_overflow() {
    let limiter = limiter(Quota::new(1, Duration::from_secs(86_400 * 365 * 200)));
    let mut waiters: Vec<_> = (0..5).map(|_| Caller::arrive(&limiter, "acme", Duration::MAX)).collect();
    assert!(!waiters[0].is_waiting());
    assert!(waiters[1].is_waiting(), "two hundred years");
    let rejected = waiters.pop().unwrap().outcome().await.unwrap_err();
    assert_eq!(rejected.kind(), RateLimitedKind::NeverFits, "after the end of time");
    tokio::time::advance(Duration::from_secs(86_400 * 365)).await;
    assert!(waiters[1].is_waiting());
}

#[tokio::test(start_paused = true)]
async fn a_request_that_never_fits_does_not_wait() {
    let limiter = limiter(Quota::per_second(10).burst(5));
    let rejected = limiter.acquire(&by("acme").cost(6), Duration::MAX).await.unwrap_err();
    assert_eq!((rejected.kind(), rejected.retry_after()), (RateLimitedKind::NeverFits, None));
    assert!(limiter.acquire(&by("acme").cost(5), Duration::ZERO).await.is_ok(), "and takes nothing");

    let closed = super::limiter(Quota::per_second(0));
    let rejected = closed.acquire(&by("acme"), Duration::MAX).await.unwrap_err();
    assert_eq!(rejected.kind(), RateLimitedKind::NeverFits);
}

#[tokio::test(start_paused = true)]
async fn a_rule_caps_the_wait_only_with_a_max_wait() {
    let rule = |id: &str| Rule::new(id).path(format!("/{id}")).tier(Quota::per_second(1));
    let policy = Policy::new()
        .rule(rule("unset"))
        .rule(rule("capped").max_wait(SECOND))
        .rule(rule("none").max_wait(Duration::ZERO));
    let limiter = limiter(policy);
    let waits = async |path: &str| {
        let descriptor = tower_ratelimit::Descriptor::new(path);
        let mut waits = 0;
        // Each one keeps its reservation, so that the next waits a second longer.
        let mut held = Vec::new();
        while waits < 4 {
            let mut acquiring = Box::pin(limiter.acquire(&descriptor, 3 * SECOND));
            let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
            match acquiring.as_mut().poll(&mut cx) {
                std::task::Poll::Ready(Err(_)) => break,
                std::task::Poll::Ready(Ok(_)) => {}
                std::task::Poll::Pending => {
                    held.push(acquiring);
                    waits += 1;
                }
            }
        }
        waits
    };
    assert_eq!((waits("/unset").await, waits("/capped").await, waits("/none").await), (3, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn the_waiter_limit_of_a_key_is_exact() {
    let limiter = builder(Quota::per_second(1)).max_waiters_per_key(3).build().unwrap();
    let mut waiters: Vec<_> = (0..4).map(|_| Caller::arrive(&limiter, "acme", Duration::MAX)).collect();
    assert_eq!(limiter.stats().waiting, 3);
    let rejected = limiter.acquire(&by("acme"), Duration::MAX).await.unwrap_err();
    assert_eq!((rejected.kind(), rejected.retry_after()), (RateLimitedKind::QueueFull, Some(4 * SECOND)));
    let too_short = limiter.acquire(&by("acme"), SECOND).await.unwrap_err();
    assert_eq!(too_short.kind(), RateLimitedKind::QuotaExceeded, "it would not have waited anyway");
    drop(Caller::arrive(&limiter, "initech", Duration::MAX).outcome().await.unwrap());
    let other = Caller::arrive(&limiter, "initech", Duration::MAX);
    assert_eq!(limiter.stats().waiting, 4, "each key has its own waiter limit");

    // A cancelled waiter makes way for another, and a rejection charges nothing.
    drop((other, waiters.pop()));
    let last = Caller::arrive(&limiter, "acme", Duration::MAX);
    let start = tokio::time::Instant::now();
    drop(last.outcome().await.unwrap());
    assert_eq!(start.elapsed(), 3 * SECOND);
    drop(waiters);
    assert_eq!(limiter.stats().waiting, 0);
}

#[tokio::test(start_paused = true)]
async fn the_total_waiter_limit_is_exact() {
    const TENANTS: [&str; 3] = ["a", "b", "c"];
    let limiter = builder(Quota::per_second(1)).max_waiters(2).build().unwrap();
    for tenant in TENANTS {
        drop(limiter.acquire(&by(tenant), Duration::ZERO).await.unwrap());
    }
    let mut waiters: Vec<_> = TENANTS.map(|tenant| Caller::arrive(&limiter, tenant, Duration::MAX)).into();
    let rejected = waiters.pop().unwrap().outcome().await.unwrap_err();
    assert_eq!(rejected.kind(), RateLimitedKind::QueueFull);
    assert!(waiters.iter_mut().all(Caller::is_waiting));
    for waiter in waiters {
        drop(waiter.outcome().await.unwrap());
    }
    assert_eq!(limiter.stats().waiting, 0, "admitted requests are not waiters");
    assert!(Caller::arrive(&limiter, "c", Duration::ZERO).outcome().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_hundred_thousand_requests_wait_at_once() {
    const WAITERS: usize = 100_000;
    let limiter = builder(Quota::per_second(10_000).burst(1)).max_waiters_per_key(WAITERS).build().unwrap();
    let start = tokio::time::Instant::now();
    drop(limiter.acquire(&by("acme"), Duration::ZERO).await.unwrap());
    let waiters: Vec<_> = (0..WAITERS).map(|_| Caller::arrive(&limiter, "acme", Duration::MAX)).collect();
    assert_eq!(limiter.stats().waiting, WAITERS);
    let rejected = limiter.acquire(&by("acme"), Duration::MAX).await.unwrap_err();
    assert_eq!(rejected.kind(), RateLimitedKind::QueueFull);
    for waiter in waiters {
        drop(waiter.outcome().await.unwrap());
    }
    assert_eq!((start.elapsed(), limiter.stats().waiting), (10 * SECOND, 0));
}

#[tokio::test(start_paused = true)]
async fn with_a_waiter_limit_of_zero_no_request_waits() {
    for limiter in [
        builder(Quota::per_second(1)).max_waiters(0).build().unwrap(),
        builder(Quota::per_second(1)).max_waiters_per_key(0).build().unwrap(),
    ] {
        drop(limiter.acquire(&by("acme"), Duration::MAX).await.unwrap());
        for _ in 0..5 {
            let rejected = limiter.acquire(&by("acme"), Duration::MAX).await.unwrap_err();
            assert_eq!((rejected.kind(), rejected.retry_after()), (RateLimitedKind::QueueFull, Some(SECOND)));
        }
        assert_eq!(limiter.stats().waiting, 0);
    }
}

#[test]
fn waiters_end_with_their_runtime() {
    let clock = tower_ratelimit::testing::ManualClock::new();
    let limiter = tower_ratelimit::RateLimiter::builder().policy(Quota::per_second(1)).clock(clock).build().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    for _ in 0..100 {
        let (limiter, sender) = (limiter.clone(), sender.clone());
        runtime.spawn(async move {
            let descriptor = by("acme");
            let mut acquiring = std::pin::pin!(limiter.acquire(&descriptor, Duration::MAX));
            let first = std::future::poll_fn(|cx| std::task::Poll::Ready(acquiring.as_mut().poll(cx).is_ready())).await;
            sender.send(first).unwrap();
            if !first {
                drop(acquiring.await.unwrap());
            }
        });
    }
    let first_polls = receiver.iter().take(100).filter(|first| *first).count();
    assert_eq!((first_polls, limiter.stats().waiting), (1, 99));
    runtime.shutdown_background();
    // Tasks are dropped by the threads that run them.
    let all_dropped = (0..1_000_000).any(|_| {
        std::thread::yield_now();
        limiter.stats().waiting == 0
    });
    assert!(all_dropped, "{} wait for ever", limiter.stats().waiting);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_counts_once_for_each_rule() {
    let policy = Policy::new()
        .rule(Rule::new("all").per([]).tier(Quota::per_second(1)))
        .rule(Rule::new("each").per([Dimension::Tenant]).tier(Quota::per_second(1)));
    let limiter = builder(policy).max_waiters_per_key(2).build().unwrap();
    let _waiters: Vec<_> = ["a", "b", "c"].map(|tenant| Caller::arrive(&limiter, tenant, Duration::MAX)).into();
    let rejected = Caller::arrive(&limiter, "d", Duration::MAX).outcome().await.unwrap_err();
    assert_eq!(rejected.kind(), RateLimitedKind::QueueFull, "all share a key");
    assert_eq!(limiter.stats().waiting, 2);
    tokio::time::advance(MILLI).await;
}

/// A full queue is no reason where the request would not wait so long anyway.
#[tokio::test(start_paused = true)]
async fn a_wait_beyond_its_bound_is_no_full_queue() {
    let backends: [Box<dyn Fn() -> RateLimiter>; 2] = [
        Box::new(|| builder(Quota::per_second(1)).max_waiters_per_key(1).build().unwrap()),
        Box::new(|| {
            let backend = FaultyBackend::new(Local::new());
            builder(Quota::per_second(1)).max_waiters_per_key(1).backend(backend).build().unwrap()
        }),
    ];
    for limiter in backends.map(|limiter| limiter()) {
        drop(limiter.acquire(&by("acme"), Duration::ZERO).await.unwrap());
        let mut waiter = Caller::arrive(&limiter, "acme", Duration::MAX);
        assert!(waiter.is_waiting());
        for (max_wait, kind) in [(SECOND, RateLimitedKind::QuotaExceeded), (3 * SECOND, RateLimitedKind::QueueFull)] {
            let rejected = limiter.acquire(&by("acme"), max_wait).await.unwrap_err();
            assert_eq!((rejected.kind(), rejected.retry_after()), (kind, Some(2 * SECOND)));
        }
    }
}
