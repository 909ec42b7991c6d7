use std::time::Duration;

use proptest::{collection::vec, prelude::*};
use tokio::time::Instant;
use tower_ratelimit::{Algorithm, Quota, RateLimiter};

use super::{Caller, MILLI, SECOND, algorithms::ALGORITHMS, by, limiter, tiers};

#[tokio::test(start_paused = true)]
async fn a_dropped_waiter_gives_the_last_slot_back() {
    let limiter = limiter(Quota::per_second(1));
    drop(limiter.acquire(&by("acme"), Duration::ZERO).await.unwrap());
    let start = Instant::now();
    for _ in 0..100 {
        drop(Caller::arrive(&limiter, "acme", SECOND));
    }
    drop(limiter.acquire(&by("acme"), SECOND).await.unwrap());
    assert_eq!(start.elapsed(), SECOND);
}

#[tokio::test(start_paused = true)]
async fn other_waiters_move_up() {
    let limiter = limiter(Quota::per_second(1));
    let start = Instant::now();
    let mut waiters: Vec<_> = (0..6).map(|_| Caller::arrive(&limiter, "acme", Duration::MAX)).collect();
    drop(waiters.remove(2));
    drop(waiters.remove(3));
    let mut when = Vec::new();
    for waiter in waiters {
        drop(waiter.outcome().await.unwrap());
        when.push(start.elapsed().as_secs());
    }
    assert_eq!(when, [0, 1, 2, 3]);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_charged_before_the_first_poll() {
    let limiter = limiter(Quota::per_second(1));
    let caller = by("acme");
    drop(limiter.acquire(&caller, Duration::MAX));
    assert!(limiter.acquire(&caller, Duration::ZERO).await.is_ok());
}

#[derive(Clone, Debug)]
enum Step {
    Arrive { max_wait: u32 },
    Leaves { which: usize },
    Passes { millis: u32 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..2_000u32).prop_map(|max_wait| Step::Arrive { max_wait }),
        2 => any::<usize>().prop_map(|which| Step::Leaves { which }),
        2 => (1..400u32).prop_map(|millis| Step::Passes { millis }),
    ]
}

/// Runs the steps. Returns when each waiter was admitted, and checks that all that
/// stayed were.
async fn take(limiter: &RateLimiter, steps: &[Step]) -> Vec<Duration> {
    let start = Instant::now();
    let (mut waiters, mut admitted): (Vec<Caller>, Vec<Duration>) = (Vec::new(), Vec::new());
    let poll_all = |waiters: &mut Vec<Caller>, admitted: &mut Vec<Duration>| {
        waiters.retain_mut(|waiter| match waiter.poll() {
            true => {
                admitted.extend(waiter.outcome.take().unwrap().ok().map(|_| start.elapsed()));
                false
            }
            false => true,
        });
    };
    for step in steps {
        match *step {
            Step::Arrive { max_wait } => waiters.push(Caller::arrive(limiter, "acme", MILLI * max_wait)),
            Step::Leaves { which } if !waiters.is_empty() => drop(waiters.remove(which % waiters.len())),
            Step::Leaves { .. } => {}
            Step::Passes { millis } => {
                for _ in 0..millis {
                    tokio::time::advance(MILLI).await;
                    poll_all(&mut waiters, &mut admitted);
                }
            }
        }
        poll_all(&mut waiters, &mut admitted);
    }
    for _ in 0..2_100 {
        tokio::time::advance(MILLI).await;
        poll_all(&mut waiters, &mut admitted);
    }
    assert_eq!(waiters.len(), 0, "wedged");
    assert_eq!(limiter.stats().waiting, 0);
    admitted
}

/// A newcomer, after all that, is admitted once what is charged has come back.
async fn is_not_stuck(limiter: &RateLimiter) {
    tokio::time::advance(10 * SECOND).await;
    drop(limiter.acquire(&by("acme"), Duration::ZERO).await.unwrap());
    drop(limiter.acquire(&by("acme"), 10 * SECOND).await.unwrap());
}

/// Checks the bound of the algorithm. Times are the timer's, up to a tick late.
fn check(algorithm: Algorithm, limit: usize, admitted: &[Duration]) {
    let window = |time: &Duration| time.as_secs();
    match algorithm {
        Algorithm::FixedWindow => {
            let most = admitted.chunk_by(|a, b| window(a) == window(b)).map(<[_]>::len).max().unwrap_or(0);
            assert!(most <= limit, "{most} in a window: {admitted:?}");
        }
        Algorithm::SlidingLog => {
            assert!(admitted.windows(limit + 1).all(|span| span[limit] - span[0] >= SECOND - MILLI), "{admitted:?}");
        }
        Algorithm::LeakyBucket => {
            let distance = SECOND / u32::try_from(limit).unwrap();
            assert!(admitted.windows(2).all(|pair| pair[1] - pair[0] + MILLI >= distance), "{admitted:?}");
        }
        _ => {
            // Tokens, in millionths: full at first. A tick late is a tick's more.
            let (full, mut last) = (limit as u128 * 1_000_000, Duration::ZERO);
            let slack = limit as u128 * 1_000 * 2;
            let mut tokens = full + slack;
            for time in admitted {
                tokens = (tokens + (*time - last).as_micros() * limit as u128).min(full + slack);
                last = *time;
                let twice = if algorithm == Algorithm::TokenBucket { 1 } else { 2 };
                if twice == 1 {
                    assert!(tokens >= 1_000_000, "over at {time:?}: {admitted:?}");
                    tokens -= 1_000_000;
                }
            }
            let most =
                admitted.iter().map(|start| admitted.iter().filter(|t| **t >= *start && **t < *start + SECOND).count());
            assert!(most.max().unwrap_or(0) <= 2 * limit);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn waiters_dropped_at_random_break_nothing(
        steps in vec(step(), 1..60),
        limit in 1u64..8,
        algorithm in proptest::sample::select(&ALGORITHMS[..]),
        two_tiers: bool,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let quota = Quota::per_second(limit).algorithm(algorithm);
            let wide = Quota::new(2 * limit, 3 * SECOND).algorithm(Algorithm::SlidingLog);
            let quotas = [quota, wide];
            let limiter = limiter(tiers(&quotas[..if two_tiers { 2 } else { 1 }]));
            let admitted = take(&limiter, &steps).await;
            check(algorithm, usize::try_from(limit).unwrap(), &admitted);
            if two_tiers {
                let wide = 2 * usize::try_from(limit).unwrap();
                assert!(admitted.windows(wide + 1).all(|span| span[wide] - span[0] >= 3 * SECOND - MILLI), "{admitted:?}");
            }
            is_not_stuck(&limiter).await;
        });
    }
}
