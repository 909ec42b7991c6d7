//! Handlers that charge more while their request is under way.

use std::time::Duration;

use axum::{Extension, Router, routing::post};
use http::{Method, StatusCode};
use tokio::task::JoinSet;
use tower_ratelimit::{
    ChargeHandle, Descriptor, Headers, Permit, Policy, Quota, RateLimitLayer, RateLimited, RateLimitedKind,
    RateLimiter, Rule,
    backend::Local,
    testing::{Fault, FaultyBackend},
};

use super::{
    common::{Caller, limiter},
    serve,
};

/// Adds the number in the body, and gives one back if it is odd.
async fn handle(Extension(charge): Extension<ChargeHandle>, body: String) -> Result<StatusCode, RateLimited> {
    let units: u64 = body.parse().unwrap();
    charge.try_add(units).await?;
    if units % 2 == 1 {
        charge.give_back(1);
    }
    Ok(if units == 8 { StatusCode::NOT_FOUND } else { StatusCode::OK })
}

async fn serving(limiter: RateLimiter) -> Caller {
    serve(Router::new().route("/", post(handle)).layer(RateLimitLayer::new(limiter))).await
}

fn tokens(limit: u64) -> Rule {
    Rule::new("tokens").tier(Quota::per_hour(limit)).tier(Quota::per_day(1_000)).settle(true)
}

async fn left(limiter: &RateLimiter) -> u64 {
    limiter.peek(&Descriptor::new("/").tenant(std::net::IpAddr::from([127, 0, 0, 1]))).await.remaining().unwrap()
}

#[tokio::test]
async fn units_are_added_within_the_limit_or_not_at_all() {
    let (limiter, _) = limiter(Policy::new().rule(tokens(20)));
    let server = serving(limiter.clone()).await;
    let add = async |units: &'static str| server.send(Method::POST, "/", &[], units.into()).await;
    assert_eq!(add("10").await.status, StatusCode::OK);
    assert_eq!(left(&limiter).await, 9);
    // One for the request, which stays charged, and none of the ten.
    let rejected = add("10").await;
    assert_eq!((rejected.status, rejected.trio()[..2].to_vec()), (StatusCode::TOO_MANY_REQUESTS, vec![20, 8]));
    assert_eq!(rejected.json()["violated-policies"], serde_json::json!(["tokens-1h"]));
    assert_eq!(left(&limiter).await, 8);
    // One of the seven is given back.
    assert_eq!(add("7").await.status, StatusCode::OK);
    assert_eq!(left(&limiter).await, 1);
    assert_eq!(add("0").await.status, StatusCode::OK);
    assert_eq!(left(&limiter).await, 0);
}

/// Another rule that has less left did not reject.
#[tokio::test]
async fn the_headers_of_a_rejection_are_those_of_the_rule_that_rejected() {
    for headers in [Headers::X_RATELIMIT, Headers::ALL, Headers::IETF_DRAFT_7.x_ratelimit(true)] {
        let requests = Rule::new("requests").tier(Quota::per_minute(7));
        let (limiter, _) = limiter(Policy::new().rule(requests).rule(tokens(20)));
        let layer = RateLimitLayer::new(limiter).headers(headers);
        let server = serve(Router::new().route("/", post(handle)).layer(layer)).await;
        let rejected = server.send(Method::POST, "/", &[], "30".into()).await;
        assert_eq!(rejected.status, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(rejected.trio()[..2], [20, 19], "{headers:?}");
        let admitted = server.send(Method::POST, "/", &[], "1".into()).await;
        assert_eq!(admitted.trio()[..2], [7, 5], "{headers:?}");
    }
}

#[tokio::test]
async fn a_status_that_is_not_charged_gives_back_what_was_added() {
    let (limiter, _) = limiter(Policy::new().rule(tokens(20).refund_on([404])));
    let server = serving(limiter.clone()).await;
    assert_eq!(server.send(Method::POST, "/", &[], "8".into()).await.status, StatusCode::NOT_FOUND);
    assert_eq!(left(&limiter).await, 20);
}

#[tokio::test]
async fn concurrency_limits_do_not_count_what_is_added() {
    let rule = Rule::new("both").tier(Quota::concurrent(2)).tier(Quota::per_hour(50)).tier(Quota::concurrent(3));
    let (limiter, _) = limiter(Policy::new().rule(rule.settle(true).refund_on([404])));
    let server = serving(limiter.clone()).await;
    for (units, remaining) in [("6", 43), ("3", 40), ("8", 40)] {
        server.send(Method::POST, "/", &[], units.into()).await;
        let seen = limiter.peek(&Descriptor::new("/").tenant(std::net::IpAddr::from([127, 0, 0, 1]))).await;
        let left: Vec<_> = seen.tiers().iter().map(|tier| tier.remaining()).collect();
        assert_eq!(left, [2, remaining, 3], "{units}");
    }
}

/// Many handlers at once never exceed the limit, on a backend that answers late too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn adding_is_atomic() {
    for fault in [Fault::None, Fault::Slow] {
        let backend = FaultyBackend::new(Local::new());
        backend.set(fault);
        let builder = RateLimiter::builder().policy(Policy::new().rule(tokens(100))).backend(backend);
        let limiter = builder.clock(tower_ratelimit::testing::ManualClock::new()).build().unwrap();
        let mut permits = Vec::new();
        for _ in 0..50 {
            permits.push(limiter.acquire(&Descriptor::new("/"), Duration::ZERO).await.unwrap());
        }
        let add = |permit: Permit| async move { permit.try_add(9).await.is_ok() };
        let tasks: JoinSet<_> = permits.into_iter().map(add).collect();
        let added = tasks.join_all().await.into_iter().filter(|added| *added).count();
        // The requests themselves leave fifty.
        assert_eq!(added, 5, "{fault:?}");
        assert_eq!(limiter.peek(&Descriptor::new("/")).await.remaining(), Some(5));
    }
}

#[tokio::test]
async fn a_reload_limits_what_is_added_from_then_on() {
    let (limiter, _) = limiter(Policy::new().rule(tokens(20)));
    let permit = limiter.acquire(&Descriptor::new("/"), Duration::ZERO).await.unwrap();
    limiter.set_policy(Policy::new().rule(tokens(5))).unwrap();
    assert_eq!(permit.try_add(8).await.unwrap_err().kind(), RateLimitedKind::NeverFits);
    permit.try_add(4).await.unwrap();
    assert_eq!(permit.try_add(1).await.unwrap_err().kind(), RateLimitedKind::QuotaExceeded);
    // Without the rule nothing limits it.
    limiter.set_policy(Policy::new()).unwrap();
    permit.try_add(1_000).await.unwrap();
    assert_eq!(limiter.stats().permits, 1);
    drop(permit);
    assert_eq!(limiter.stats().permits, 0);
}
