//! Promises of a backend in this process.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Duration,
};

use futures_util::FutureExt;
use tokio::{
    runtime::Builder,
    task::JoinSet,
    time::{Instant, timeout},
};
use tower_ratelimit::{
    Algorithm, Descriptor, Permit, Policy, Quota, RateLimiter, Rule,
    testing::{ManualClock, TokioClock},
};

use super::{Figure, Random, pause};

fn caller() -> Descriptor<'static> {
    Descriptor::new("/")
}

/// Seconds until the key admits a request, as the limiter says.
async fn locked_for(limiter: &RateLimiter) -> f64 {
    limiter.peek(&caller()).await.retry_after().map_or(0.0, |after| after.as_secs_f64())
}

fn on_threads<R: Send + 'static>(threads: usize, run: impl Future<Output = R> + Send + 'static) -> R {
    let runtime = move || Builder::new_multi_thread().worker_threads(threads).enable_all().build().unwrap();
    thread::spawn(move || runtime().block_on(run)).join().unwrap()
}

pub(crate) fn in_virtual_time<R: Send + 'static, F: Future<Output = R>>(run: impl FnOnce() -> F + Send + 'static) -> R {
    let runtime = || Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    thread::spawn(move || runtime().block_on(run())).join().unwrap()
}

/// The result of a future that has nothing to wait for.
fn on_this_thread<R>(future: impl Future<Output = R>) -> R {
    future.now_or_never().expect("it waits")
}

/// Many callers join on several threads and give up within moments.
pub(crate) fn callers_give_up(mut random: Random) -> Figure {
    let algorithm = random.one_of(&[Algorithm::TokenBucket, Algorithm::LeakyBucket, Algorithm::FixedWindow]);
    let (callers, fair) = (random.within(200, 2_000), random.within(0, 1) == 1);
    let waits: Vec<_> = (0..callers).map(|_| (random.millis(0, 10), random.millis(0, 20))).collect();
    let locked = on_threads(2, async move {
        let rule = Rule::new("slots").per([]).fair(fair).tier(Quota::per_second(10).algorithm(algorithm));
        let limiter = RateLimiter::new(Policy::new().rule(rule)).unwrap();
        let mut tasks = JoinSet::new();
        for (joins, patience) in waits {
            let limiter = limiter.clone();
            tasks.spawn(async move {
                pause(joins).await;
                drop(timeout(patience, limiter.acquire(&caller(), Duration::from_secs(600))).await);
            });
        }
        tasks.join_all().await;
        assert_eq!(limiter.stats().waiting, 0, "waiters left");
        locked_for(&limiter).await
    });
    // The window that is open, and one slot that another charge follows.
    Figure { figure: locked, bound: 1.2 }
}

/// A limit is raised for a moment while requests wait, and set back. They hold no
/// more than they have reserved.
pub(crate) fn limit_changes(mut random: Random) -> Figure {
    let algorithm = random.one_of(&[Algorithm::TokenBucket, Algorithm::LeakyBucket]);
    let (waiting, raised) = (random.within(10, 500), random.within(20, 1_000));
    let (before, while_raised) = (random.millis(0, 5_000), random.millis(100, 3_000));
    let locked = in_virtual_time(move || async move {
        let policy = |limit| {
            let quota = Quota::per_second(limit).burst(10).algorithm(algorithm);
            Policy::new().rule(Rule::new("backlog").per([]).max_wait(Duration::from_secs(60)).tier(quota))
        };
        let limiter = RateLimiter::builder().policy(policy(10)).clock(TokioClock::default()).build().unwrap();
        let mut tasks = JoinSet::new();
        for _ in 0..waiting {
            let limiter = limiter.clone();
            tasks.spawn(async move { drop(limiter.acquire(&caller(), Duration::from_secs(60)).await) });
        }
        pause(before).await;
        limiter.set_policy(policy(raised)).unwrap();
        pause(while_raised).await;
        limiter.set_policy(policy(10)).unwrap();
        locked_for(&limiter).await
    });
    // Nothing is reserved for later than the longest wait.
    Figure { figure: locked, bound: 61.0 }
}

/// All that wait for a sliding window leave.
pub(crate) fn waiters_leave(mut random: Random) -> Figure {
    let (limit, waiting) = (random.within(1, 20), random.within(10, 1_000));
    let after = random.millis(0, 1_000);
    let locked = in_virtual_time(move || async move {
        let quota = Quota::per_second(limit).algorithm(Algorithm::SlidingWindow);
        let policy = Policy::new().rule(Rule::new("leaves").per([]).tier(quota));
        let limiter = RateLimiter::builder().policy(policy).clock(TokioClock::default()).build().unwrap();
        let mut tasks = JoinSet::new();
        for _ in 0..waiting {
            let limiter = limiter.clone();
            tasks.spawn(async move { drop(limiter.acquire(&caller(), Duration::from_secs(3_600)).await) });
        }
        pause(after).await;
        tasks.shutdown().await;
        locked_for(&limiter).await
    });
    Figure { figure: locked, bound: 2.0 }
}

/// Threads check while the policy is replaced between two limits. In a window, no
/// more than the higher one.
pub(crate) fn reloads(mut random: Random) -> Figure {
    let limits = [random.within(1, 100), random.within(100, 2_000)];
    let algorithm = random.one_of(&[Algorithm::FixedWindow, Algorithm::SlidingLog, Algorithm::SlidingWindow]);
    let policy = move |limit| {
        let quota = Quota::per_hour(limit).algorithm(algorithm);
        Policy::new().rule(Rule::new("reloaded").per([]).tier(quota))
    };
    let clock = ManualClock::new();
    let limiter = RateLimiter::builder().policy(policy(limits[0])).clock(clock).build().unwrap();
    let (admitted, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let callers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    for _ in 0..2_000 {
                        let decision = limiter.try_check(&caller()).unwrap();
                        admitted.fetch_add(decision.is_allowed().into(), Ordering::Relaxed);
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            for nth in 0.. {
                limiter.set_policy(policy(limits[nth % 2])).unwrap();
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        callers.into_iter().for_each(|caller| caller.join().unwrap());
        is_over.store(true, Ordering::Relaxed);
    });
    let over = admitted.load(Ordering::Relaxed).saturating_sub(limits[1]);
    Figure { figure: over as f64, bound: 0.0 }
}

/// For how long a policy with so many rules takes to be checked and to come into force.
fn policy_takes(rules: u64) -> f64 {
    let rule = |nth: u64| Rule::new(format!("r{nth}")).path(format!("/{nth}/*")).fallback(nth.is_multiple_of(2));
    let policy = (0..rules).fold(Policy::new(), |policy, nth| policy.rule(rule(nth).tier(Quota::per_hour(1))));
    let start = Instant::now();
    assert_eq!(policy.warnings(), []);
    drop(RateLimiter::new(policy).unwrap());
    start.elapsed().as_secs_f64()
}

/// For how long so many waiters of a sliding log take to join.
fn waiters_take(waiters: u64) -> f64 {
    let clock = ManualClock::new();
    let rule = Rule::new("log").per([]).tier(Quota::per_second(10).algorithm(Algorithm::SlidingLog));
    let limiter = RateLimiter::builder().policy(Policy::new().rule(rule)).clock(clock);
    let limiter = limiter.max_waiters_per_key(waiters as usize).build().unwrap();
    let joins = |_| {
        let limiter = limiter.clone();
        let mut waiting = Box::pin(async move { drop(limiter.acquire(&caller(), Duration::MAX).await) });
        let _ = waiting.as_mut().now_or_never();
        waiting
    };
    let start = Instant::now();
    let all: Vec<_> = (0..waiters).map(joins).collect();
    let took = start.elapsed().as_secs_f64();
    drop(all);
    took
}

/// How many times as long four times as much takes: of rules, or of waiters.
pub(crate) fn growth(mut random: Random) -> Figure {
    let (rules, waiters) = (random.within(1_000, 4_000), random.within(5_000, 20_000));
    // The fastest of three, since others use the machine as well.
    let fastest = |takes: fn(u64) -> f64, count| (0..3).map(|_| takes(count)).fold(f64::INFINITY, f64::min);
    let growth = move |takes, count| fastest(takes, 4 * count) / fastest(takes, count);
    let figure = on_threads(1, async move { growth(policy_takes, rules).max(growth(waiters_take, waiters)) });
    // What takes the square takes 16 times as long.
    Figure { figure, bound: 10.0 }
}

/// Permits add to their charge and give back some of what they added, while others are
/// charged.
pub(crate) fn give_backs(mut random: Random) -> Figure {
    const LIMIT: u64 = 65_000;
    let quota = Quota::per_day(LIMIT).algorithm(Algorithm::SlidingLog);
    let clock = ManualClock::new();
    let policy = Policy::new().rule(Rule::new("log").per([]).tier(quota).settle(true));
    let limiter = RateLimiter::builder().policy(policy).clock(clock.clone()).build().unwrap();
    // What is given back takes older units along if its own have left for others.
    let mut used = 20_000;
    on_this_thread(limiter.check(&caller().cost(used)));
    let (mut waiting, mut added, mut returned) = (Vec::new(), Vec::new(), 0);
    for _ in 0..random.within(100, 1_000) {
        clock.advance(random.millis(1, 100));
        match random.within(0, 2) {
            0 if !waiting.is_empty() => {
                let permit: Permit = waiting.swap_remove(random.within(0, waiting.len() as u64 - 1) as usize);
                let units = random.within(1, 20);
                permit.add(units);
                used += units;
                added.push((permit, units));
            }
            1 if !added.is_empty() => {
                let (permit, units) = added.swap_remove(random.within(0, added.len() as u64 - 1) as usize);
                let units = random.within(0, units);
                permit.give_back(units);
                (used, returned) = (used - units, returned + units);
            }
            _ => {
                waiting.push(on_this_thread(limiter.acquire(&caller(), Duration::ZERO)).unwrap());
                used += 1;
            }
        }
    }
    let kept = LIMIT - on_this_thread(limiter.peek(&caller())).remaining().unwrap_or(LIMIT) - used;
    Figure { figure: 100.0 * kept as f64 / returned.max(1) as f64, bound: 0.0 }
}
