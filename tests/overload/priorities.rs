//! How much a request matters: who says so, and which rules are for it.

use std::convert::Infallible;

use http::{HeaderValue, Request, Response};
use metrics_exporter_prometheus::PrometheusBuilder;
use tower::{Layer as _, ServiceExt, service_fn};
use tower_ratelimit::{
    Decision, Descriptor, Policy, Priority, Quota, RateLimitLayer, RateLimiter, Rule, Tenant,
    priority::{self, PriorityExtractor},
    tenant,
};

/// Each class has a rule of its own, so a decision names the class.
fn by_class() -> Policy {
    Priority::ALL.iter().fold(Policy::new(), |policy, class| {
        let rule = Rule::new(class.as_str()).per([]).priorities([*class]).tier(Quota::per_day(1_000));
        policy.rule(rule.plan_priority("free", Priority::Low).tenant_priority("acme", Priority::Critical))
    })
}

fn limiter() -> RateLimiter {
    RateLimiter::new(by_class()).unwrap()
}

/// The rule that a request was charged by, which is its class.
async fn class(limiter: &RateLimiter, request: Descriptor<'_>) -> String {
    let decision = limiter.check(&request).await;
    assert_eq!(decision.tiers().len(), 1, "{decision:?}");
    decision.tiers()[0].rule().to_owned()
}

#[tokio::test]
async fn the_request_comes_before_its_tenant_and_that_before_the_plan() {
    let limiter = limiter();
    let request = || Descriptor::new("/");
    assert_eq!(class(&limiter, request()).await, "normal");
    assert_eq!(class(&limiter, request().tenant("other")).await, "normal");
    assert_eq!(class(&limiter, request().tenant("other").plan("free")).await, "low");
    assert_eq!(class(&limiter, request().tenant("acme").plan("free")).await, "critical");
    let tenant = || Tenant::new("other").plan("free").priority(Priority::High);
    assert_eq!(class(&limiter, request().tenant(tenant())).await, "high");
    assert_eq!(class(&limiter, request().tenant(tenant()).priority(Priority::Normal)).await, "normal");
}

/// The class of a request behind a layer with this extractor.
async fn seen(extractor: impl PriorityExtractor, request: Request<()>) -> String {
    let layer = RateLimitLayer::new(limiter()).tenant(tenant::header("x-api-key")).priority(extractor).expose(true);
    let handler = service_fn(async |request: Request<()>| {
        let decision = request.extensions().get::<Decision>().unwrap();
        Ok::<_, Infallible>(Response::builder().header("class", decision.tiers()[0].rule()).body(()).unwrap())
    });
    let response = layer.layer(handler).oneshot(request).await.unwrap();
    response.headers()["class"].to_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_header_names_the_class() {
    let request = |value: &str| Request::get("/").header("x-priority", value).body(()).unwrap();
    for (value, expected) in [("low", "low"), ("Critical", "critical"), (" high ", "high")] {
        assert_eq!(seen(priority::header("x-priority"), request(value)).await, expected);
    }
    assert_eq!(seen(priority::header("x-other"), request("low")).await, "normal");
}

/// Also one that is sent twice, or is no text.
#[tokio::test]
async fn an_unknown_class_is_normal_and_counted() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let mut request = Request::get("/").header("x-priority", "urgent").header("x-api-key", "acme").body(()).unwrap();
    assert_eq!(seen(priority::header("x-priority"), request.clone()).await, "normal", "whatever the tenant is");
    request.headers_mut().append("x-priority", HeaderValue::from_static("low"));
    assert_eq!(seen(priority::header("x-priority"), request.clone()).await, "normal");
    request.headers_mut().insert("x-priority", HeaderValue::from_bytes(b"\xff").unwrap());
    assert_eq!(seen(priority::header("x-priority"), request).await, "normal");
    let metrics = recorder.handle().render();
    assert!(metrics.contains("rate_limiting_priority_unknown 3"), "{metrics}");
}

#[tokio::test]
async fn an_extension_or_a_function_names_the_class() {
    #[derive(Clone)]
    struct Job;
    impl From<Job> for Priority {
        fn from(_: Job) -> Self {
            Self::Low
        }
    }
    let request = || Request::get("/export").extension(Job).extension(Priority::High).body(()).unwrap();
    assert_eq!(seen(priority::extension::<Priority>(), request()).await, "high");
    assert_eq!(seen(priority::extension::<Job>(), request()).await, "low");
    let by_path = priority::from_fn(|head| (head.uri().path() == "/export").then_some(Priority::Low));
    assert_eq!(seen(by_path, request()).await, "low");
    assert_eq!(seen(priority::from_fn(|_| Priority::Critical), request()).await, "critical");
}

/// The upstream serves the call as it was told, and the caller's own header stays.
#[tokio::test]
async fn a_client_passes_the_class_on() {
    let limiter = RateLimiter::new(Quota::per_day(1_000)).unwrap();
    let echo = service_fn(async |request: Request<()>| {
        let value = request.headers().get("x-priority").cloned();
        let mut response = Response::new(());
        value.into_iter().for_each(|value| drop(response.headers_mut().insert("x-priority", value)));
        Ok::<_, Infallible>(response)
    });
    let plain = RateLimitLayer::client(limiter);
    let client = plain.clone().priority(priority::header("x-priority"));
    let request = || Request::get("http://api.example/").extension(Priority::Critical);
    let sent = client.layer(echo).oneshot(request().body(()).unwrap()).await.unwrap();
    assert_eq!(sent.headers()["x-priority"], "critical");
    let sent = client.layer(echo).oneshot(request().header("x-priority", "low").body(()).unwrap()).await.unwrap();
    assert_eq!(sent.headers()["x-priority"], "low");
    let sent = plain.layer(echo).oneshot(request().body(()).unwrap()).await.unwrap();
    assert!(!sent.headers().contains_key("x-priority"));
}

/// A fallback rule stands in for what is not matched, and an exempt one ends it.
#[tokio::test]
async fn a_class_is_a_part_of_a_match() {
    let policy = Policy::new()
        .rule(Rule::new("probes").priorities([Priority::Critical]).exempt(true))
        .rule(Rule::new("exports").priorities([Priority::Low]).per([]).tier(Quota::per_day(1)))
        .rule(Rule::new("others").fallback(true).per([]).tier(Quota::per_day(2)));
    assert_eq!(policy.warnings(), []);
    let limiter = RateLimiter::new(policy).unwrap();
    let allowed = async |class| {
        let mut allowed = 0;
        for _ in 0..5 {
            allowed += usize::from(limiter.check(&Descriptor::new("/").priority(class)).await.is_allowed());
        }
        allowed
    };
    assert_eq!(allowed(Priority::Low).await, 1);
    assert_eq!(allowed(Priority::Normal).await, 2);
    assert_eq!(allowed(Priority::High).await, 0, "shares the fallback rule's counter");
    assert_eq!(allowed(Priority::Critical).await, 5);
}
