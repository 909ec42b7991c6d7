//! Checks of [`RateLimiter::acquire`]: order, cancellation, the whole rate.

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
    waits::spaced_algorithms,
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

/// A limiter on a new backend. Time advances only while all tasks wait.
pub(super) fn with_paused_time(fixture: &Fixture<'_>, policy: Policy, check: impl AsyncFnOnce(RateLimiter)) {
    let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime");
    runtime.block_on(async {
        let builder =
            RateLimiter::builder().policy(fixture.suite.at_level(policy)).backend(Remote((fixture.suite.make)()));
        check(builder.clock(TokioClock::default()).build().expect("a valid policy")).await;
    });
}

/// A caller that waits for a permit.
pub(super) type Caller = Pin<Box<dyn Future<Output = Result<Permit, RateLimited>>>>;

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

fn of(algorithm: Algorithm, id: &str, quota: Quota) -> Policy {
    Policy::new().rule(rule(&format!("{id}-{algorithm}")).tier(quota.algorithm(algorithm)))
}

/// The checked algorithms; none in real time.
fn checked_algorithms(fixture: &Fixture<'_>) -> Vec<Algorithm> {
    if fixture.suite.real_time.is_some() { Vec::new() } else { spaced_algorithms(fixture) }
}

/// Waiters are admitted at their exact times, in order of arrival.
pub(super) fn waiters_are_admitted_in_order(fixture: &Fixture<'_>) {
    for algorithm in checked_algorithms(fixture) {
        with_paused_time(fixture, of(algorithm, "order", Quota::per_second(1)), async |limiter| {
            let start = Instant::now();
            let callers: Vec<_> = (0..6).map(|_| arrive(&limiter, 10 * SECOND)).collect();
            for (position, (caller, permit)) in (0..).zip(callers) {
                assert_eq!(
                    permit.is_some(),
                    position == 0,
                    "{algorithm}: caller {position} was admitted at once, or not"
                );
                if permit.is_none() {
                    let admitted = caller.await;
                    assert!(admitted.is_ok(), "{algorithm}: caller {position}: {admitted:?}");
                }
                assert_eq!(start.elapsed(), SECOND * position, "{algorithm}: caller {position}");
            }
            let rejected = limiter.acquire(&Descriptor::new("/").tenant("acme"), SECOND / 2).await.err();
            let rejected = rejected.unwrap_or_else(|| panic!("{algorithm}: cannot end in time"));
            assert_eq!(rejected.retry_after(), Some(SECOND), "{algorithm}: retry_after");
            assert_eq!(start.elapsed(), 5 * SECOND, "{algorithm}: rejected, but not at once");
        });
    }
}

/// A cancelled waiter hands its time on: all behind it move up, and no extra
/// request is admitted.
pub(super) fn cancelled_waiters_harm_no_others(fixture: &Fixture<'_>) {
    for algorithm in checked_algorithms(fixture) {
        with_paused_time(fixture, of(algorithm, "cancel", Quota::per_second(1)), async |limiter| {
            let start = Instant::now();
            let mut callers: Vec<_> = (0..6).map(|_| arrive(&limiter, Duration::MAX)).collect();
            drop(callers.pop());
            fixture.settle();
            let last = arrive(&limiter, 5 * SECOND);
            drop(callers.remove(2));
            fixture.settle();
            for (position, (caller, _)) in [1, 2, 3, 4].into_iter().zip(callers.into_iter().skip(1).chain([last])) {
                let admitted = caller.await;
                assert!(admitted.is_ok(), "{algorithm}: at position {position}: {admitted:?}");
                assert_eq!(start.elapsed(), SECOND * position, "{algorithm}: at position {position}");
            }
            assert_eq!(limiter.stats().waiting, 0, "{algorithm}: a waiter remains");
            let next = limiter.acquire(&Descriptor::new("/").tenant("acme"), Duration::ZERO).await;
            assert!(next.is_err(), "{algorithm}: in addition to the waiters");
        });
    }
}

/// Many waiters take exactly as long as the rate says.
pub(super) fn the_whole_rate_is_used(fixture: &Fixture<'_>) {
    const CALLERS: u32 = 300;
    for algorithm in checked_algorithms(fixture) {
        with_paused_time(fixture, of(algorithm, "rate", Quota::per_second(20)), async |limiter| {
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
