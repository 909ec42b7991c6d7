//! Checks of delayed requests: their times and order, several tiers, refunds, the
//! whole rate.
//!
//! They see only what a caller of [`RateLimiter::acquire`] sees.

use std::{
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::{
    runtime::Builder,
    task::unconstrained,
    time::{Instant, advance},
};

use super::{
    bench::{Fixture, rule},
    remote::{Remote, settled},
};
use crate::{
    decision::RateLimited,
    descriptor::Descriptor,
    limiter::{Permit, RateLimiter},
    policy::Policy,
    quota::{Algorithm, Quota},
    testing::TokioClock,
};

const SECOND: Duration = Duration::from_secs(1);

/// A limiter on a new backend. Time advances only while all tasks wait, unless it
/// is real.
pub(super) fn with_waits(fixture: &Fixture<'_>, policy: Policy, check: impl AsyncFnOnce(RateLimiter)) {
    let is_real = fixture.suite.real_time.is_some();
    let runtime = Builder::new_current_thread().enable_all().start_paused(!is_real).build().expect("a runtime");
    runtime.block_on(async {
        let backend = Remote((fixture.suite.make)());
        let builder = RateLimiter::builder().policy(fixture.suite.at_level(policy)).backend(backend);
        let builder = if is_real { builder } else { builder.clock(TokioClock::default()) };
        check(builder.build().expect("a valid policy")).await;
    });
}

/// A caller that waits for a permit.
pub(super) type Caller = Pin<Box<dyn Future<Output = Result<Permit, RateLimited>>>>;

/// A caller, and its permit if it need not wait.
pub(super) fn arrive(limiter: &RateLimiter, max_wait: Duration) -> (Caller, Option<Permit>) {
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
pub(super) fn poll_permit(caller: &mut Caller) -> Option<Permit> {
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
