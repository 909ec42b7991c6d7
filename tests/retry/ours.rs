//! Rejections by our own limiter.

use std::{error::Error, fmt};

use http::Method;
use tower::{BoxError, ServiceBuilder};
use tower_ratelimit::{
    MissingTenant, Quota, RateLimitLayer, RateLimited, RateLimitedKind, RetryPolicy, Rule, retry::RetryBudget, tenant,
};

use super::*;

/// A client behind the layer.
fn limited(
    policy: impl Into<Policy>,
    upstream: &Upstream,
) -> impl Service<Request<String>, Response = Answer, Error = BoxError> + Clone {
    RateLimitLayer::client(limiter(policy)).layer(upstream.clone())
}

fn willing() -> Upstream {
    Upstream::rejecting(0, 200, &[])
}

#[tokio::test(start_paused = true)]
async fn our_own_rejections_are_retried_for_every_method() {
    for method in [Method::GET, Method::POST, Method::PATCH] {
        let upstream = willing();
        let client = limited(Quota::new(1, seconds(20)), &upstream);
        for _ in 0..3 {
            send(&client, &RetryPolicy::new(), request(method.clone())).await.unwrap();
        }
        assert_eq!(upstream.sends(), 3, "{method}");
        let slot = seconds(20)..=seconds(22) + TIMER;
        assert!(upstream.gaps().iter().all(|gap| slot.contains(gap)), "{method}: {:?}", upstream.gaps());
    }
}

#[tokio::test(start_paused = true)]
async fn each_attempt_passes_the_limiter() {
    let upstream = Upstream::new(|_| Ok(answer(429, &[("retry-after", "1")])));
    let client = limited(Quota::per_hour(3), &upstream);
    // The fourth attempt would have to wait for 20 minutes.
    let error = send(&client, &RetryPolicy::new(), get()).await.unwrap_err();
    assert_eq!(error.downcast_ref::<RateLimited>().unwrap().kind(), RateLimitedKind::QuotaExceeded);
    assert_eq!(upstream.sends(), 3);
}

/// The upstream's rejections put the key on a cooldown that is longer than the
/// retry's wait. Our rejections do not reduce the retries of the upstream's.
#[tokio::test(start_paused = true)]
async fn upstream_rejections_cool_down_and_are_retried_as_often() {
    let upstream = Upstream::rejecting(3, 429, &[("retry-after", "2")]);
    let client = limited(Quota::per_hour(1_000), &upstream);
    let response = send(&client, &RetryPolicy::new(), get()).await.unwrap();
    assert_eq!((response.status().as_u16(), upstream.sends()), (200, 4));
    assert!(upstream.gaps().iter().all(|gap| *gap >= seconds(2)), "{:?}", upstream.gaps());
}

#[tokio::test(start_paused = true)]
async fn a_sent_post_is_not_retried_even_after_our_own_rejection() {
    let upstream = Upstream::new(|n| Ok(answer(if n == 0 { 200 } else { 429 }, &[])));
    let client = limited(Quota::per_second(1), &upstream);
    send(&client, &RetryPolicy::new(), request(Method::POST)).await.unwrap();
    let response = send(&client, &RetryPolicy::new(), request(Method::POST)).await.unwrap();
    assert_eq!((response.status().as_u16(), upstream.sends()), (429, 2));
    assert_eq!(upstream.sent()[1].attempt, Some(RetryAttempt(1)));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_never_passes_is_not_retried() {
    let start = Instant::now();
    let upstream = willing();
    let never = limited(Quota::per_second(0), &upstream);
    let error = send(&never, &RetryPolicy::new(), get()).await.unwrap_err();
    assert_eq!(error.downcast_ref::<RateLimited>().unwrap().kind(), RateLimitedKind::NeverFits);

    let layer = RateLimitLayer::client(limiter(Quota::per_second(9)));
    let layer = layer.tenant(tenant::header("x-api-key")).on_missing_tenant(MissingTenant::Reject);
    let error = send(&layer.layer(upstream.clone()), &RetryPolicy::new(), get()).await.unwrap_err();
    assert_eq!(error.downcast_ref::<RateLimited>().unwrap().kind(), RateLimitedKind::MissingTenant);
    assert_eq!((upstream.sends(), start.elapsed()), (0, Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn a_concurrency_limit_names_no_time_and_is_backed_off() {
    let limiter = limiter(Quota::concurrent(1));
    let permit = limiter.acquire(&tower_ratelimit::Descriptor::new("/").tenant("acme"), Duration::ZERO).await;
    let upstream = willing();
    let client = RateLimitLayer::client(limiter.clone()).tenant(tenant::from_fn(|_| Some("acme")));
    let client = client.layer(upstream.clone());
    let start = Instant::now();
    tokio::spawn(async move {
        tokio::time::sleep_until(start + Duration::from_millis(50)).await;
        drop(permit);
    });
    // 20 draws of up to 10 s do not all fall into 50 ms.
    let retry = RetryPolicy::new().max_retries(20).backoff(seconds(10), seconds(10));
    send(&client, &retry, get()).await.unwrap();
    assert!((Duration::from_millis(50)..seconds(200)).contains(&start.elapsed()), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_rejection_is_found_among_the_sources_of_an_error() {
    #[derive(Debug)]
    struct Wrapped(BoxError);
    impl fmt::Display for Wrapped {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("wrapped")
        }
    }
    impl Error for Wrapped {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&*self.0)
        }
    }
    let upstream = willing();
    let client = limited(Quota::new(1, seconds(5)), &upstream);
    let client = ServiceBuilder::new().map_err(|error| BoxError::from(Wrapped(Wrapped(error).into()))).service(client);
    for _ in 0..2 {
        send(&client, &RetryPolicy::new(), get()).await.unwrap();
    }
    assert!(upstream.gaps()[0] >= seconds(5));
}

#[tokio::test(start_paused = true)]
async fn a_rejection_as_the_error_itself_is_one() {
    let upstream = willing();
    let client = limited(Quota::new(1, seconds(5)), &upstream);
    let client =
        ServiceBuilder::new().map_err(|error: BoxError| *error.downcast::<RateLimited>().unwrap()).service(client);
    for _ in 0..2 {
        RetryLayer::new(RetryPolicy::new()).layer(client.clone()).oneshot(get()).await.unwrap();
    }
    assert!(upstream.gaps()[0] >= seconds(5));
}

#[tokio::test(start_paused = true)]
async fn an_error_that_is_its_own_source_is_not_retried() {
    #[derive(Debug)]
    struct Endless;
    impl fmt::Display for Endless {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("endless")
        }
    }
    impl Error for Endless {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(self)
        }
    }
    let upstream = Upstream::new(|_| Err(Endless.into()));
    assert_eq!(send(&upstream, &RetryPolicy::new(), get()).await.unwrap_err().to_string(), "endless");
    assert_eq!(upstream.sends(), 1);
}

/// A response instead of an error: the rejection in its extensions is exact,
/// the header is in whole seconds.
#[tokio::test(start_paused = true)]
async fn a_rejection_as_a_response_is_ours_too() {
    let upstream = willing();
    let client = RateLimitLayer::new(limiter(Quota::new(1, Duration::from_millis(2_100)))).layer(upstream.clone());
    let client = RetryLayer::new(RetryPolicy::new().jitter(Duration::ZERO)).layer(client);
    for _ in 0..2 {
        let response = client.clone().oneshot(request(Method::POST)).await.unwrap();
        assert_eq!(response.status(), 200);
    }
    let slot = Duration::from_millis(2_100)..=Duration::from_millis(2_100) + TIMER;
    assert!(slot.contains(&upstream.gaps()[0]), "{:?}", upstream.gaps());
}

#[tokio::test(start_paused = true)]
async fn our_own_rejections_are_not_charged_to_the_budget() {
    let budget = RetryBudget::new().percent(0).per_second(0).reserve(1);
    let retry = RetryPolicy::new().budget(budget.clone());
    let upstream = willing();
    let client = limited(Policy::new().rule(Rule::new("slow").tier(Quota::new(1, seconds(5)))), &upstream);
    for _ in 0..10 {
        send(&client, &retry, get()).await.unwrap();
    }
    assert_eq!((upstream.sends(), budget.left()), (10, 1));
}
