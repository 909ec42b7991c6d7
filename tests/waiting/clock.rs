//! Clocks that disagree with the timer.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;
use tower_ratelimit::{
    Quota, RateLimiter,
    testing::TokioClock,
    time::{Clock, Timestamp},
};

use super::{Caller, MILLI, SECOND, by};

/// Tokio's time with an offset, slower by one part in `slower`.
#[derive(Clone, Debug)]
struct Skewed {
    origin: Timestamp,
    tokio: TokioClock,
    moved: Arc<AtomicI64>,
    slower: Arc<AtomicU64>,
}

impl Skewed {
    fn new() -> Self {
        let tokio = TokioClock::default();
        Self { origin: tokio.now(), tokio, moved: Arc::default(), slower: Arc::new(AtomicU64::new(u64::MAX)) }
    }
}

impl Clock for Skewed {
    fn now(&self) -> Timestamp {
        let passed = self.tokio.now().as_nanos() - self.origin.as_nanos();
        let passed = passed - passed / self.slower.load(Ordering::SeqCst);
        let now = self.origin.as_nanos() + passed;
        Timestamp::from_nanos(now.saturating_add_signed(self.moved.load(Ordering::SeqCst)))
    }
}

fn limiter(clock: &Skewed, quota: Quota) -> RateLimiter {
    RateLimiter::builder().policy(quota).clock(clock.clone()).build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn no_request_is_admitted_early_on_a_slow_clock() {
    let clock = Skewed::new();
    let limiter = limiter(&clock, Quota::per_second(1));
    let promised = clock.now().saturating_add(4 * SECOND);
    let waiters: Vec<_> = (0..5).map(|_| Caller::arrive(&limiter, "acme", 10 * SECOND)).collect();
    // As `SystemClock` does when it is ahead of the wall clock.
    clock.slower.store(8, Ordering::SeqCst);
    for waiter in waiters {
        drop(waiter.outcome().await.unwrap());
    }
    let now = clock.now();
    assert!(now >= promised, "early by {:?}", promised.saturating_since(now));
    assert!(now <= promised.saturating_add(2 * MILLI), "late by {:?}", now.saturating_since(promised));
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_jumps_ahead_admits_no_waiter_early() {
    let clock = Skewed::new();
    let limiter = limiter(&clock, Quota::per_second(1));
    let start = Instant::now();
    let waiters: Vec<_> = (0..5).map(|_| Caller::arrive(&limiter, "acme", 10 * SECOND)).collect();
    clock.moved.store(3_600_000_000_000, Ordering::SeqCst);
    for (position, waiter) in waiters.into_iter().enumerate() {
        drop(waiter.outcome().await.unwrap());
        assert_eq!(start.elapsed().as_secs(), position as u64);
    }
    assert!(limiter.acquire(&by("acme"), Duration::ZERO).await.is_ok(), "and newcomers see the hour passed");
}

/// Waiters that moved up look at the clock before their timers fire.
#[tokio::test(start_paused = true)]
async fn a_clock_that_jumps_ahead_admits_no_waiter_early_that_moved_up() {
    let clock = Skewed::new();
    let limiter = limiter(&clock, Quota::per_second(1).burst(1));
    drop(limiter.acquire(&by("acme"), Duration::ZERO).await.unwrap());
    let start = Instant::now();
    let leaving: Vec<_> = (0..10).map(|_| Caller::arrive(&limiter, "acme", 60 * SECOND)).collect();
    let waiters: Vec<_> = (0..10).map(|_| Caller::arrive(&limiter, "acme", 60 * SECOND)).collect();
    drop(leaving);
    tokio::time::advance(SECOND / 2).await;
    clock.moved.store(3_600_000_000_000, Ordering::SeqCst);
    for (position, waiter) in (1..).zip(waiters) {
        drop(waiter.outcome().await.unwrap());
        let (admitted, slot) = (start.elapsed(), SECOND * position);
        assert!(admitted + MILLI >= slot && admitted <= slot + MILLI, "{admitted:?}, not {slot:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_jumps_back_delays_no_waiter_for_long() {
    let clock = Skewed::new();
    let limiter = limiter(&clock, Quota::per_second(1));
    let start = Instant::now();
    let waiters: Vec<_> = (0..5).map(|_| Caller::arrive(&limiter, "acme", 10 * SECOND)).collect();
    tokio::time::advance(SECOND / 2).await;
    clock.moved.store(-3_600_000_000_000, Ordering::SeqCst);
    for (position, waiter) in (0..).zip(waiters).skip(1) {
        drop(waiter.outcome().await.unwrap());
        assert_eq!(start.elapsed(), SECOND * position * 5 / 4, "in order, after a quarter more than was promised");
    }
    // A newcomer waits for as long as the longest reservation, and not for an hour.
    let rejected = limiter.acquire(&by("acme"), SECOND).await.unwrap_err();
    let retry_after = rejected.retry_after().unwrap();
    assert!(retry_after > 3 * SECOND && retry_after <= 5 * SECOND, "{retry_after:?}");
}

#[tokio::test(start_paused = true)]
async fn a_stopped_clock_does_not_block_waiters() {
    let clock = tower_ratelimit::testing::ManualClock::new();
    let limiter = RateLimiter::builder().policy(Quota::per_second(1)).clock(clock).build().unwrap();
    drop(limiter.acquire(&by("acme"), SECOND).await.unwrap());
    let start = Instant::now();
    drop(limiter.acquire(&by("acme"), SECOND).await.unwrap());
    assert_eq!(start.elapsed(), SECOND * 5 / 4);
}
