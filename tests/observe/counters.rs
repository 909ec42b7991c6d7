use std::{
    future::Future,
    task::{Context, Waker},
    time::Duration,
};

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusRecorder};
use tower::{Layer, Service as _, ServiceExt, limit::ConcurrencyLimit, service_fn};
use tower_ratelimit::{
    Descriptor, FailureMode, Policy, Quota, RateLimitLayer, RateLimiter, Rule,
    backend::Local,
    error::BackendErrorKind,
    limiter::Stats,
    testing::{Fault, FaultyBackend, ManualClock, TokioClock},
};

use super::{SECRET, ask, events::Log, limiter};

/// The page that Prometheus would fetch, without comments.
fn lines(recorder: &PrometheusRecorder) -> Vec<String> {
    let page = recorder.handle().render();
    assert!(!page.contains(SECRET) && !page.contains("tenant"), "{page}");
    let is_zero = |line: &str| line.starts_with("rate_limiting_mistakes") && line.ends_with(" 0");
    let ours = page.lines().filter(|line| line.starts_with("rate_limiting") && !is_zero(line));
    let mut lines: Vec<_> = ours.map(str::to_owned).collect();
    lines.sort();
    lines
}

fn requests(rule: &str, result: &str, count: u64) -> String {
    format!(r#"rate_limiting_requests{{rule="{rule}",result="{result}",priority="normal"}} {count}"#)
}

/// Prometheus sees an increase only from a value that it has seen.
#[test]
fn counters_that_alerts_watch_start_at_zero() {
    let (_log, _guard) = Log::start();
    let recorder = PrometheusBuilder::new().build_recorder();
    metrics::with_local_recorder(&recorder, || limiter(Quota::per_second(1)));
    let page = recorder.handle().render();
    for code in 1..=9 {
        let line = format!("rate_limiting_mistakes{{code=\"RL00{code}\"}} 0\n");
        assert!(page.contains(&line), "{line}{page}");
    }
}

#[tokio::test]
async fn requests_are_counted_by_rule_and_result() {
    let (_log, _guard) = Log::start();
    let recorder = PrometheusBuilder::new().build_recorder();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let policy = Policy::new()
        .rule(Rule::new("all").tier(Quota::per_minute(100)))
        .rule(Rule::new("search").path("/search").tier(Quota::per_minute(2)));
    let (limiter, _) = limiter(policy);
    ask(&limiter, "/search", 5).await;
    ask(&limiter, "/other", 1).await;

    let counted = [
        "rate_limiting_keys 2".to_owned(),
        requests("all", "allowed", 3),
        requests("search", "allowed", 2),
        requests("search", "rejected", 3),
    ];
    assert_eq!(lines(&recorder), counted, "a rejection counts only for the rule that rejected");
    let stats = limiter.stats();
    assert_eq!((stats.allowed, stats.rejected), (3, 3), "requests, not rules");
    assert_eq!(stats.keys(), 2);
}

#[tokio::test]
async fn the_gauge_of_keys_follows_all_stores() {
    let (_log, _guard) = Log::start();
    let recorder = PrometheusBuilder::new().build_recorder();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let keys = || lines(&recorder).into_iter().find(|line| line.starts_with("rate_limiting_keys"));
    let new = || {
        let clock = ManualClock::new();
        let backend = Local::builder().max_keys(100).build();
        let builder = RateLimiter::builder().policy(Quota::per_second(1)).backend(backend).clock(clock.clone());
        (builder.build().unwrap(), clock)
    };
    let (one, clock) = new();
    let (other, _) = new();
    for tenant in 0..60 {
        one.check(&Descriptor::new("/").tenant(tenant.to_string().as_str())).await;
        other.check(&Descriptor::new("/").tenant(tenant.to_string().as_str())).await;
    }
    assert_eq!(keys().unwrap(), "rate_limiting_keys 120");
    for tenant in 0..500 {
        one.check(&Descriptor::new("/").tenant(tenant.to_string().as_str())).await;
    }
    assert_eq!(keys().unwrap(), format!("rate_limiting_keys {}", one.stats().keys() + 60), "at the cap");
    clock.advance(Duration::from_secs(3600));
    for tenant in 1000..1050 {
        one.check(&Descriptor::new("/").tenant(tenant.to_string().as_str())).await;
    }
    assert_eq!(
        keys().unwrap(),
        format!("rate_limiting_keys {}", one.stats().keys() + 60),
        "after idle keys were dropped"
    );
    drop(one);
    assert_eq!(keys().unwrap(), "rate_limiting_keys 60");
    drop(other);
    assert_eq!(keys().unwrap(), "rate_limiting_keys 0");
}

#[tokio::test]
async fn shadow_rejections_have_a_counter_of_their_own() {
    let (_log, _guard) = Log::start();
    let recorder = PrometheusBuilder::new().build_recorder();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let policy = Policy::new()
        .rule(Rule::new("real").tier(Quota::per_minute(3)))
        .rule(Rule::new("dry-run").shadow(true).tier(Quota::per_minute(1)));
    let (limiter, _) = limiter(policy);
    let decisions = ask(&limiter, "/", 5).await;
    assert_eq!(decisions.iter().filter(|decision| decision.is_allowed()).count(), 3);
    assert!(decisions.iter().all(|decision| decision.tiers().iter().all(|tier| tier.rule() == "real")));

    let lines = lines(&recorder);
    for line in
        [requests("real", "allowed", 3), requests("real", "rejected", 2), requests("dry-run", "shadow_rejected", 2)]
    {
        assert!(lines.contains(&line), "{line} in {lines:?}");
    }
    assert!(lines.contains(&requests("dry-run", "shadow_allowed", 1)), "{lines:?}");
    let stats = limiter.stats();
    assert_eq!((stats.allowed, stats.rejected, stats.shadow_allowed, stats.shadow_rejected), (3, 2, 1, 2));
}

#[tokio::test(start_paused = true)]
async fn waits_are_counted_and_timed() {
    let (_log, _guard) = Log::start();
    let recorder = PrometheusBuilder::new().build_recorder();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let rule = Rule::new("paced").tier(Quota::per_second(2).burst(1)).max_wait(Duration::from_secs(1));
    let limiter = RateLimiter::builder().policy(Policy::new().rule(rule)).clock(TokioClock::default()).build().unwrap();
    let layer = RateLimitLayer::keyed(limiter.clone(), |(): &()| Descriptor::new("/").tenant(SECRET));
    let service = layer.layer(service_fn(|(): ()| async { Ok::<_, std::convert::Infallible>(()) }));
    for _ in 0..3 {
        service.clone().oneshot(()).await.unwrap();
    }
    let lines = lines(&recorder);
    for line in [
        requests("paced", "allowed", 1),
        requests("paced", "delayed", 2),
        "rate_limiting_request_time_in_queue_sum 1".into(),
        "rate_limiting_request_time_in_queue_count 2".into(),
    ] {
        assert!(lines.contains(&line), "{line} in {lines:?}");
    }
    assert_eq!((limiter.stats().allowed, limiter.stats().delayed), (1, 2));
}

/// Those that move up wait for less than was decided, and those that give up are
/// not admitted.
#[tokio::test(start_paused = true)]
async fn the_time_in_queue_is_the_time_really_waited() {
    let (_log, _guard) = Log::start();
    let recorder = PrometheusBuilder::new().build_recorder();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let clock = TokioClock::default();
    let limiter = RateLimiter::builder().policy(Quota::per_second(1).burst(1)).clock(clock).build().unwrap();
    drop(limiter.acquire(&Descriptor::new("/"), Duration::ZERO).await.unwrap());
    let caller = Descriptor::new("/");
    let mut waiters: Vec<_> = (0..10).map(|_| Box::pin(limiter.acquire(&caller, Duration::MAX))).collect();
    for waiter in &mut waiters {
        assert!(waiter.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    drop(waiters.drain(1..9));
    let mut waits = Vec::new();
    for waiter in waiters {
        waits.push(waiter.await.unwrap().decision().wait().as_secs());
    }
    assert_eq!(waits, [1, 2]);
    let lines = lines(&recorder);
    for line in ["rate_limiting_request_time_in_queue_sum 3", "rate_limiting_request_time_in_queue_count 2"] {
        assert!(lines.contains(&line.to_string()), "{line} in {lines:?}");
    }
}

/// Its slot has come, the inner service is not ready, and a cooldown starts.
#[tokio::test(start_paused = true)]
async fn a_request_that_waits_again_is_one_in_the_time_in_queue() {
    let (_log, _guard) = Log::start();
    let recorder = PrometheusBuilder::new().build_recorder();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let rule = Rule::new("all").per([]).tier(Quota::per_second(1_000).burst(1)).max_wait(Duration::from_secs(60));
    let clock = TokioClock::default();
    let limiter = RateLimiter::builder().policy(Policy::new().rule(rule)).clock(clock).build().unwrap();
    let start = tokio::time::Instant::now();
    let inner = service_fn(async |_: http::Request<()>| {
        tokio::time::sleep_until(tokio::time::Instant::now() + Duration::from_secs(1)).await;
        Ok::<_, std::io::Error>(http::Response::new(()))
    });
    let service = RateLimitLayer::new(limiter.clone()).layer(ConcurrencyLimit::new(inner, 1));
    let call = || tokio::spawn(service.clone().oneshot(http::Request::new(())));
    let first = call();
    tokio::task::yield_now().await;
    let second = tokio::spawn(service.clone().call(http::Request::new(())));
    tokio::time::sleep_until(start + Duration::from_millis(100)).await;
    limiter.cool_down(&Descriptor::new("/"), Duration::from_secs(5));
    first.await.unwrap().unwrap();
    second.await.unwrap().unwrap();
    assert!(start.elapsed() > Duration::from_secs(6), "{:?}", start.elapsed());
    let line = "rate_limiting_request_time_in_queue_count 1".to_owned();
    assert!(lines(&recorder).contains(&line), "{:?}", lines(&recorder));
}

#[tokio::test(start_paused = true)]
async fn waiters_and_active_permits_have_gauges() {
    let (_log, _guard) = Log::start();
    let recorder = PrometheusBuilder::new().build_recorder();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let clock = TokioClock::default();
    let limiter = RateLimiter::builder().policy(Quota::per_second(1)).clock(clock).build().unwrap();
    let caller = Descriptor::new("/").tenant(SECRET);
    let gauges = |queued: u32, permits: u32| {
        let lines = lines(&recorder);
        for line in
            [format!("rate_limiting_queued_requests {queued}"), format!("rate_limiting_active_permits {permits}")]
        {
            assert!(lines.contains(&line), "{line} in {lines:?}");
        }
    };
    let first = limiter.acquire(&caller, Duration::ZERO).await.unwrap();
    let waits = async { limiter.acquire(&caller, Duration::MAX).await.unwrap() };
    let looks = async {
        gauges(1, 1);
        drop(first);
        gauges(1, 0);
    };
    let (second, ()) = tokio::join!(waits, looks);
    gauges(0, 1);
    drop(second);
    gauges(0, 0);
}

#[tokio::test]
async fn backend_failures_are_counted_by_failure_mode() {
    let (_log, _guard) = Log::start();
    let recorder = PrometheusBuilder::new().build_recorder();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let down = FaultyBackend::new(Local::new());
    down.set(Fault::Error(BackendErrorKind::Timeout));
    let policy = Policy::new()
        .rule(Rule::new("open").path("/open").tier(Quota::per_minute(1)))
        .rule(Rule::new("closed").path("/closed").tier(Quota::per_minute(1)).on_backend_failure(FailureMode::Closed));
    let limiter = RateLimiter::builder().policy(policy).backend(down.clone()).build().unwrap();
    assert!(ask(&limiter, "/open", 2).await.iter().all(tower_ratelimit::Decision::is_allowed));
    assert!(!ask(&limiter, "/closed", 1).await[0].is_allowed());

    let counted = [
        "rate_limiting_backend_errors{kind=\"timeout\"} 3".into(),
        requests("closed", "failed_closed", 1),
        requests("open", "failed_open", 2),
    ];
    assert_eq!(lines(&recorder), counted);
    assert_eq!((limiter.stats().failed_open, limiter.stats().failed_closed), (2, 1));

    down.set(Fault::None);
    assert!(ask(&limiter, "/open", 1).await[0].is_allowed());
    assert_eq!(limiter.stats().allowed, 1);
}

#[tokio::test]
async fn failures_are_counted_by_the_mode_of_each_rule_and_errors_by_kind() {
    let (_log, _guard) = Log::start();
    let recorder = PrometheusBuilder::new().build_recorder();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let backend = FaultyBackend::new(Local::new());
    let rule = |id, mode| Rule::new(id).tier(Quota::per_minute(3)).on_backend_failure(mode);
    let policy = Policy::new()
        .rule(rule("open", FailureMode::Open))
        .rule(rule("local", FailureMode::Local))
        .rule(rule("closed", FailureMode::Closed).path("/closed"));
    let limiter =
        RateLimiter::builder().policy(policy).backend(backend.clone()).clock(ManualClock::new()).build().unwrap();
    ask(&limiter, "/", 1).await;
    for kind in [BackendErrorKind::Unavailable, BackendErrorKind::Misconfigured, BackendErrorKind::Unsupported] {
        backend.set(Fault::Error(kind));
        ask(&limiter, "/", 1).await;
    }
    backend.set(Fault::LostReply);
    assert!(!ask(&limiter, "/closed", 1).await[0].is_allowed());

    let metrics = lines(&recorder);
    let errors = ["timeout", "unavailable", "unsupported", "misconfigured"]
        .map(|kind| format!("rate_limiting_backend_errors{{kind=\"{kind}\"}} 1"));
    let counted = [
        requests("open", "allowed", 1),
        requests("local", "allowed", 1),
        requests("open", "failed_open", 2),
        requests("local", "failed_local", 2),
        requests("local", "rejected", 1),
        requests("closed", "failed_closed", 1),
        "rate_limiting_backend_duration_count 1".into(),
    ];
    let all: Vec<_> = counted.iter().chain(&errors).collect();
    assert!(all.iter().all(|line| metrics.contains(line)), "{metrics:#?}");
    assert_eq!(metrics.iter().filter(|line| line.contains("requests{") || line.contains("errors{")).count(), 10);
    let stats = limiter.stats();
    assert_eq!((stats.failed_local, stats.failed_open, stats.failed_closed, stats.rejected), (2, 0, 1, 1));
    assert_eq!(
        (stats.fallback.keys, stats.backend.keys, stats.keys()),
        (1, 3, 4),
        "a request whose reply was lost was charged"
    );
}

#[tokio::test]
async fn displaced_and_overflowed_keys_are_counted() {
    let (_log, _guard) = Log::start();
    let limiter = |max_keys| {
        let backend = Local::builder().max_keys(max_keys).build();
        RateLimiter::builder().policy(Quota::per_hour(2)).backend(backend).clock(ManualClock::new()).build().unwrap()
    };
    for (max_keys, displaced, overflowed, allowed) in [(10, 40, 0, 50), (0, 0, 50, 2)] {
        let limiter = limiter(max_keys);
        for tenant in 0..50 {
            limiter.check(&Descriptor::new("/").tenant(tenant.to_string())).await;
        }
        let stats = limiter.stats();
        assert_eq!(stats.keys(), max_keys);
        assert_eq!((stats.backend.displaced, stats.backend.overflowed), (displaced, overflowed));
        assert_eq!((stats.allowed, stats.rejected), (allowed, 50 - allowed), "with {max_keys} keys");
    }
}

#[tokio::test]
async fn unlimited_requests_are_not_counted() {
    let (_log, _guard) = Log::start();
    let (limiter, _) = limiter(Policy::new().rule(Rule::new("a").path("/a").tier(Quota::per_minute(1))));
    ask(&limiter, "/b", 5).await;
    assert_eq!(limiter.stats(), Stats::default());
}

#[test]
fn the_counts_of_all_threads_are_summed() {
    let (_log, _guard) = Log::start();
    let (limiter, _) = limiter(Quota::per_minute(30));
    let count = |limiter: &RateLimiter| {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(ask(limiter, "/", 10));
    };
    // Concurrent threads, and threads that start after others have ended.
    for _ in 0..2 {
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| count(&limiter));
            }
        });
    }
    assert_eq!((limiter.stats().allowed, limiter.stats().rejected), (30, 10));
}
