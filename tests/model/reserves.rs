//! Reserves for priorities: a request is admitted where its cost and all that is reserved
//! above it conform together. Compared with the oracle of the whole quota.

use std::time::Duration;

use proptest::prelude::*;
use tower_ratelimit::{Algorithm, Descriptor, Policy, Priority, Quota, Rule};

use super::{
    Bench,
    oracle::Oracle,
    ready,
    schedule::{any_quota, config, nanos, steps},
};

/// What is reserved, in percent: for normal, high and critical requests.
type Reserve = [u32; 3];

fn reserve() -> impl Strategy<Value = Reserve> {
    let part = prop_oneof![Just(0), Just(0), 1..33_u32];
    [part.clone(), part.clone(), part]
}

/// What is kept from a class of a quota that holds so much.
fn kept_back(reserve: Reserve, class: Priority, capacity: u64) -> u64 {
    let percent: u32 = reserve[class as usize..].iter().sum();
    (u128::from(capacity) * u128::from(percent)).div_ceil(100) as u64
}

fn rule(quota: Quota, reserve: Reserve) -> Rule {
    let classes = [Priority::Normal, Priority::High, Priority::Critical];
    let parts = classes.into_iter().zip(reserve).filter(|(_, percent)| *percent > 0);
    parts.fold(Rule::new("all").tier(quota), |rule, (class, percent)| rule.reserve(class, f64::from(percent) / 100.0))
}

fn class() -> impl Strategy<Value = Priority> {
    prop::sample::select(Priority::ALL)
}

proptest! {
    #![proptest_config(config(500))]

    #[test]
    fn each_class_finds_what_is_not_reserved_above_it(
        quota in any_quota(), reserve in reserve(), steps in prop::collection::vec((steps(), class()), 1..4),
    ) {
        let bench = Bench::new(Policy::new().rule(rule(quota, reserve)));
        let mut oracle = Oracle::new(&quota);
        for ((gap, cost), class) in steps.into_iter().flat_map(|(steps, class)| {
            // One class is in the majority for a while.
            steps.into_iter().enumerate().map(move |(n, step)| (step, if n % 3 == 0 { Priority::ALL[n / 3 % 4] } else { class }))
        }) {
            bench.advance(nanos(&quota, gap));
            let (now, cost) = (bench.now(), cost.max(1));
            let kept_back = kept_back(reserve, class, quota.capacity());
            let decision = ready(bench.limiter.check(&Descriptor::new("/").tenant("acme").cost(cost).priority(class)));
            let earliest = oracle.earliest(now, cost + kept_back);
            prop_assert_eq!(decision.is_allowed(), earliest == Some(now), "{} of {}: {:?}", cost, class, decision);
            if decision.is_allowed() {
                oracle.admit(now, cost);
            } else {
                let retry_after = earliest.map(|earliest| Duration::from_nanos(earliest - now));
                prop_assert_eq!(decision.retry_after(), retry_after, "{} of {}", cost, class);
            }
            let capacity = quota.capacity() - kept_back;
            prop_assert_eq!(decision.tiers()[0].quota().capacity(), capacity, "of {}", class);
            let left = match quota.counted_by() {
                Algorithm::LeakyBucket => oracle.remaining(now).min(capacity),
                _ => oracle.remaining(now).saturating_sub(kept_back),
            };
            prop_assert_eq!(decision.remaining(), Some(left), "of {}", class);
        }
        prop_assert_eq!(oracle.broken_bound(), None);
    }

    /// Whatever lower classes ask for, without waiting.
    #[test]
    fn lower_classes_leave_the_reserve(quota in any_quota(), percent in 1..90_u32, asks in 1..200_u64) {
        let bench = Bench::new(Policy::new().rule(rule(quota, [0, 0, percent])));
        let reserved = kept_back([0, 0, percent], Priority::Low, quota.capacity());
        let ask = |class, cost| ready(bench.limiter.check(&Descriptor::new("/").tenant("acme").cost(cost).priority(class)));
        for n in 0..asks {
            ask(Priority::ALL[n as usize % 3], 1 + n % 3);
        }
        // A leaky bucket has one departure at a time, which is free once no other is due.
        let reserved = if quota.counted_by() == Algorithm::LeakyBucket { 0 } else { reserved };
        prop_assert!(reserved == 0 || ask(Priority::Critical, reserved).is_allowed(), "{} of {:?}", reserved, quota);
    }
}
