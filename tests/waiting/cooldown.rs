//! Cooldowns: an upstream asked for a pause.

use std::sync::atomic::{AtomicUsize, Ordering};

use http::{Request, Response, StatusCode};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_ratelimit::{
    Algorithm, Dimension, RateLimitLayer, RateLimitedKind,
    backend::{Backend, Local},
    middleware::{CooldownScope, UpstreamFeedback},
    testing::{FaultyBackend, ManualClock},
};

use super::*;

/// When each of `count` concurrent callers was admitted.
async fn all_admitted(limiter: &RateLimiter, count: usize) -> Vec<Duration> {
    let start = Instant::now();
    let tasks: Vec<_> = (0..count)
        .map(|_| {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                drop(limiter.acquire(&by("acme"), Duration::MAX).await.unwrap());
                Instant::now()
            })
        })
        .collect();
    let mut admitted = Vec::new();
    for task in tasks {
        admitted.push(task.await.unwrap() - start);
    }
    admitted
}

type Made = Box<dyn Fn(Quota) -> RateLimiter>;

fn backends() -> [(&'static str, Made); 2] {
    fn with(backend: impl Backend, quota: Quota) -> RateLimiter {
        builder(quota).backend(backend).build().unwrap()
    }
    [
        ("in this process", Box::new(|quota| with(Local::new(), quota))),
        ("another", Box::new(|quota| with(FaultyBackend::new(Local::new()), quota))),
    ]
}

fn assert_within(time: Duration, from: u64, to: u64) {
    let (from, to) = (Duration::from_millis(from), Duration::from_millis(to));
    assert!(time >= from && time <= to, "{time:?} is not within {from:?} and {to:?}");
}

#[tokio::test(start_paused = true)]
async fn no_request_is_admitted_before_the_end_and_then_all_at_their_rate() {
    for (backend, limiter) in backends() {
        let limiter = limiter(Quota::per_second(10).burst(2));
        limiter.cool_down(&by("acme"), SECOND);
        let mut admitted = all_admitted(&limiter, 6).await;
        admitted.sort();
        assert_within(admitted[0], 1_000, 1_252);
        let paced = admitted.windows(2).skip(1).all(|pair| pair[1] - pair[0] >= MILLI * 99);
        assert!(paced, "{backend}: {admitted:?}");
        assert_within(admitted[5] - admitted[0], 400, 410);
        assert_eq!(limiter.cooldown(&by("acme")), None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_reserves_another_slot_behind_a_cooldown() {
    for (backend, limiter) in backends() {
        let limiter = limiter(Quota::per_second(10).burst(1));
        let start = Instant::now();
        let waits = tokio::spawn({
            let limiter = limiter.clone();
            async move { all_admitted(&limiter, 8).await }
        });
        pass(MILLI * 250).await;
        // Three are admitted. The cooldown is requested twice, the second is shorter.
        limiter.cool_down(&by("acme"), SECOND);
        limiter.cool_down(&by("acme"), MILLI);
        let mut admitted = waits.await.unwrap();
        admitted.sort();
        assert_eq!(admitted.iter().filter(|time| **time <= MILLI * 250).count(), 3, "{backend}");
        assert_within(admitted[3], 1_250, 1_503);
        assert!(admitted[3..].windows(2).all(|pair| pair[1] - pair[0] >= MILLI * 99), "{backend}: {admitted:?}");
        assert!(start.elapsed() < SECOND * 4, "{backend}: {admitted:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_cooldown_that_is_extended_meanwhile_is_kept() {
    for (backend, limiter) in backends() {
        let limiter = limiter(Quota::per_second(10));
        limiter.cool_down(&by("acme"), SECOND);
        let waits = tokio::spawn({
            let limiter = limiter.clone();
            async move { all_admitted(&limiter, 1).await }
        });
        pass(MILLI * 900).await;
        limiter.cool_down(&by("acme"), SECOND);
        let admitted = waits.await.unwrap();
        assert!(admitted[0] >= MILLI * 1_900, "{backend}: {admitted:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_may_not_wait_is_rejected_with_the_exact_time() {
    for (backend, limiter) in backends() {
        let limiter = limiter(Quota::per_second(10));
        limiter.cool_down(&by("acme"), SECOND * 2);
        let left = limiter.cooldown(&by("acme")).unwrap();
        assert_within(left, 2_000, 2_500);
        let rejection = limiter.acquire(&by("acme"), SECOND).await.unwrap_err();
        assert_eq!(
            (rejection.kind(), rejection.retry_after()),
            (RateLimitedKind::QuotaExceeded, Some(left)),
            "{backend}"
        );
        assert_eq!(limiter.check(&by("acme")).await.retry_after(), Some(left));
        // Nothing was charged, and other keys are not affected.
        assert!(limiter.check(&by("globex")).await.is_allowed());
        pass(left).await;
        assert_eq!(limiter.check(&by("acme")).await.remaining(), 9, "{backend}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_may_not_wait_for_the_cooldown_is_rejected_at_its_slot() {
    for (backend, limiter) in backends() {
        let limiter = limiter(Quota::per_second(10).burst(1));
        drop(limiter.acquire(&by("acme"), Duration::ZERO).await.unwrap());
        let start = Instant::now();
        // The time to its slot counts: it may wait 850 ms more, and 900 are left.
        let waits = tokio::spawn({
            let limiter = limiter.clone();
            async move { limiter.acquire(&by("acme"), MILLI * 950).await.map(drop) }
        });
        tokio::task::yield_now().await;
        limiter.cool_down(&by("acme"), SECOND);
        let rejection = waits.await.unwrap().unwrap_err();
        assert_within(start.elapsed(), 100, 102);
        assert_within(rejection.retry_after().unwrap(), 898, 1_150);
        assert_eq!(limiter.stats().waiting, 0, "{backend}");
        // Its slot was given back.
        pass(SECOND * 2).await;
        assert_eq!(all_admitted(&limiter, 2).await, [Duration::ZERO, MILLI * 100]);
    }
}

#[tokio::test(start_paused = true)]
async fn every_algorithm_waits_for_the_end() {
    for algorithm in Algorithm::ALL.iter().copied() {
        let limiter = limiter(match algorithm {
            Algorithm::Concurrency => Quota::concurrent(4),
            algorithm => Quota::new(4, SECOND * 10).algorithm(algorithm),
        });
        limiter.cool_down(&by("acme"), SECOND);
        let admitted = all_admitted(&limiter, 3).await;
        assert!(admitted.iter().all(|time| *time >= SECOND), "{algorithm:?}: {admitted:?}");
        assert!(admitted[0] <= MILLI * 1_252, "{algorithm:?}: {admitted:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_queued_request_waits_for_the_end_of_a_cooldown() {
    for (backend, limiter) in backends() {
        let limiter = limiter(Quota::concurrent(1));
        let (start, job) = (Instant::now(), by("acme"));
        let permit = limiter.acquire(&job, Duration::ZERO).await.unwrap();
        let mut long = std::pin::pin!(limiter.acquire(&job, SECOND * 10));
        let mut short = std::pin::pin!(limiter.acquire(&job, MILLI * 500));
        assert!(polled(&mut long).is_none() && polled(&mut short).is_none());
        limiter.cool_down(&job, SECOND);
        drop(permit);
        let (long, short) = tokio::join!(
            async {
                let permit = long.await.unwrap();
                (start.elapsed(), drop(permit)).0
            },
            async { (short.await.map(drop), start.elapsed()) },
        );
        assert_within(long, 1_000, 1_252);
        assert!(short.0.is_err() && short.1 <= MILLI * 1_252, "{backend}: {short:?}");
    }
}

/// The output of a future if its first poll is ready.
fn polled<F: Future>(future: &mut Pin<&mut F>) -> Option<F::Output> {
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_waiter_gives_all_back() {
    for (backend, limiter) in backends() {
        let limiter = limiter(Quota::per_second(1).burst(1));
        limiter.cool_down(&by("acme"), SECOND);
        for _ in 0..5 {
            let job = by("acme");
            assert!(tokio::time::timeout(MILLI * 10, limiter.acquire(&job, Duration::MAX)).await.is_err());
        }
        assert_eq!(limiter.stats().waiting, 0, "{backend}");
        assert_within(all_admitted(&limiter, 1).await[0], 940, 1_250);
    }
}

#[tokio::test(start_paused = true)]
async fn a_rule_can_ignore_cooldowns_and_a_reload_keeps_them() {
    let upstream = || Rule::new("upstream").tier(Quota::per_second(100));
    let policy = |limit| {
        let egress =
            Rule::new("egress").per([] as [Dimension; 0]).upstream_feedback(false).tier(Quota::per_second(limit));
        Policy::new().rule(upstream()).rule(egress)
    };
    let limiter = limiter(policy(1_000));
    limiter.cool_down(&by("acme"), SECOND);
    assert!(!limiter.check(&by("acme")).await.is_allowed());
    assert!(limiter.check(&by("globex")).await.is_allowed(), "they share `egress`");
    limiter.set_policy(policy(500)).unwrap();
    assert!(!limiter.check(&by("acme")).await.is_allowed());
    limiter.set_policy(Policy::new().rule(upstream().upstream_feedback(false))).unwrap();
    limiter.cool_down(&by("initech"), SECOND);
    assert!(limiter.check(&by("initech")).await.is_allowed());
}

fn get(host: &str) -> Request<()> {
    Request::get(format!("http://{host}/things")).body(()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_cooldown_from_one_task_applies_to_all_tasks() {
    let policy = Policy::new().rule(Rule::new("api").tier(Quota::per_second(100).burst(1)).max_wait(SECOND * 60));
    let limiter = limiter(policy);
    let start = Instant::now();
    let rejections = Arc::new(AtomicUsize::new(0));
    let calls = Arc::new(Mutex::new(Vec::new()));
    let upstream = service_fn({
        let (rejections, calls) = (Arc::clone(&rejections), Arc::clone(&calls));
        move |request: Request<()>| {
            let host = request.uri().host().unwrap().to_owned();
            let busy = host == "acme" && start.elapsed() >= SECOND && rejections.fetch_add(1, Ordering::SeqCst) == 0;
            calls.lock().unwrap().push((host, start.elapsed()));
            async move {
                let response = Response::builder();
                Ok::<_, std::io::Error>(match busy {
                    true => response.status(429).header("retry-after", "2").body(()).unwrap(),
                    false => response.body(()).unwrap(),
                })
            }
        }
    });
    let client = RateLimitLayer::client(limiter).layer(upstream);
    let tasks: Vec<_> = (0..64)
        .map(|task| {
            let (mut client, host) = (client.clone(), if task % 4 == 0 { "globex" } else { "acme" });
            tokio::spawn(async move {
                while start.elapsed() < SECOND * 5 {
                    client.ready().await.unwrap().call(get(host)).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(
        rejections.load(Ordering::SeqCst),
        calls.lock().unwrap().iter().filter(|call| call.0 == "acme" && call.1 >= SECOND).count()
    );
    let gap = |host: &str| {
        let calls = calls.lock().unwrap();
        let times: Vec<_> = calls.iter().filter(|call| call.0 == host).map(|call| call.1).collect();
        times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap()
    };
    assert_within(gap("acme"), 2_000, 2_502);
    assert_within(gap("globex"), 10, 12);
}

#[tokio::test(start_paused = true)]
async fn every_kind_of_signal_and_nothing_else_starts_a_cooldown() {
    type Head = &'static [(&'static str, &'static str)];
    type Bounds = Option<(u64, u64)>;
    let rejected = |seconds: u64| Some((seconds * 1_000, seconds * 1_250));
    let cases: [(u16, Head, Bounds); 13] = [
        (200, &[], None),
        // At least two seconds, and one interval.
        (200, &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "3")], Some((2_010, 2_020))),
        (200, &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1")], None),
        (200, &[("x-ratelimit-remaining", "1"), ("x-ratelimit-reset", "3")], None),
        (200, &[("retry-after", "3")], None),
        (403, &[], None),
        (403, &[("retry-after", "3")], rejected(3)),
        (429, &[("retry-after", "4")], rejected(4)),
        // Only a pause of one interval.
        (429, &[("retry-after", "soon")], None),
        (429, &[], None),
        (429, &[("retry-after", "99999999")], Some((600_000, 610_000))),
        (503, &[], None),
        (503, &[("retry-after", "5")], rejected(5)),
    ];
    for (status, headers, expected) in cases {
        let limiter = limiter(Quota::per_second(100));
        let upstream = service_fn(move |_: Request<()>| async move {
            let mut response = Response::builder().status(status);
            for (name, value) in headers {
                response = response.header(*name, *value);
            }
            Ok::<_, std::io::Error>(response.body(()).unwrap())
        });
        let call = Descriptor::new("/things").method("GET").tenant("acme");
        let client = RateLimitLayer::client(limiter.clone()).layer(upstream);
        client.oneshot(get("acme")).await.unwrap();
        let cooldown = limiter.cooldown(&call);
        assert_eq!(cooldown.is_some(), expected.is_some(), "{status} {headers:?}: {cooldown:?}");
        if let (Some(cooldown), Some((least, most))) = (cooldown, expected) {
            assert_within(cooldown, least, most);
        }
    }
}

/// An endpoint that is down does not stop the calls to others, unless told.
#[tokio::test(start_paused = true)]
async fn a_503_pauses_its_endpoint_and_a_429_its_host() {
    let cases = [
        (503, &[("retry-after", "5")][..], CooldownScope::Endpoint, [true, false]),
        (503, &[("retry-after", "5")], CooldownScope::Keys, [true, true]),
        (503, &[("retry-after", "5"), ("x-ratelimit-remaining", "0")], CooldownScope::Endpoint, [true, true]),
        (429, &[("retry-after", "5")], CooldownScope::Endpoint, [true, true]),
        (503, &[], CooldownScope::Endpoint, [false, false]),
    ];
    for (status, headers, scope, expected) in cases {
        // With one rule for all requests, and with one that waits.
        for max_wait in [None, Some(Duration::from_secs(60))] {
            let rule = Rule::new("r").tier(Quota::per_second(100));
            let limiter = limiter(Policy::new().rule(match max_wait {
                Some(max_wait) => rule.max_wait(max_wait),
                None => rule,
            }));
            let upstream = service_fn(move |request: Request<()>| async move {
                let is_down = request.uri().path() == "/down" && request.headers().is_empty();
                let mut response = Response::builder().status(if is_down { status } else { 200 });
                for (name, value) in headers.iter().filter(|_| is_down) {
                    response = response.header(*name, *value);
                }
                Ok::<_, std::io::Error>(response.body(()).unwrap())
            });
            let feedback = UpstreamFeedback::new().on_unavailable(scope);
            let client = RateLimitLayer::client(limiter.clone()).feedback(feedback).layer(upstream);
            let call = |path: &str, well: bool| {
                let request = Request::get(format!("http://acme{path}"));
                let request = if well { request.header("well", "1") } else { request };
                client.clone().oneshot(request.body(()).unwrap())
            };
            call("/down", false).await.unwrap();
            tokio::time::advance(Duration::from_millis(20)).await;
            for (path, is_paused) in ["/down", "/other"].into_iter().zip(expected) {
                let start = Instant::now();
                let descriptor = Descriptor::new(path).method("GET").tenant("acme");
                assert_eq!(limiter.cooldown(&descriptor).is_some(), is_paused, "{status} {headers:?} {path}");
                let result = call(path, true).await;
                let waited = start.elapsed() >= Duration::from_secs(4);
                assert_eq!(
                    (result.is_err(), waited),
                    (is_paused && max_wait.is_none(), is_paused && max_wait.is_some()),
                    "{status} {headers:?} {path}"
                );
                if waited {
                    // All that paused is over.
                    break;
                }
            }
        }
    }
}

/// A point in time in an upstream's answer is compared with the limiter's clock,
/// which need not be the machine's.
#[tokio::test]
async fn a_cooldown_until_a_point_in_time_is_measured_on_the_clock_of_the_limiter() {
    let in_5_s = [("retry-after", "Mon, 01 Jan 2024 00:00:05 GMT"), ("x-ratelimit-reset", "1704067205")];
    for (name, value) in in_5_s {
        let clock = ManualClock::new();
        let limiter = builder(Quota::per_second(100)).clock(clock.clone()).build().unwrap();
        let upstream = service_fn(move |_: Request<()>| async move {
            let response = Response::builder().status(429).header("x-ratelimit-remaining", "0");
            Ok::<_, std::io::Error>(response.header(name, value).body(()).unwrap())
        });
        let client = RateLimitLayer::client(limiter.clone()).layer(upstream);
        let request = Request::get("http://acme/").body(()).unwrap();
        client.oneshot(request).await.unwrap();
        let cooldown = limiter.cooldown(&Descriptor::new("/").method("GET").tenant("acme"));
        assert_within(cooldown.unwrap(), 5_000, 6_250);
    }
}

#[tokio::test(start_paused = true)]
async fn a_rejection_may_be_a_response() {
    let limiter = limiter(Quota::per_second(100));
    let upstream = service_fn(|_: Request<()>| async {
        Ok::<_, std::io::Error>(Response::builder().status(429).header("retry-after", "7").body(String::new()).unwrap())
    });
    let client = RateLimitLayer::client(limiter).reject_with_response().layer(upstream);
    let first = client.clone().oneshot(get("acme")).await.unwrap();
    assert_eq!(
        (first.status(), &first.headers()["retry-after"]),
        (StatusCode::TOO_MANY_REQUESTS, &"7".parse().unwrap())
    );
    assert_eq!(first.headers().len(), 1, "the upstream's answer passes unchanged");
    assert!(first.extensions().get::<RateLimited>().is_none());
    let second = client.oneshot(get("acme")).await.unwrap();
    assert_eq!(second.status(), StatusCode::TOO_MANY_REQUESTS);
    let rejection = second.extensions().get::<RateLimited>().unwrap();
    assert_within(rejection.retry_after().unwrap(), 7_000, 8_750);
    let seconds: u64 = second.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((7..=9).contains(&seconds));
}

#[tokio::test(start_paused = true)]
async fn a_default_cooldown_follows_a_rejection_without_a_time() {
    for (default, expected) in [(Duration::ZERO, None), (SECOND * 2, Some(SECOND * 2))] {
        let limiter = limiter(Quota::per_second(100));
        let upstream = service_fn(|_: Request<()>| async {
            Ok::<_, std::io::Error>(Response::builder().status(429).body(()).unwrap())
        });
        let feedback = UpstreamFeedback::new().default_cooldown(default);
        let client = RateLimitLayer::client(limiter.clone()).feedback(feedback).layer(upstream);
        client.oneshot(get("acme")).await.unwrap();
        let cooldown = limiter.cooldown(&Descriptor::new("/things").method("GET").tenant("acme"));
        assert_eq!(cooldown.map(|cooldown| cooldown >= default), expected.map(|_| true));
    }
}

/// A request that may not wait is rejected during a pause, with its end.
#[tokio::test(start_paused = true)]
async fn a_pause_rejects_what_may_not_wait_and_delays_the_rest_in_order() {
    let rule = Rule::new("calls").tier(Quota::per_second(10).burst(10)).max_wait(SECOND);
    let limiter = limiter(Policy::new().rule(rule));
    let upstream = service_fn(|_: Request<()>| async {
        Ok::<_, std::io::Error>(Response::builder().status(429).body(()).unwrap())
    });
    let client = RateLimitLayer::client(limiter.clone()).layer(upstream);
    client.oneshot(get("acme")).await.unwrap();
    let call = Descriptor::new("/things").method("GET").tenant("acme");
    let rejected = limiter.check(&call).await;
    assert_eq!((rejected.is_allowed(), rejected.retry_after()), (false, Some(MILLI * 100)));
    assert!(limiter.check(&call.clone().tenant("globex")).await.is_allowed(), "another key");
    // The bucket is full, but the upstream's is empty.
    let start = Instant::now();
    for number in 1..=5 {
        let permit = limiter.acquire(&call, SECOND).await.unwrap();
        assert_eq!((start.elapsed(), permit.decision().wait()), (MILLI * 100 * number, MILLI * 100));
    }
    // Within a second, both are full again.
    tokio::time::advance(SECOND * 2).await;
    for _ in 0..10 {
        assert!(limiter.check(&call).await.is_allowed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_may_wait_just_until_the_end_waits() {
    for (backend, limiter) in backends() {
        let limiter = limiter(Quota::per_second(10));
        limiter.cool_down(&by("acme"), SECOND);
        let after = limiter.check(&by("acme")).await.retry_after().unwrap();
        let rejected = limiter.acquire(&by("acme"), after - Duration::from_nanos(1)).await.unwrap_err();
        assert_eq!(rejected.retry_after(), Some(after), "{backend}");
        assert!(limiter.acquire(&by("acme"), after).await.is_ok(), "{backend}");
    }
}

/// Its servers may be overloaded. No cooldown starts: other instances may reach servers
/// that are well.
#[tokio::test(start_paused = true)]
async fn requests_resume_one_by_one_after_a_503_without_a_time() {
    for (status, times) in [(200, [0, 0, 0]), (503, [100, 200, 300])] {
        let limiter = limiter(Quota::per_second(10));
        let upstream = service_fn(move |_: Request<()>| async move {
            Ok::<_, std::io::Error>(Response::builder().status(status).body(()).unwrap())
        });
        RateLimitLayer::client(limiter.clone()).layer(upstream).oneshot(get("acme")).await.unwrap();
        let call = Descriptor::new("/things").method("GET").tenant("acme");
        assert_eq!(limiter.cooldown(&call), None, "{status}");
        let start = Instant::now();
        for time in times {
            drop(limiter.acquire(&call, SECOND).await.unwrap());
            assert_within(start.elapsed(), time, time + 2);
        }
    }
}
