//! A limit is raised while slots are reserved: what is admitted in addition to
//! the new limit.

use std::time::Duration;

use tokio::time::Instant;
use tower_ratelimit::{Algorithm, Quota};

use super::{Admissions, Caller, MILLI, SECOND, algorithms::ALGORITHMS, limiter, pass};

const LOW: u64 = 10;
const HIGH: u64 = 40;
const RESERVED: usize = 50;

fn quota(algorithm: Algorithm, limit: u64, burst: Option<u64>) -> Quota {
    let quota = Quota::per_second(limit).algorithm(algorithm);
    burst.map_or(quota, |burst| quota.burst(burst))
}

/// What happens once the limit is raised.
#[derive(Clone, Copy, Debug)]
struct Scenario {
    /// How long after the slots were reserved.
    raised_after: Duration,
    /// How many of the waiters leave then.
    leave: usize,
    /// One newcomer comes at once, and after a pause many.
    pause: Duration,
    max_wait: Duration,
}

const SCENARIOS: [Scenario; 6] = {
    let first = Scenario { raised_after: Duration::ZERO, leave: 0, pause: Duration::ZERO, max_wait: Duration::ZERO };
    let later = Scenario { raised_after: Duration::from_millis(350), ..first };
    [
        first,
        Scenario { pause: Duration::from_millis(1_500), ..first },
        Scenario { leave: 9, ..first },
        Scenario { max_wait: SECOND, ..later },
        Scenario { max_wait: SECOND, leave: 9, ..later },
        Scenario { pause: Duration::from_millis(1_750), max_wait: SECOND, leave: 9, ..later },
    ]
};

/// Returns when requests were admitted: those with slots of the low limit, and
/// the newcomers.
async fn raise([low, high]: [Quota; 2], scenario: Scenario) -> [Vec<Duration>; 2] {
    let limiter = limiter(low);
    let (start, waiters, newcomers) = (Instant::now(), Admissions::default(), Admissions::default());
    let mut tasks = tokio::task::JoinSet::new();
    let mut arrive = |index, max_wait, admissions: &Admissions| {
        let (caller, admissions) = (Caller::arrive(&limiter, "acme", max_wait), admissions.clone());
        tasks.spawn(async move {
            if caller.outcome().await.is_ok() {
                admissions.record(index, start.elapsed());
            }
        })
    };
    let waiting: Vec<_> = (0..RESERVED).map(|index| arrive(index, Duration::MAX, &waiters)).collect();
    pass(scenario.raised_after).await;
    limiter.set_policy(high).unwrap();
    waiting.iter().rev().step_by(3).take(scenario.leave).for_each(|waiter| waiter.abort());
    for index in 0..700 {
        arrive(index, scenario.max_wait, &newcomers);
        pass(if index == 0 { scenario.pause } else { 5 * MILLI }).await;
    }
    while tasks.join_next().await.is_some() {}
    [waiters, newcomers].map(|admissions| admissions.take().into_iter().map(|(_, at)| at).collect())
}

/// By how many units the times exceed a limit of `HIGH`, by its definition.
fn excess(algorithm: Algorithm, burst: u64, times: &[Duration]) -> u64 {
    let excess_from = |from: Duration| {
        let later = (1..).zip(times.iter().filter(|at| **at >= from));
        match algorithm {
            // At most a burst, and what comes back meanwhile.
            Algorithm::TokenBucket | Algorithm::LeakyBucket => later
                .map(|(count, at)| {
                    let back = (*at - from).as_nanos() * u128::from(HIGH) / SECOND.as_nanos();
                    u64::saturating_sub(count, burst + back as u64)
                })
                .max(),
            _ => later
                .take_while(|(_, at)| **at < from + SECOND)
                .map(|(count, _)| u64::saturating_sub(count, HIGH))
                .max(),
        }
    };
    let starts = |at: &Duration| match algorithm {
        Algorithm::FixedWindow | Algorithm::AnchoredWindow | Algorithm::SlidingWindow => {
            Duration::from_secs(at.as_secs())
        }
        _ => *at,
    };
    times.iter().filter_map(|at| excess_from(starts(at))).max().unwrap_or(0)
}

/// The most units above the raised limit, in any scenario.
async fn most_above(algorithm: Algorithm, bursts: [Option<u64>; 2]) -> u64 {
    let quotas = [quota(algorithm, LOW, bursts[0]), quota(algorithm, HIGH, bursts[1])];
    let burst = if algorithm == Algorithm::LeakyBucket { 1 } else { quotas[1].burst_size() };
    let mut most = 0;
    for scenario in SCENARIOS {
        let [waiters, newcomers] = raise(quotas, scenario).await;
        assert_eq!(excess(algorithm, burst, &newcomers), 0, "newcomers alone: {algorithm} {bursts:?} {scenario:?}");
        let mut all = [waiters, newcomers].concat();
        all.sort_unstable();
        most = most.max(excess(algorithm, burst, &all));
    }
    most
}

#[tokio::test(start_paused = true)]
async fn a_raised_limit_counts_the_slots_reserved_before() {
    for algorithm in ALGORITHMS {
        if algorithm != Algorithm::TokenBucket {
            assert_eq!(most_above(algorithm, [None; 2]).await, 0, "{algorithm}");
        }
    }
    for burst in [1, LOW, HIGH] {
        assert_eq!(most_above(Algorithm::TokenBucket, [Some(burst); 2]).await, 0, "a burst of {burst} stays");
    }
}

/// As `set_policy` documents: of the slots that were reserved before, at most so
/// many come in addition to the new limit as the burst is raised by.
#[tokio::test(start_paused = true)]
async fn a_raised_burst_admits_at_most_so_many_units_more() {
    for (bursts, raised_by) in [([None, None], HIGH - LOW), ([Some(1), Some(HIGH)], HIGH - 1)] {
        let most = most_above(Algorithm::TokenBucket, bursts).await;
        assert!((1..=raised_by).contains(&most), "{bursts:?}: {most} units");
    }
}
