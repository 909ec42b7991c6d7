//! Cooldowns that start at bad moments.

use http::{Request, Response};
use tower::{Layer, Service, ServiceExt, limit::ConcurrencyLimit, service_fn};
use tower_ratelimit::{
    Algorithm, Dimension, RateLimitLayer,
    backend::{Backend, Local},
    testing::{Fault, FaultyBackend},
};

use super::*;

fn on(policy: impl Into<Policy>, remote: bool) -> RateLimiter {
    fn with(policy: Policy, backend: impl Backend) -> RateLimiter {
        builder(policy).backend(backend).build().unwrap()
    }
    if remote { with(policy.into(), FaultyBackend::new(Local::new())) } else { with(policy.into(), Local::new()) }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_outlasts_any_number_of_cooldowns() {
    for remote in [false, true] {
        let limiter = on(Quota::per_second(1_000).burst(1), remote);
        limiter.cool_down(&by("acme"), MILLI * 2);
        let waits = tokio::spawn({
            let limiter = limiter.clone();
            async move { limiter.acquire(&by("acme"), Duration::MAX).await.map(drop) }
        });
        for _ in 0..20_000 {
            limiter.cool_down(&by("acme"), MILLI * 3);
            pass(MILLI * 2).await;
        }
        assert!(!waits.is_finished());
        waits.await.unwrap().unwrap();
        assert_eq!(limiter.stats().waiting, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn the_queue_bound_is_the_same_behind_a_cooldown() {
    for remote in [false, true] {
        let quota = Quota::per_second(10).burst(5).algorithm(Algorithm::LeakyBucket);
        let limiter = on(quota, remote);
        limiter.cool_down(&by("acme"), SECOND * 10);
        let mut callers: Vec<_> = (0..5).map(|_| Caller::arrive(&limiter, "acme", Duration::MAX)).collect();
        let waiting = callers.iter_mut().map(Caller::is_waiting).filter(|waits| *waits).count();
        assert_eq!(waiting, 5, "remote {remote}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_of_a_cooldown_charges_no_shared_key() {
    for remote in [false, true] {
        let policy = Policy::new()
            .rule(Rule::new("upstream").tier(Quota::per_second(100)))
            .rule(Rule::new("egress").per([] as [Dimension; 0]).upstream_feedback(false).tier(Quota::per_second(100)));
        let limiter = on(policy, remote);
        limiter.cool_down(&by("acme"), SECOND * 60);
        let mut waiting = Caller::arrive(&limiter, "acme", Duration::MAX);
        assert!(waiting.is_waiting());
        let decision = limiter.check(&by("globex")).await;
        assert!(decision.is_allowed(), "remote {remote}: {:?}", decision.retry_after());
    }
}

#[tokio::test(start_paused = true)]
async fn a_queued_request_is_never_admitted_during_a_cooldown() {
    for remote in [false, true] {
        let limiter = on(Quota::concurrent(1), remote);
        let job = by("acme");
        let permit = limiter.acquire(&job, Duration::ZERO).await.unwrap();
        let start = Instant::now();
        let mut caller = Caller::arrive(&limiter, "acme", SECOND * 2);
        assert!(caller.is_waiting());
        limiter.cool_down(&job, SECOND * 60);
        drop(permit);
        let outcome = caller.outcome().await;
        assert!(outcome.is_err(), "remote {remote}: admitted at {:?}", start.elapsed());
        let after = outcome.unwrap_err().retry_after().unwrap();
        assert!(after > SECOND * 57, "remote {remote}: {after:?}");
        assert_eq!((limiter.stats().waiting, limiter.stats().permits), (0, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_of_a_cooldown_blocks_no_other() {
    for remote in [false, true] {
        let policy = Policy::new()
            .rule(Rule::new("upstream").tier(Quota::per_second(100)))
            .rule(Rule::new("calls").per([] as [Dimension; 0]).upstream_feedback(false).tier(Quota::concurrent(1)));
        let limiter = on(policy, remote);
        let start = Instant::now();
        let permit = limiter.acquire(&by("initech"), Duration::ZERO).await.unwrap();
        let first = Caller::arrive(&limiter, "acme", Duration::MAX);
        let second = Caller::arrive(&limiter, "globex", Duration::MAX);
        limiter.cool_down(&by("acme"), SECOND * 60);
        drop(permit);
        let (first, second) =
            tokio::join!(async { (first.outcome().await.map(drop).unwrap(), start.elapsed()).1 }, async {
                (second.outcome().await.map(drop).unwrap(), start.elapsed()).1
            },);
        assert!(second < SECOND, "remote {remote}: {second:?}");
        assert!(first >= SECOND * 60 && first < SECOND * 76, "remote {remote}: {first:?}");
        assert_eq!((limiter.stats().waiting, limiter.stats().permits), (0, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn each_request_is_counted_once() {
    for remote in [false, true] {
        let limiter = on(Quota::per_second(10).burst(1), remote);
        drop(limiter.acquire(&by("acme"), Duration::ZERO).await.unwrap());
        let caller = Caller::arrive(&limiter, "acme", Duration::MAX);
        limiter.cool_down(&by("acme"), SECOND);
        drop(caller.outcome().await.unwrap());
        let stats = limiter.stats();
        assert_eq!((stats.allowed, stats.delayed, stats.rejected), (1, 1, 0), "remote {remote}");
        let start = Instant::now();
        let caller = Caller::arrive(&limiter, "acme", MILLI * 200);
        limiter.cool_down(&by("acme"), SECOND);
        let outcome = caller.outcome().await;
        assert!(outcome.is_err() && start.elapsed() < MILLI * 110);
        let stats = limiter.stats();
        assert_eq!((stats.allowed, stats.delayed, stats.rejected), (1, 2, 1), "remote {remote}");
    }
}

/// Whatever the order of cooldowns, cancellations and slots, at most the limit is
/// admitted.
#[tokio::test(start_paused = true)]
async fn no_more_are_admitted_after_cooldowns_than_the_limit() {
    let mut seed = 7_u64;
    let mut random = move |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    for round in 0..60_u64 {
        let remote = round % 2 == 1;
        let fair = round % 3 == 1;
        let smooth = round % 3 == 2;
        let algorithm = match round % 4 {
            0 | 1 => Algorithm::TokenBucket,
            2 => Algorithm::SlidingLog,
            _ => Algorithm::SlidingWindow,
        };
        let quota = match algorithm {
            Algorithm::TokenBucket => Quota::per_second(10).burst(3),
            algorithm => Quota::per_second(10).algorithm(algorithm),
        };
        let mut rule = Rule::new("api").tier(quota).max_wait(SECOND * 30);
        if fair {
            rule = rule.per([] as [Dimension; 0]).fair(true);
        }
        if smooth && !fair && algorithm == Algorithm::SlidingWindow {
            rule = rule.smooth(true);
        }
        let limiter = on(Policy::new().rule(rule), remote);
        let start = Instant::now();
        let admitted = Admissions::default();
        let mut tasks = Vec::new();
        for caller in 0..60_usize {
            let (own, admitted) = (limiter.clone(), admitted.clone());
            let (cost, cancel) = (1 + random(2), random(4) == 0);
            let longest = MILLI * u32::try_from(500 + random(20_000)).unwrap();
            tasks.push(tokio::spawn(async move {
                let job = by("acme").cost(cost);
                let acquiring = own.acquire(&job, if cancel { Duration::MAX } else { longest });
                let outcome = tokio::time::timeout(longest, acquiring).await;
                if let Ok(Ok(permit)) = outcome {
                    (0..cost).for_each(|_| admitted.record(caller, start.elapsed()));
                    drop(permit);
                }
            }));
            if random(5) == 0 {
                pass(MILLI * u32::try_from(random(200)).unwrap()).await;
            }
            if random(6) == 0 {
                limiter.cool_down(&by("acme"), MILLI * u32::try_from(random(1_500)).unwrap());
            }
        }
        for task in tasks {
            task.await.unwrap();
        }
        let mut times: Vec<_> = admitted.take().into_iter().map(|(_, at)| at).collect();
        times.sort();
        for (first, from) in times.iter().enumerate() {
            for (last, to) in times.iter().enumerate().skip(first) {
                let sent = (last - first + 1) as f64;
                let span = (*to - *from).as_secs_f64() + 0.002;
                let most = match algorithm {
                    Algorithm::TokenBucket => 3.0 + 10.0 * span,
                    _ => 10.0 * (span.floor() + 1.0) * if algorithm == Algorithm::SlidingWindow { 2.0 } else { 1.0 },
                };
                assert!(
                    sent <= most + 1e-6,
                    "round {round} {algorithm:?} remote {remote} fair {fair}: {sent} in {span}"
                );
            }
        }
        assert!(times.len() > 20, "round {round}: {}", times.len());
        assert_eq!((limiter.stats().waiting, limiter.stats().permits), (0, 0), "round {round}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_cooldown_that_starts_while_the_backend_is_asked_is_kept() {
    let backend = FaultyBackend::new(Local::new());
    let quota = Quota::per_second(10);
    let policy = Policy::new().rule(Rule::new("api").tier(quota).tier(Quota::concurrent(1)));
    let limiter = builder(policy).backend(backend.clone()).build().unwrap();
    backend.set(Fault::Slow);
    let start = Instant::now();
    let waits = Caller::arrive(&limiter, "acme", Duration::MAX);
    limiter.cool_down(&by("acme"), SECOND * 10);
    drop(waits.outcome().await.unwrap());
    assert!(start.elapsed() >= SECOND * 10, "{:?}", start.elapsed());

    let rejected = Caller::arrive(&limiter, "globex", Duration::ZERO);
    let mut cancelled = Caller::arrive(&limiter, "initech", Duration::MAX);
    limiter.cool_down(&by("globex"), SECOND * 10);
    limiter.cool_down(&by("initech"), SECOND * 10);
    assert!(cancelled.is_waiting());
    drop(cancelled);
    let after = rejected.outcome().await.unwrap_err().retry_after().unwrap();
    assert!(after >= SECOND * 10, "{after:?}");
    let stats = limiter.stats();
    assert_eq!((stats.waiting, stats.permits, stats.allowed, stats.rejected), (0, 0, 0, 1), "{stats:?}");
    pass(SECOND * 13).await;
    backend.set(Fault::None);
    for tenant in ["globex", "initech"] {
        assert!(limiter.acquire(&by(tenant), Duration::ZERO).await.is_ok(), "{tenant}: nothing is left in flight");
    }
}

/// Their slots have come, but the inner service is not ready yet.
#[tokio::test(start_paused = true)]
async fn a_cooldown_applies_while_the_inner_service_is_not_ready() {
    for remote in [false, true] {
        let quota = Quota::per_second(1_000).burst(1);
        let limiter = on(Policy::new().rule(Rule::new("api").tier(quota).max_wait(SECOND * 60)), remote);
        let start = Instant::now();
        let admitted = Arc::new(Mutex::new(Vec::new()));
        let upstream = service_fn({
            let admitted = Arc::clone(&admitted);
            move |request: Request<()>| {
                let host = request.uri().host().unwrap().to_owned();
                let first = admitted.lock().unwrap().is_empty();
                admitted.lock().unwrap().push((host, start.elapsed()));
                async move {
                    pass(SECOND).await;
                    let status = if first { 429 } else { 200 };
                    Ok::<_, std::io::Error>(
                        Response::builder().status(status).header("retry-after", "5").body(()).unwrap(),
                    )
                }
            }
        });
        let client = RateLimitLayer::client(limiter.clone()).layer(ConcurrencyLimit::new(upstream, 1));
        let call = |host: &str| Request::get(format!("http://{host}/")).body(()).unwrap();
        let first = tokio::spawn(client.clone().oneshot(call("acme")));
        tokio::task::yield_now().await;
        // Before their slots: a clone of the service is polled ready then.
        let calls: Vec<_> = (0..3).map(|_| tokio::spawn(client.clone().call(call("acme")))).collect();
        tokio::task::yield_now().await;
        pass(MILLI * 100).await;
        let others = [0; 2].map(|_| tokio::spawn(client.clone().oneshot(call("globex"))));
        for call in calls {
            call.await.unwrap().unwrap();
        }
        for call in others.into_iter().chain([first]) {
            call.await.unwrap().unwrap();
        }
        let admitted = admitted.lock().unwrap();
        let early = admitted.iter().filter(|(host, at)| host == "acme" && *at < SECOND * 6).count();
        assert_eq!(early, 1, "remote {remote}: {admitted:?}");
        let globex = admitted.iter().filter(|(host, at)| host == "globex" && *at < SECOND * 4).count();
        assert_eq!(globex, 2, "remote {remote}: {admitted:?}");
        assert_eq!((limiter.stats().waiting, limiter.stats().permits), (0, 0));
    }
}
