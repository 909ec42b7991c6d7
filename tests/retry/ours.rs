//! What our own limiter rejects.

use std::{error::Error, fmt};

use http::Method;
use tower::{BoxError, ServiceBuilder};
use tower_ratelimit::{
    MissingTenant, Quota, RateLimitLayer, RateLimited, RateLimitedKind, Retry, Rule, http::tenant, retry::RetryBudget,
};

use super::*;

/// Around the layer, as a client has it.
fn limited(
    policy: impl Into<Policy>,
    provider: &Provider,
) -> impl Service<Request<String>, Response = Answer, Error = BoxError> + Clone {
    RateLimitLayer::client(limiter(policy)).layer(provider.clone())
}

fn willing() -> Provider {
    Provider::rejecting(0, 200, &[])
}

#[tokio::test(start_paused = true)]
async fn whatever_the_method_it_is_sent_when_it_may_be() {
    for method in [Method::GET, Method::POST, Method::PATCH] {
        let provider = willing();
        let client = limited(Quota::new(1, seconds(20)), &provider);
        for _ in 0..3 {
            send(&client, &Retry::new(), request(method.clone())).await.unwrap();
        }
        assert_eq!(provider.sends(), 3, "{method}");
        let turn = seconds(20)..=seconds(22) + TIMER;
        assert!(provider.gaps().iter().all(|gap| turn.contains(gap)), "{method}: {:?}", provider.gaps());
    }
}

#[tokio::test(start_paused = true)]
async fn each_attempt_passes_the_limiter() {
    let provider = Provider::new(|_| Ok(answer(429, &[("retry-after", "1")])));
    let client = limited(Quota::per_hour(3), &provider);
    // The fourth attempt would have to wait for 20 minutes.
    let error = send(&client, &Retry::new(), get()).await.unwrap_err();
    assert_eq!(error.downcast_ref::<RateLimited>().unwrap().kind(), RateLimitedKind::QuotaExceeded);
    assert_eq!(provider.sends(), 3);
}

/// The provider's rejections hold the key back, for longer than the retry waits:
/// that takes nothing from what the provider may reject.
#[tokio::test(start_paused = true)]
async fn what_the_provider_rejects_is_held_back_and_tried_again_as_often() {
    let provider = Provider::rejecting(3, 429, &[("retry-after", "2")]);
    let client = limited(Quota::per_hour(1_000), &provider);
    let response = send(&client, &Retry::new(), get()).await.unwrap();
    assert_eq!((response.status().as_u16(), provider.sends()), (200, 4));
    assert!(provider.gaps().iter().all(|gap| *gap >= seconds(2)), "{:?}", provider.gaps());
}

#[tokio::test(start_paused = true)]
async fn a_post_that_was_sent_is_not_sent_again_though_we_rejected_it_before() {
    let provider = Provider::new(|n| Ok(answer(if n == 0 { 200 } else { 429 }, &[])));
    let client = limited(Quota::per_second(1), &provider);
    send(&client, &Retry::new(), request(Method::POST)).await.unwrap();
    let response = send(&client, &Retry::new(), request(Method::POST)).await.unwrap();
    assert_eq!((response.status().as_u16(), provider.sends()), (429, 2));
    assert_eq!(provider.sent()[1].attempt, Some(RetryAttempt(1)));
}

#[tokio::test(start_paused = true)]
async fn what_can_never_pass_is_not_tried_again() {
    let start = Instant::now();
    let provider = willing();
    let never = limited(Quota::per_second(0), &provider);
    let error = send(&never, &Retry::new(), get()).await.unwrap_err();
    assert_eq!(error.downcast_ref::<RateLimited>().unwrap().kind(), RateLimitedKind::NeverFits);

    let layer = RateLimitLayer::client(limiter(Quota::per_second(9)));
    let layer = layer.tenant(tenant::header("x-api-key")).on_missing_tenant(MissingTenant::Reject);
    let error = send(&layer.layer(provider.clone()), &Retry::new(), get()).await.unwrap_err();
    assert_eq!(error.downcast_ref::<RateLimited>().unwrap().kind(), RateLimitedKind::MissingTenant);
    assert_eq!((provider.sends(), start.elapsed()), (0, Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn a_limit_on_what_is_in_flight_names_no_time_and_is_backed_off_from() {
    let limiter = limiter(Quota::concurrent(1));
    let held = limiter.acquire(&tower_ratelimit::Descriptor::new("/").tenant("acme"), Duration::ZERO).await;
    let provider = willing();
    let client = RateLimitLayer::client(limiter.clone()).tenant(tenant::from_fn(|_| Some("acme")));
    let client = client.layer(provider.clone());
    let start = Instant::now();
    tokio::spawn(async move {
        tokio::time::sleep_until(start + Duration::from_millis(50)).await;
        drop(held);
    });
    // 20 draws of up to 10 s: that all fall into 50 ms is not to be feared.
    let retry = Retry::new().max_retries(20).backoff(seconds(10), seconds(10));
    send(&client, &retry, get()).await.unwrap();
    assert!((Duration::from_millis(50)..seconds(200)).contains(&start.elapsed()), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn it_is_found_among_the_sources_of_an_error() {
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
    let provider = willing();
    let client = limited(Quota::new(1, seconds(5)), &provider);
    let client = ServiceBuilder::new().map_err(|error| BoxError::from(Wrapped(Wrapped(error).into()))).service(client);
    for _ in 0..2 {
        send(&client, &Retry::new(), get()).await.unwrap();
    }
    assert!(provider.gaps()[0] >= seconds(5));
}

#[tokio::test(start_paused = true)]
async fn a_rejection_as_the_error_itself_is_one() {
    let provider = willing();
    let client = limited(Quota::new(1, seconds(5)), &provider);
    let client =
        ServiceBuilder::new().map_err(|error: BoxError| *error.downcast::<RateLimited>().unwrap()).service(client);
    for _ in 0..2 {
        RetryLayer::new(Retry::new()).layer(client.clone()).oneshot(get()).await.unwrap();
    }
    assert!(provider.gaps()[0] >= seconds(5));
}

#[tokio::test(start_paused = true)]
async fn an_error_that_names_itself_as_its_source_is_just_an_error() {
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
    let provider = Provider::new(|_| Err(Endless.into()));
    assert_eq!(send(&provider, &Retry::new(), get()).await.unwrap_err().to_string(), "endless");
    assert_eq!(provider.sends(), 1);
}

/// In place of an error, a response: the rejection stands in its extensions,
/// and says when to the nanosecond, where the header is in whole seconds.
#[tokio::test(start_paused = true)]
async fn as_a_response_it_is_ours_as_well() {
    let provider = willing();
    let client = RateLimitLayer::new(limiter(Quota::new(1, Duration::from_millis(2_100)))).layer(provider.clone());
    let client = RetryLayer::new(Retry::new().jitter(Duration::ZERO)).layer(client);
    for _ in 0..2 {
        let response = client.clone().oneshot(request(Method::POST)).await.unwrap();
        assert_eq!(response.status(), 200);
    }
    let turn = Duration::from_millis(2_100)..=Duration::from_millis(2_100) + TIMER;
    assert!(turn.contains(&provider.gaps()[0]), "{:?}", provider.gaps());
}

#[tokio::test(start_paused = true)]
async fn it_takes_nothing_from_the_budget() {
    let budget = RetryBudget::new().percent(0).per_second(0).reserve(1);
    let retry = Retry::new().budget(budget.clone());
    let provider = willing();
    let client = limited(Policy::new().rule(Rule::new("slow").tier(Quota::new(1, seconds(5)))), &provider);
    for _ in 0..10 {
        send(&client, &retry, get()).await.unwrap();
    }
    assert_eq!((provider.sends(), budget.left()), (10, 1));
}
