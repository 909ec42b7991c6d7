//! What holds in any stretch of time of the length of a window, wherever it begins: the
//! table of `docs/algorithms.md`, and its recipe.

use std::collections::VecDeque;

use tower_ratelimit::{
    Algorithm, Quota, RateLimiter,
    backend::{Share, Split},
    testing::ManualClock,
    time::Timestamp,
};

use super::*;

const L: u64 = 50;
const W: u64 = 1_000;

/// How callers ask: each millisecond as often as they can, from `first` on, and after
/// pauses.
#[derive(Clone, Copy)]
struct Load {
    first: u64,
    on: u64,
    off: u64,
}

/// The most that all instances together admit in any window, which includes its start
/// but not its end.
fn most(instances: &[(RateLimiter, ManualClock)], Load { first, on, off }: Load) -> usize {
    let start = Timestamp::from_secs(1_700_000_000);
    let (mut admitted, mut most) = (VecDeque::new(), 0);
    for ms in 0..4 * W {
        let is_on = ms >= first && (ms - first) % (on + off) < on;
        for (limiter, clock) in instances {
            clock.set(start.saturating_add(Duration::from_millis(ms)));
            while is_on && ask(limiter, &Descriptor::new("/")).is_allowed() {
                admitted.push_back(ms);
            }
        }
        while admitted.front().is_some_and(|at| at + W <= ms) {
            admitted.pop_front();
        }
        most = most.max(admitted.len());
    }
    most
}

/// The most under several loads: steady ones, bursts at the end of a window, and bursts
/// at any other time.
fn worst(quota: Quota, count: u64) -> usize {
    let loads = [(0, 10_000, 0), (999, 10_000, 0), (990, 20, 985), (250, 300, 700)];
    let instance = |index: u64| {
        let (clock, share) = (ManualClock::new(), Share::new(index, count).unwrap());
        let limiter = RateLimiter::builder().policy(quota).backend(Split::new(share)).clock(clock.clone());
        (limiter.build().unwrap(), clock)
    };
    let run = |(first, on, off)| most(&(0..count).map(instance).collect::<Vec<_>>(), Load { first, on, off });
    loads.into_iter().map(run).max().unwrap()
}

#[test]
fn each_bound_of_the_table_holds_and_most_are_reached() {
    let quota = |algorithm| Quota::per_second(L).algorithm(algorithm);
    let (one, four) = (L as usize, L as usize + 4);
    for (algorithm, bounds, is_reached) in [
        (Algorithm::TokenBucket, [2 * one, 2 * one], true),
        (Algorithm::LeakyBucket, [one, four - 1], true),
        (Algorithm::FixedWindow, [2 * one, 2 * one], true),
        (Algorithm::AnchoredWindow, [2 * one, 2 * one], false),
        (Algorithm::SlidingWindow, [2 * one, 2 * one], false),
        (Algorithm::SlidingLog, [one, one], true),
    ] {
        for (count, bound) in [1, 4].into_iter().zip(bounds) {
            let most = worst(quota(algorithm), count);
            assert!(most <= bound, "{algorithm}, {count} instances: {most}");
            // Within the millisecond in which the callers ask.
            assert!(!is_reached || most + 2 >= bound, "{algorithm}, {count} instances: only {most}");
        }
    }
}

#[test]
fn never_more_than_fifty_in_any_sliding_second() {
    let second = Duration::from_secs(1);
    for quota in [
        Quota::new(L, second).algorithm(Algorithm::LeakyBucket),
        Quota::new(L, second).algorithm(Algorithm::SlidingLog),
        Quota::new(45, second).burst(5),
    ] {
        let most = worst(quota, 1);
        assert!(most <= 50, "{quota:?}: {most}");
        assert!(most >= 49, "{quota:?}: only {most}");
    }
}
