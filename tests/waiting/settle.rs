//! Settlement: costs that are adjusted afterwards.

use std::time::Duration;

use http::{Request, Response, StatusCode};
use tokio::time::Instant;
use tower::{Layer, ServiceExt, service_fn};
use tower_ratelimit::{ChargeHandle, Dimension, Policy, Quota, RateLimitLayer, RateLimiter, Rule};

use super::{Caller, MILLI, SECOND, by, limiter};

fn tokens() -> RateLimiter {
    limiter(Policy::new().rule(Rule::new("tokens").tier(Quota::per_second(10)).settle(true)))
}

#[tokio::test(start_paused = true)]
async fn a_request_waits_until_a_debt_is_paid_back() {
    let limiter = tokens();
    let start = Instant::now();
    let permit = limiter.acquire(&by("acme"), Duration::ZERO).await.unwrap();
    permit.add(29);
    drop(permit);
    let rejected = limiter.acquire(&by("acme"), SECOND).await.unwrap_err();
    assert_eq!(rejected.retry_after(), Some(2_100 * MILLI), "a debt of 20 units, and one more unit");
    drop(limiter.acquire(&by("acme"), Duration::MAX).await.unwrap());
    assert_eq!(start.elapsed(), 2_100 * MILLI);
}

#[tokio::test(start_paused = true)]
async fn unused_units_are_given_back_once() {
    let limiter = tokens();
    let permit = limiter.acquire(&by("acme").cost(8), Duration::ZERO).await.unwrap();
    for _ in 0..5 {
        permit.give_back(3);
    }
    drop(permit);
    let permit = limiter.acquire(&by("acme").cost(10), Duration::ZERO).await.unwrap();
    permit.give_back(u64::MAX);
    permit.refund();
    assert!(limiter.acquire(&by("acme").cost(11), Duration::ZERO).await.is_err());
    drop(limiter.acquire(&by("acme").cost(10), Duration::ZERO).await.unwrap());
    assert!(limiter.acquire(&by("acme"), Duration::ZERO).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_debt_beyond_all_time_affects_no_other_key() {
    let limiter = tokens();
    let permit = limiter.acquire(&by("acme"), Duration::ZERO).await.unwrap();
    permit.add(u64::MAX);
    permit.add(u64::MAX);
    drop(permit);
    assert!(limiter.acquire(&by("acme"), Duration::from_secs(1_000_000)).await.is_err());
    assert!(limiter.acquire(&by("initech"), Duration::ZERO).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn only_rules_with_settlement_are_settled() {
    let policy = Policy::new()
        .rule(Rule::new("requests").per([Dimension::Tenant]).tier(Quota::per_hour(2)))
        .rule(Rule::new("tokens").per([Dimension::Tenant]).tier(Quota::per_hour(100)).settle(true))
        .rule(Rule::new("at-once").per([]).tier(Quota::concurrent(1)));
    let limiter = limiter(policy);
    let permit = limiter.acquire(&by("acme"), Duration::ZERO).await.unwrap();
    permit.add(98);
    let waits = Caller::arrive(&limiter, "acme", SECOND);
    drop(permit);
    let last = waits.outcome().await.unwrap();
    let left: Vec<_> = last.decision().tiers().iter().map(|tier| (tier.rule(), tier.remaining())).collect();
    assert_eq!(left, [("requests", 0), ("tokens", 0), ("at-once", 0)]);
}

#[tokio::test(start_paused = true)]
async fn charge_on_charges_only_the_given_statuses() {
    use http::StatusCode;
    let failures = Rule::new("failures").tier(Quota::per_day(2)).charge_on([StatusCode::UNAUTHORIZED]);
    let limiter = limiter(Policy::new().rule(failures));
    let tries = async |status| limiter.acquire(&by("acme"), Duration::ZERO).await.unwrap().finish(status);
    for _ in 0..10 {
        tries(StatusCode::OK).await;
    }
    tries(StatusCode::UNAUTHORIZED).await;
    for _ in 0..10 {
        tries(StatusCode::OK).await;
    }
    tries(StatusCode::UNAUTHORIZED).await;
    assert!(limiter.acquire(&by("acme"), Duration::ZERO).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_shadow_rule_charges_by_status() {
    let logins = Rule::new("logins").per([]).tier(Quota::per_day(2)).charge_on(StatusCode::UNAUTHORIZED);
    let count = async |shadow, status| {
        let limiter = limiter(Policy::new().rule(logins.clone().shadow(shadow)));
        let answers = service_fn(move |_: Request<()>| {
            let response = Response::builder().status(status).body(String::new()).unwrap();
            async { Ok::<_, std::convert::Infallible>(response) }
        });
        let service = RateLimitLayer::new(limiter.clone()).layer(answers);
        for _ in 0..10 {
            service.clone().oneshot(Request::new(())).await.unwrap();
        }
        assert_eq!(limiter.stats().permits, 0);
        (limiter.stats().rejected, limiter.stats().shadow_rejected)
    };
    assert_eq!(count(false, StatusCode::OK).await, (0, 0));
    assert_eq!(count(true, StatusCode::OK).await, (0, 0));
    assert_eq!(count(false, StatusCode::UNAUTHORIZED).await, (8, 0));
    assert_eq!(count(true, StatusCode::UNAUTHORIZED).await, (0, 8));
}

#[tokio::test(start_paused = true)]
async fn a_handler_settles_a_shadow_rule() {
    let tokens = Rule::new("tokens").per([]).tier(Quota::per_day(10)).settle(true).shadow(true);
    let limiter = limiter(Policy::new().rule(tokens));
    let (charges, mut charged) = tokio::sync::mpsc::unbounded_channel();
    let answers = service_fn(move |request: Request<()>| {
        charges.send(request.extensions().get::<ChargeHandle>().cloned()).unwrap();
        async { Ok::<_, std::convert::Infallible>(Response::new(String::new())) }
    });
    let service = RateLimitLayer::new(limiter.clone()).layer(answers);
    for _ in 0..2 {
        drop(service.clone().oneshot(Request::new(())).await.unwrap());
    }
    assert_eq!((limiter.stats().shadow_rejected, limiter.stats().permits), (0, 0));
    // The request has ended.
    charged.recv().await.unwrap().unwrap().add(8);
    service.clone().oneshot(Request::new(())).await.unwrap();
    assert_eq!(limiter.stats().shadow_rejected, 1, "ten of ten are spent");
    assert!(charged.recv().await.unwrap().is_some());
    // It was charged nothing, so nothing is refunded.
    charged.recv().await.unwrap().unwrap().give_back(10);
    drop(service.oneshot(Request::new(())).await.unwrap());
    assert_eq!(limiter.stats().shadow_rejected, 2, "ten of ten are spent still");
}

#[tokio::test(start_paused = true)]
async fn a_permit_settles_a_shadow_rule() {
    let tokens = Rule::new("tokens").per([]).tier(Quota::per_day(10)).tier(Quota::concurrent(5)).settle(true);
    let limiter = limiter(Policy::new().rule(tokens.shadow(true)));
    let acquire = async |cost| limiter.acquire(&by("acme").cost(cost), Duration::ZERO).await.unwrap();
    let permit = acquire(1).await;
    permit.add(9);
    drop(acquire(1).await);
    assert_eq!(limiter.stats().shadow_rejected, 1, "ten of ten are spent");
    permit.give_back(4);
    permit.refund();
    for rejected in [1, 1, 2] {
        drop(acquire(5).await);
        assert_eq!(limiter.stats().shadow_rejected, rejected);
    }
}
