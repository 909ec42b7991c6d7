use std::{
    cell::Cell,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Duration,
};

use proptest::prelude::*;
use tokio::time::advance;
use tower::retry::budget::Budget;

use super::{RetryBudget, Schedule};
use crate::jitter::draw;

const SCHEDULE: Schedule = Schedule {
    base: Duration::from_millis(100),
    cap: Duration::from_secs(10),
    jitter: None,
    max_wait: Duration::from_secs(60),
};

fn latest(schedule: &Schedule, asked: Option<Duration>, retries: u32) -> Option<Duration> {
    schedule.delay(asked, retries, |most| most)
}

fn earliest(schedule: &Schedule, asked: Option<Duration>, retries: u32) -> Option<Duration> {
    schedule.delay(asked, retries, |_| 0)
}

#[test]
fn waits_without_a_time_grow_up_to_the_cap() {
    for (retries, millis) in [(0, 100), (1, 200), (2, 400), (6, 6_400), (7, 10_000), (63, 10_000), (u32::MAX, 10_000)] {
        assert_eq!(latest(&SCHEDULE, None, retries), Some(Duration::from_millis(millis)), "{retries}");
        assert_eq!(earliest(&SCHEDULE, None, retries), Some(Duration::ZERO), "{retries}");
    }
}

#[test]
fn a_time_of_zero_still_backs_off() {
    assert_eq!(latest(&SCHEDULE, Some(Duration::ZERO), 1), Some(Duration::from_millis(200)));
}

#[test]
fn jitter_is_a_tenth_of_the_time_by_default() {
    for (asked, most) in [(1, 101), (1_000, 1_100), (2_000, 2_200), (60_000, 66_000)] {
        let asked = Some(Duration::from_millis(asked));
        assert_eq!(latest(&SCHEDULE, asked, 0), Some(Duration::from_millis(most)));
        assert_eq!(earliest(&SCHEDULE, asked, 0), asked);
    }
    let schedule = Schedule { jitter: Some(Duration::from_secs(5)), ..SCHEDULE };
    assert_eq!(latest(&schedule, Some(Duration::from_secs(1)), 0), Some(Duration::from_secs(6)));
}

#[test]
fn a_wait_beyond_the_bound_is_not_retried() {
    let bound = SCHEDULE.max_wait;
    assert!(earliest(&SCHEDULE, Some(bound), 0).is_some());
    assert_eq!(earliest(&SCHEDULE, Some(bound + Duration::from_nanos(1)), 0), None);
    // A backoff without a time is cut.
    let schedule = Schedule { max_wait: Duration::from_millis(150), ..SCHEDULE };
    assert_eq!(latest(&schedule, None, 5), Some(Duration::from_millis(150)));
}

proptest! {
    #[test]
    fn a_wait_is_never_too_short_and_never_panics(
        base: Duration, cap: Duration, jitter: Option<Duration>, max_wait: Duration,
        asked: Option<Duration>, retries: u32, word: u64,
    ) {
        let schedule = Schedule { base, cap, jitter, max_wait };
        let delay = schedule.delay(asked, retries, |most| word.min(most));
        match asked.filter(|asked| !asked.is_zero()) {
            Some(asked) if asked > max_wait => prop_assert_eq!(delay, None),
            Some(asked) => prop_assert!(delay.unwrap() >= asked),
            None => prop_assert!(delay.unwrap() <= cap.min(max_wait)),
        }
    }
}

/// 10,000 draws in ten equal parts of the range: 1,000 each, with a deviation
/// of 30; 200 is more than six of them.
#[test]
fn waits_are_spread_evenly() {
    for (asked, from) in [(None, 0), (Some(Duration::from_secs(8)), 8_000)] {
        let mut parts = [0_i32; 10];
        for _ in 0..10_000 {
            let delay = SCHEDULE.delay(asked, 3, draw).unwrap();
            let part = (delay - Duration::from_millis(from)).as_nanos() * 10 / 800_000_001;
            parts[usize::try_from(part).unwrap()] += 1;
        }
        assert!(parts.iter().all(|count| (800..=1_200).contains(count)), "{asked:?}: {parts:?}");
    }
}

#[test]
fn draws_stay_within_their_range() {
    let most = Cell::new(0);
    SCHEDULE.delay(Some(Duration::from_secs(60)), 0, |asked| {
        most.set(asked);
        0
    });
    assert_eq!(most.get(), 6_000_000_000);
}

fn take_all(budget: &RetryBudget) -> u64 {
    (0..).take_while(|_| budget.withdraw()).count() as u64
}

#[tokio::test(start_paused = true)]
async fn a_budget_is_a_share_of_requests_plus_a_rate() {
    let budget = RetryBudget::new();
    assert_eq!(take_all(&budget), 100);
    for _ in 0..14 {
        budget.deposit();
    }
    assert_eq!(take_all(&budget), 2, "2.8");
    budget.deposit();
    assert_eq!(take_all(&budget), 1, "and the 0.8 left over");

    advance(Duration::from_secs(3)).await;
    assert_eq!(take_all(&budget), 15);
    advance(Duration::from_millis(199)).await;
    assert_eq!(budget.left(), 0);
    advance(Duration::from_millis(1)).await;
    assert_eq!(budget.left(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_reserve_bounds_what_is_saved() {
    let budget = RetryBudget::new().percent(70).per_second(1_000).reserve(7);
    for _ in 0..1_000 {
        budget.deposit();
    }
    advance(Duration::from_secs(86_400 * 365)).await;
    assert_eq!(take_all(&budget), 7);
    for _ in 0..10 {
        budget.deposit();
    }
    assert_eq!(take_all(&budget), 7, "70 percent is 7 of 10, not 10");
}

#[test]
fn no_value_overflows() {
    let most = RetryBudget::new().percent(u32::MAX).per_second(u32::MAX).reserve(u32::MAX);
    most.deposit();
    assert_eq!(most.left(), u64::from(u32::MAX));
    assert!(most.withdraw());
    let none = RetryBudget::new().reserve(0);
    none.deposit();
    assert!(!none.withdraw());
}

#[test]
fn threads_never_take_more_than_there_is() {
    let budget = RetryBudget::new().percent(20).per_second(0).reserve(500);
    let taken = AtomicU64::new(0);
    let ask = || {
        for _ in 0..1_000 {
            budget.deposit();
            if budget.withdraw() {
                taken.fetch_add(1, Ordering::Relaxed);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(ask);
        }
    });
    let taken = taken.into_inner() + take_all(&budget);
    // Deposits into a full bucket are lost, at most four at once.
    assert!((1_290..=1_300).contains(&taken), "{taken}");
}

#[tokio::test(start_paused = true)]
async fn clones_share_a_budget_until_changed() {
    let budget = RetryBudget::new().per_second(0);
    assert_eq!(take_all(&budget.clone()), 100);
    assert_eq!(budget.left(), 0);
    assert_eq!(budget.clone().percent(10).left(), 100);
    assert_eq!(budget.left(), 0);
    assert!(format!("{budget:?}").contains("percent: 20, per_second: 0, reserve: 100, left: 0"), "{budget:?}");
}
