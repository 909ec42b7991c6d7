//! What is shed, what passes, and what the caller sees of it.

use std::{
    convert::Infallible,
    panic,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use metrics_exporter_prometheus::PrometheusBuilder;
use tower::{Layer as _, ServiceExt, service_fn};
use tower_ratelimit::{
    Descriptor, Policy, Priority, Quota, RateLimitLayer, RateLimited, RateLimitedKind, RateLimiter, Rule, Tenant,
    overload::{self, LoadSignal, Overload},
    priority, tenant,
    testing::{ManualClock, SeededJitter},
    time::{Clock, Timestamp},
};

const INTERVAL: Duration = Duration::from_millis(100);

/// A signal that the test sets, in hundredths of its threshold.
#[derive(Clone, Default)]
struct Load(Arc<AtomicU64>);

impl Load {
    fn set(&self, percent: u64) {
        self.0.store(percent, Ordering::Relaxed);
    }

    fn signal(&self) -> impl LoadSignal {
        let load = self.clone();
        overload::named("queue", move || load.0.load(Ordering::Relaxed) as f64)
    }

    fn overload(&self) -> Overload {
        Overload::new().signal(self.signal(), 100.0)
    }
}

fn policy(load: &Load) -> Policy {
    Policy::new()
        .rule(Rule::new("api").path("/api").per([]).tier(Quota::per_day(1_000_000)))
        .rule(Rule::new("health").path("/healthz").exempt(true))
        .overload(load.overload())
}

struct Process {
    limiter: RateLimiter,
    clock: ManualClock,
    load: Load,
}

impl Process {
    fn new() -> Self {
        let (load, clock) = (Load::default(), ManualClock::new());
        let limiter = RateLimiter::builder().policy(policy(&load)).clock(clock.clone()).build().unwrap();
        Self { limiter, clock, load }
    }

    /// 200 requests of each class within an interval, by as many tenants. Returns how many
    /// of each class were shed.
    async fn step(&self) -> [usize; 4] {
        let mut shed = [0; 4];
        for n in 0..200 {
            self.clock.advance(INTERVAL / 200);
            for (class, shed) in Priority::ALL.iter().zip(&mut shed) {
                let tenant = Tenant::new(format!("tenant-{n}"));
                let decision = self.limiter.check(&Descriptor::new("/api").tenant(tenant).priority(*class)).await;
                assert!(matches!(decision.rejection(), None | Some(RateLimitedKind::Overloaded)));
                *shed += usize::from(!decision.is_allowed());
            }
        }
        shed
    }

    /// Steps at this load, and returns what the last one shed.
    async fn run(&self, percent: u64, steps: usize) -> [usize; 4] {
        self.load.set(percent);
        let mut shed = [0; 4];
        for _ in 0..steps {
            shed = self.step().await;
        }
        shed
    }
}

#[tokio::test]
async fn nothing_is_shed_up_to_the_threshold() {
    let process = Process::new();
    assert_eq!(process.run(100, 50).await, [0; 4]);
    assert_eq!(process.limiter.stats().shed, 0);
}

#[tokio::test]
async fn the_lowest_class_is_shed_first_and_all_but_few_in_the_end() {
    let process = Process::new();
    let [low, normal, high, critical] = process.run(110, 10).await;
    assert!(low > 20 && [normal, high, critical] == [0; 3], "{low} {normal} {high} {critical}");
    let [low, normal, high, critical] = process.run(200, 5).await;
    assert!(low > 190 && normal > 20 && critical == 0, "{low} {normal} {high} {critical}");
    let [low, normal, high, critical] = process.run(400, 30).await;
    assert!(low < 200 && normal < 200 && high < 200, "one in a hundred passes: {low} {normal} {high}");
    assert!(low > 190 && normal > 190 && high > 190, "{low} {normal} {high}");
    assert!((120..180).contains(&critical), "95% of all are shed: {critical} of 200");
}

#[tokio::test]
async fn ten_seconds_after_the_overload_nothing_is_shed() {
    let process = Process::new();
    process.run(500, 50).await;
    // Just below the threshold, from where it falls slowest.
    assert!(process.run(99, 20).await[0] > 0);
    assert_eq!(process.run(99, 81).await, [0; 4]);
}

/// Its requests succeed or fail together.
#[tokio::test]
async fn a_tenant_is_shed_or_not_for_an_hour() {
    let process = Process::new();
    process.run(110, 10).await;
    process.load.set(100);
    let mut fates = [0; 50];
    for _ in 0..50 {
        for (n, fate) in fates.iter_mut().enumerate() {
            let tenant = format!("tenant-{n}");
            let request = Descriptor::new("/api").tenant(tenant.as_str()).priority(Priority::Low);
            *fate += usize::from(process.limiter.check(&request).await.is_allowed());
        }
    }
    let torn = fates.iter().filter(|allowed| (6..=44).contains(*allowed)).count();
    assert!(torn <= 1, "one level may be shed in part: {fates:?}");
    assert!(fates.iter().any(|allowed| *allowed < 6) && fates.contains(&50), "{fates:?}");
}

#[tokio::test]
async fn a_shed_request_charges_nothing_and_exempt_ones_pass() {
    let process = Process::new();
    process.run(500, 50).await;
    let request = || Descriptor::new("/api").tenant("acme").priority(Priority::Low);
    let left = async || process.limiter.peek(&request()).await.remaining().unwrap();
    let before = left().await;
    let mut allowed = 0;
    for _ in 0..500 {
        allowed += u64::from(process.limiter.check(&request()).await.is_allowed());
    }
    assert_eq!(allowed, 5, "one in a hundred");
    assert_eq!(before - left().await, allowed);
    for _ in 0..500 {
        assert!(process.limiter.check(&Descriptor::new("/healthz").priority(Priority::Low)).await.is_allowed());
        assert!(process.limiter.check(&request().exempt()).await.is_allowed());
    }
    let shed = process.limiter.acquire(&request(), Duration::from_secs(60)).await;
    assert_eq!(shed.unwrap_err().kind(), RateLimitedKind::Overloaded, "it does not wait");
}

/// The controller goes on, and a policy without overload ends it.
#[tokio::test]
async fn a_reload_keeps_what_is_shed() {
    let process = Process::new();
    let before = process.run(500, 50).await;
    process.limiter.set_policy(policy(&process.load)).unwrap();
    let after = process.run(500, 1).await;
    assert!(after.iter().zip(before).all(|(after, before)| after.abs_diff(before) < 40), "{before:?} {after:?}");
    process.limiter.set_policy(Quota::per_day(1_000_000)).unwrap();
    assert_eq!(process.run(500, 10).await, [0; 4]);
}

#[tokio::test]
async fn a_signal_that_fails_is_ignored() {
    let clock = ManualClock::new();
    let load = Load::default();
    load.set(1_000);
    let overload = load
        .overload()
        .signal(overload::named("nan", || f64::NAN), 1.0)
        .signal(overload::named("panics", || panic!("no load")), 1.0);
    let policy = Policy::from(Quota::per_day(1_000_000)).overload(overload);
    let limiter = RateLimiter::builder().policy(policy).clock(clock.clone()).build().unwrap();
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let mut shed = 0;
    for _ in 0..100 {
        clock.advance(INTERVAL);
        shed += usize::from(!limiter.check(&Descriptor::new("/")).await.is_allowed());
    }
    panic::set_hook(hook);
    assert!(shed > 50, "the signal that works still counts: {shed}");
}

#[tokio::test]
async fn the_worst_signal_counts() {
    let (clock, load) = (ManualClock::new(), Load::default());
    load.set(1_000);
    let idle = || overload::named("idle", || 0.0);
    let overload = Overload::new().signal(idle(), 1.0).signal(load.signal(), 100.0).signal(idle(), 1.0);
    let policy = Policy::from(Quota::per_day(1_000_000)).overload(overload);
    let limiter = RateLimiter::builder().policy(policy).clock(clock.clone()).build().unwrap();
    let mut shed = 0;
    for _ in 0..100 {
        clock.advance(INTERVAL);
        shed += usize::from(!limiter.check(&Descriptor::new("/")).await.is_allowed());
    }
    assert!(shed > 50, "{shed}");
}

/// As if it were at its threshold.
#[tokio::test]
async fn a_signal_that_fails_while_it_sheds_ends_it() {
    let (clock, load) = (ManualClock::new(), Load::default());
    let failing = load.clone();
    let signal = move || match failing.0.load(Ordering::Relaxed) {
        0 => f64::NAN,
        load => load as f64,
    };
    let policy = Policy::from(Quota::per_day(1_000_000)).overload(Overload::new().signal(signal, 1.0));
    let limiter = RateLimiter::builder().policy(policy).clock(clock.clone()).build().unwrap();
    let shed = async || {
        let mut shed = 0;
        for _ in 0..1_000 {
            clock.advance(INTERVAL / 10);
            shed += usize::from(!limiter.check(&Descriptor::new("/")).await.is_allowed());
        }
        shed
    };
    load.set(10);
    assert!(shed().await > 800);
    load.set(0);
    shed().await;
    assert_eq!(shed().await, 0);
}

/// What was before a pause does not count.
#[tokio::test]
async fn an_old_overload_does_not_come_back() {
    let process = Process::new();
    process.run(500, 50).await;
    process.clock.advance(Duration::from_secs(3_600));
    let shed = process.run(101, 1).await.iter().sum::<usize>();
    assert!(shed < 20, "just above the threshold: {shed} of 800");
}

/// Signals may be slow to read.
#[tokio::test]
async fn signals_are_read_each_20_ms() {
    let (clock, reads) = (ManualClock::new(), Arc::new(AtomicU64::new(0)));
    let signal = overload::named("reads", {
        let reads = Arc::clone(&reads);
        move || {
            reads.fetch_add(1, Ordering::Relaxed);
            0.0
        }
    });
    let policy = Policy::from(Quota::per_day(1_000_000)).overload(Overload::new().signal(signal, 1.0));
    let limiter = RateLimiter::builder().policy(policy).clock(clock.clone()).build().unwrap();
    for _ in 0..1_000 {
        assert!(limiter.check(&Descriptor::new("/")).await.is_allowed());
        clock.advance(Duration::from_millis(1));
    }
    assert_eq!(reads.load(Ordering::Relaxed), 50);
}

/// Else what is shed would stay as it is until the clock is where it was.
#[tokio::test]
async fn a_clock_that_is_set_back_does_not_stop_the_signals() {
    let process = Process::new();
    process.run(500, 50).await;
    let now = process.clock.now().as_nanos();
    process.clock.set(Timestamp::from_nanos(now - 3_600_000_000_000));
    assert_eq!(process.run(50, 100).await, [0; 4]);
}

/// A request that an outer layer has not shed is not shed by an inner one.
#[tokio::test]
async fn layers_of_one_limiter_shed_once() {
    let process = Process::new();
    let (outer, inner) = (RateLimitLayer::new(process.limiter.clone()), RateLimitLayer::new(process.limiter.clone()));
    let handler = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())));
    let layers = [outer, inner].map(|layer| layer.rule("api").priority(priority::from_fn(|_| Priority::Low)));
    let [outer, inner] = layers;
    let service = outer.layer(inner.layer(handler).map_response(|response| response.map(axum::body::Body::new)));
    process.run(500, 50).await;
    let mut allowed = 0;
    for _ in 0..500 {
        let response = service.clone().oneshot(Request::get("/api").body(()).unwrap()).await.unwrap();
        allowed += usize::from(response.status().is_success());
    }
    assert_eq!(allowed, 5, "one in a hundred");
}

/// Exempt requests take no part, whatever they are.
#[tokio::test]
async fn exempt_requests_are_none_of_those_that_pass() {
    let process = Process::new();
    process.run(500, 50).await;
    let mut allowed = 0;
    for _ in 0..500 {
        assert!(process.limiter.check(&Descriptor::new("/healthz").priority(Priority::Low)).await.is_allowed());
        let request = Descriptor::new("/api").priority(Priority::Low);
        allowed += usize::from(process.limiter.check(&request).await.is_allowed());
    }
    assert_eq!(allowed, 5);
}

/// An entry of a rule for a tenant or a plan.
#[tokio::test]
async fn the_policy_says_whose_requests_are_shed_last() {
    let (clock, load) = (ManualClock::new(), Load::default());
    let rule = Rule::new("api").per([]).tier(Quota::per_day(1_000_000)).tenant_priority("vip", Priority::Critical);
    let policy = Policy::new().rule(rule.plan_priority("free", Priority::Low)).overload(load.overload());
    let limiter = RateLimiter::builder().policy(policy).clock(clock.clone()).build().unwrap();
    load.set(130);
    let mut shed = [0; 3];
    for _ in 0..600 {
        clock.advance(INTERVAL / 10);
        let requests = [("vip", "pro"), ("other", "pro"), ("another", "free")];
        for ((tenant, plan), shed) in requests.into_iter().zip(&mut shed) {
            *shed += usize::from(!limiter.check(&Descriptor::new("/").tenant(tenant).plan(plan)).await.is_allowed());
        }
    }
    let [vip, other, free] = shed;
    assert!(vip < other && other <= free && free > 300, "{vip} {other} {free}");
}

#[tokio::test]
async fn a_server_answers_with_reduced_capacity() {
    let _jitter = SeededJitter::new(1);
    let recorder = PrometheusBuilder::new().build_recorder();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let process = Process::new();
    process.run(500, 50).await;
    let layer = RateLimitLayer::new(process.limiter.clone())
        .tenant(tenant::header("x-api-key"))
        .priority(priority::header("x-priority"));
    let handler = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())));
    let service = layer.layer(handler);
    let ask = |content_type: &str| {
        let request = Request::get("/api").header("x-priority", "low").header("content-type", content_type);
        service.clone().oneshot(request.body(()).unwrap())
    };
    let response = ask("application/json").await.unwrap();
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    let seconds: u64 = response.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=2).contains(&seconds), "{seconds}");
    assert_eq!(response.extensions().get::<RateLimited>().unwrap().kind(), RateLimitedKind::Overloaded);
    assert!(!response.headers().contains_key("x-ratelimit-limit"), "no rule was looked at");
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let problem: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert!(problem["type"].as_str().unwrap().ends_with("#temporary-reduced-capacity"), "{problem}");
    assert!(problem["detail"].as_str().unwrap().starts_with("The server is overloaded. Try again in "), "{problem}");

    let response = ask("application/grpc").await.unwrap();
    assert_eq!(response.headers()["grpc-status"], "14");
    assert!(response.headers().contains_key("grpc-status-details-bin"), "RetryInfo");

    let metrics = recorder.handle().render();
    let shed = |class: &str| {
        let line = format!("rate_limiting_overload_shed{{priority=\"{class}\"}} ");
        metrics.lines().find_map(|found| found.strip_prefix(&line)?.parse::<u64>().ok()).unwrap_or(0)
    };
    let all: u64 = Priority::ALL.iter().map(|class| shed(class.as_str())).sum();
    assert_eq!(all, process.limiter.stats().shed, "{metrics}");
    assert!(shed("low") > shed("high") && shed("high") > shed("critical"), "{metrics}");
    assert!(metrics.contains("rate_limiting_overload_shed_fraction 0.95"), "{metrics}");
}
