//! A retry storm is bounded.

use tokio::task::JoinSet;
use tower::retry::budget::TpsBudget;
use tower_ratelimit::{Quota, RateLimitLayer, Retry, http::Http, middleware::ErrorAnswer, retry::RetryBudget};

use super::*;

/// Sends so many requests at once, by clones of one policy.
async fn flood<S>(service: &S, retry: &Retry, requests: usize)
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
async fn a_storm_is_a_fifth_more_and_the_reserve() {
    let provider = Provider::new(|_| Ok(answer(429, &[])));
    let retry = Retry::new().budget(RetryBudget::new().per_second(0));
    for round in 1..=5 {
        flood(&provider, &retry, 1_000).await;
        let most = round * 1_200 + 100;
        assert!(provider.sends() <= most, "{} of {most}", provider.sends());
        // What is put in while the bucket is full, at first, is lost.
        assert!(provider.sends() >= round * 1_100, "{} in round {round}", provider.sends());
    }
}

#[tokio::test(start_paused = true)]
async fn by_default_a_few_more_a_second() {
    let provider = Provider::new(|_| Ok(answer(503, &[("retry-after", "1")])));
    let retry = Retry::new();
    let start = Instant::now();
    for _ in 0..10 {
        flood(&provider, &retry, 300).await;
    }
    let most = 3_000 * 120 / 100 + 100 + start.elapsed().as_millis() as usize * 5 / 1_000;
    assert!((3_100..=most).contains(&provider.sends()), "{} of {most}", provider.sends());
}

/// Not even where a good part of the requests are rejected by ourselves first,
/// and tried again for free.
#[tokio::test(start_paused = true)]
async fn our_own_rejections_do_not_make_it_more() {
    let provider = Provider::new(|_| Ok(answer(429, &[])));
    let limited =
        RateLimitLayer::with(limiter(Quota::per_second(200)), Http::client(), ErrorAnswer).layer(provider.clone());
    flood(&limited, &Retry::new().budget(RetryBudget::new().per_second(0)), 1_000).await;
    assert!((100..=1_300).contains(&provider.sends()), "{}", provider.sends());
}

#[tokio::test(start_paused = true)]
async fn what_is_spent_comes_back_with_time() {
    let provider = Provider::new(|_| Ok(answer(429, &[])));
    let retry = Retry::new().max_retries(1).budget(RetryBudget::new().percent(0).per_second(2).reserve(4));
    flood(&provider, &retry, 50).await;
    assert_eq!(provider.sends(), 54);
    tokio::time::advance(seconds(1)).await;
    flood(&provider, &retry, 50).await;
    assert_eq!(provider.sends(), 106);
}

#[tokio::test(start_paused = true)]
async fn what_is_not_retried_takes_nothing() {
    let budget = RetryBudget::new().percent(0).per_second(0).reserve(2);
    let retry = Retry::new().budget(budget.clone());
    for (status, headers) in [(200, &[][..]), (500, &[]), (429, &[("retry-after", "3600")])] {
        let provider = Provider::new(move |_| Ok(answer(status, headers)));
        send(&provider, &retry, get()).await.unwrap();
    }
    let provider = Provider::new(|_| Ok(answer(429, &[])));
    send(&provider, &retry, request(Method::POST)).await.unwrap();
    assert_eq!(budget.left(), 2);
    send(&provider, &retry, get()).await.unwrap();
    assert_eq!((budget.left(), provider.sends()), (0, 4));
}

#[tokio::test(start_paused = true)]
async fn retries_are_no_requests_that_earn_more() {
    let budget = RetryBudget::new().percent(100).per_second(0).reserve(2);
    let provider = Provider::new(|_| Ok(answer(429, &[])));
    send(&provider, &Retry::new().max_retries(100).budget(budget), get()).await.unwrap();
    // The first request found the bucket full.
    assert_eq!(provider.sends(), 3);
}

#[tokio::test(start_paused = true)]
async fn several_policies_share_one_and_towers_will_do() {
    let budget = RetryBudget::new().percent(0).per_second(0).reserve(3);
    let provider = Provider::new(|_| Ok(answer(429, &[])));
    for retry in [Retry::new().budget(budget.clone()), Retry::new().budget(budget)] {
        send(&provider, &retry, get()).await.unwrap();
    }
    assert_eq!(provider.sends(), 2 + 3);

    let provider = Provider::new(|_| Ok(answer(429, &[])));
    let retry = Retry::new().budget(TpsBudget::new(seconds(10), 0, 0.0));
    send(&provider, &retry, get()).await.unwrap();
    assert_eq!(provider.sends(), 1);
}
