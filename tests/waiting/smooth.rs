//! Smooth windows: admissions are spread evenly instead of all at the start.

use tower_ratelimit::Algorithm;

use super::*;

fn window(smooth: bool, max_wait: Duration) -> Policy {
    let quota = Quota::per_second(100).algorithm(Algorithm::AnchoredWindow);
    Policy::new().rule(Rule::new("paced").tier(quota).max_wait(max_wait).smooth(smooth))
}

#[tokio::test(start_paused = true)]
async fn callers_are_admitted_one_by_one_in_order() {
    let admissions = rush(&limiter(window(true, Duration::MAX)), 350).await;
    let order: Vec<usize> = admissions.iter().map(|(caller, _)| *caller).collect();
    assert!(order.is_sorted());
    for (caller, at) in admissions {
        let due = 10 * MILLI * u32::try_from(caller).unwrap();
        assert!(at >= due && at < due + 2 * MILLI, "{caller} admitted after {at:?}");
    }
    let admissions = rush(&limiter(window(false, Duration::MAX)), 350).await;
    assert!(admissions[..100].iter().all(|(_, when)| when.is_zero()), "all at once, without");
}

#[tokio::test(start_paused = true)]
async fn no_request_is_rejected_for_its_pace() {
    let limiter = limiter(window(true, SECOND / 10));
    let mut callers: Vec<_> = (0..100).map(|_| Caller::arrive(&limiter, "acme", SECOND / 10)).collect();
    let waiting = callers.iter_mut().filter_map(|caller| caller.is_waiting().then_some(())).count();
    assert_eq!(waiting, 10, "the others could not wait for theirs");
    for caller in callers {
        assert!(caller.outcome().await.is_ok());
    }
    assert!(Caller::arrive(&limiter, "acme", SECOND / 10).outcome().await.is_err(), "a hundred and one");
}

/// Beyond the waiter limit, requests are admitted at once.
#[tokio::test(start_paused = true)]
async fn a_request_beyond_the_waiter_limit_is_decided_at_once() {
    let limiter = builder(window(true, Duration::MAX)).max_waiters_per_key(3).build().unwrap();
    let mut callers: Vec<_> = (0..10).map(|_| Caller::arrive(&limiter, "acme", Duration::MAX)).collect();
    let waits: Vec<bool> = callers.iter_mut().map(Caller::is_waiting).collect();
    assert_eq!(waits, [false, true, true, true, false, false, false, false, false, false]);
}

/// A check never waits.
#[tokio::test(start_paused = true)]
async fn a_check_is_decided_at_once() {
    let limiter = limiter(window(true, Duration::MAX));
    for left in (0..100).rev() {
        let decision = limiter.check(&by("acme")).await;
        assert_eq!((decision.wait(), decision.remaining()), (Duration::ZERO, Some(left)));
    }
}

/// Smoothing also applies beside a concurrency limit.
#[tokio::test(start_paused = true)]
async fn in_flight_units_are_taken_smoothly() {
    let quota = Quota::per_second(10).algorithm(Algorithm::AnchoredWindow);
    let rule = Rule::new("paced").tier(quota).tier(Quota::concurrent(1)).max_wait(Duration::MAX).smooth(true);
    let limiter = limiter(Policy::new().rule(rule));
    let start = Instant::now();
    let times = rush(&limiter, 25).await;
    assert_eq!(times.len(), 25);
    let last = Duration::from_millis(2_400);
    assert!(start.elapsed() >= last && start.elapsed() < last + 50 * MILLI, "{:?}", start.elapsed());
    for tenth in 0..24 {
        let from = SECOND / 10 * tenth;
        let within = times.iter().filter(|(_, when)| (from..from + SECOND / 10).contains(when)).count();
        assert!(within <= 2, "{within} from {from:?}");
    }
}
