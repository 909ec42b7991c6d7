//! Fairness: round-robin between tenants that wait for one shared counter.

use std::time::Duration;

use http::StatusCode;
use proptest::{collection::vec, prelude::*};
use tokio::time::Instant;
use tower_ratelimit::{Policy, Quota, RateLimitedKind, RateLimiter, Rule};

use super::{Admissions, Caller, MILLI, SECOND, by, limiter, pass};

fn shared(quota: Quota) -> Policy {
    Policy::new().rule(Rule::new("shared").per([]).fair(true).tier(quota))
}

/// Requests come in this order; returns when each is admitted, in seconds.
async fn rush(limiter: &RateLimiter, tenants: &[&'static str]) -> Vec<(&'static str, Duration)> {
    let (start, admissions) = (Instant::now(), Admissions::default());
    let callers: Vec<_> = tenants.iter().map(|tenant| Caller::arrive(limiter, tenant, Duration::MAX)).collect();
    let tasks: Vec<_> = (0..)
        .zip(callers)
        .map(|(index, caller)| {
            let admissions = admissions.clone();
            tokio::spawn(async move {
                let permit = caller.outcome().await.unwrap();
                assert_eq!(permit.decision().wait(), start.elapsed(), "it says how long it waited");
                admissions.record(index, start.elapsed());
                drop(permit);
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    admissions.take().into_iter().map(|(index, at)| (tenants[index], at)).collect()
}

#[tokio::test(start_paused = true)]
async fn tenants_alternate_at_the_exact_times() {
    let limiter = limiter(shared(Quota::per_second(1)));
    let mut tenants = vec!["greedy"; 6];
    tenants.extend(["modest", "modest", "small"]);
    let admitted = rush(&limiter, &tenants).await;
    let order: Vec<_> = admitted.iter().map(|(tenant, _)| *tenant).collect();
    // The first request was admitted before any other waited.
    let expected = ["greedy", "greedy", "modest", "small", "greedy", "modest", "greedy", "greedy", "greedy"];
    assert_eq!(order, expected);
    assert!(
        (0..).zip(&admitted).all(|(position, (_, when))| *when == SECOND * position),
        "a slot was lost: {admitted:?}"
    );
    assert_eq!(limiter.stats().waiting, 0);
}

#[tokio::test(start_paused = true)]
async fn without_fairness_the_first_tenant_takes_every_slot() {
    let limiter = limiter(Policy::new().rule(Rule::new("shared").per([]).tier(Quota::per_second(1))));
    let admitted = rush(&limiter, &["greedy", "greedy", "greedy", "modest"]).await;
    assert_eq!(admitted.last().unwrap().0, "modest");
}

#[tokio::test(start_paused = true)]
async fn no_request_waits_longer_than_its_bound() {
    let limiter = limiter(shared(Quota::per_second(1)));
    let start = Instant::now();
    drop(limiter.acquire(&by("greedy"), Duration::ZERO).await.unwrap());
    let mut greedy: Vec<_> = (1..=3).map(|position| Caller::arrive(&limiter, "greedy", SECOND * position)).collect();
    let modest = Caller::arrive(&limiter, "modest", Duration::MAX);
    for (position, caller) in (1..).zip(greedy.drain(..)) {
        drop(caller.outcome().await.unwrap());
        assert_eq!(start.elapsed(), SECOND * position);
    }
    drop(modest.outcome().await.unwrap());
    assert_eq!(start.elapsed(), 4 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_fair_waiter_gives_its_slot_back() {
    let limiter = limiter(shared(Quota::per_second(1)));
    drop(limiter.acquire(&by("greedy"), Duration::ZERO).await.unwrap());
    let start = Instant::now();
    let greedy = Caller::arrive(&limiter, "greedy", Duration::MAX);
    let last = Caller::arrive(&limiter, "greedy", Duration::MAX);
    drop(last);
    let modest = Caller::arrive(&limiter, "modest", 2 * SECOND);
    assert!(Caller::arrive(&limiter, "modest", 2 * SECOND).outcome().await.is_err(), "no slot is made twice");
    drop(greedy.outcome().await.unwrap());
    drop(modest.outcome().await.unwrap());
    assert_eq!((start.elapsed(), limiter.stats().waiting, limiter.stats().permits), (2 * SECOND, 0, 0));
}

/// A slot before the end of the cooldown is inside the cooldown.
#[tokio::test(start_paused = true)]
async fn a_fair_slot_moved_before_the_end_of_a_cooldown_waits_for_it() {
    let limiter = limiter(shared(Quota::per_second(1)));
    drop(limiter.acquire(&by("greedy"), Duration::ZERO).await.unwrap());
    let start = Instant::now();
    let mut callers: Vec<_> = (0..3).map(|_| Caller::arrive(&limiter, "greedy", Duration::MAX)).collect();
    limiter.cool_down(&by("greedy"), 30 * SECOND);
    let end = limiter.cooldown(&by("greedy")).unwrap();
    callers.push(Caller::arrive(&limiter, "modest", Duration::MAX));
    let waits = callers.into_iter().map(|caller| {
        tokio::spawn(async move {
            drop(caller.outcome().await.unwrap());
            start.elapsed()
        })
    });
    for task in waits.collect::<Vec<_>>() {
        let admitted = task.await.unwrap();
        assert!(admitted >= end, "admitted after {admitted:?}, and the cooldown lasts {end:?}");
    }
}

/// Greedy callers of one tenant try all the time; so does one other caller.
/// Returns how many of the admissions within the time are the other's.
async fn against_greedy_callers(callers: usize) -> (usize, usize) {
    const LONGEST: Duration = Duration::from_secs(15);
    let limiter = limiter(shared(Quota::per_second(5).burst(1)));
    let mut tasks = tokio::task::JoinSet::new();
    let (start, admissions) = (Instant::now(), Admissions::default());
    let try_for_ever = |tenant: &'static str, caller: usize| {
        let (limiter, admissions) = (limiter.clone(), admissions.clone());
        async move {
            loop {
                match limiter.acquire(&by(tenant), LONGEST).await {
                    Ok(_) => admissions.record(caller, start.elapsed()),
                    Err(rejected) => pass(rejected.retry_after().unwrap().clamp(MILLI, SECOND)).await,
                }
            }
        }
    };
    for caller in 1..=callers {
        tasks.spawn(try_for_ever("greedy", caller));
    }
    tokio::task::yield_now().await;
    pass(SECOND).await;
    tasks.spawn(try_for_ever("honest", 0));
    pass(LONGEST).await;
    let waiting = limiter.stats().waiting;
    assert!(waiting <= 10_000 + 64, "{waiting} waiters");
    let admitted = admissions.take().into_iter().filter(|(_, at)| *at > SECOND);
    let honest: Vec<_> = admitted.map(|(caller, _)| caller == 0).collect();
    tasks.shutdown().await;
    assert_eq!(limiter.stats().waiting, 0);
    (honest.iter().filter(|is_honest| **is_honest).count(), honest.len())
}

#[tokio::test(start_paused = true)]
async fn a_tenant_that_fills_the_queue_leaves_others_their_share() {
    for callers in [20, 199, 300, 12_000] {
        let (honest, admitted) = against_greedy_callers(callers).await;
        assert!((74..=76).contains(&admitted), "{callers} callers: {admitted} admitted");
        assert!(honest >= 30, "{callers} greedy callers leave another one {honest} of {admitted}");
    }
}

/// The queue is full, and all may wait for ever.
#[tokio::test(start_paused = true)]
async fn a_full_queue_drops_the_latest_waiter_of_the_greediest_tenant() {
    let rule = Rule::new("shared").per([]).fair(true).tier(Quota::per_second(1)).status(StatusCode::IM_A_TEAPOT);
    let builder = super::builder(Policy::new().rule(rule)).max_waiters_per_key(4);
    let limiter = builder.build().unwrap();
    let start = Instant::now();
    drop(limiter.acquire(&by("greedy"), Duration::ZERO).await.unwrap());
    let mut callers: Vec<_> =
        ["modest", "greedy", "greedy", "greedy"].map(|tenant| Caller::arrive(&limiter, tenant, Duration::MAX)).into();
    let rejected = Caller::arrive(&limiter, "greedy", Duration::MAX).outcome().await.unwrap_err();
    assert_eq!(rejected.kind(), RateLimitedKind::QueueFull, "no tenant displaces itself");
    callers.push(Caller::arrive(&limiter, "other", Duration::MAX));
    assert!(!callers[3].is_waiting(), "it has lost its slot");
    let lost = callers.remove(3).outcome().await.unwrap_err();
    assert_eq!(lost.kind(), RateLimitedKind::QueueFull);
    assert!(lost.retry_after().is_some());
    assert_eq!((lost.status(), rejected.status()), (StatusCode::IM_A_TEAPOT, StatusCode::IM_A_TEAPOT));
    assert_eq!(limiter.stats().waiting, 4);
    let rejected = Caller::arrive(&limiter, "other", Duration::MAX).outcome().await.unwrap_err();
    assert_eq!(rejected.kind(), RateLimitedKind::QueueFull, "no tenant has two more");
    let tasks = callers.into_iter().map(|caller| {
        tokio::spawn(async move {
            drop(caller.outcome().await.unwrap());
            start.elapsed().as_secs()
        })
    });
    let mut when = Vec::new();
    for task in tasks.collect::<Vec<_>>() {
        when.push(task.await.unwrap());
    }
    // The modest one, the first greedy one, the other one, the second greedy one.
    assert_eq!(when, [1, 2, 4, 3]);
}

const TENANTS: [&str; 4] = ["a", "b", "c", "d"];

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn fair_slots_keep_to_the_rate_and_none_is_lost(
        steps in vec((0..4usize, 0..3_000u32, 0..400u32, 0..4u8), 1..80),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let limiter = limiter(shared(Quota::per_second(5).burst(1)));
            let start = Instant::now();
            let mut waiters: Vec<(Duration, Caller)> = Vec::new();
            let mut admitted: Vec<Duration> = Vec::new();
            let end = steps.len();
            for (step, (tenant, max_wait, millis, leaves)) in
                steps.into_iter().map(Some).chain(std::iter::repeat_n(None, 40)).enumerate().map(|(at, step)| {
                    (at, step.unwrap_or((0, 0, 100, 0)))
                })
            {
                if step < end {
                    let latest = start.elapsed() + MILLI * max_wait;
                    waiters.push((latest, Caller::arrive(&limiter, TENANTS[tenant], MILLI * max_wait)));
                    if leaves == 0 {
                        drop(waiters.remove(step % waiters.len()));
                    }
                }
                for _ in 0..millis {
                    tokio::time::advance(MILLI).await;
                    waiters.retain_mut(|(latest, waiter)| match waiter.poll() {
                        true => {
                            if waiter.outcome.take().unwrap().is_ok() {
                                assert!(start.elapsed() <= *latest + 2 * MILLI, "later than it may wait");
                                admitted.push(start.elapsed());
                            }
                            false
                        }
                        false => true,
                    });
                }
            }
            assert_eq!((waiters.len(), limiter.stats().waiting, limiter.stats().permits), (0, 0, 0));
            assert!(admitted.windows(2).all(|pair| pair[1] - pair[0] >= 198 * MILLI), "{admitted:?}");
        });
    }
}

/// Turns that were never served do not count.
#[tokio::test(start_paused = true)]
async fn a_tenant_whose_waiters_gave_up_is_not_put_back() {
    for reversed in [false, true] {
        let limiter = limiter(shared(Quota::per_second(1).burst(1)));
        drop(limiter.acquire(&by("other"), Duration::ZERO).await.unwrap());
        let start = Instant::now();
        let spawn = |tenant| {
            let caller = Caller::arrive(&limiter, tenant, Duration::MAX);
            tokio::spawn(async move {
                drop(caller.outcome().await.unwrap());
                start.elapsed()
            })
        };
        let mut others = vec![spawn("other")];
        tokio::task::yield_now().await;
        let mut gone: Vec<_> = (0..100).map(|_| Caller::arrive(&limiter, "acme", Duration::MAX)).collect();
        if reversed {
            gone.reverse();
        }
        drop(gone);
        let acme = spawn("acme");
        for second in 1..=10 {
            others.push(spawn("other"));
            tokio::time::sleep_until(start + SECOND * second).await;
        }
        assert!(acme.is_finished(), "starved");
        assert_eq!(acme.await.unwrap(), 2 * SECOND);
        others.iter().for_each(|task| task.abort());
    }
}
