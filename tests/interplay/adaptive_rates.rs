//! Adaptive rates beside other limits, cooldowns and messages of a stream.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tokio::time::Instant;
use tower::{Layer, ServiceExt, service_fn};
use tower_ratelimit::{
    AdaptiveRate, Policy, Quota, RateLimitLayer, Rule, backend::Local, policy::Messages, tenant, testing::FaultyBackend,
};

use super::{MILLI, SECOND, admission_times, arrives, by, limiter, on, shared};

/// A request that waits for its own limit is at the head of the shared rate's
/// queue, although that rate would admit it and all others.
#[tokio::test(start_paused = true)]
async fn a_request_delayed_by_its_own_limit_blocks_no_other_at_an_adaptive_rate() {
    let adapt = AdaptiveRate::between(Quota::per_second(1), Quota::per_second(1_000)).start(Quota::per_second(100));
    let policy =
        Policy::new().rule(shared("upstream").adaptive_rate(adapt)).rule(Rule::new("own").tier(Quota::per_hour(1)));
    let limiter = limiter(policy);
    let _permit = limiter.acquire(&by("acme"), Duration::ZERO).await.unwrap();
    tokio::time::advance(SECOND).await;
    let waits = tokio::spawn(arrives(&limiter, "acme", SECOND * 7_200));
    tokio::time::advance(SECOND).await;
    let other = limiter.acquire(&by("other"), SECOND * 60).await;
    assert!(other.is_ok(), "both its limits are free: {other:?}");
    waits.abort();
}

/// A thousand a second, and a tenth of it after a rejection.
fn steep() -> AdaptiveRate {
    AdaptiveRate::between(Quota::per_second(1), Quota::per_second(1_000)).start(Quota::per_second(1_000)).decrease(0.1)
}

/// A rejection starts a cooldown and lowers the rate. After the cooldown, requests
/// are admitted at the lowered rate.
#[tokio::test(start_paused = true)]
async fn a_request_of_a_cooldown_is_admitted_at_the_current_adaptive_rate() {
    let (rule, call) = (shared("upstream").adaptive_rate(steep()), by("acme"));
    let limiter = on(FaultyBackend::new(Local::new()), Policy::new().rule(rule));
    let sent = limiter.check(&call).await;
    assert!(sent.is_allowed());
    limiter.cool_down(&call, SECOND * 10);
    let end = Instant::now() + limiter.cooldown(&call).unwrap();
    let tasks = admission_times(&limiter, 40, SECOND * 60);
    limiter.report_rejection(&call, &sent);
    let rate = limiter.adaptive_rates(&call)[0].rate();
    assert!(rate <= 100.0, "{rate}");
    let mut at_once = 0;
    for task in tasks {
        at_once += usize::from(task.await.unwrap() <= end + MILLI * 45);
    }
    assert!(at_once <= 8, "{at_once} in 45 ms, at {rate} a second");
}

/// Messages of a stream that began before the rejection, too.
#[tokio::test(start_paused = true)]
async fn messages_are_charged_at_the_current_adaptive_rate() {
    let rule = shared("upstream").adaptive_rate(steep()).per_message(Messages::Server).max_wait(SECOND * 60);
    let (limiter, call) = (limiter(Policy::new().rule(rule)), by("acme"));
    let sent = limiter.check(&call).await;
    tokio::time::advance(SECOND).await;
    let layer = RateLimitLayer::new(limiter.clone()).tenant(tenant::header("x-api-key"));
    let service = layer.layer(service_fn(|_: Request<()>| async {
        let messages = (0..40).map(|_| Ok::<_, std::convert::Infallible>(Frame::data(Bytes::from_static(&[0; 5]))));
        let response = Response::builder().header("content-type", "application/grpc");
        Ok::<_, std::convert::Infallible>(response.body(StreamBody::new(tokio_stream::iter(messages))).unwrap())
    }));
    let request = Request::post("/").header("content-type", "application/grpc").header("x-api-key", "acme");
    let response = service.oneshot(request.body(()).unwrap()).await.unwrap();
    limiter.report_rejection(&call, &sent);
    let rate = limiter.adaptive_rates(&call)[0].rate();
    assert!(rate <= 100.0, "{rate}");
    let start = Instant::now();
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes().len(), 200);
    let took = start.elapsed();
    assert!(took >= MILLI * 350, "39 messages in {took:?}, at {rate} a second");
}

/// Each rule bounds the wait for its own limit.
#[tokio::test(start_paused = true)]
async fn an_adaptive_rate_does_not_bound_the_wait_for_another_limit() {
    let adapt = AdaptiveRate::between(Quota::per_second(1), Quota::per_second(1_000)).start(Quota::per_second(100));
    let upstream = shared("upstream").adaptive_rate(adapt).max_wait(SECOND * 10);
    let own = Rule::new("own").tier(Quota::per_minute(1)).max_wait(SECOND * 120);
    let limiter = limiter(Policy::new().rule(upstream).rule(own));
    drop(limiter.acquire(&by("acme"), Duration::MAX).await.unwrap());
    tokio::time::advance(SECOND).await;
    let outcome = limiter.acquire(&by("acme"), Duration::MAX).await;
    assert!(outcome.is_ok(), "a minute for its own limit, and nothing for the upstream's: {outcome:?}");
}
