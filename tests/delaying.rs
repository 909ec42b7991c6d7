//! A layer that delays, in real time over real sockets: the whole allowance
//! is used, and no bound is broken.
//!
//! The tests count when the limiter admits a request, not when the handler sees
//! it: a late handler would be attributed to the wrong window. The time is
//! exact: the clock is stopped during a decision, so the time of the decision
//! is known, and [`Decision::wait`] adds the rest. The handler reads the
//! running clock, and must never run before that time.
#![allow(clippy::unwrap_used)]

mod common;

#[path = "delaying/observed.rs"]
mod observed;
#[path = "delaying/readiness.rs"]
mod readiness;

use std::{ops::Range, time::Duration};

use axum::{Extension, Router, routing::get};
use http::StatusCode;
use tokio::{net::TcpListener, task::JoinSet};
use tower::ServiceBuilder;
use tower_ratelimit::{
    Algorithm, Policy, Quota, RateLimitLayer, RateLimiter, Rule, middleware::Http, time::Clock, time::Timestamp,
};

use self::{
    common::Caller,
    observed::{Handled, Log, Noted, Observation, Observe, StoppableClock},
};

/// More than a second's allowance, so that a busy machine, which is late by less than a
/// second, leaves no slot without a request.
const TASKS: usize = 256;
const RATE: u64 = 200;
const SECOND: u64 = 1_000_000_000;
const RUN: Duration = Duration::from_secs(20);
/// The machine may stop this process for up to a second of the run.
const USED_PERCENT: u64 = 95;

/// All admissions in order, and from when to when the tasks asked.
async fn run(quota: Quota) -> (Vec<Observation>, Range<Timestamp>) {
    let (clock, log) = (StoppableClock::default(), Log::default());
    let rule = Rule::new("delays").tier(quota).max_wait(Duration::from_secs(5));
    let limiter = RateLimiter::builder().policy(Policy::new().rule(rule)).clock(clock.clone()).build().unwrap();
    let limits = ServiceBuilder::new().layer(Observe::layer(clock.clone(), log.clone())).layer(RateLimitLayer::with(
        limiter.clone(),
        Http::server(),
        Noted::default(),
    ));
    let handler = async |Extension(clock): Extension<StoppableClock>| (Extension(Handled(clock.now())), "hello");
    let app = Router::new().route("/", get(handler)).layer(limits).layer(Extension(clock.clone()));

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let caller = Caller::new(listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });

    let start = clock.now();
    let stop = start.saturating_add(RUN);
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let (caller, clock) = (caller.clone(), clock.clone());
        tasks.spawn(async move {
            while clock.now() < stop {
                assert_eq!(caller.get("/").await.status, StatusCode::OK);
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }

    let mut admissions = log.take();
    assert_eq!(limiter.stats().waiting, 0);
    assert_eq!(limiter.stats().allowed + limiter.stats().delayed, admissions.len() as u64);
    assert!(limiter.stats().delayed > 0, "no request was delayed");
    let early = admissions.iter().find(|admission| admission.handled < admission.at);
    assert!(early.is_none(), "before its time: {early:?}");
    admissions.sort_unstable_by_key(|admission| admission.at);
    (admissions, start..stop)
}

/// Requests that were handled more than a slot after their time. Where the machine stops a thread,
/// those behind leave with the slots of late ones: as many times are reported later than charged.
fn late(admissions: &[Observation]) -> u64 {
    let slot = Duration::from_nanos(SECOND / RATE);
    admissions.iter().filter(|admission| admission.handled.saturating_since(admission.at) > slot).count() as u64
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fixed_windows_are_used_fully_and_never_exceeded() {
    let (admissions, ran) = run(Quota::per_second(RATE).algorithm(Algorithm::FixedWindow)).await;
    let window = |admission: &Observation| admission.at.as_nanos() / SECOND;
    let windows: Vec<_> = admissions.chunk_by(|a, b| window(a) == window(b)).collect();
    let most = RATE + late(&admissions);
    for admitted in &windows {
        assert!(admitted.len() as u64 <= most, "{} in window {}", admitted.len(), window(&admitted[0]));
    }

    // The first window began before the test, and the last one ends after it.
    let whole = ran.start.as_nanos() / SECOND + 1..ran.end.as_nanos() / SECOND;
    let allowance = RATE * (whole.end - whole.start);
    let used = admissions.iter().filter(|admission| whole.contains(&window(admission))).count() as u64;
    assert!(used * 100 >= allowance * USED_PERCENT, "{used} of {allowance} used");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_is_used_fully_and_never_exceeded() {
    const BURST: u64 = 20;
    let (admissions, ran) = run(Quota::per_second(RATE).burst(BURST)).await;
    // In any interval t, at most the burst plus the rate times t. With `level`
    // as admissions less the rate's units so far: it never exceeds its lowest
    // earlier value by more than the burst.
    let level = |admitted: usize, at: Timestamp| {
        let made = u128::from(at.as_nanos()) * u128::from(RATE);
        admitted as i128 * i128::from(SECOND) - i128::try_from(made).unwrap()
    };
    let (mut lowest, most) = (i128::MAX, i128::from((BURST + late(&admissions)) * SECOND));
    for (before, admission) in admissions.iter().enumerate() {
        lowest = lowest.min(level(before, admission.at));
        let rise = level(before + 1, admission.at) - lowest;
        assert!(rise <= most, "{admission:?}: {rise} more than the rate");
    }

    let start = admissions[0].at;
    let allowance = BURST + RATE * ran.end.saturating_since(start).as_nanos() as u64 / SECOND;
    let used = admissions.iter().filter(|admission| admission.at < ran.end).count() as u64;
    assert!(used * 100 >= allowance * USED_PERCENT, "{used} of {allowance} used");
}
