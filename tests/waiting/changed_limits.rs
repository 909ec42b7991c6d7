//! A limit changes while slots are reserved, by a reload or from tenant to tenant:
//! what is reserved is not counted as used.

use std::time::Duration;

use tower_ratelimit::{Algorithm, Policy, Quota, RateLimiter, Rule};

use super::{Caller, MILLI, SECOND, limiter, pass};

const LOW: u64 = 10;
const HIGH: u64 = 100;
const LONGEST: Duration = Duration::from_secs(60);

/// A leaky bucket holds what is reserved within the longest wait.
fn quota(algorithm: Algorithm, limit: u64) -> Quota {
    let quota = Quota::per_second(limit).algorithm(algorithm);
    if algorithm == Algorithm::LeakyBucket { quota.burst(61 * limit) } else { quota }
}

/// Callers arrive until one is rejected, at most so many.
fn fill(limiter: &RateLimiter, tenant: &'static str, most: usize) -> Vec<Caller> {
    let arrive = || Caller::arrive(limiter, tenant, LONGEST);
    std::iter::repeat_with(arrive).take(most).take_while(|caller| !matches!(caller.outcome, Some(Err(_)))).collect()
}

/// One caller arrives every tenth of a second. Returns how long none of them is
/// admitted at most, and how many are.
async fn longest_gap(limiter: &RateLimiter, tenant: &'static str, time: Duration) -> (Duration, usize) {
    let (mut waiting, mut longest, mut since, mut admitted) = (Vec::new(), Duration::ZERO, Duration::ZERO, 0);
    for tenth in 0..time.as_millis() / 100 {
        let caller = Caller::arrive(limiter, tenant, LONGEST);
        if !matches!(caller.outcome, Some(Err(_))) {
            (admitted, since) = (admitted + 1, Duration::from_millis(100) * u32::try_from(tenth).unwrap());
            waiting.push(caller);
        }
        longest = longest.max(Duration::from_millis(100) * u32::try_from(tenth).unwrap() - since);
        pass(100 * MILLI).await;
    }
    (longest, admitted)
}

#[tokio::test(start_paused = true)]
async fn a_limit_that_is_raised_for_a_second_locks_no_key() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::LeakyBucket] {
        for settle in [false, true] {
            let policy = |limit| Policy::new().rule(Rule::new("paced").tier(quota(algorithm, limit)).settle(settle));
            let limiter = limiter(policy(LOW));
            let mut waiting = fill(&limiter, "acme", 2_000);
            assert!((600..=620).contains(&waiting.len()), "{algorithm}: {}", waiting.len());
            limiter.set_policy(policy(HIGH)).unwrap();
            for _ in 0..100 {
                waiting.extend(fill(&limiter, "acme", 100));
                pass(10 * MILLI).await;
            }
            limiter.set_policy(policy(LOW)).unwrap();
            let (longest, admitted) = longest_gap(&limiter, "acme", 30 * SECOND).await;
            assert!(longest < 12 * SECOND, "{algorithm}, settled late: {settle}: nothing admitted for {longest:?}");
            assert!((180..=300).contains(&admitted), "{algorithm}, settled late: {settle}: {admitted} in 30 s");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_tenant_with_a_higher_limit_locks_no_counter_that_it_shares() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::LeakyBucket] {
        let rule = Rule::new("paced").per([]).tier(quota(algorithm, LOW)).tenant("big", [quota(algorithm, HIGH)]);
        let limiter = limiter(Policy::new().rule(rule));
        let mut waiting = fill(&limiter, "small", 300);
        waiting.extend(fill(&limiter, "big", 2_000));
        for _ in 0..10 {
            waiting.extend(fill(&limiter, "small", 1));
            waiting.extend(fill(&limiter, "big", 1));
            pass(100 * MILLI).await;
        }
        let (longest, admitted) = longest_gap(&limiter, "small", 30 * SECOND).await;
        assert!(longest < 3 * SECOND, "{algorithm}: nothing admitted for {longest:?}");
        assert!(admitted >= 240, "{algorithm}: {admitted} in 30 s");
    }
}

/// However often the limit changes, slots that are reserved stay reserved.
#[tokio::test(start_paused = true)]
async fn a_limit_that_goes_up_and_down_reserves_no_time_twice() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::LeakyBucket] {
        for settle in [false, true] {
            let policy = |limit| Policy::new().rule(Rule::new("paced").tier(quota(algorithm, limit)).settle(settle));
            let limiter = limiter(policy(LOW));
            let mut waiting = fill(&limiter, "acme", 2_000);
            for _ in 0..50 {
                limiter.set_policy(policy(HIGH)).unwrap();
                waiting.extend(fill(&limiter, "acme", 1));
                limiter.set_policy(policy(LOW)).unwrap();
                waiting.extend(fill(&limiter, "acme", 50));
            }
            // As documented, a raised burst comes in addition.
            let most = 620 + usize::try_from(HIGH - LOW).unwrap() * 2;
            assert!(waiting.len() <= most, "{algorithm}, settled late: {settle}: {} in a minute", waiting.len());
        }
    }
}
