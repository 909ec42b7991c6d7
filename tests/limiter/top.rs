//! The tenants with most units, most rejections and least left.

use std::time::Duration;

use tower_ratelimit::{
    Descriptor, Policy, Quota, RateLimitLayer, RateLimiter, Rule, TopTenant,
    backend::{Share, Split},
    error::BackendErrorKind,
    testing::{Fault, FaultyBackend, ManualClock, TokioClock},
};

use super::ask;

struct Bench {
    limiter: RateLimiter,
    clock: ManualClock,
}

impl Bench {
    fn new(policy: impl Into<Policy>) -> Self {
        let clock = ManualClock::new();
        let limiter = RateLimiter::builder().policy(policy).clock(clock.clone()).top_tenants(64).build().unwrap();
        Self { limiter, clock }
    }

    fn send(&self, path: &str, tenant: &str, cost: u64) {
        ask(&self.limiter, &Descriptor::new(path).tenant(tenant).cost(cost));
    }

    fn top(&self) -> Vec<(String, String, u64, u64, f64)> {
        self.limiter.top(10).iter().map(told).collect()
    }
}

fn told(top: &TopTenant) -> (String, String, u64, u64, f64) {
    let tenant = top.tenant.as_ref().map_or("-".to_owned(), |tenant| tenant.id().to_string());
    (top.rule.clone(), tenant, top.units, top.rejections, top.least_remaining)
}

fn row(rule: &str, tenant: &str, units: u64, rejections: u64, least: f64) -> (String, String, u64, u64, f64) {
    (rule.into(), tenant.into(), units, rejections, least)
}

#[test]
fn units_rejections_and_what_is_left_are_told_by_rule() {
    let bench = Bench::new(
        Policy::new()
            .rule(Rule::new("all").tier(Quota::per_hour(100)).tier(Quota::per_day(1_000)))
            .rule(Rule::new("search").path("/search").tier(Quota::per_hour(8)).cost(2)),
    );
    (0..3).for_each(|_| bench.send("/", "acme", 10));
    (0..5).for_each(|_| bench.send("/search", "initech", 1));
    // The fifth was rejected by the second rule only, and charged nothing.
    let expected =
        [row("all", "acme", 30, 0, 0.7), row("all", "initech", 4, 0, 0.96), row("search", "initech", 8, 1, 0.0)];
    assert_eq!(bench.top(), expected);
}

#[test]
fn nothing_is_counted_unless_asked_for() {
    let limiter = RateLimiter::new(Quota::per_hour(1)).unwrap();
    (0..3).for_each(|_| drop(ask(&limiter, &Descriptor::new("/").tenant("acme"))));
    assert!(limiter.top(10).is_empty());
    assert!(Bench::new(Quota::per_hour(1)).limiter.top(10).is_empty());
}

#[test]
fn counts_are_halved_each_minute_and_survive_a_reload() {
    let bench = Bench::new(Policy::new().rule(Rule::new("api").tier(Quota::per_hour(4))));
    (0..6).for_each(|_| bench.send("/", "acme", 1));
    let changed = Policy::new()
        .rule(Rule::new("api").tier(Quota::per_hour(400)))
        .rule(Rule::new("other").path("/other").tier(Quota::per_hour(4)));
    bench.limiter.set_policy(changed).unwrap();
    assert_eq!(bench.top(), [row("api", "acme", 4, 2, 0.0)]);
    bench.clock.advance(Duration::from_secs(60));
    assert_eq!(bench.top(), [row("api", "acme", 2, 1, 0.0)]);
    bench.limiter.set_policy(Policy::new().rule(Rule::new("other").tier(Quota::per_hour(4)))).unwrap();
    assert_eq!(bench.top(), []);
    bench.clock.advance(Duration::from_secs(3_600));
    bench.limiter.set_policy(Policy::new().rule(Rule::new("api").tier(Quota::per_hour(4)))).unwrap();
    assert_eq!(bench.top(), []);
}

#[test]
fn rules_without_tenants_tell_none_and_shadow_rules_what_they_would_do() {
    let bench = Bench::new(
        Policy::new()
            .rule(Rule::new("shared").tier(Quota::per_hour(10)).per([]))
            .rule(Rule::new("anonymous").path("/open").tier(Quota::per_hour(10)))
            .rule(Rule::new("trial").tier(Quota::per_hour(1)).shadow(true)),
    );
    (0..3).for_each(|_| bench.send("/", "acme", 1));
    ask(&bench.limiter, &Descriptor::new("/open"));
    let expected = [row("anonymous", "-", 1, 0, 0.9), row("trial", "acme", 1, 2, 0.0), row("trial", "-", 1, 0, 0.0)];
    let mut told = bench.top();
    told.sort_by(|one, other| (&one.0, &other.1).cmp(&(&other.0, &one.1)));
    assert_eq!(told, expected);
}

/// Also where the caller reads no decision, and where all charges of one tenant are counted
/// by endpoint.
#[tokio::test]
async fn a_layer_without_headers_counts_alike() {
    use tower::{Layer, Service, ServiceExt};
    use tower_ratelimit::{Dimension, Headers, tenant};

    let rule = Rule::new("api").path("/a").path("/b").per([Dimension::Tenant, Dimension::Endpoint]);
    let bench = Bench::new(Policy::new().rule(rule.tier(Quota::per_hour(4))));
    let layer = RateLimitLayer::new(bench.limiter.clone()).headers(Headers::NONE).tenant(tenant::header("x-tenant"));
    let answer = async |_: http::Request<()>| Ok::<_, std::convert::Infallible>(http::Response::new(String::new()));
    let mut service = layer.layer(tower::service_fn(answer));
    for path in ["/a", "/b", "/a", "/a"] {
        let request = http::Request::get(path).header("x-tenant", "acme").body(()).unwrap();
        service.ready().await.unwrap().call(request).await.unwrap();
    }
    assert_eq!(bench.top(), [row("api", "acme", 4, 0, 0.25)]);
}

/// Delays count as units, peeks and failures as nothing; other backends as `Local`.
#[tokio::test(start_paused = true)]
async fn every_way_to_be_admitted_counts_once() {
    let clock = TokioClock::default();
    let backend = FaultyBackend::new(Split::new(Share::new(0, 2).unwrap()));
    let builder = RateLimiter::builder().policy(Quota::per_second(4).burst(4)).clock(clock).backend(backend.clone());
    let limiter = builder.top_tenants(8).build().unwrap();
    let request = Descriptor::new("/").tenant("acme");
    for _ in 0..6 {
        limiter.peek(&request).await;
        drop(limiter.acquire(&request, Duration::from_secs(60)).await.unwrap());
    }
    assert!(limiter.stats().delayed > 0);
    backend.set(Fault::Error(BackendErrorKind::Unavailable));
    assert!(limiter.check(&request).await.is_allowed());
    assert_eq!(limiter.top(1).iter().map(|top| (top.units, top.rejections)).collect::<Vec<_>>(), [(6, 0)]);
}
