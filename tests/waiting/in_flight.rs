//! Concurrency limits: a request that finds no free unit waits in a queue.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Wake},
    time::Duration,
};

use proptest::{collection::vec, prelude::*};
use tokio::time::Instant;
use tower_ratelimit::{
    Descriptor, Permit, Policy, Quota, RateLimitedKind, RateLimiter, Rule, Verdict,
    backend::Local,
    testing::{Fault, FaultyBackend},
};

use super::{Caller, MILLI, SECOND, builder, by, limiter, tiers};

/// Removes the callers that are decided by now. Returns the permits of those that
/// were admitted.
fn take_admitted(callers: &mut Vec<(usize, Caller)>) -> Vec<(usize, Permit)> {
    let mut admitted = Vec::new();
    callers.retain_mut(|(index, caller)| match caller.poll() {
        true => {
            admitted.extend(caller.outcome.take().unwrap().ok().map(|permit| (*index, permit)));
            false
        }
        false => true,
    });
    admitted
}

fn arrive(limiter: &RateLimiter, callers: usize) -> Vec<(usize, Caller)> {
    (0..callers).map(|index| (index, Caller::arrive(limiter, "acme", Duration::MAX))).collect()
}

#[tokio::test(start_paused = true)]
async fn they_are_admitted_in_order_one_per_release() {
    let limiter = limiter(Quota::concurrent(2));
    let mut callers = arrive(&limiter, 6);
    let mut inside = take_admitted(&mut callers);
    let mut order: Vec<_> = inside.iter().map(|(index, _)| *index).collect();
    assert_eq!((order.len(), limiter.stats().waiting, limiter.stats().permits), (2, 4, 2));
    while !callers.is_empty() {
        tokio::time::advance(MILLI).await;
        assert!(take_admitted(&mut callers).is_empty(), "no unit has come back");
        drop(inside.pop());
        let next = take_admitted(&mut callers);
        assert_eq!(next.len(), 1, "one for one");
        assert!(matches!(next[0].1.decision().verdict(), Verdict::Delay(_)));
        order.push(next[0].0);
        inside.extend(next);
    }
    assert_eq!(order, [0, 1, 2, 3, 4, 5]);
    drop(inside);
    assert_eq!((limiter.stats().waiting, limiter.stats().permits), (0, 0));
    assert_eq!((limiter.stats().allowed, limiter.stats().delayed), (2, 4));
}

#[tokio::test(start_paused = true)]
async fn waiters_are_woken_by_releases() {
    let limiter = limiter(Quota::concurrent(1));
    let start = Instant::now();
    let tasks: Vec<_> = (0..20u32)
        .map(|index| {
            let caller = Caller::arrive(&limiter, "acme", Duration::MAX);
            tokio::spawn(async move {
                let permit = caller.outcome().await.unwrap();
                assert_eq!(start.elapsed(), SECOND * index);
                assert_eq!(permit.decision().wait(), SECOND * index);
                tokio::time::timeout(SECOND, std::future::pending::<()>()).await.unwrap_err();
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn no_request_overtakes_the_queue() {
    let limiter = limiter(Quota::concurrent(1));
    let first = limiter.acquire(&by("acme"), Duration::ZERO).await.unwrap();
    let mut waits = Caller::arrive(&limiter, "acme", Duration::MAX);
    drop(first);
    // It is called, and not polled yet.
    let rejected = limiter.acquire(&by("acme"), Duration::ZERO).await.unwrap_err();
    assert_eq!((rejected.kind(), rejected.retry_after()), (RateLimitedKind::Concurrency, Some(SECOND)));
    assert!(!limiter.check(&by("acme")).await.is_allowed());
    assert!(Caller::arrive(&limiter, "acme", SECOND).is_waiting());
    assert!(!waits.is_waiting());
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_times_out_is_rejected_and_charges_nothing() {
    let limiter = limiter(tiers(&[Quota::concurrent(1), Quota::per_hour(2)]));
    let held = limiter.acquire(&by("acme"), Duration::ZERO).await.unwrap();
    let start = Instant::now();
    let rejected = limiter.acquire(&by("acme"), 3 * SECOND).await.unwrap_err();
    assert_eq!((rejected.kind(), start.elapsed()), (RateLimitedKind::Concurrency, 3 * SECOND));
    assert_eq!(rejected.decision().unwrap().tiers().len(), 2);
    assert_eq!(limiter.stats().waiting, 0);
    drop(held);
    drop(limiter.acquire(&by("acme"), Duration::ZERO).await.unwrap());
    let rejected = limiter.acquire(&by("acme"), Duration::ZERO).await.unwrap_err();
    assert_ne!(rejected.retry_after(), Some(SECOND), "the rate determines the time");
}

#[tokio::test(start_paused = true)]
async fn a_rule_bounds_the_wait_in_the_queue() {
    let limiter = limiter(Policy::new().rule(Rule::new("r").tier(Quota::concurrent(1)).max_wait(SECOND)));
    let _held = limiter.acquire(&by("acme"), Duration::ZERO).await.unwrap();
    let start = Instant::now();
    assert!(limiter.acquire(&by("acme"), Duration::MAX).await.is_err());
    assert_eq!(start.elapsed(), SECOND);
    assert!(limiter.acquire(&by("acme").max_wait(SECOND / 2), Duration::MAX).await.is_err());
    assert_eq!(start.elapsed(), SECOND * 3 / 2);
}

#[tokio::test(start_paused = true)]
async fn a_called_request_that_is_dropped_calls_the_next() {
    let limiter = limiter(Quota::concurrent(1));
    let first = limiter.acquire(&by("acme"), Duration::ZERO).await.unwrap();
    let mut callers = arrive(&limiter, 4);
    drop(first);
    drop(callers.remove(0));
    // From the middle: no request is called for it.
    drop(callers.remove(1));
    let inside = take_admitted(&mut callers);
    assert_eq!(inside.iter().map(|(index, _)| *index).collect::<Vec<_>>(), [1]);
    assert_eq!(callers.len(), 1);
    drop(inside);
    assert_eq!(take_admitted(&mut callers).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn releasing_a_large_cost_admits_several_small_requests() {
    let limiter = limiter(Quota::concurrent(4));
    let big = limiter.acquire(&by("acme").cost(4), Duration::ZERO).await.unwrap();
    let mut callers = arrive(&limiter, 6);
    assert!(take_admitted(&mut callers).is_empty());
    drop(big);
    // Each calls the next one as it leaves.
    let inside = take_admitted(&mut callers);
    assert_eq!(inside.len(), 4);
    drop(inside);
    assert_eq!(take_admitted(&mut callers).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_queue_is_bounded_by_the_waiter_limit() {
    let limiter = builder(Quota::concurrent(1)).max_waiters_per_key(2).build().unwrap();
    let held = limiter.acquire(&by("acme"), Duration::ZERO).await.unwrap();
    let mut callers = arrive(&limiter, 2);
    let rejected = limiter.acquire(&by("acme"), SECOND).await.unwrap_err();
    assert_eq!((rejected.kind(), rejected.retry_after()), (RateLimitedKind::QueueFull, Some(SECOND)));
    drop(held);
    assert_eq!(take_admitted(&mut callers).len(), 1);
    assert_eq!(limiter.stats().waiting, 1);
}

#[tokio::test(start_paused = true)]
async fn an_in_flight_unit_is_kept_while_a_rate_is_waited_for() {
    let limiter = limiter(tiers(&[Quota::concurrent(2), Quota::per_second(1)]));
    let start = Instant::now();
    let first = limiter.acquire(&by("acme"), Duration::ZERO).await.unwrap();
    // Takes the other unit and a reservation; the third has to queue.
    let second = Caller::arrive(&limiter, "acme", Duration::MAX);
    let third = Caller::arrive(&limiter, "acme", Duration::MAX);
    let second = second.outcome().await.unwrap();
    assert_eq!(start.elapsed(), SECOND);
    tokio::time::advance(4 * SECOND).await;
    // While it was queued it reserved nothing: it is admitted at once.
    drop(first);
    let third = third.outcome().await.unwrap();
    assert_eq!(start.elapsed(), 5 * SECOND);
    drop((second, third));
}

#[tokio::test(start_paused = true)]
async fn a_reservation_that_is_dropped_frees_its_unit() {
    let limiter = limiter(tiers(&[Quota::concurrent(2), Quota::per_second(1)]));
    let start = Instant::now();
    let first = limiter.acquire(&by("acme"), Duration::ZERO).await.unwrap();
    let second = Caller::arrive(&limiter, "acme", Duration::MAX);
    let third = Caller::arrive(&limiter, "acme", Duration::MAX);
    drop(second);
    let third = third.outcome().await.unwrap();
    assert_eq!(start.elapsed(), SECOND, "both the unit and the slot");
    drop((first, third));
}

/// Two rules, in either order, and both keys full: no request holds one of them
/// while waiting for the other.
#[tokio::test(start_paused = true)]
async fn no_unit_is_kept_while_waiting_for_another_key() {
    let policy = Policy::new()
        .rule(Rule::new("a").path("/a").path("/both").per([]).tier(Quota::concurrent(1)))
        .rule(Rule::new("b").path("/b").path("/both").per([]).tier(Quota::concurrent(1)));
    let limiter = limiter(policy);
    let on = async |path: &'static str| limiter.acquire(&Descriptor::new(path), Duration::MAX).await.unwrap();
    let (a, b) = (on("/a").await, on("/b").await);
    let spawn = |path: &'static str| {
        let limiter = limiter.clone();
        tokio::spawn(async move { limiter.acquire(&Descriptor::new(path), Duration::MAX).await.unwrap() })
    };
    let both = spawn("/both");
    tokio::task::yield_now().await;
    drop(a);
    tokio::task::yield_now().await;
    // It waits for `b` now, and holds no unit of `a`.
    drop(limiter.acquire(&Descriptor::new("/a"), Duration::ZERO).await.unwrap());
    let next = spawn("/b");
    tokio::task::yield_now().await;
    drop(b);
    drop(both.await.unwrap());
    drop(next.await.unwrap());
    assert_eq!((limiter.stats().waiting, limiter.stats().permits), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_slow_backend_is_asked_again_after_a_release() {
    let backend = FaultyBackend::new(Local::new());
    backend.set(Fault::Slow);
    let limiter = builder(Quota::concurrent(2)).backend(backend.clone()).build().unwrap();
    let inside = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<_> = (0..20)
        .map(|_| {
            let (limiter, inside) = (limiter.clone(), Arc::clone(&inside));
            tokio::spawn(async move {
                let permit = limiter.acquire(&by("acme"), Duration::MAX).await.unwrap();
                assert!(inside.fetch_add(1, Ordering::SeqCst) < 2);
                tokio::time::timeout(MILLI, std::future::pending::<()>()).await.unwrap_err();
                inside.fetch_sub(1, Ordering::SeqCst);
                drop(permit);
            })
        })
        .collect();
    let start = Instant::now();
    for task in tasks {
        task.await.unwrap();
    }
    assert!(start.elapsed() < SECOND, "releases called them, not the periodic check");
    assert_eq!(limiter.stats().waiting, 0);
}

/// A waker that panics affects no other waiter.
#[tokio::test(start_paused = true)]
async fn a_waker_that_panics_corrupts_nothing() {
    struct Panics;
    impl std::task::Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("a waker that panics");
        }
    }
    let limiter = limiter(Quota::concurrent(1));
    let held = limiter.acquire(&by("acme"), Duration::ZERO).await.unwrap();
    let mut first = Caller::arrive(&limiter, "acme", Duration::MAX);
    let mut second = Caller::arrive(&limiter, "acme", Duration::MAX);
    let waker = std::task::Waker::from(Arc::new(Panics));
    assert!(first.future.as_mut().poll(&mut std::task::Context::from_waker(&waker)).is_pending());
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(held)));
    assert!(result.is_ok(), "nor the one that releases");
    assert_eq!(limiter.stats().permits, 0);
    assert!(second.is_waiting(), "the first one is called");
    assert!(!first.is_waiting());
    drop(first);
    drop(second.outcome().await.unwrap());
    assert_eq!((limiter.stats().waiting, limiter.stats().permits), (0, 0));
}

/// At the cap on keys, keys share the overflow counter and its queue.
#[tokio::test(start_paused = true)]
async fn requests_of_one_counter_share_a_queue() {
    let local = Local::builder().max_keys(1).build();
    let limiter = builder(Quota::concurrent(1)).backend(local).build().unwrap();
    let own = limiter.acquire(&by("first"), Duration::ZERO).await.unwrap();
    let shared = limiter.acquire(&by("a"), Duration::ZERO).await.unwrap();
    let mut waits = Caller::arrive(&limiter, "b", Duration::MAX);
    assert!(waits.is_waiting(), "its counter is full");
    drop(shared);
    let b = waits.outcome().await.unwrap();
    drop(b);
    assert!(limiter.acquire(&by("c"), Duration::ZERO).await.is_ok());
    drop(own);
    assert_eq!((limiter.stats().waiting, limiter.stats().permits), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_shadow_rule_counts_requests_in_flight() {
    let rule = |id: &str, limit| Rule::new(id).tier(Quota::concurrent(limit));
    for enforced in [vec![], vec![rule("enforced", 9)], vec![Rule::new("rate").tier(Quota::per_second(2))]] {
        let policy = enforced.into_iter().fold(Policy::new().rule(rule("shadow", 2).shadow(true)), Policy::rule);
        let limiter = limiter(policy);
        let mut held = Vec::new();
        for _ in 0..3 {
            held.push(limiter.acquire(&by("acme"), SECOND).await.unwrap());
        }
        assert_eq!(limiter.stats().shadow_rejected, 1, "the third would have been one too many");
        held.clear();
        for _ in 0..5 {
            drop(limiter.acquire(&by("acme"), SECOND).await.unwrap());
        }
        assert_eq!((limiter.stats().shadow_rejected, limiter.stats().permits), (1, 0), "all were released");
    }
}

#[derive(Clone, Debug)]
enum Step {
    Comes { key: usize, cost: u64, max_wait: u32 },
    Gives { which: usize },
    Leaves { which: usize },
    Passes { millis: u32 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..3usize, 0..4u64, 0..3_000u32).prop_map(|(key, cost, max_wait)| Step::Comes { key, cost, max_wait }),
        3 => any::<usize>().prop_map(|which| Step::Gives { which }),
        1 => any::<usize>().prop_map(|which| Step::Leaves { which }),
        1 => (1..500u32).prop_map(|millis| Step::Passes { millis }),
    ]
}

const PATHS: [&str; 3] = ["/a", "/b", "/both"];
const LIMITS: [u64; 2] = [3, 2];

/// Units in flight of each of the two keys.
fn in_flight(inside: &[(usize, u64, Permit)]) -> [u64; 2] {
    [0, 1].map(|key| inside.iter().filter(|(path, ..)| *path == key || *path == 2).map(|(_, cost, _)| cost).sum())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn at_most_the_limit_is_in_flight_and_no_waiter_is_stuck(steps in vec(step(), 1..120), rated: bool) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let rule = |id: &str, limit: u64| {
                let rule = Rule::new(id).path(format!("/{id}")).path("/both").per([]).tier(Quota::concurrent(limit));
                if rated { rule.tier(Quota::per_second(5).burst(9)) } else { rule }
            };
            let limiter = limiter(Policy::new().rule(rule("a", LIMITS[0])).rule(rule("b", LIMITS[1])));
            let mut callers: Vec<(usize, u64, Caller)> = Vec::new();
            let mut inside: Vec<(usize, u64, Permit)> = Vec::new();
            for step in steps {
                match step {
                    Step::Comes { key, cost, max_wait } => {
                        let limiter = limiter.clone();
                        let future = Box::pin(async move {
                            limiter.acquire(&Descriptor::new(PATHS[key]).cost(cost), MILLI * max_wait).await
                        });
                        callers.push((key, cost, Caller { future, outcome: None }));
                    }
                    Step::Gives { which } if !inside.is_empty() => drop(inside.remove(which % inside.len())),
                    Step::Leaves { which } if !callers.is_empty() => drop(callers.remove(which % callers.len())),
                    Step::Passes { millis } => tokio::time::advance(MILLI * millis).await,
                    _ => {}
                }
                // Until no task has anything left to do.
                for _ in 0..8 {
                    callers.retain_mut(|(key, cost, caller)| match caller.poll() {
                        true => {
                            inside.extend(caller.outcome.take().unwrap().ok().map(|permit| (*key, *cost, permit)));
                            false
                        }
                        false => true,
                    });
                }
                let held = in_flight(&inside);
                assert!(held[0] <= LIMITS[0] && held[1] <= LIMITS[1], "{held:?}");
            }
            drop(inside);
            // Each is admitted, or rejected when its wait is over.
            for _ in 0..40 {
                tokio::time::advance(100 * MILLI).await;
                callers.retain_mut(|(_, _, caller)| caller.is_waiting());
            }
            assert_eq!(callers.len(), 0, "wedged");
            assert_eq!((limiter.stats().waiting, limiter.stats().permits), (0, 0));
            tokio::time::advance(10 * SECOND).await;
            drop(limiter.acquire(&Descriptor::new("/both").cost(2), Duration::ZERO).await.unwrap());
            drop(limiter.acquire(&Descriptor::new("/a").cost(3), Duration::ZERO).await.unwrap());
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_tasks_on_threads_share_three_units_and_none_is_lost() {
    const LIMIT: usize = 3;
    let limiter = RateLimiter::new(Quota::concurrent(LIMIT as u64)).unwrap();
    let inside = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<_> = (0..200)
        .map(|task| {
            let (limiter, inside) = (limiter.clone(), Arc::clone(&inside));
            tokio::spawn(async move {
                for attempt in 0..50 {
                    let caller = by("acme");
                    let acquiring = limiter.acquire(&caller, Duration::MAX);
                    if (task + attempt) % 7 == 0 {
                        // Cancelled before, while or after it is called.
                        let time_limit = Duration::from_micros(task);
                        drop(tokio::time::timeout(time_limit, acquiring).await);
                        continue;
                    }
                    let permit = acquiring.await.unwrap();
                    assert!(inside.fetch_add(1, Ordering::SeqCst) < LIMIT);
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    drop(permit);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!((limiter.stats().waiting, limiter.stats().permits), (0, 0));
    drop(limiter.acquire(&by("acme").cost(3), Duration::ZERO).await.unwrap());
}

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A store may release a unit unnoticed. Only the first of a queue looks whether it
/// has, more often in the first second, and none where all units are released in this
/// process.
#[tokio::test(start_paused = true)]
async fn only_the_first_of_a_queue_wakes_each_second() {
    let [local, other] = [builder(Quota::concurrent(1)), builder(Quota::concurrent(1))];
    let other = other.backend(FaultyBackend::new(Local::new()));
    for (limiter, of_first) in [(local.build().unwrap(), 0..=0), (other.build().unwrap(), 10..=18)] {
        let _held = limiter.acquire(&by("acme"), Duration::ZERO).await.unwrap();
        let mut callers = arrive(&limiter, 4);
        let wakes = [(); 4].map(|()| Arc::new(Wakes::default()));
        for tenth in 0..105 {
            for ((_, caller), wakes) in callers.iter_mut().zip(&wakes) {
                let waker = Arc::clone(wakes).into();
                assert!(caller.future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending(), "after {tenth}");
            }
            super::pass(SECOND / 10).await;
        }
        let [first, others @ ..] = wakes.map(|wakes| wakes.0.load(Ordering::Relaxed));
        assert!(of_first.contains(&first) && others == [0; 3], "{first}, {others:?}");
    }
}
