use std::{error::Error, sync::Barrier, thread};

use super::super::*;
use crate::error::BackendErrorKind;

const SETTINGS: BreakerSettings =
    BreakerSettings { failures: 3, shortest: Duration::from_millis(100), longest: Duration::from_secs(1) };

fn breaker() -> Breaker {
    Breaker::new(SETTINGS, Arc::default(), None)
}

fn broken() -> BackendError {
    BackendError::unavailable("broken")
}

fn fail(breaker: &Breaker) {
    breaker.failed(breaker.permit().unwrap(), BreakerEffect::Count, &broken());
}

fn open(breaker: &Breaker) {
    breaker.failed(breaker.permit().unwrap(), BreakerEffect::Open, &broken());
}

fn is_closed(breaker: &Breaker) -> bool {
    breaker.rejection().is_none()
}

#[tokio::test(start_paused = true)]
async fn consecutive_failures_open_it() {
    let breaker = breaker();
    fail(&breaker);
    fail(&breaker);
    breaker.succeeded(breaker.permit().unwrap());
    fail(&breaker);
    fail(&breaker);
    assert!(breaker.rejection().is_none(), "a success in between");
    fail(&breaker);
    let rejection = breaker.rejection().unwrap();
    assert_eq!(rejection.kind(), BackendErrorKind::Unavailable);
    let source = rejection.source().unwrap().to_string();
    assert!(source.starts_with("circuit breaker open since ") && source.ends_with(": broken"), "{source}");
    let since = source.trim_start_matches("circuit breaker open since ").trim_end_matches(": broken");
    assert!(humantime::parse_rfc3339(since).is_ok() && since.len() == "2026-01-01T00:00:00Z".len(), "{source}");
}

#[tokio::test(start_paused = true)]
async fn a_lost_connection_opens_it_at_once() {
    let breaker = breaker();
    open(&breaker);
    assert!(!is_closed(&breaker));
}

#[tokio::test(start_paused = true)]
async fn the_cause_decides_the_kind_of_the_rejection() {
    for (cause, rejected) in [
        (BackendErrorKind::Misconfigured, BackendErrorKind::Misconfigured),
        (BackendErrorKind::Timeout, BackendErrorKind::Unavailable),
        (BackendErrorKind::Unavailable, BackendErrorKind::Unavailable),
    ] {
        let breaker = breaker();
        breaker.failed(breaker.permit().unwrap(), BreakerEffect::Open, &BackendError::new(cause, "why"));
        assert_eq!(breaker.rejection().unwrap().kind(), rejected);
    }
}

#[tokio::test(start_paused = true)]
async fn only_the_probe_closes_it() {
    let breaker = breaker();
    open(&breaker);
    tokio::time::advance(Duration::from_secs(3600)).await;
    assert!(breaker.rejection().is_some(), "time alone does not");
    breaker.half_open();
    assert!(breaker.rejection().is_some(), "no request is the probe");
    breaker.reopen(&BackendError::unavailable("still broken"));
    assert!(breaker.rejection().unwrap().source().unwrap().to_string().ends_with("still broken"));
    breaker.half_open();
    breaker.close();
    assert!(breaker.rejection().is_none());
}

#[tokio::test(start_paused = true)]
async fn it_starts_open_and_probes_at_once() {
    let breaker = Breaker::new(SETTINGS, Arc::default(), Some(broken()));
    assert!(breaker.rejection().is_some());
    assert_eq!(breaker.delay(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_late_report_changes_nothing() {
    let breaker = breaker();
    let early = breaker.permit().unwrap();
    open(&breaker);
    breaker.succeeded(early);
    assert!(!is_closed(&breaker), "a late success does not close it");
    breaker.half_open();
    breaker.failed(early, BreakerEffect::Open, &broken());
    assert!(!is_closed(&breaker));
    breaker.close();
    breaker.failed(early, BreakerEffect::Open, &broken());
    assert!(breaker.rejection().is_none(), "a late failure does not open it again");
    fail(&breaker);
    fail(&breaker);
    breaker.succeeded(early);
    fail(&breaker);
    assert!(breaker.rejection().is_some(), "a late success forgives nothing");
}

#[tokio::test(start_paused = true)]
async fn delays_are_jittered_and_double_up_to_the_longest() {
    let mut seen = std::collections::HashSet::new();
    for _ in 0..200 {
        let breaker = breaker();
        open(&breaker);
        for step in [100, 200, 400, 800, 1000, 1000] {
            let (delay, step) = (breaker.delay(), Duration::from_millis(step));
            assert!(delay >= step / 2 && delay <= step, "{delay:?} of {step:?}");
            seen.insert(delay.as_nanos() / 1_000_000 * 20 / step.as_millis());
            breaker.half_open();
            breaker.reopen(&broken());
        }
    }
    assert!(seen.len() >= 10, "spread over the whole half: {seen:?}");
}

#[tokio::test(start_paused = true)]
async fn only_a_lasting_recovery_resets_the_delay() {
    let breaker = breaker();
    let reopen_after = async |closed_for| {
        breaker.half_open();
        breaker.close();
        tokio::time::advance(closed_for).await;
        for _ in 0..SETTINGS.failures {
            fail(&breaker);
        }
        breaker.delay()
    };
    open(&breaker);
    assert!(breaker.delay() <= Duration::from_millis(100));
    assert!(reopen_after(Duration::from_millis(999)).await >= Duration::from_millis(100));
    assert!(reopen_after(Duration::from_millis(10)).await >= Duration::from_millis(200));
    assert!(reopen_after(Duration::from_secs(1)).await <= Duration::from_millis(100));
}

#[tokio::test(start_paused = true)]
async fn connections_that_are_lost_now_and_then_do_not_add_up() {
    let breaker = breaker();
    let lose_after = async |closed_for| {
        breaker.half_open();
        breaker.close();
        tokio::time::advance(Duration::from_millis(closed_for)).await;
        open(&breaker);
        breaker.delay()
    };
    open(&breaker);
    for _ in 0..20 {
        assert!(lose_after(200).await <= Duration::from_millis(100));
    }
    assert!(lose_after(199).await >= Duration::from_millis(100), "lost at once");
    assert!(lose_after(399).await >= Duration::from_millis(200), "lost at once again");
    assert!(lose_after(500).await <= Duration::from_millis(100), "it lasted for half a second");
}

#[test]
fn one_of_many_failing_threads_opens_it() {
    for _ in 0..50 {
        let breaker = breaker();
        let (start, permits) = (Barrier::new(8), (0..800).map(|_| breaker.permit().unwrap()).collect::<Vec<_>>());
        thread::scope(|scope| {
            for permits in permits.chunks(100) {
                let (breaker, start) = (&breaker, &start);
                scope.spawn(move || {
                    start.wait();
                    permits.iter().for_each(|&permit| breaker.failed(permit, BreakerEffect::Count, &broken()));
                });
            }
        });
        assert_eq!(breaker.changes.load(Ordering::Relaxed), 1, "it has opened once");
        assert!(lock(&breaker.state).step == SETTINGS.shortest * 2, "one delay was drawn");
    }
}

#[test]
fn a_rejection_names_the_cause_of_its_own_opening() {
    for _ in 0..200 {
        let breaker = breaker();
        thread::scope(|scope| {
            scope.spawn(|| open(&breaker));
            scope.spawn(|| {
                let rejection = std::iter::repeat_with(|| breaker.rejection()).flatten().next().unwrap();
                assert!(rejection.source().unwrap().to_string().ends_with("broken"));
            });
        });
    }
}

#[tokio::test(start_paused = true)]
async fn a_delay_beyond_the_timers_maximum_is_capped() {
    let settings = BreakerSettings { failures: u32::MAX, shortest: Duration::MAX, longest: Duration::MAX };
    let breaker = Breaker::new(settings, Arc::default(), None);
    open(&breaker);
    breaker.half_open();
    breaker.reopen(&broken());
    assert!(Instant::now().checked_add(breaker.delay()).is_some());
}
