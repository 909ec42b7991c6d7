//! The public contract: names that programs outside this repository compile
//! against. A change that breaks this test breaks those programs.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::Full;
use tower::{Layer, ServiceExt, service_fn};
use tower_ratelimit::{
    AdaptiveRate, AdaptiveRateStatus, Algorithm, BackendError, ChargeHandle, ConfigError, Consistency, Decision,
    Descriptor, Dimension, FailureMode, Headers, MissingTenant, Permit, Policy, Priority, Quota, RateLimitLayer,
    RateLimited, RateLimitedKind, RateLimiter, RetryPolicy, Rule, Tenant, TierStatus, TopTenant, Verdict,
    backend::{Local, Share, Split},
    cost,
    descriptor::Deadline,
    headers::parse::{Parser, Signal},
    limiter::Explanation,
    middleware::{Rejection, UpstreamFeedback},
    overload::{self, Overload},
    policy::{Messages, Statuses},
    priority,
    tenant::{self, TrustedProxies},
    testing::{ManualClock, TokioClock},
    time::{SystemClock, Timestamp},
};

const QUOTAS: [Quota; 6] = [
    Quota::per_second(1),
    Quota::per_minute(2).burst(3),
    Quota::per_hour(4).algorithm(Algorithm::FixedWindow),
    Quota::per_day(5),
    Quota::new(6, Duration::from_secs(7)),
    Quota::per_month(8),
];

fn policy() -> Policy {
    let rule = Rule::new("get-product")
        .methods([Method::GET])
        .path("/v1/organizations/{org}/product/{id}")
        .tier(QUOTAS[0])
        .tier(QUOTAS[1])
        .per([Dimension::Tenant, Dimension::Endpoint, Dimension::Method])
        .tenant_from_path("org")
        .max_wait(Duration::ZERO)
        .cost(1)
        .plan("pro", [Quota::per_second(100)])
        .tenant("acme", [Quota::per_second(1_000)])
        .plan_unlimited("staff")
        .tenant_unlimited("internal")
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
    let adaptive = Rule::new("adaptive")
        .path("/adaptive")
        .adaptive_rate(AdaptiveRate::between(Quota::per_second(1), Quota::per_second(10)))
        .upstream_feedback(false)
        .on_backend_failure(FailureMode::Local)
        .local_share(0.5);
    let stream = Rule::new("stream").path("/shop.v1.Products/List").tier(QUOTAS[3]).per_message(Messages::Server);
    Policy::new().rule(rule).rule(other).rule(adaptive).rule(stream)
}

/// What rules have beside that.
fn other_policy() -> Policy {
    let tokens = Rule::new("tokens")
        .path("/v1/chat")
        .header("mcp-method", ["tools/call"])
        .unit("tokens")
        .tier(QUOTAS[5])
        .settle(true)
        .consistency(Consistency::Leased)
        .sync_interval(Duration::from_millis(100));
    let addresses = Rule::new("addresses")
        .per([Dimension::key("ip")])
        .tier(Quota::per_minute(300))
        .priorities([Priority::Low, Priority::Normal, Priority::High, Priority::Critical])
        .reserve(Priority::Critical, 0.2)
        .consistency(Consistency::Exact)
        .status(StatusCode::SERVICE_UNAVAILABLE);
    let exports = Rule::new("exports").path("/export/*").tier(Quota::adaptive_concurrency(5..=200));
    let health = Rule::new("health").path("/healthz").exempt(true);
    let load = Overload::new()
        .signal(overload::cpu(), 0.85)
        .signal(overload::scheduling_delay(), 0.02)
        .signal(|| 0.1_f64, 0.5);
    Policy::new().rule(tokens).rule(addresses).rule(exports).rule(health).overload(load)
}

fn assert_shared<T: Clone + Send + Sync + 'static>(_: &T) {}

#[tokio::test]
async fn the_limiter_keeps_its_contract() -> Result<(), ConfigError> {
    let clock = ManualClock::new();
    clock.set(Timestamp::from_secs(1_700_000_000));
    let limiter = RateLimiter::builder().policy(policy()).backend(Local::new()).clock(clock.clone()).build()?;
    assert_shared(&limiter);
    let request = Descriptor::new("/v1/organizations/o/product/7").method("GET").tenant("t").plan("free").cost(1);
    let decision: Decision = limiter.check(&request).await;
    assert_eq!(decision.verdict(), Verdict::Allow);
    assert!(decision.is_allowed());
    let _: (Option<u64>, Option<u64>, Duration, Option<Duration>, Duration) =
        (decision.limit(), decision.remaining(), decision.reset(), decision.retry_after(), decision.wait());
    let tier: &TierStatus = &decision.tiers()[0];
    assert_eq!((tier.rule(), &*tier.name()), ("get-product", "get-product-1s"));
    assert_eq!((tier.limit(), tier.window(), tier.remaining()), (1, Duration::from_secs(1), 0));
    assert_eq!(tier.reset(), Duration::from_secs(1));
    assert_eq!(limiter.check(&request).await.verdict(), Verdict::Reject);
    clock.advance(Duration::from_secs(1));
    assert!(limiter.check(&request).await.is_allowed());
    assert!(limiter.check_key("acme").await.limit().is_none(), "no rule applies");
    limiter.set_policy(Quota::per_second(1))?;
    let current: Arc<Policy> = limiter.policy();
    assert_eq!(*current, Policy::from(Quota::per_second(1)));
    let _ = RateLimiter::builder().policy(QUOTAS[3]).clock(SystemClock::new()).clock(TokioClock::default()).build()?;
    let _ = Local::builder().max_keys(10).build();
    let _ = Tenant::new("acme").plan("pro");
    Ok(())
}

#[tokio::test]
async fn the_layer_keeps_its_contract() {
    let limiter = RateLimiter::new(Quota::per_hour(1)).expect("a valid policy");
    let layer = RateLimitLayer::new(limiter.clone())
        .tenant(
            tenant::header("x-api-key")
                .or(tenant::extension::<Tenant>())
                .or(tenant::from_fn(|request| request.headers().get("from").and(Some("acme"))))
                .or(tenant::client_ip(TrustedProxies::cidrs(["10.0.0.0/8"]).expect("a valid network")))
                .or(tenant::peer_ip()),
        )
        .headers(Headers::default())
        .on_missing_tenant(MissingTenant::Anonymous)
        .on_rejected(|rejection: &Rejection<'_>| {
            Response::builder()
                .status(420)
                .body(Full::new(Bytes::from(rejection.error().to_string())))
                .expect("a valid response")
        });
    let service =
        layer.layer(service_fn(async |_: Request<()>| Ok::<_, ConfigError>(Response::new(Full::<Bytes>::default()))));
    for status in [200, 420] {
        let response = service.clone().oneshot(Request::new(())).await.expect("the inner service never fails");
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
    let keyed = RateLimitLayer::keyed(limiter, |job: &Job| Descriptor::new(&job.0).tenant("initech"));
    let service = keyed.layer(service_fn(async |job: Job| Ok::<_, ConfigError>(job.0)));
    assert_eq!(service.clone().oneshot(Job("/a".into())).await.expect("within the limit"), "/a");
    assert!(service.oneshot(Job("/a".into())).await.expect_err("over the limit").is::<RateLimited>());
}

#[tokio::test]
async fn a_handler_settles_its_charge() {
    let rule = Rule::new("settled").tier(Quota::per_hour(10)).settle(true);
    let limiter = RateLimiter::new(Policy::new().rule(rule)).expect("a valid policy");
    for (headers, sends_limit) in [(Headers::NONE, false), (Headers::X_RATELIMIT, true), (Headers::ALL, true)] {
        let layer = RateLimitLayer::new(limiter.clone()).headers(headers);
        let service = layer.layer(service_fn(async |request: Request<()>| {
            let charge: &ChargeHandle = request.extensions().get().expect("a charge to settle");
            charge.add(2);
            charge.give_back(3);
            Ok::<_, ConfigError>(Response::new(()))
        }));
        let response = service.oneshot(Request::new(())).await.expect("the inner service never fails");
        assert_eq!(response.headers().contains_key("x-ratelimit-limit"), sends_limit);
    }
    assert_eq!(limiter.stats().keys(), 1);
}

#[test]
fn upstream_feedback_is_read_from_a_response() {
    let mut response = HeaderMap::new();
    response.insert("retry-after", "30".parse().expect("a valid header"));
    let signal: Signal = Parser::new().read(StatusCode::TOO_MANY_REQUESTS, &response, Timestamp::from_secs(0));
    assert_eq!((signal.cooldown(), signal.is_rejection()), (Some(Duration::from_secs(30)), true));
}

#[tokio::test]
async fn a_client_keeps_its_contract() {
    let rule = Rule::new("api").tier(Quota::per_hour(1));
    let split = Split::new(Share::new(0, 1).expect("a valid share"));
    let limiter =
        RateLimiter::builder().policy(Policy::new().rule(rule)).backend(split).build().expect("a valid policy");
    let feedback = UpstreamFeedback::new().default_cooldown(Duration::from_secs(1));
    let layer = RateLimitLayer::client(limiter.clone()).feedback(feedback).reject_with_response();
    let service = layer.layer(service_fn(async |_: Request<()>| Ok::<_, ConfigError>(Response::new(()))));
    let request = || Request::get("http://api.example/").body(()).expect("a valid request");
    for status in [200, 429] {
        assert_eq!(service.clone().oneshot(request()).await.expect("a response").status(), status);
    }

    let other = Descriptor::new("/").tenant("other");
    let permit: Permit = limiter.acquire(&other, Duration::ZERO).await.expect("within the limit");
    permit.report_success();
    permit.report_rejection();
    let adapted: Vec<AdaptiveRateStatus> = limiter.adaptive_rates(&other);
    assert!(adapted.is_empty());
    assert_eq!(limiter.cooldown(&other), None);
    limiter.cool_down(&other, Duration::from_secs(60));
    assert!(limiter.cooldown(&other).is_some());
}

#[tokio::test]
async fn an_operators_calls_keep_their_contract() -> Result<(), ConfigError> {
    {
        use Algorithm::{
            AnchoredWindow, Concurrency, FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket,
        };
        let buckets_and_windows = [TokenBucket, LeakyBucket, FixedWindow, AnchoredWindow, SlidingWindow, SlidingLog];
        assert_eq!(Algorithm::ALL.split_last(), Some((&Concurrency, &buckets_and_windows[..])));
    }
    assert!(Priority::Low < Priority::Normal && Priority::High < Priority::Critical);
    assert_eq!(Priority::default(), Priority::Normal);
    RateLimiter::new(other_policy())?;

    let limiter = RateLimiter::builder().policy(policy()).max_waiters(100).build()?;
    let request = Descriptor::new("/v1/organizations/o/product/7")
        .method("GET")
        .tenant("t")
        .key("ip", "192.0.2.7")
        .priority(Priority::High)
        .cost_in("tokens", 10)
        .max_wait(Duration::from_secs(1));
    let tried: Option<Decision> = limiter.try_check(&request);
    assert!(tried.is_some_and(|decision| decision.is_allowed()));
    let peeked = limiter.peek(&request).await;
    assert_eq!((peeked.verdict(), peeked.rejection()), (Verdict::Reject, Some(RateLimitedKind::QuotaExceeded)));
    assert_eq!(peeked.binding().map(TierStatus::rule), Some("get-product"));
    let explained: Explanation = limiter.explain(&request).await;
    assert!(explained.to_string().contains("get-product"));
    let mut headers = HeaderMap::new();
    Headers::IETF.stamp(&mut headers, &peeked);
    assert!(headers.contains_key("ratelimit"));
    let forgotten: Result<u64, BackendError> = limiter.reset(&request).await;
    assert!(forgotten.is_ok_and(|counters| counters > 0));
    let rejection: RateLimited = {
        drop(limiter.acquire(&request, Duration::ZERO).await.expect("the usage was reset"));
        limiter.acquire(&request, Duration::ZERO).await.expect_err("used up")
    };
    let _: Response<_> = rejection.to_response();
    let top: Vec<TopTenant> = limiter.top(3);
    assert!(top.len() <= 3);
    limiter.drain().await;
    Ok(())
}

#[tokio::test]
async fn every_setting_of_a_layer_keeps_its_contract() -> Result<(), ConfigError> {
    let limiter = RateLimiter::new(Quota::per_hour(10))?;
    let layer = RateLimitLayer::new(limiter.clone())
        .tenant(tenant::extension::<Tenant>())
        .key("ip", tenant::peer_ip())
        .cost(cost::from_fn(|_| 2))
        .cost_in("tokens", cost::from_fn(|_| 10))
        .priority(priority::header("x-priority"))
        .headers(Headers::X_RATELIMIT)
        .skip(|head| head.uri().path() == "/healthz")
        .strict(false)
        .expose(true);
    let service = layer.layer(service_fn(async |request: Request<()>| {
        let decision: &Decision = request.extensions().get().expect("it is exposed");
        Ok::<_, ConfigError>(Response::new(decision.remaining()))
    }));
    let own = Tenant::new("acme")
        .plan("pro")
        .tiers([Quota::per_hour(7)])
        .tiers_for("search", [Quota::per_hour(3)])
        .priority(Priority::High);
    let mut request = Request::new(());
    request.extensions_mut().insert(own);
    request.extensions_mut().insert(Deadline::after(Duration::from_secs(1)));
    let response = service.oneshot(request).await?;
    assert_eq!(response.headers()["x-ratelimit-remaining"], "5");

    let named = RateLimitLayer::new(limiter).rule("search").priority(priority::from_fn(|_| Some(Priority::Low)));
    assert_shared(&named);
    assert_shared(&RetryPolicy::new().max_retries(2));
    assert_shared(&UpstreamFeedback::new().rejection_statuses([StatusCode::TOO_MANY_REQUESTS]));
    Ok(())
}

#[tokio::test]
async fn a_handler_charges_in_other_units() -> Result<(), ConfigError> {
    let rule = Rule::new("tokens").unit("tokens").tier(Quota::per_hour(10)).settle(true);
    let layer =
        RateLimitLayer::new(RateLimiter::new(Policy::new().rule(rule))?).cost_in("tokens", cost::from_fn(|_| 5));
    let service = layer.layer(service_fn(async |request: Request<()>| {
        let charge: &ChargeHandle = request.extensions().get().expect("a charge to settle");
        charge.add_in("tokens", 2);
        charge.give_back_in("tokens", 2);
        let is_refused: Result<(), RateLimited> = charge.try_add_in("tokens", 6).await;
        assert!(is_refused.is_err() && charge.try_add(1).await.is_ok());
        charge.try_add_in("tokens", 5).await.expect("what is left");
        Ok::<_, ConfigError>(Response::new(()))
    }));
    service.oneshot(Request::new(())).await?;
    Ok(())
}
