//! The names that programs outside of this repository are written against. A
//! change that breaks this test breaks theirs.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use tower::{Layer, ServiceExt, service_fn};
use tower_ratelimit::{
    Algorithm, ConfigError, Decision, Descriptor, Dimension, FailureMode, Headers, MissingTenant, Policy, Quota,
    RateLimitLayer, RateLimited, RateLimitedKind, RateLimiter, Rule, Tenant, TierStatus, Verdict,
    backend::Local,
    http::{TrustedProxies, tenant},
    policy::Statuses,
    testing::{ManualClock, TokioClock},
    time::{SystemClock, Timestamp},
};

const QUOTAS: [Quota; 5] = [
    Quota::per_second(1),
    Quota::per_minute(2).burst(3),
    Quota::per_hour(4).algorithm(Algorithm::FixedWindow),
    Quota::per_day(5),
    Quota::new(6, Duration::from_secs(7)),
];

fn policy() -> Policy {
    let rule = Rule::new("get-product")
        .methods([Method::GET])
        .path("/v1/organizations/{org}/product/{id}")
        .tier(QUOTAS[0])
        .tier(QUOTAS[1])
        .per([Dimension::Tenant, Dimension::Endpoint, Dimension::Method])
        .tenant_param("org")
        .max_wait(Duration::ZERO)
        .cost(1)
        .plan("pro", [Quota::per_second(100)])
        .tenant("acme", [Quota::per_second(1_000)])
        .unlimited("internal")
        .fallback(false)
        .fair(false)
        .smooth(false)
        .settle(true)
        .charge_on(Statuses::CLIENT_ERRORS.and([200, 201]))
        .refund_on(StatusCode::NOT_FOUND)
        .shadow(false)
        .enabled(true)
        .on_backend_failure(FailureMode::Open);
    let other = Rule::new("other")
        .route("/health")
        .tier(QUOTAS[2])
        .tier(Quota::concurrent(100))
        .on_backend_failure(FailureMode::Closed);
    Policy::new().rule(rule).rule(other)
}

fn is_shared<T: Clone + Send + Sync + 'static>(_: &T) {}

#[tokio::test]
async fn the_limiter() -> Result<(), ConfigError> {
    let clock = ManualClock::new();
    clock.set(Timestamp::from_secs(1_700_000_000));
    let limiter = RateLimiter::builder().policy(policy()).backend(Local::new()).clock(clock.clone()).build()?;
    is_shared(&limiter);
    let request = Descriptor::new("/v1/organizations/o/product/7").method("GET").tenant("t").plan("free").cost(1);
    let decision: Decision = limiter.check(&request).await;
    assert_eq!(decision.verdict(), Verdict::Allow);
    assert!(decision.is_allowed());
    let _: (u64, u64, Duration, Option<Duration>, Duration) =
        (decision.limit(), decision.remaining(), decision.reset(), decision.retry_after(), decision.wait());
    let tier: &TierStatus = &decision.tiers()[0];
    assert_eq!((tier.rule(), &*tier.name()), ("get-product", "get-product-1s"));
    assert_eq!((tier.limit(), tier.window(), tier.remaining()), (1, Duration::from_secs(1), 0));
    assert_eq!(tier.reset(), Duration::from_secs(1));
    assert_eq!(limiter.check(&request).await.verdict(), Verdict::Deny);
    clock.advance(Duration::from_secs(1));
    assert!(limiter.check(&request).await.is_allowed());
    limiter.set_policy(Quota::per_second(1))?;
    let current: Arc<Policy> = limiter.policy();
    assert_eq!(*current, Policy::from(Quota::per_second(1)));
    let _ = RateLimiter::builder().policy(QUOTAS[3]).clock(SystemClock::new()).clock(TokioClock::default()).build()?;
    let _ = Local::builder().max_keys(10).build();
    let _ = Tenant::new("acme").plan("pro");
    Ok(())
}

#[tokio::test]
async fn the_layer() {
    let limiter = RateLimiter::new(Quota::per_hour(1)).expect("a valid policy");
    let layer = RateLimitLayer::new(limiter.clone())
        .tenant(
            tenant::header("x-api-key")
                .or(tenant::extension::<Tenant>())
                .or(tenant::from_fn(|request| request.headers().get("from").and(Some("somebody"))))
                .or(tenant::client_ip(TrustedProxies::cidrs(["10.0.0.0/8"]).expect("a valid network")))
                .or(tenant::peer_ip()),
        )
        .headers(Headers::default())
        .on_missing_tenant(MissingTenant::Anonymous)
        .on_rejected(|rejection: &RateLimited| {
            Response::builder()
                .status(420)
                .body(Full::new(Bytes::from(rejection.to_string())))
                .expect("a valid response")
        });
    let service =
        layer.layer(service_fn(async |_: Request<()>| Ok::<_, ConfigError>(Response::new(Full::<Bytes>::default()))));
    for status in [200, 420] {
        let response = service.clone().oneshot(Request::new(())).await.expect("the inner service does not fail");
        assert_eq!(response.status(), status);
    }

    let client = RateLimitLayer::client(limiter.clone());
    let service = client.layer(service_fn(async |_: Request<()>| Ok::<_, ConfigError>(Response::new(()))));
    let request = || Request::get("http://api.example/").body(()).expect("a valid request");
    service.clone().oneshot(request()).await.expect("within the limit");
    let error = service.oneshot(request()).await.expect_err("over the limit");
    let rejection: &RateLimited = error.downcast_ref().expect("the rejection");
    assert_eq!(rejection.kind(), RateLimitedKind::QuotaExceeded);
    assert!(rejection.retry_after().is_some() && rejection.decision().is_some());

    struct Job(String);
    let keyed = RateLimitLayer::keyed(limiter, |job: &Job| Descriptor::new(&job.0).tenant("somebody else"));
    let service = keyed.layer(service_fn(async |job: Job| Ok::<_, ConfigError>(job.0)));
    assert_eq!(service.clone().oneshot(Job("/a".into())).await.expect("within the limit"), "/a");
    assert!(service.oneshot(Job("/a".into())).await.expect_err("over the limit").is::<RateLimited>());
}
