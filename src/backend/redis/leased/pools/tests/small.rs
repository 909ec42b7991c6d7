//! What takes less memory says the same.

use super::{
    super::{
        super::{
            demand::{Demand, Moment},
            lease::PackedStatus,
        },
        Instances, KEPT,
    },
    INTERVAL,
};

#[test]
fn numbers_are_given_again() {
    let (narrow, wide) = (u64::from(u32::MAX), u64::from(u32::MAX) + 1);
    let one = |number| vec![[1, number, 2]];
    for tiers in [one(0), one(narrow), one(wide), vec![[wide, 0, wide]; 3], vec![[1, 2, 3], [4, 5, 6]]] {
        let numbers = PackedStatus::new(&tiers);
        let again: Vec<_> = (0..tiers.len()).map(|tier| numbers.of(tier)).collect();
        assert_eq!(again, tiers);
    }
}

const HOUR: u64 = 3_600_000_000_000;

/// Also where the steps wrap.
const STARTS: [u64; 6] = [40 * HOUR, 77 * HOUR, 78 * HOUR, 79 * HOUR, 500_000 * HOUR, 500_039 * HOUR];

#[test]
fn moments_are_told_apart_for_a_day() {
    for start in STARTS {
        for passed in [0, 1, 1_000_000, 10_000_000, HOUR, 24 * HOUR] {
            let later = Moment::of(start).age(start + passed).unsigned_abs();
            let earlier = Moment::of(start + passed).age(start);
            assert!(later.abs_diff(passed) < 66_000 && earlier == -i64::try_from(later).unwrap(), "{start} {passed}");
        }
    }
}

/// A pool that was used lately is not displaced: the numbers of its asks would start again.
#[test]
fn demand_of_the_last_seconds_is_not_before_them() {
    const SECOND: u64 = 1_000_000_000;
    for start in STARTS {
        let mut demand = Demand::default();
        demand.per_interval(start, INTERVAL);
        for (time, is_before) in [(start - 10 * SECOND, false), (start - SECOND / 2, false), (start + SECOND, true)] {
            assert_eq!(demand.is_before(time), is_before, "{start} {time}");
        }
        assert!(demand.is_before(start - 2 * HOUR), "the clock was set back");
    }
}

/// Whatever the time is: a check in the idle time's own rhythm does not miss it.
#[test]
fn a_pool_that_was_idle_for_a_while_says_so() {
    for start in (0..100).map(|offset| 40 * HOUR + offset * 1_000) {
        let mut demand = Demand::default();
        demand.per_interval(start, INTERVAL);
        for idle in [INTERVAL, 10 * INTERVAL] {
            let idle_for = demand.idle_for(start + idle);
            assert!((idle..idle + 200_000).contains(&idle_for), "{start} {idle}: {idle_for}");
        }
    }
}

/// Whatever the time is: the first request of a key does not reserve units.
#[test]
fn a_new_key_has_no_demand() {
    for start in STARTS {
        let mut demand = Demand::default();
        demand.count(1);
        assert_eq!(demand.per_interval(start, INTERVAL), 0, "{start}");
        demand.count(1);
        assert_eq!(demand.per_interval(start + 1, INTERVAL), 1, "{start}");
        // Another request has read the clock before.
        assert_eq!(demand.per_interval(start - INTERVAL, INTERVAL), 1, "{start}");
        assert_eq!(demand.idle_for(start - INTERVAL), 0, "{start}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_largest_number_counts_for_a_while() {
    let instances = Instances::new();
    assert_eq!(instances.get(), 1);
    instances.observe(3);
    instances.observe(1);
    assert_eq!(instances.get(), 3, "at once, and not of the last counter");
    tokio::time::advance(10 * KEPT).await;
    assert_eq!(instances.get(), 3, "while nothing replies");
    instances.observe(2);
    assert_eq!(instances.get(), 3, "seen since the last look");
    tokio::time::advance(KEPT).await;
    instances.observe(2);
    assert_eq!(instances.get(), 2, "one has left");
}
