//! Real time and threads: checks bounds, not exact times.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::Barrier,
    task::JoinSet,
    time::{Instant, timeout},
};
use tower_ratelimit::{Algorithm, Policy, Quota, RateLimiter, Rule};

use super::{SECOND, by, tiers};

const TASKS: usize = 200;

/// The times of the permits that two hundred tasks acquired.
async fn work(limiter: RateLimiter, rounds: usize) -> Vec<Duration> {
    let (start, barrier) = (Instant::now(), Arc::new(Barrier::new(TASKS)));
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let (limiter, barrier) = (limiter.clone(), Arc::clone(&barrier));
            tokio::spawn(async move {
                barrier.wait().await;
                let mut times = Vec::new();
                for _ in 0..rounds {
                    drop(limiter.acquire(&by("acme"), Duration::MAX).await.unwrap());
                    times.push(start.elapsed());
                }
                times
            })
        })
        .collect();
    let mut times = Vec::new();
    for task in tasks {
        times.extend(task.await.unwrap());
    }
    times.sort_unstable();
    times
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_tasks_share_a_rate_and_none_is_lost() {
    const RATE: usize = 1_000;
    for algorithm in [Algorithm::TokenBucket, Algorithm::SlidingLog, Algorithm::FixedWindow] {
        let quota = Quota::new(RATE as u64 / 10, Duration::from_millis(100)).algorithm(algorithm);
        let limiter = RateLimiter::new(tiers(&[quota])).unwrap();
        let rounds = 3;
        let times = work(limiter.clone(), rounds).await;
        assert_eq!((times.len(), limiter.stats().waiting), (TASKS * rounds, 0));
        // None is early: by any time no more were admitted than a full bucket,
        // or one window begun before and one more, and the rate make.
        for (position, time) in times.iter().enumerate() {
            let allowed = time.as_millis() * RATE as u128 / 1_000 + 2 * RATE as u128 / 10 + 2;
            assert!((position as u128) < allowed, "{algorithm}: {} after {time:?}", position + 1);
        }
    }
}

/// So many callers arrive within some milliseconds, and all of them give up. Returns how long
/// the next caller would have to wait.
async fn give_up(limiter: &RateLimiter, callers: u64) -> Duration {
    let mut tasks = JoinSet::new();
    for caller in 0..callers {
        let limiter = limiter.clone();
        let patience = Duration::from_micros(caller * 7_919 % 20_000);
        tasks.spawn(async move {
            let tenant = ["a", "b", "c"][caller as usize % 3];
            drop(timeout(patience, limiter.acquire(&by(tenant), Duration::MAX)).await);
        });
    }
    while tasks.join_next().await.is_some() {}
    assert_eq!(limiter.stats().waiting, 0);
    limiter.check(&by("a")).await.retry_after().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_that_give_up_while_others_join_leave_no_slot_behind() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::LeakyBucket, Algorithm::FixedWindow, Algorithm::SlidingLog] {
        for (round, fair) in [false, true, false, true].into_iter().enumerate() {
            let rule = Rule::new("r").per([]).fair(fair).tier(Quota::per_second(10).algorithm(algorithm));
            let limiter = RateLimiter::new(Policy::new().rule(rule)).unwrap();
            let left = give_up(&limiter, 2_000).await;
            assert!(left <= SECOND, "{algorithm}, round {round}: locked for {left:?}");
        }
    }
}
