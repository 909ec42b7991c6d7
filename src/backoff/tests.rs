use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use proptest::{collection::vec, prelude::*};

use super::*;
use crate::{quota::Quota, time::Timestamp};

const SECOND: Duration = Duration::from_secs(1);
const MILLI: Duration = Duration::from_millis(1);

/// A clock that is manual, or follows Tokio's.
#[derive(Clone, Debug)]
struct Hand(Arc<AtomicU64>);

impl Clock for Hand {
    fn now(&self) -> Timestamp {
        Timestamp::from_nanos(self.0.load(Ordering::SeqCst))
    }
}

#[derive(Clone, Debug)]
struct Tokio(Instant);

impl Clock for Tokio {
    fn now(&self) -> Timestamp {
        Timestamp::from_secs(1).saturating_add(self.0.elapsed())
    }
}

fn by_hand() -> (Backoff, Hand) {
    let clock = Hand(Arc::new(AtomicU64::new(1_000_000_000_000)));
    (Backoff::new(MILLI, SECOND).clock(clock.clone()), clock)
}

#[test]
fn waits_double_up_to_the_maximum() {
    let (backoff, _) = by_hand();
    let waits: Vec<_> = (0..12).map(|_| backoff.failed("a").as_millis()).collect();
    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 1000]);
    assert_eq!((backoff.failures("a"), backoff.failures("b")), (12, 0));
    backoff.succeeded("a");
    assert_eq!((backoff.failed("a"), backoff.items()), (MILLI, 1));
}

#[test]
fn nothing_overflows() {
    for (base, max) in [(Duration::MAX, Duration::MAX), (Duration::from_nanos(3), Duration::MAX), (MILLI, MILLI)] {
        let backoff = Backoff::new(base, max);
        let waits: Vec<_> = (0..100).map(|_| backoff.failed(&7)).collect();
        assert!(waits.is_sorted() && waits[99].as_nanos() == max.as_nanos().min(u64::MAX.into()), "{waits:?}");
    }
    let never = Backoff::new(Duration::ZERO, SECOND);
    assert!((0..100).all(|_| never.failed(&7).is_zero()));
    let shorter = Backoff::new(SECOND, MILLI);
    assert_eq!(shorter.failed(&7), MILLI);
}

#[test]
fn a_clock_set_back_makes_no_wait_longer() {
    let (backoff, clock) = by_hand();
    backoff.failed("a");
    clock.0.store(0, Ordering::SeqCst);
    assert_eq!(backoff.wait("a"), MILLI);
    clock.0.store(400_000, Ordering::SeqCst);
    assert_eq!(backoff.wait("a"), MILLI * 6 / 10, "the wait continues from there");
    clock.0.store(1_000_000, Ordering::SeqCst);
    assert_eq!((backoff.wait("a"), backoff.failures("a")), (Duration::ZERO, 1));
}

#[test]
fn at_the_bound_a_restarted_wait_has_its_stated_length() {
    let (backoff, clock) = by_hand();
    let backoff = backoff.max_items(2);
    backoff.failed("a");
    backoff.failed("b");
    clock.0.store(0, Ordering::SeqCst);
    assert_eq!(backoff.wait("b"), MILLI);
    backoff.failed("c");
    assert_eq!(["a", "b", "c"].map(|item| backoff.failures(item)), [1, 0, 1]);
    backoff.succeeded("a");
    backoff.succeeded("c");
    assert_eq!((backoff.items(), backoff.lock().ends.len()), (0, 0));
}

/// Follows Tokio's clock, less a step back.
#[derive(Clone, Debug)]
struct Stepping(Tokio, Arc<AtomicU64>);

impl Clock for Stepping {
    fn now(&self) -> Timestamp {
        let now = self.0.now().saturating_add(1_000_000 * SECOND).as_nanos();
        Timestamp::from_nanos(now - self.1.load(Ordering::SeqCst))
    }
}

#[tokio::test(start_paused = true)]
async fn a_clock_set_back_delays_acquire_only_a_little() {
    const DAY: u64 = 86_400_000_000_000;
    let start = Instant::now();
    let clock = Stepping(Tokio(start), Arc::default());
    let limiter = RateLimiter::builder().policy(Quota::per_second(10)).clock(clock.clone()).build().unwrap();
    let backoff = Backoff::new(4 * SECOND, 60 * SECOND).clock(clock.clone());
    let calls = Descriptor::new("/");
    backoff.failed("before");
    backoff.failed("asleep");
    let sleeps = backoff.acquire(&limiter, "asleep", &calls, Duration::MAX);
    let steps = async {
        tokio::time::advance(SECOND).await;
        clock.1.store(DAY, Ordering::SeqCst);
        drop(backoff.acquire(&limiter, "before", &calls, Duration::MAX).await.unwrap());
        assert_eq!(start.elapsed(), 5 * SECOND, "its wait restarted");
    };
    let sleeps = async {
        drop(sleeps.await.unwrap());
        assert_eq!(start.elapsed(), 5 * SECOND, "a quarter longer than stated");
    };
    tokio::join!(sleeps, steps);
}

#[test]
fn jitter_cuts_up_to_half() {
    let (backoff, _) = by_hand();
    let backoff = backoff.jitter(true);
    let waits: Vec<_> = (0..200).map(|n| backoff.failed(&n.to_string())).collect();
    assert!(waits.iter().all(|wait| (MILLI / 2..=MILLI).contains(wait)), "{waits:?}");
    let low = waits.iter().filter(|wait| **wait < MILLI * 3 / 4).count();
    assert!((40..160).contains(&low), "{low} of 200 in the lower half");
}

#[test]
fn at_the_bound_idle_items_go_first() {
    let (backoff, clock) = by_hand();
    let backoff = backoff.max_items(3);
    assert_eq!((0..5).map(|_| backoff.failed("long")).last(), Some(16 * MILLI));
    backoff.failed("idle");
    clock.0.fetch_add(5_000_000, Ordering::SeqCst);
    backoff.failed("short");
    backoff.failed("new");
    let failures = ["long", "idle", "short", "new"].map(|item| backoff.failures(item));
    assert_eq!((failures, backoff.items()), ([5, 0, 1, 1], 3));
    backoff.failed("newer");
    assert_eq!((backoff.failures("short"), backoff.failures("long")), (0, 5), "the first whose wait is over");
}

fn limiter(quota: Quota) -> RateLimiter {
    RateLimiter::builder().policy(quota).clock(Tokio(Instant::now())).build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn the_backoff_ends_before_a_slot_is_reserved() {
    let (limiter, start) = (limiter(Quota::per_second(1)), Instant::now());
    let backoff = Backoff::new(2 * SECOND, 60 * SECOND).clock(Tokio(start));
    let calls = Descriptor::new("/");
    backoff.failed("bad");
    let cooldown = backoff.acquire(&limiter, "bad", &calls, 10 * SECOND);
    let others = async {
        for _ in 0..3 {
            drop(limiter.acquire(&calls, 10 * SECOND).await.unwrap());
        }
        start.elapsed()
    };
    let (permit, others) = tokio::join!(cooldown, others);
    assert!(permit.is_ok());
    assert_eq!((others, start.elapsed()), (2 * SECOND, 3 * SECOND), "it delayed no one, and was admitted afterwards");
}

#[tokio::test(start_paused = true)]
async fn the_longer_wait_of_both_counts() {
    let (limiter, start) = (limiter(Quota::per_second(1)), Instant::now());
    let backoff = Backoff::new(4 * SECOND, 60 * SECOND).clock(Tokio(start));
    let calls = Descriptor::new("/");
    let rejected = |result: Result<Permit, RateLimited>| {
        let rejected = result.unwrap_err();
        (rejected.kind(), rejected.retry_after().unwrap())
    };
    backoff.failed("bad");
    for calls in [calls.clone(), calls.clone().max_wait(3 * SECOND)] {
        let max_wait = if calls.longest_wait() < 4 * SECOND { Duration::MAX } else { 3 * SECOND };
        let result = backoff.acquire(&limiter, "bad", &calls, max_wait).await;
        assert_eq!(rejected(result), (RateLimitedKind::BackingOff, 4 * SECOND));
    }
    assert_eq!(start.elapsed(), Duration::ZERO, "at once");
    drop(backoff.acquire(&limiter, "good", &calls, Duration::ZERO).await.unwrap());
    let result = backoff.acquire(&limiter, "good", &calls, SECOND / 2).await;
    assert_eq!(rejected(result), (RateLimitedKind::QuotaExceeded, SECOND));
    drop(backoff.acquire(&limiter, "bad", &calls, Duration::MAX).await.unwrap());
    assert_eq!(start.elapsed(), 4 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_failure_during_the_wait_extends_it() {
    let (limiter, start) = (limiter(Quota::per_second(10)), Instant::now());
    let backoff = Backoff::new(2 * SECOND, 60 * SECOND).clock(Tokio(start));
    let calls = Descriptor::new("/");
    backoff.failed("bad");
    let waits = backoff.acquire(&limiter, "bad", &calls, 10 * SECOND);
    let gives_up = backoff.acquire(&limiter, "bad", &calls, 3 * SECOND);
    let fails = async {
        tokio::time::advance(SECOND).await;
        backoff.failed("bad");
    };
    let (permit, rejected, ()) = tokio::join!(waits, gives_up, fails);
    assert!(permit.is_ok());
    assert_eq!(start.elapsed(), 5 * SECOND);
    assert_eq!(rejected.unwrap_err().retry_after(), Some(3 * SECOND));
}

proptest! {
    /// Compared with a naive model: a list that is searched whole.
    #[test]
    fn memory_is_bounded_by_max_items(
        steps in vec((0u8..6, any::<bool>(), 0u64..40), 1..200),
        most in 1usize..5,
    ) {
        let (backoff, clock) = by_hand();
        let backoff = backoff.max_items(most);
        let mut model: HashMap<String, (u32, u64, usize)> = HashMap::new();
        for (age, (item, fails, millis)) in steps.into_iter().enumerate() {
            let now = clock.0.fetch_add(millis * 1_000_000, Ordering::SeqCst) + millis * 1_000_000;
            let item = item.to_string();
            if fails {
                if !model.contains_key(&item) && model.len() == most {
                    let first = model.iter().min_by_key(|(_, (_, until, age))| (*until, *age)).unwrap().0.clone();
                    model.remove(&first);
                }
                let failures = model.get(&item).map_or(0, |known| known.0) + 1;
                let delay = (1_000_000u64 << (failures - 1).min(30)).min(1_000_000_000);
                model.insert(item.clone(), (failures, now + delay, age));
                prop_assert_eq!(backoff.failed(&item), Duration::from_nanos(delay));
            } else {
                model.remove(&item);
                backoff.succeeded(&item);
            }
            prop_assert_eq!(backoff.items(), model.len());
            for (item, (failures, until, _)) in &model {
                prop_assert_eq!(backoff.failures(item), *failures);
                prop_assert_eq!(backoff.wait(item), Duration::from_nanos(until.saturating_sub(now)));
            }
        }
    }
}
