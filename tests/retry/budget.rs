//! A retry storm is bounded.

use tokio::task::JoinSet;
use tower::retry::budget::TpsBudget;
use tower_ratelimit::{
    Quota, RateLimitLayer, RetryPolicy,
    middleware::{ErrorAnswer, Http},
    retry::RetryBudget,
};

use super::*;

/// Sends requests concurrently, by clones of one policy.
async fn flood<S>(service: &S, retry: &RetryPolicy, requests: usize)
where
    S: Service<Request<String>, Response = Answer, Error = BoxError, Future: Send> + Clone + Send + 'static,
{
    let mut calls = JoinSet::new();
    for _ in 0..requests {
        let service = RetryLayer::new(retry.clone()).layer(service.clone());
        calls.spawn(async move { drop(service.oneshot(get()).await) });
    }
    calls.join_all().await;
}

#[tokio::test(start_paused = true)]
async fn a_storm_retries_a_fifth_plus_the_reserve() {
    let upstream = Upstream::new(|_| Ok(answer(429, &[])));
    let retry = RetryPolicy::new().budget(RetryBudget::new().per_second(0));
    for round in 1..=5 {
        flood(&upstream, &retry, 1_000).await;
        let most = round * 1_200 + 100;
        assert!(upstream.sends() <= most, "{} of {most}", upstream.sends());
        // Deposits into the full bucket are lost at first.
        assert!(upstream.sends() >= round * 1_100, "{} in round {round}", upstream.sends());
    }
}

#[tokio::test(start_paused = true)]
async fn by_default_time_adds_retries() {
    let upstream = Upstream::new(|_| Ok(answer(503, &[("retry-after", "1")])));
    let retry = RetryPolicy::new();
    let start = Instant::now();
    for _ in 0..10 {
        flood(&upstream, &retry, 300).await;
    }
    let most = 3_000 * 120 / 100 + 100 + start.elapsed().as_millis() as usize * 5 / 1_000;
    assert!((3_100..=most).contains(&upstream.sends()), "{} of {most}", upstream.sends());
}

/// Not even if our own limiter rejects many requests first, whose retries are
/// free.
#[tokio::test(start_paused = true)]
async fn our_own_rejections_add_no_load() {
    let upstream = Upstream::new(|_| Ok(answer(429, &[])));
    let limited =
        RateLimitLayer::with(limiter(Quota::per_second(200)), Http::client(), ErrorAnswer).layer(upstream.clone());
    flood(&limited, &RetryPolicy::new().budget(RetryBudget::new().per_second(0)), 1_000).await;
    assert!((100..=1_300).contains(&upstream.sends()), "{}", upstream.sends());
}

#[tokio::test(start_paused = true)]
async fn spent_retries_come_back_with_time() {
    let upstream = Upstream::new(|_| Ok(answer(429, &[])));
    let retry = RetryPolicy::new().max_retries(1).budget(RetryBudget::new().percent(0).per_second(2).reserve(4));
    flood(&upstream, &retry, 50).await;
    assert_eq!(upstream.sends(), 54);
    tokio::time::advance(seconds(1)).await;
    flood(&upstream, &retry, 50).await;
    assert_eq!(upstream.sends(), 106);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_not_retried_is_not_charged_to_the_budget() {
    let budget = RetryBudget::new().percent(0).per_second(0).reserve(2);
    let retry = RetryPolicy::new().budget(budget.clone());
    for (status, headers) in [(200, &[][..]), (500, &[]), (429, &[("retry-after", "3600")])] {
        let upstream = Upstream::new(move |_| Ok(answer(status, headers)));
        send(&upstream, &retry, get()).await.unwrap();
    }
    let upstream = Upstream::new(|_| Ok(answer(429, &[])));
    send(&upstream, &retry, request(Method::POST)).await.unwrap();
    assert_eq!(budget.left(), 2);
    send(&upstream, &retry, get()).await.unwrap();
    assert_eq!((budget.left(), upstream.sends()), (0, 4));
}

#[tokio::test(start_paused = true)]
async fn retries_do_not_deposit() {
    let budget = RetryBudget::new().percent(100).per_second(0).reserve(2);
    let upstream = Upstream::new(|_| Ok(answer(429, &[])));
    send(&upstream, &RetryPolicy::new().max_retries(100).budget(budget), get()).await.unwrap();
    // The first request found the bucket full.
    assert_eq!(upstream.sends(), 3);
}

#[tokio::test(start_paused = true)]
async fn several_policies_share_a_budget_and_tower_budgets_work() {
    let budget = RetryBudget::new().percent(0).per_second(0).reserve(3);
    let upstream = Upstream::new(|_| Ok(answer(429, &[])));
    for retry in [RetryPolicy::new().budget(budget.clone()), RetryPolicy::new().budget(budget)] {
        send(&upstream, &retry, get()).await.unwrap();
    }
    assert_eq!(upstream.sends(), 2 + 3);

    let upstream = Upstream::new(|_| Ok(answer(429, &[])));
    let retry = RetryPolicy::new().budget(TpsBudget::new(seconds(10), 0, 0.0));
    send(&upstream, &retry, get()).await.unwrap();
    assert_eq!(upstream.sends(), 1);
}
