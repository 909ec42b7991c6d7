//! Checks of delayed requests: their times and order, several tiers, refunds, the
//! whole rate; and of concurrency limits.
//!
//! They see only what a caller of [`RateLimiter::acquire`] sees.

use std::{
    pin::Pin,
    sync::{
        Barrier,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    thread,
    time::Duration,
};

use tokio::{
    runtime::Builder,
    task::unconstrained,
    time::{Instant, advance},
};

use super::suite::{Fixture, Remote, rule, settled};
use crate::{
    decision::{RateLimited, RateLimitedKind},
    descriptor::Descriptor,
    limiter::{Permit, RateLimiter},
    policy::Policy,
    quota::{Algorithm, Quota},
    testing::TokioClock,
};

const SECOND: Duration = Duration::from_secs(1);

/// A limiter on a new backend. Time advances only while all tasks wait, unless it
/// is real.
fn with_waits(fixture: &Fixture<'_>, policy: Policy, check: impl AsyncFnOnce(RateLimiter)) {
    let is_real = fixture.suite.real_time.is_some();
    let runtime = Builder::new_current_thread().enable_all().start_paused(!is_real).build().expect("a runtime");
    runtime.block_on(async {
        check(fixture.limiter(Remote((fixture.suite.make)()), policy, TokioClock::default())).await;
    });
}

/// A caller that waits for a permit.
type Caller = Pin<Box<dyn Future<Output = Result<Permit, RateLimited>>>>;

/// A caller, and its permit if it need not wait.
fn arrive(limiter: &RateLimiter, max_wait: Duration) -> (Caller, Option<Permit>) {
    let limiter = limiter.clone();
    // Unconstrained: it is polled more often than Tokio's budget permits,
    // without yielding.
    let mut caller: Caller =
        Box::pin(unconstrained(async move { limiter.acquire(&Descriptor::new("/").tenant("acme"), max_wait).await }));
    // A backend may answer late.
    let permit = (0..4).find_map(|_| poll_permit(&mut caller));
    (caller, permit)
}

/// The permit, if the caller has been admitted.
fn poll_permit(caller: &mut Caller) -> Option<Permit> {
    settled(|| match caller.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result.unwrap_or_else(|rejected| panic!("{rejected}"))),
        Poll::Pending => None,
    })
}

/// Why a caller that cannot wait is rejected, at once.
async fn rejected(limiter: &RateLimiter, max_wait: Duration, what: &str) -> RateLimited {
    let result = limiter.acquire(&Descriptor::new("/").tenant("acme"), max_wait).await;
    result.err().unwrap_or_else(|| panic!("{what}: admitted"))
}

/// Checks that callers are admitted one a second from `start` on, in this order.
/// Returns how long each was told to wait.
async fn assert_admitted_in_order(
    fixture: &Fixture<'_>,
    start: Instant,
    callers: impl IntoIterator<Item = (u32, (Caller, Option<Permit>))>,
) -> Vec<(u32, Duration)> {
    // In real time a second lasts until the next one begins.
    let (early, late) = fixture.suite.real_time.map_or_else(Default::default, |tolerance| (tolerance, SECOND));
    let mut told = Vec::new();
    for (second, (caller, permit)) in callers {
        assert_eq!(permit.is_some(), second == 0, "the caller of second {second} was admitted at once, or not");
        let permit = match permit {
            Some(permit) => permit,
            None => caller.await.unwrap_or_else(|rejected| panic!("the caller of second {second}: {rejected}")),
        };
        let (due, now) = (SECOND * second, start.elapsed());
        assert!(now + early >= due && now <= due + late, "the caller of second {second}: admitted after {now:?}");
        told.push((second, permit.decision().wait()));
    }
    told
}

/// The algorithms that admit one request per second at even distances.
fn spaced_algorithms(fixture: &Fixture<'_>) -> Vec<Algorithm> {
    use Algorithm::{AnchoredWindow, FixedWindow, SlidingLog, TokenBucket};
    // In real time the phase of a fixed window is unknown.
    let aligned = fixture.suite.real_time.is_none();
    let wanted = |algorithm: &Algorithm| match algorithm {
        TokenBucket | AnchoredWindow | SlidingLog => true,
        FixedWindow => aligned,
        _ => false,
    };
    fixture.suite.algorithms.iter().copied().filter(|algorithm| fixture.suite.waits && wanted(algorithm)).collect()
}

/// Runs a check for each of these algorithms, with one request a second.
fn for_each_algorithm(fixture: &Fixture<'_>, id: &str, check: impl AsyncFn(RateLimiter, u32)) {
    // Real time passes.
    let longest = if fixture.suite.real_time.is_some() { 3 } else { 5 };
    for algorithm in spaced_algorithms(fixture) {
        let rule = rule(&format!("{id}-{algorithm}")).max_wait(SECOND * longest);
        let policy = Policy::new().rule(rule.tier(Quota::per_second(1).algorithm(algorithm)));
        with_waits(fixture, policy, async |limiter| check(limiter, longest).await);
    }
}

/// Delayed requests are admitted at their exact times, in order of arrival. One
/// that would wait too long is rejected at once.
pub(super) fn are_reservations(fixture: &Fixture<'_>) {
    for_each_algorithm(fixture, "waits", async |limiter, longest| {
        let start = Instant::now();
        let callers: Vec<_> = (0..=longest).map(|second| (second, arrive(&limiter, Duration::MAX))).collect();
        let too_long = rejected(&limiter, Duration::MAX, "longer than its rule allows").await;
        assert!(too_long.retry_after().is_some(), "it could pass later");
        rejected(&limiter, SECOND, "longer than its own limit").await;
        let arrived = start.elapsed();
        let tolerance = fixture.suite.real_time.map_or(Duration::ZERO, |tolerance| tolerance + arrived);
        for (second, wait) in assert_admitted_in_order(fixture, start, callers).await {
            let promised = SECOND * second;
            assert!(wait <= promised && wait + tolerance >= promised, "second {second}: told to wait {wait:?}");
        }
        let next = rejected(&limiter, SECOND / 2, "in addition to the delayed requests").await;
        if fixture.suite.real_time.is_none() {
            assert_eq!(next.retry_after(), Some(SECOND), "retry_after");
            assert_eq!(start.elapsed(), SECOND * longest, "rejected, but not at once");
        }
    });
}

/// Several tiers are charged at the one time that suits all of them.
pub(super) fn suit_all_tiers(fixture: &Fixture<'_>) {
    if !spaced_algorithms(fixture).contains(&Algorithm::FixedWindow) {
        return;
    }
    let pair = Quota::new(2, 4 * SECOND).algorithm(Algorithm::FixedWindow);
    for (id, tiers) in [("together", [Quota::per_second(1), pair]), ("together-reversed", [pair, Quota::per_second(1)])]
    {
        let rule = rule(id).max_wait(5 * SECOND).tier(tiers[0]).tier(tiers[1]);
        with_waits(fixture, Policy::new().rule(rule), async |limiter| {
            let start = Instant::now();
            let callers = [0, 1, 4, 5].map(|second| (second, arrive(&limiter, Duration::MAX)));
            assert_admitted_in_order(fixture, start, callers).await;
        });
    }
}

/// A request that gives up frees its slot. One before others hands it on, so that
/// those behind it move up. The rate is never exceeded.
pub(super) fn are_refunded_when_dropped(fixture: &Fixture<'_>) {
    for_each_algorithm(fixture, "dropped", async |limiter, longest| {
        let start = Instant::now();
        let mut callers = vec![arrive(&limiter, Duration::MAX)];
        // The only waiter.
        drop(arrive(&limiter, Duration::MAX));
        fixture.settle();
        callers.extend((1..=longest).map(|_| arrive(&limiter, Duration::MAX)));
        // The last one, then one before others.
        drop(callers.pop());
        fixture.settle();
        callers.push(arrive(&limiter, SECOND * longest));
        drop(callers.remove(2));
        fixture.settle();
        callers.push(arrive(&limiter, SECOND * longest));
        assert_admitted_in_order(fixture, start, (0..).zip(callers)).await;
        assert_eq!(limiter.stats().waiting, 0, "a waiter remains");
        rejected(&limiter, Duration::ZERO, "in addition to the waiters").await;
    });
}

/// Many waiters take exactly as long as the rate says.
pub(super) fn use_the_whole_rate(fixture: &Fixture<'_>) {
    const CALLERS: u32 = 300;
    if fixture.suite.real_time.is_some() {
        return;
    }
    for algorithm in spaced_algorithms(fixture) {
        let rule = rule(&format!("rate-{algorithm}")).tier(Quota::per_second(20).algorithm(algorithm));
        with_waits(fixture, Policy::new().rule(rule), async |limiter| {
            let start = Instant::now();
            let mut waiting: Vec<_> = (0..CALLERS).map(|_| arrive(&limiter, Duration::MAX)).collect();
            let mut admitted = 0;
            while start.elapsed() < 14 * SECOND {
                waiting.retain_mut(|(caller, permit)| permit.is_none() && poll_permit(caller).is_none());
                admitted = CALLERS as usize - waiting.len();
                let most = 20 + 20 * start.elapsed().as_millis() / 1_000;
                assert!(admitted as u128 <= most, "{algorithm}: {admitted} admitted in {:?}", start.elapsed());
                advance(Duration::from_millis(50)).await;
            }
            assert!(admitted >= 280, "{algorithm}: only {admitted} of {CALLERS} admitted in 14 seconds at 20 a second");
            waiting.retain_mut(|(caller, _)| poll_permit(caller).is_none());
            assert!(waiting.is_empty(), "{algorithm}: {} still wait", waiting.len());
        });
    }
}

/// Eight threads acquire and release units of several keys. The limit is never
/// exceeded, and in the end all units are free.
pub(super) fn in_flight_limits_are_never_exceeded(fixture: &Fixture<'_>) {
    if !fixture.suite.in_flight {
        return;
    }
    const THREADS: usize = 8;
    const LIMIT: usize = 3;
    const KEYS: usize = 16;
    let bench = fixture.bench(Policy::new().rule(rule("in-flight").tier(Quota::concurrent(LIMIT as u64))));
    let held: Vec<_> = (0..KEYS).map(|_| AtomicUsize::new(0)).collect();
    let barrier = Barrier::new(THREADS);
    let tenants: Vec<_> = (0..KEYS).map(|key| format!("tenant-{key}")).collect();
    let work = || {
        barrier.wait();
        for round in 0..200 {
            let key = round % KEYS;
            let Ok(permit) = bench.take(&Descriptor::new("/").tenant(tenants[key].as_str())) else { continue };
            let others = held[key].fetch_add(1, Ordering::SeqCst);
            assert!(others < LIMIT, "{} are in flight, of {LIMIT}", others + 1);
            thread::yield_now();
            held[key].fetch_sub(1, Ordering::SeqCst);
            // Both release the units.
            if round % 3 == 0 { permit.refund() } else { drop(permit) }
        }
    };
    thread::scope(|scope| (0..THREADS).for_each(|_| drop(scope.spawn(work))));
    fixture.settle();
    for tenant in &tenants {
        let all = bench.take(&Descriptor::new("/").tenant(tenant.as_str()).cost(LIMIT as u64));
        assert!(all.is_ok(), "{tenant}: some units were not released");
    }
}

/// If no unit is free, the rate is not charged. If the rate rejects, no unit is
/// held.
pub(super) fn in_flight_is_all_or_nothing(fixture: &Fixture<'_>) {
    if !fixture.suite.in_flight {
        return;
    }
    let policy = Policy::new().rule(rule("in-flight-and-rate").tier(Quota::concurrent(2)).tier(Quota::per_day(3)));
    let bench = fixture.bench(policy);
    let request = Descriptor::new("/").tenant("acme");
    let held: Vec<_> = (0..2).map(|_| bench.take(&request).expect("two are free")).collect();
    for _ in 0..20 {
        let rejected = bench.take(&request).expect_err("none is free");
        assert_eq!(rejected.kind(), RateLimitedKind::Concurrency, "none is free");
    }
    drop(held);
    fixture.settle();
    let last = bench.take(&request).expect("rejected requests were not charged");
    drop(last);
    fixture.settle();
    for _ in 0..20 {
        assert!(bench.take(&request).is_err(), "the rate is used up");
    }
    let never = bench.take(&request.clone().cost(3)).expect_err("more than there ever are");
    assert_eq!(never.kind(), RateLimitedKind::NeverFits, "more than there ever are");
    // The rejections held nothing. Raising the rate admits two more.
    let more = rule("in-flight-and-rate").tier(Quota::concurrent(2)).tier(Quota::per_day(10));
    bench.limiter.set_policy(fixture.suite.at_level(Policy::new().rule(more))).expect("a valid policy");
    let all = bench.take(&request.cost(2));
    assert!(all.is_ok(), "a rejection by the rate held a unit");
}

/// Waiters are admitted when a unit is released, in order of arrival.
pub(super) fn waiters_are_admitted_in_order(fixture: &Fixture<'_>) {
    if !fixture.suite.in_flight || !fixture.suite.waits || fixture.suite.real_time.is_some() {
        return;
    }
    let policy = Policy::new().rule(rule("in-flight-queue").tier(Quota::concurrent(1)));
    with_waits(fixture, policy, async |limiter| {
        let (_, first) = arrive(&limiter, Duration::MAX);
        let mut inside = first.expect("the first is admitted at once");
        let mut queue: Vec<_> = (0..5).map(|_| arrive(&limiter, Duration::MAX).0).collect();
        // Cancelled in the middle: the others keep their order.
        drop(queue.remove(2));
        fixture.settle();
        while !queue.is_empty() {
            assert!(queue.iter_mut().all(|caller| poll_permit(caller).is_none()), "the limit is exceeded");
            drop(inside);
            fixture.settle();
            let mut next = queue.remove(0);
            let overtaken = queue.iter_mut().any(|caller| poll_permit(caller).is_some());
            assert!(!overtaken, "a later waiter was admitted first");
            inside = (0..4).find_map(|_| poll_permit(&mut next)).expect("the first waiter is admitted");
        }
    });
}
