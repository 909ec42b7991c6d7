//! Many threads, and random orders of events.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, Ordering},
    },
    task::Poll,
    time::Duration,
};

use tower_ratelimit::{
    Algorithm, Dimension, Permit, Policy, Quota, RateLimiter, Rule, backend::Local, testing::ManualClock,
};

use super::{
    SECOND, by, limiter,
    promises::{Acquiring, arrive, poll},
};

fn rule(quotas: &[Quota]) -> Rule {
    quotas.iter().fold(Rule::new("r"), |rule, quota| rule.tier(*quota))
}

fn storm(max_keys: usize, limit: i64) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(8).enable_time().build().unwrap();
    let policy = Policy::new()
        .rule(Rule::new("all").per([]).tier(Quota::concurrent(limit as u64)))
        .rule(Rule::new("each").per([Dimension::Tenant]).tier(Quota::concurrent(2)));
    let limiter =
        RateLimiter::builder().policy(policy).backend(Local::builder().max_keys(max_keys).build()).build().unwrap();
    let held = Arc::new(AtomicI64::new(0));
    let most = Arc::new(AtomicI64::new(0));
    let done = Arc::new(Mutex::new(Vec::new()));
    runtime.block_on(async {
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..64u64 {
            let (limiter, held, most, done) = (limiter.clone(), held.clone(), most.clone(), done.clone());
            tasks.spawn(async move {
                let mut random = task.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
                for _ in 0..400 {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let tenant = format!("t{}", random % 5);
                    let descriptor = by(&tenant);
                    let longest = Duration::from_micros(random % 3_000);
                    let wait = if random % 3 == 0 { longest } else { Duration::MAX };
                    let acquiring = limiter.acquire(&descriptor, wait);
                    let permit = match random % 4 {
                        0 => tokio::time::timeout(Duration::from_micros(random % 1_500), acquiring).await.ok(),
                        _ => Some(acquiring.await),
                    };
                    if let Some(Ok(permit)) = permit {
                        most.fetch_max(held.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        tokio::task::yield_now().await;
                        held.fetch_sub(1, Ordering::SeqCst);
                        if random % 5 == 0 { permit.refund() } else { drop(permit) }
                    }
                }
                done.lock().unwrap().push(task);
            });
        }
        let all = tokio::time::timeout(Duration::from_secs(40), async { while tasks.join_next().await.is_some() {} });
        let ended = all.await.is_ok();
        let stats = limiter.stats();
        assert!(ended, "stuck: {} of 64 done, {stats:?}, held {held:?}", done.lock().unwrap().len());
        assert!(most.load(Ordering::SeqCst) <= limit, "{most:?} at once");
        assert_eq!((stats.waiting, stats.permits), (0, 0));
    });
}

#[test]
fn storm_of_threads() {
    storm(1_000_000, 3);
}

#[test]
fn storm_of_threads_at_the_cap() {
    storm(0, 3);
}

#[test]
fn storm_of_threads_near_the_cap() {
    storm(3, 3);
}

#[test]
fn settled_at_once_by_many_threads() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingWindow, Algorithm::SlidingLog] {
        let clock = ManualClock::new();
        let quota = Quota::per_hour(1_000).algorithm(algorithm);
        let policy = Policy::new().rule(rule(&[quota]).settle(true));
        let limiter = RateLimiter::builder().policy(policy).clock(clock.clone()).build().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let base = runtime.block_on(limiter.acquire(&by("a").cost(500), Duration::ZERO)).unwrap();
        let permit = runtime.block_on(limiter.acquire(&by("a").cost(100), Duration::ZERO)).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let permit = &permit;
                scope.spawn(move || {
                    for _ in 0..2_000 {
                        if thread % 2 == 0 { permit.give_back(3) } else { permit.add(1) }
                    }
                });
            }
        });
        permit.give_back(u64::MAX);
        let left = runtime.block_on(limiter.check(&by("a").cost(0))).remaining().unwrap();
        assert!(left <= 500, "{algorithm:?}: {left} left, 500 are spent");
        drop(base);
    }
}

fn next(random: &mut u64) -> u64 {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    *random
}

/// Requests arrive, wait, are cancelled and refund at random. The units that were
/// not refunded must respect the bound in every period.
async fn settled_at_random(algorithm: Algorithm, settle: bool, seed: u64) {
    const LIMIT: u64 = 7;
    let quota = Quota::new(LIMIT, SECOND).algorithm(algorithm);
    let limiter = limiter(Policy::new().rule(rule(&[quota]).settle(settle)));
    let start = tokio::time::Instant::now();
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut waiting: Vec<(u64, Acquiring)> = Vec::new();
    // The time of each admission, and its units that were not refunded.
    let mut admitted: Vec<(Duration, u64)> = Vec::new();
    let mut held: Vec<(usize, Permit)> = Vec::new();
    for _ in 0..150 {
        match next(&mut random) % 6 {
            0 | 1 => {
                let cost = next(&mut random) % 4 + 1;
                waiting.push((cost, arrive(&limiter, "a", cost, (next(&mut random) % 4) as u32 * SECOND)));
            }
            2 if !waiting.is_empty() => {
                let chosen = next(&mut random) as usize % waiting.len();
                drop(waiting.remove(chosen));
            }
            3 | 4 if !held.is_empty() => {
                let chosen = next(&mut random) as usize % held.len();
                if next(&mut random).is_multiple_of(2) {
                    let (index, permit) = held.remove(chosen);
                    permit.refund();
                    admitted[index].1 = 0;
                } else {
                    let units = next(&mut random) % 3;
                    held[chosen].1.give_back(units);
                    admitted[held[chosen].0].1 -= units.min(admitted[held[chosen].0].1);
                }
            }
            _ => {
                let length = Duration::from_nanos(next(&mut random) % 400_000_000);
                let end = tokio::time::Instant::now() + length;
                while tokio::time::Instant::now() < end {
                    tokio::time::advance(Duration::from_millis(1)).await;
                    take(&mut waiting, &mut admitted, &mut held, start);
                }
            }
        }
        take(&mut waiting, &mut admitted, &mut held, start);
    }
    let bound = |length: Duration| match algorithm {
        // A millisecond of the timer's lateness.
        Algorithm::TokenBucket => LIMIT as f64 + LIMIT as f64 * (length + Duration::from_millis(2)).as_secs_f64(),
        _ if length + Duration::from_millis(2) < SECOND => LIMIT as f64,
        _ => f64::MAX,
    };
    for first in 0..admitted.len() {
        let mut sum = 0;
        for last in first..admitted.len() {
            sum += admitted[last].1;
            let length = admitted[last].0 - admitted[first].0;
            let in_one = algorithm != Algorithm::FixedWindow
                || admitted[first].0.as_secs() == (admitted[last].0 + Duration::from_millis(2)).as_secs();
            assert!(
                !in_one || sum as f64 <= bound(length) + 1e-6,
                "{algorithm:?} settle {settle} seed {seed}: {sum} in {length:?} from {:?}",
                admitted[first].0
            );
        }
    }
    drop((waiting, held));
    assert_eq!((limiter.stats().waiting, limiter.stats().permits), (0, 0));
}

fn take(
    waiting: &mut Vec<(u64, Acquiring)>,
    admitted: &mut Vec<(Duration, u64)>,
    held: &mut Vec<(usize, Permit)>,
    start: tokio::time::Instant,
) {
    waiting.retain_mut(|(cost, acquiring)| match poll(acquiring) {
        Poll::Pending => true,
        Poll::Ready(Err(_)) => false,
        Poll::Ready(Ok(permit)) => {
            held.push((admitted.len(), permit));
            admitted.push((start.elapsed(), *cost));
            false
        }
    });
}

#[tokio::test(start_paused = true)]
async fn random_refunds_never_break_the_bound() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingLog] {
        for settle in [false, true] {
            for seed in 1..60 {
                settled_at_random(algorithm, settle, seed).await;
            }
        }
    }
}

/// Reloads under load leak no permits and no waiters.
#[test]
fn reloads_under_a_storm_leak_nothing() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(8).enable_time().build().unwrap();
    let policies: Vec<Policy> = vec![
        Policy::new().rule(rule(&[Quota::concurrent(3)])),
        Policy::new().rule(rule(&[Quota::concurrent(1)])),
        Policy::new().rule(rule(&[Quota::concurrent(5), Quota::per_second(1_000_000)]).settle(true)),
        Policy::new().rule(rule(&[Quota::per_second(1_000_000)])),
        Policy::new().rule(rule(&[Quota::per_second(1_000_000), Quota::concurrent(2)])),
        Policy::new(),
    ];
    let limiter = RateLimiter::new(policies[0].clone()).unwrap();
    runtime.block_on(async {
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..32u64 {
            let (limiter, policies) = (limiter.clone(), policies.clone());
            tasks.spawn(async move {
                let mut random = task.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
                for _ in 0..300 {
                    let choice = next(&mut random);
                    if choice.is_multiple_of(50) {
                        limiter.set_policy(policies[(choice / 50) as usize % policies.len()].clone()).unwrap();
                    }
                    let descriptor = by("a");
                    let acquiring = limiter.acquire(&descriptor, Duration::MAX);
                    let permit = match choice % 4 {
                        0 => tokio::time::timeout(Duration::from_micros(choice % 1_500), acquiring).await.ok(),
                        _ => Some(acquiring.await),
                    };
                    if let Some(Ok(permit)) = permit {
                        tokio::task::yield_now().await;
                        if choice.is_multiple_of(5) { permit.refund() } else { drop(permit) }
                    }
                }
            });
        }
        let all = tokio::time::timeout(Duration::from_secs(40), async { while tasks.join_next().await.is_some() {} });
        let ended = all.await.is_ok();
        let stats = limiter.stats();
        assert!(ended, "wedged: {stats:?}");
        assert_eq!((stats.waiting, stats.permits), (0, 0));
        for policy in [0, 4] {
            limiter.set_policy(policies[policy].clone()).unwrap();
            let decision = limiter.check(&by("a").cost(if policy == 0 { 3 } else { 2 })).await;
            assert!(decision.is_allowed(), "units leaked under policy {policy}");
        }
    });
}
