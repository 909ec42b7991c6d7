//! Responses of the upstream.

use http::Method;
use tower::BoxError;
use tower_ratelimit::{RetryPolicy, headers::parse::Parser, retry::RetryAttempt, testing::ManualClock};

use super::*;

#[tokio::test(start_paused = true)]
async fn rejections_are_retried_and_nothing_else() {
    type Fields = &'static [(&'static str, &'static str)];
    const GRPC: (&str, &str) = ("content-type", "application/grpc");
    let cases: &[(u16, Fields, bool)] = &[
        (429, &[], true),
        (429, &[("retry-after", "1")], true),
        (429, &[("retry-after", "soon")], true),
        (429, &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "3")], true),
        (503, &[], true),
        (503, &[("retry-after", "1")], true),
        (403, &[("retry-after", "1")], true),
        (403, &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "3")], true),
        (403, &[], false),
        (200, &[], false),
        (200, &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "3")], false),
        (301, &[], false),
        (400, &[], false),
        (401, &[], false),
        (404, &[], false),
        (500, &[], false),
        (502, &[], false),
        (504, &[], false),
        (200, &[GRPC, ("grpc-status", "8")], true),
        (200, &[GRPC, ("grpc-status", "14"), ("grpc-retry-pushback-ms", "20")], true),
        (200, &[GRPC, ("grpc-status", "14")], false),
        (200, &[GRPC, ("grpc-status", "0")], false),
        (200, &[GRPC, ("grpc-status", "5")], false),
        (200, &[GRPC, ("grpc-status", "13")], false),
    ];
    for &(status, headers, retried) in cases {
        let upstream = Upstream::rejecting(1, status, headers);
        let response = send(&upstream, &RetryPolicy::new(), get()).await.unwrap();
        assert_eq!(upstream.sends(), 1 + usize::from(retried), "{status} {headers:?}");
        assert_eq!(response.status(), if retried { 200 } else { status }, "{status} {headers:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn retries_wait_for_the_upstreams_time_and_are_never_earlier() {
    let clock = ManualClock::new();
    for (headers, asked) in [
        (&[("retry-after", "7")][..], 7_000),
        (&[("retry-after", "1")], 1_000),
        (&[("retry-after", "2.5")], 2_500),
        (&[("x-ratelimit-remaining-tokens", "0"), ("x-ratelimit-reset-tokens", "1m2ms")], 60_002),
        // The clock stands at 00:00:00.
        (&[("retry-after", "Mon, 01 Jan 2024 00:00:30 GMT")], 30_000),
        (&[("date", "Mon, 01 Jan 2024 00:00:10 GMT"), ("retry-after", "Mon, 01 Jan 2024 00:00:30 GMT")], 20_000),
    ] {
        for _ in 0..20 {
            let upstream = Upstream::rejecting(2, 429, headers);
            send(&upstream, &RetryPolicy::new().max_wait(seconds(61)).clock(clock.clone()), get()).await.unwrap();
            let asked = Duration::from_millis(asked);
            let most = asked + (asked / 10).max(Duration::from_millis(100)) + TIMER;
            assert_eq!(upstream.sends(), 3);
            assert!(
                upstream.gaps().iter().all(|gap| (asked..=most).contains(gap)),
                "{headers:?}: {:?}",
                upstream.gaps()
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn without_jitter_retries_are_exact() {
    let upstream = Upstream::rejecting(1, 503, &[("retry-after", "7")]);
    send(&upstream, &RetryPolicy::new().jitter(Duration::ZERO), get()).await.unwrap();
    assert!((seconds(7)..=seconds(7) + TIMER).contains(&upstream.gaps()[0]), "{:?}", upstream.gaps());
}

/// Of 200 callers with the same time, each tenth of a second sees few: 20 on
/// average, and 40 is five deviations.
#[tokio::test(start_paused = true)]
async fn a_fleet_does_not_return_in_one_instant() {
    let upstream = Upstream::rejecting(200, 429, &[("retry-after", "10")]);
    let retry = RetryPolicy::new().budget(Unlimited);
    let start = Instant::now();
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..200 {
        let (upstream, retry) = (upstream.clone(), retry.clone());
        calls.spawn(async move { send(&upstream, &retry, get()).await.unwrap().status() });
    }
    assert!(calls.join_all().await.iter().all(|status| *status == 200));
    let mut parts = [0; 10];
    for sent in &upstream.sent()[200..] {
        let late = sent.at - start - seconds(10);
        parts[(late.as_millis() / 100).min(9) as usize] += 1;
    }
    assert!(parts.iter().all(|count| *count <= 45), "{parts:?}");
}

#[tokio::test(start_paused = true)]
async fn without_a_time_retries_back_off() {
    let mut longest = [Duration::ZERO; 8];
    for _ in 0..200 {
        let upstream = Upstream::rejecting(8, 429, &[]);
        let retry = RetryPolicy::new().max_retries(8).backoff(Duration::from_millis(50), seconds(2)).budget(Unlimited);
        assert_eq!(send(&upstream, &retry, get()).await.unwrap().status(), 200);
        for (longest, gap) in longest.iter_mut().zip(upstream.gaps()) {
            *longest = gap.max(*longest);
        }
    }
    for (longest, millis) in longest.into_iter().zip([50, 100, 200, 400, 800, 1_600, 2_000, 2_000]) {
        let most = Duration::from_millis(millis);
        // That 200 draws all miss the last fifth: less than once in 10^19.
        assert!((most * 4 / 5..=most + TIMER).contains(&longest), "{longest:?} of {most:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_beyond_max_wait_returns_the_response() {
    let start = Instant::now();
    for (headers, waited) in [
        (&[("retry-after", "60")][..], true),
        (&[("retry-after", "61")], false),
        (&[("retry-after", "3600")], false),
        (&[("retry-after", "99999999")], false),
    ] {
        let upstream = Upstream::rejecting(1, 429, headers);
        let response = send(&upstream, &RetryPolicy::new(), get()).await.unwrap();
        assert_eq!(upstream.sends(), 1 + usize::from(waited), "{headers:?}");
        if !waited {
            assert_eq!(response.status(), 429);
            assert_eq!(response.headers()["retry-after"], headers[0].1, "as it was");
        }
    }
    assert!(start.elapsed() < seconds(70), "{:?}", start.elapsed());
}

/// Longer than any parser's cap, at which a retry would be too early.
#[tokio::test(start_paused = true)]
async fn a_long_wait_is_kept_if_allowed() {
    let upstream = Upstream::rejecting(1, 429, &[("retry-after", "7200")]);
    let retry = RetryPolicy::new().max_wait(Duration::MAX).parser(tower_ratelimit::headers::parse::Parser::new());
    send(&upstream, &retry, get()).await.unwrap();
    assert!(upstream.gaps()[0] >= seconds(7_200), "{:?}", upstream.gaps());
}

#[tokio::test(start_paused = true)]
async fn only_idempotent_methods_by_default() {
    let post_only = RetryPolicy::new().methods([Method::POST, Method::from_bytes(b"SEARCH").unwrap()]);
    for (method, by_default, told) in [
        ("GET", true, false),
        ("HEAD", true, false),
        ("OPTIONS", true, false),
        ("TRACE", true, false),
        ("PUT", true, false),
        ("DELETE", true, false),
        ("POST", false, true),
        ("PATCH", false, false),
        ("CONNECT", false, false),
        ("SEARCH", false, true),
    ] {
        for (retry, retried) in [(&RetryPolicy::new(), by_default), (&post_only, told)] {
            let upstream = Upstream::rejecting(1, 429, &[("retry-after", "1")]);
            send(&upstream, retry, request(method.parse().unwrap())).await.unwrap();
            assert_eq!(upstream.sends(), 1 + usize::from(retried), "{method}");
            assert!(upstream.sent().iter().all(|sent| sent.method == method));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn retries_stop_at_max_retries() {
    for (retry, sends) in [
        (RetryPolicy::new(), 4),
        (RetryPolicy::new().max_retries(0), 1),
        (RetryPolicy::new().max_retries(1), 2),
        (RetryPolicy::new().max_retries(9), 10),
    ] {
        let upstream = Upstream::new(|n| Ok(answer(429, &[("retry-after", "1"), ("x-answer", ["a", "b"][n % 2])])));
        let response = send(&upstream, &retry, get()).await.unwrap();
        assert_eq!(response.status(), 429);
        assert_eq!(response.headers()["x-answer"], ["a", "b"][(sends - 1) % 2], "the last answer");
        assert_eq!(upstream.sends(), sends);
    }
}

#[tokio::test(start_paused = true)]
async fn requests_have_separate_retry_counts() {
    let upstream = Upstream::new(|_| Ok(answer(429, &[])));
    let mut service = RetryLayer::new(RetryPolicy::new()).layer(upstream.clone());
    for calls in 1..=5 {
        // One service for all, like a client that is not cloned.
        service.call(get()).await.unwrap();
        assert_eq!(upstream.sends(), 4 * calls);
    }
}

#[tokio::test(start_paused = true)]
async fn a_retry_carries_its_number() {
    let upstream = Upstream::new(|_| Ok(answer(429, &[])));
    send(&upstream, &RetryPolicy::new(), get()).await.unwrap();
    let attempts: Vec<_> = upstream.sent().into_iter().map(|sent| sent.attempt).collect();
    assert_eq!(attempts, [None, Some(RetryAttempt(1)), Some(RetryAttempt(2)), Some(RetryAttempt(3))]);
}

#[tokio::test(start_paused = true)]
async fn a_demand_not_to_retry_is_obeyed() {
    const NO_MORE: &[(&str, &str)] =
        &[("content-type", "application/grpc"), ("grpc-status", "8"), ("grpc-retry-pushback-ms", "-1")];
    for (headers, sends) in [(NO_MORE, 1), (&NO_MORE[..2], 2)] {
        let upstream = Upstream::rejecting(1, 200, headers);
        send(&upstream, &RetryPolicy::new(), get()).await.unwrap();
        assert_eq!(upstream.sends(), sends);
    }
}

#[tokio::test(start_paused = true)]
async fn other_errors_are_not_retried() {
    let upstream = Upstream::new(|_| Err(BoxError::from("connection refused")));
    assert_eq!(send(&upstream, &RetryPolicy::new(), get()).await.unwrap_err().to_string(), "connection refused");
    assert_eq!(upstream.sends(), 1);
}

/// An endless budget.
#[derive(Debug)]
pub(crate) struct Unlimited;

impl tower::retry::budget::Budget for Unlimited {
    fn deposit(&self) {}

    fn withdraw(&self) -> bool {
        true
    }
}

/// One list for the parser, upstream feedback and retries.
#[tokio::test(start_paused = true)]
async fn listed_statuses_are_retried_after_their_time() {
    let retry = RetryPolicy::new().parser(Parser::new().rejection_statuses([418, 529]));
    for (status, headers, waits) in [
        (418, &[("retry-after", "7")][..], Some(7)),
        (529, &[("retry-after", "30, 30")], Some(30)),
        (529, &[], Some(0)),
        (429, &[("retry-after", "7")], Some(7)),
        // Not listed, and without a time.
        (503, &[], None),
        (509, &[("retry-after", "7")], None),
    ] {
        let upstream = Upstream::rejecting(1, status, headers);
        let response = send(&upstream, &retry, get()).await.unwrap();
        assert_eq!(response.status() == 200, waits.is_some(), "{status}");
        let gap = upstream.gaps().first().copied();
        assert!(gap.is_some() == waits.is_some() && gap >= waits.map(seconds), "{status}: {gap:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_says_which_statuses_are_retried() {
    const GRPC: (&str, &str) = ("content-type", "application/grpc");
    let retry = RetryPolicy::new().statuses([429, 502, 504]);
    for (status, headers, waits) in [
        (429, &[][..], Some(0)),
        (429, &[("retry-after", "7")], Some(7)),
        (502, &[], Some(0)),
        (502, &[("retry-after", "7")], Some(7)),
        (504, &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "9")], Some(9)),
        // Rejections, but not listed.
        (503, &[], None),
        (503, &[("retry-after", "7")], None),
        (403, &[("retry-after", "7")], None),
        (200, &[], None),
        // gRPC says it by its own status.
        (200, &[GRPC, ("grpc-status", "8")], Some(0)),
        (200, &[GRPC, ("grpc-status", "0")], None),
        (502, &[GRPC, ("grpc-status", "8"), ("grpc-retry-pushback-ms", "-1")], None),
    ] {
        let upstream = Upstream::rejecting(1, status, headers);
        send(&upstream, &retry, get()).await.unwrap();
        let gap = upstream.gaps().first().copied();
        assert!(gap.is_some() == waits.is_some() && gap >= waits.map(seconds), "{status} {headers:?}: {gap:?}");
    }
    // None at all: only our own rejections are.
    let upstream = Upstream::rejecting(1, 429, &[]);
    send(&upstream, &RetryPolicy::new().statuses([0; 0]), get()).await.unwrap();
    assert_eq!(upstream.sends(), 1);
}
