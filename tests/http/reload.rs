//! Policy reloads under traffic.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use http::StatusCode;
use tower_ratelimit::{Algorithm, Policy, Quota, RateLimitLayer, RateLimiter, Rule, tenant, testing::ManualClock};

use super::{common::limiter, limited};

fn hourly(limit: u64) -> Policy {
    let quota = Quota::per_hour(limit).algorithm(Algorithm::FixedWindow);
    Policy::new().rule(Rule::new("hourly").tier(quota))
}

#[tokio::test]
async fn mistake_9_a_reload_keeps_usage_and_headers_report_the_new_limit() {
    let (limiter, _) = limiter(hourly(10));
    let server = limited(RateLimitLayer::new(limiter.clone())).await;
    for left in [9, 8, 7] {
        assert_eq!(server.get("/").await.trio()[..2], [10, left]);
    }
    for (limit, status, trio) in [
        (20, StatusCode::OK, [20, 16]),
        (5, StatusCode::OK, [5, 0]),
        // A limit below usage only rejects.
        (2, StatusCode::TOO_MANY_REQUESTS, [2, 0]),
        (0, StatusCode::TOO_MANY_REQUESTS, [0, 0]),
        (6, StatusCode::OK, [6, 0]),
    ] {
        limiter.set_policy(hourly(limit)).unwrap();
        let reply = server.get("/").await;
        let reported = ["x-ratelimit-limit", "x-ratelimit-remaining"].map(|name| reply.integer(name));
        assert_eq!((reply.status, reported), (status, trio), "limit {limit}");
    }
}

#[tokio::test]
async fn an_invalid_policy_is_an_error_and_the_old_one_stays() {
    let (limiter, _) = limiter(hourly(2));
    let server = limited(RateLimitLayer::new(limiter.clone())).await;
    assert_eq!(server.get("/").await.trio()[1], 1);
    let bad = Policy::new().rule(Rule::new("hourly").tier(Quota::new(5, Duration::ZERO)));
    let error = limiter.set_policy(bad).unwrap_err();
    assert_eq!((error.rule(), error.key()), (Some("hourly"), "tiers[0].window"));
    assert_eq!(limiter.policy().as_ref(), &hourly(2));
    assert_eq!(server.get("/").await.trio()[..2], [2, 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_traffic_a_reload_neither_loses_nor_adds_counts() {
    const TENANTS: [&str; 4] = ["a", "b", "c", "d"];
    let limiter: RateLimiter = RateLimiter::builder().policy(hourly(30)).clock(ManualClock::new()).build().unwrap();
    let server = limited(RateLimitLayer::new(limiter.clone()).tenant(tenant::header("x-api-key"))).await;
    let admitted: [Arc<AtomicU64>; 4] = Default::default();
    let callers: Vec<_> = (0..8)
        .map(|caller| {
            let (server, admitted) = (server.clone(), Arc::clone(&admitted[caller % 4]));
            tokio::spawn(async move {
                for _ in 0..30 {
                    let status = server.get_as(TENANTS[caller % 4]).await.status;
                    assert!([StatusCode::OK, StatusCode::TOO_MANY_REQUESTS].contains(&status));
                    admitted.fetch_add(u64::from(status == StatusCode::OK), Ordering::SeqCst);
                }
            })
        })
        .collect();
    let mut reloads = 0;
    while !callers.iter().all(tokio::task::JoinHandle::is_finished) {
        let extra = Rule::new("extra").path(format!("/{reloads}")).tier(Quota::per_second(1));
        limiter.set_policy(hourly(30).rule(extra)).unwrap();
        reloads += 1;
        tokio::task::yield_now().await;
    }
    for caller in callers {
        caller.await.unwrap();
    }
    let admitted = admitted.each_ref().map(|count| count.load(Ordering::SeqCst));
    assert_eq!(admitted, [30; 4], "after {reloads} reloads");
    assert!(reloads > 1);
    let stats = limiter.stats();
    assert_eq!((stats.allowed, stats.rejected), (120, 120));
}
