//! Real time and threads: checks bounds, not exact times.

use std::{sync::Arc, time::Duration};

use tokio::{sync::Barrier, time::Instant};
use tower_ratelimit::{Algorithm, Quota, RateLimiter};

use super::{by, tiers};

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
