//! Callers that give up while they wait: their slots are not lost.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};

use tokio::time::{Instant, timeout};
use tower_ratelimit::{
    Algorithm, Descriptor, Policy, Quota, RateLimiter, Rule,
    backend::{Local, Share, Split},
};

use super::{Admissions, Caller, MILLI, SECOND, algorithms::ALGORITHMS, builder, by, limiter, pass};

/// Three requests a second arrive, and each gives up after a time. Returns when
/// each of the others was admitted.
async fn three_a_second(limiter: &RateLimiter, gives_up: Duration, fair: bool, seconds: u32) -> Vec<Duration> {
    const TENANTS: [&str; 3] = ["a", "b", "c"];
    let (start, admissions) = (Instant::now(), Admissions::default());
    let mut tasks = tokio::task::JoinSet::new();
    for index in 0..3 * seconds as usize {
        tokio::time::sleep_until(start + SECOND * index as u32 / 3).await;
        let (limiter, admissions) = (limiter.clone(), admissions.clone());
        tasks.spawn(async move {
            let caller = by(if fair { TENANTS[index % 3] } else { "acme" });
            if let Ok(Ok(_)) = timeout(gives_up, limiter.acquire(&caller, 30 * SECOND)).await {
                admissions.record(index, start.elapsed());
            }
        });
    }
    while tasks.join_next().await.is_some() {}
    assert_eq!(limiter.stats().waiting, 0);
    admissions.take().into_iter().map(|(_, at)| at).filter(|at| *at <= SECOND * seconds).collect()
}

/// The most admissions in any period of `window`, without its end.
fn most_within(window: Duration, times: &[Duration]) -> usize {
    times.iter().map(|from| times.iter().filter(|at| (*from..*from + window).contains(at)).count()).max().unwrap_or(0)
}

#[tokio::test(start_paused = true)]
async fn abandoned_waiters_leave_their_slots_to_others() {
    const SECONDS: u32 = 240;
    for algorithm in ALGORITHMS {
        for (fair, split) in [(false, false), (true, false), (false, true), (true, true)] {
            let quota = Quota::per_second(if split { 4 } else { 2 }).algorithm(algorithm);
            let rule = Rule::new("r").tier(quota);
            let policy = Policy::new().rule(if fair { rule.per([]).fair(true) } else { rule });
            let limiter = || {
                let builder = builder(policy.clone());
                let share = Share::new(0, 2).unwrap();
                let builder = if split { builder.backend(Split::new(share)) } else { builder.backend(Local::new()) };
                builder.build().unwrap()
            };
            let times = three_a_second(&limiter(), 3 * SECOND, fair, SECONDS).await;
            // A sliding window of two admits less, with or without waiters.
            let limit = match algorithm {
                Algorithm::SlidingWindow => three_a_second(&limiter(), Duration::MAX, fair, SECONDS).await.len(),
                _ => 2 * SECONDS as usize,
            };
            let served = times.len() as f64 / limit as f64;
            assert!(served >= 0.95, "{algorithm} fair {fair} split {split}: {served:.3} of {limit}");
            // A bucket is full at first. Windows admit twice the limit around their border.
            let most = most_within(SECOND - MILLI, &times);
            assert!(most <= 5, "{algorithm} fair {fair} split {split}: {most} in a second");
            assert!(times.len() <= 2 * SECONDS as usize + 8, "{algorithm}: {} in all", times.len());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_next_caller_after_sixteen_that_left_waits_for_the_first_slot() {
    for remaining in [0, 1, 5] {
        let limiter = limiter(Quota::per_second(2).burst(1));
        drop(limiter.acquire(&by("acme"), Duration::ZERO).await.unwrap());
        let start = Instant::now();
        let mut callers: Vec<_> =
            (0..16 + remaining).map(|_| Caller::arrive(&limiter, "acme", Duration::MAX)).collect();
        // From the front, the back and the middle; the last ones stay.
        for index in [0, 14, 7, 3, 1, 0, 0, 8, 4, 2, 3, 1, 0, 1, 1, 0] {
            drop(callers.remove(index));
        }
        let newcomer = Caller::arrive(&limiter, "acme", Duration::MAX);
        callers.push(newcomer);
        for (position, caller) in (1..).zip(callers) {
            let permit = caller.outcome().await.unwrap();
            assert_eq!(start.elapsed(), SECOND * position / 2, "{remaining} remained");
            assert_eq!(permit.decision().wait(), start.elapsed(), "it says how long it waited");
        }
        let left = limiter.check(&by("acme")).await.retry_after();
        assert_eq!(left, Some(SECOND / 2), "nothing is reserved any more");
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_moves_all_behind_it_up() {
    let limiter = limiter(Quota::per_second(1));
    let start = Instant::now();
    let mut waiters: Vec<_> = (0..6).map(|_| Caller::arrive(&limiter, "acme", Duration::MAX)).collect();
    drop(waiters.remove(2));
    drop(waiters.remove(3));
    // Each in its own task: all of them are awake.
    let tasks: Vec<_> = waiters
        .into_iter()
        .map(|waiter| {
            tokio::spawn(async move {
                drop(waiter.outcome().await.unwrap());
                start.elapsed().as_secs()
            })
        })
        .collect();
    let mut when = Vec::new();
    for task in tasks {
        when.push(task.await.unwrap());
    }
    assert_eq!(when, [0, 1, 2, 3]);
}

/// A task that is not polled delays those behind it no longer than they would
/// have waited anyway.
#[tokio::test(start_paused = true)]
async fn a_waiter_that_is_not_polled_blocks_no_other() {
    for count in [3, 4, 8, 40] {
        let limiter = limiter(Quota::per_second(1));
        let start = Instant::now();
        let mut waiters: Vec<_> = (0..count + 2).map(|_| Caller::arrive(&limiter, "acme", Duration::MAX)).collect();
        let last = waiters.pop().unwrap();
        drop(waiters.remove(1));
        let stuck = waiters;
        drop(last.outcome().await.unwrap());
        assert!(start.elapsed() <= SECOND * (count + 1), "{count} are stuck: {:?}", start.elapsed());
        drop(stuck);
        let rejected = Caller::arrive(&limiter, "acme", 2 * SECOND).outcome().await;
        assert!(rejected.is_ok());
    }
}

/// Which of the first waiters are not polled is not known before their slots
/// have passed.
#[tokio::test(start_paused = true)]
async fn waiters_behind_others_that_are_not_polled_keep_to_the_rate() {
    for stuck in [4, 8, 40] {
        for are_called in [false, true] {
            let limiter = limiter(Quota::per_second(10));
            drop(limiter.acquire(&by("acme").cost(10), SECOND).await.unwrap());
            let start = Instant::now();
            let arrive = || Caller::arrive(&limiter, "acme", Duration::MAX);
            let first = are_called.then(arrive);
            let stuck: Vec<_> = (0..stuck).map(|_| arrive()).collect();
            let leave: Vec<_> = (0..300).map(|_| arrive()).collect();
            let stay: Vec<_> = (0..100)
                .map(|_| {
                    let caller = arrive();
                    tokio::spawn(async move {
                        drop(caller.outcome().await.unwrap());
                        start.elapsed()
                    })
                })
                .collect();
            tokio::task::yield_now().await;
            drop(first);
            drop(leave);
            for (position, task) in (1..).zip(stay) {
                let expected = SECOND * (stuck.len() as u32 + position) / 10;
                assert_eq!(task.await.unwrap(), expected, "{} are stuck, {are_called}: {position}", stuck.len());
            }
        }
    }
}

/// Costs differ: each moves up only among its equals. Nothing is admitted
/// twice, and what nothing is built upon comes back.
#[tokio::test(start_paused = true)]
async fn requests_of_other_costs_keep_their_slots() {
    let limiter = limiter(Quota::per_second(10).burst(10));
    drop(limiter.acquire(&by("acme").cost(10), Duration::ZERO).await.unwrap());
    let start = Instant::now();
    let mut tasks = Vec::new();
    for cost in [10, 5, 10, 5] {
        let limiter = limiter.clone();
        tasks.push(tokio::spawn(async move {
            drop(limiter.acquire(&by("acme").cost(cost), Duration::MAX).await.unwrap());
            start.elapsed()
        }));
        tokio::task::yield_now().await;
    }
    let [first, small, large, last] = <[_; 4]>::try_from(tasks).unwrap();
    first.abort();
    small.abort();
    assert!(first.await.is_err() && small.await.is_err());
    // After 1 s and 1.5 s, in the places of those that left.
    assert_eq!(large.await.unwrap(), SECOND);
    assert_eq!(last.await.unwrap(), SECOND * 3 / 2);
}

/// All arrive at once, and half of them give up at random.
#[tokio::test(start_paused = true)]
async fn a_hundred_thousand_waiters_that_leave_at_random_lose_no_slot() {
    const WAITERS: usize = 100_000;
    const RATE: usize = 10_000;
    let quota = Quota::per_second(RATE as u64).burst(1);
    let limiter = builder(quota).max_waiters_per_key(WAITERS).build().unwrap();
    drop(limiter.acquire(&by("acme"), Duration::ZERO).await.unwrap());
    let (start, admissions, polls) = (Instant::now(), Admissions::default(), Arc::new(AtomicUsize::new(0)));
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut tasks = tokio::task::JoinSet::new();
    let mut patient = 0;
    for index in 0..WAITERS {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let gives_up = random.is_multiple_of(2).then(|| Duration::from_micros(random >> 8 & 0x3f_ffff));
        patient += usize::from(gives_up.is_none());
        let (mut caller, admissions, polls) =
            (Caller::arrive(&limiter, "acme", Duration::MAX), admissions.clone(), Arc::clone(&polls));
        tasks.spawn(async move {
            let counted = std::future::poll_fn(|cx| {
                polls.fetch_add(1, Ordering::Relaxed);
                match caller.future.as_mut().poll(cx) {
                    Poll::Ready(outcome) => Poll::Ready(outcome.is_ok()),
                    Poll::Pending => Poll::Pending,
                }
            });
            if timeout(gives_up.unwrap_or(Duration::MAX), counted).await == Ok(true) {
                admissions.record(index, start.elapsed());
            }
        });
    }
    while tasks.join_next().await.is_some() {}
    let admitted = admissions.take();
    assert!(admitted.len() >= patient, "{} of {patient} that stayed", admitted.len());
    for (number, (_, at)) in admitted.iter().enumerate() {
        let (due, at) = (number / (RATE / 1_000), at.as_millis() as usize);
        assert!(at >= due, "number {number} after {at} ms: over the limit");
        assert!(at <= due + 5, "number {number} after {at} ms: a slot was lost");
    }
    let polls = polls.load(Ordering::Relaxed);
    assert!(polls <= 4 * WAITERS, "{polls} polls: each that leaves wakes few others");
    assert_eq!((limiter.stats().waiting, limiter.stats().permits), (0, 0));
    let left = limiter.check(&Descriptor::new("/").tenant("acme")).await;
    assert!(left.is_allowed() || left.retry_after() <= Some(MILLI), "{left:?}");
}

/// Each waits for several rules at once, of which it shares one with others.
#[tokio::test(start_paused = true)]
async fn waiters_of_several_rules_move_up_among_their_equals() {
    let policy = Policy::new()
        .rule(Rule::new("all").per([]).tier(Quota::per_second(2).burst(1)))
        .rule(Rule::new("each").tier(Quota::per_second(2).burst(1)));
    let limiter = limiter(policy);
    drop(limiter.acquire(&by("acme"), Duration::ZERO).await.unwrap());
    let start = Instant::now();
    let mut callers: Vec<_> = (0..8).map(|_| Caller::arrive(&limiter, "acme", Duration::MAX)).collect();
    callers.drain(1..7);
    for (position, caller) in (1..).zip(callers) {
        drop(caller.outcome().await.unwrap());
        assert_eq!(start.elapsed(), SECOND * position / 2);
    }
    let other = Caller::arrive(&limiter, "initech", SECOND);
    drop(other.outcome().await.unwrap());
    assert_eq!(start.elapsed(), SECOND * 3 / 2, "the slots of those that left were refunded");
}

/// A reload that leaves the rule as it is splits no queue: newcomers take the
/// slots that were reserved before it.
#[tokio::test(start_paused = true)]
async fn slots_from_before_a_reload_are_handed_on() {
    let policy = || Policy::new().rule(Rule::new("r").tier(Quota::per_second(1).burst(1)));
    let limiter = builder(policy()).build().unwrap();
    drop(limiter.acquire(&by("acme"), SECOND).await.unwrap());
    let start = Instant::now();
    let mut before: Vec<_> = (0..20).map(|_| Caller::arrive(&limiter, "acme", Duration::MAX)).collect();
    limiter.set_policy(policy()).unwrap();
    let after: Vec<_> = (0..5).map(|_| Caller::arrive(&limiter, "acme", Duration::MAX)).collect();
    let first = before.remove(0);
    drop(before);
    for (position, waiter) in (1..).zip(std::iter::once(first).chain(after)) {
        drop(waiter.outcome().await.unwrap());
        assert_eq!(start.elapsed(), SECOND * position);
    }
}

/// Slots that were reserved behind a cooldown, and those that were reserved
/// after it, are in one queue.
#[tokio::test(start_paused = true)]
async fn slots_from_a_cooldown_are_handed_to_those_that_arrive_after_it() {
    let limiter = limiter(Quota::per_second(1).burst(1));
    limiter.cool_down(&by("acme"), SECOND);
    let mut during: Vec<_> = (0..20).map(|_| Caller::arrive(&limiter, "acme", Duration::MAX)).collect();
    pass(limiter.cooldown(&by("acme")).unwrap()).await;
    let start = Instant::now();
    drop(during.remove(0).outcome().await.unwrap());
    let after: Vec<_> = (0..5).map(|_| Caller::arrive(&limiter, "acme", Duration::MAX)).collect();
    // Of those during the cooldown, one stays.
    let stays = during.remove(9);
    drop(during);
    for (position, waiter) in (1..).zip(std::iter::once(stays).chain(after)) {
        drop(waiter.outcome().await.unwrap());
        assert_eq!(start.elapsed().as_secs(), position);
    }
}

/// A slot before the end of a cooldown cannot be used: it is not handed to those
/// that arrived during the cooldown, whose own slots are behind it.
#[tokio::test(start_paused = true)]
async fn slots_before_the_end_of_a_cooldown_are_not_handed_on() {
    for fair in [false, true] {
        let rule = Rule::new("r").per([]).tier(Quota::per_second(1).burst(1));
        let limiter = limiter(Policy::new().rule(rule.fair(fair)));
        drop(limiter.acquire(&by("acme"), SECOND).await.unwrap());
        let before: Vec<_> = (0..3).map(|_| Caller::arrive(&limiter, "acme", Duration::MAX)).collect();
        limiter.cool_down(&by("acme"), 10 * SECOND);
        let until = limiter.cooldown(&by("acme")).unwrap();
        let start = Instant::now();
        let during: Vec<_> =
            ["acme", "other", "acme"].map(|tenant| Caller::arrive(&limiter, tenant, 15 * SECOND)).into();
        drop(before);
        let tasks: Vec<_> = during
            .into_iter()
            .map(|waiter| {
                tokio::spawn(async move {
                    drop(waiter.outcome().await.expect("it had a slot in time"));
                    start.elapsed()
                })
            })
            .collect();
        let mut admitted = Vec::new();
        for task in tasks {
            admitted.push(task.await.unwrap());
        }
        // Of a fair rule, the other tenant is first.
        admitted.sort();
        for (index, at) in (0..).zip(admitted) {
            let expected = until + SECOND * index;
            assert!(at >= expected && at <= expected + 2 * MILLI, "fair {fair}: {index} after {at:?} of {until:?}");
        }
    }
}

/// No request waits any more: what is charged is what was admitted.
#[tokio::test(start_paused = true)]
async fn a_counter_is_free_again_once_its_waiters_have_left() {
    for algorithm in ALGORITHMS {
        for (limit, cost, passes) in [(10, 1, 0), (10, 1, 7), (10, 3, 0), (1, 1, 0), (10, 10, 3), (4, 4, 0)] {
            // Of these, a window before one with reservations counts as full.
            if [Algorithm::FixedWindow, Algorithm::AnchoredWindow].contains(&algorithm) && limit % cost > 0 {
                continue;
            }
            for backwards in [false, true] {
                let limiter = limiter(Quota::per_second(limit).algorithm(algorithm));
                let start = Instant::now();
                drop(limiter.acquire(&by("acme").cost(limit), 2 * SECOND).await.unwrap());
                let arrive = || Caller::arrive_with(&limiter, by("acme").cost(cost), Duration::MAX);
                let mut waiters: Vec<_> = (0..300).map(|_| arrive()).collect();
                for _ in 0..passes {
                    pass(SECOND).await;
                    waiters.retain_mut(Caller::is_waiting);
                }
                if backwards {
                    waiters.reverse();
                }
                drop(waiters);
                let left = limiter.check(&by("acme")).await.retry_after().unwrap_or_default();
                let case =
                    format!("{algorithm}, {cost} of {limit}, after {:?}, backwards {backwards}", start.elapsed());
                assert!(left <= 2 * SECOND, "{case}: locked for {left:?}");
            }
        }
    }
}

/// Each joins behind all that wait.
#[tokio::test(start_paused = true)]
async fn a_hundred_thousand_waiters_of_a_log_have_the_slots_in_order() {
    const WAITERS: u32 = 100_000;
    let quota = Quota::per_second(10).algorithm(Algorithm::SlidingLog);
    let limiter = builder(quota).max_waiters_per_key(WAITERS as usize).build().unwrap();
    drop(limiter.acquire(&by("acme").cost(10), SECOND).await.unwrap());
    let start = Instant::now();
    let mut waiters: Vec<_> = (0..WAITERS).map(|_| Caller::arrive(&limiter, "acme", Duration::MAX)).collect();
    let left = limiter.check(&by("acme")).await.retry_after().unwrap();
    assert_eq!(left, SECOND * (WAITERS / 10 + 1));
    drop(waiters.drain(1..WAITERS as usize - 1));
    for (waiter, seconds) in waiters.into_iter().zip([1, 1]) {
        drop(waiter.outcome().await.unwrap());
        assert_eq!(start.elapsed(), SECOND * seconds);
    }
}
