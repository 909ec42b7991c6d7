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
    Checked,
    bench::rule,
    remote::{Remote, settled},
    waits::spacing,
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

/// A limiter on a new backend, with time that passes only while all wait.
pub(super) fn paused(checked: &Checked<'_>, policy: Policy, check: impl AsyncFnOnce(RateLimiter)) {
    let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime");
    runtime.block_on(async {
        let builder = RateLimiter::builder().policy(policy).backend(Remote((checked.suite.make)()));
        check(builder.clock(TokioClock::default()).build().expect("a valid policy")).await;
    });
}

/// Someone who has come, and waits.
pub(super) type Caller = Pin<Box<dyn Future<Output = Result<Permit, RateLimited>>>>;

pub(super) fn comes(limiter: &RateLimiter, max_wait: Duration) -> (Caller, Option<Permit>) {
    let limiter = limiter.clone();
    // Looked at as often as need be: its task does not yield in between.
    let mut caller: Caller =
        Box::pin(unconstrained(async move { limiter.acquire(&Descriptor::new("/").tenant("acme"), max_wait).await }));
    // A backend may take its time for an answer.
    let permit = (0..4).find_map(|_| look(&mut caller));
    (caller, permit)
}

/// Whether it has gone by now.
pub(super) fn look(caller: &mut Caller) -> Option<Permit> {
    settled(|| match caller.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result.unwrap_or_else(|rejected| panic!("{rejected}"))),
        Poll::Pending => None,
    })
}

fn of(algorithm: Algorithm, id: &str, quota: Quota) -> Policy {
    Policy::new().rule(rule(&format!("{id}-{algorithm}")).tier(quota.algorithm(algorithm)))
}

/// Those that are checked: not where time passes by itself.
fn checked_algorithms(checked: &Checked<'_>) -> Vec<Algorithm> {
    if checked.suite.real_time.is_some() { Vec::new() } else { spacing(checked) }
}

/// Each goes at its exact time, in the order in which they came.
pub(super) fn in_turn(checked: &Checked<'_>) {
    for algorithm in checked_algorithms(checked) {
        paused(checked, of(algorithm, "turns", Quota::per_second(1)), async |limiter| {
            let start = Instant::now();
            let callers: Vec<_> = (0..6).map(|_| comes(&limiter, 10 * SECOND)).collect();
            for (place, (caller, permit)) in (0..).zip(callers) {
                assert_eq!(permit.is_some(), place == 0, "{algorithm}: caller {place} went at once, or did not");
                if permit.is_none() {
                    let went = caller.await;
                    assert!(went.is_ok(), "{algorithm}: caller {place}: {went:?}");
                }
                assert_eq!(start.elapsed(), SECOND * place, "{algorithm}: caller {place}");
            }
            let rejected = limiter.acquire(&Descriptor::new("/").tenant("acme"), SECOND / 2).await.err();
            let rejected = rejected.unwrap_or_else(|| panic!("{algorithm}: cannot end in time"));
            assert_eq!(rejected.retry_after(), Some(SECOND), "{algorithm}: retry_after");
            assert_eq!(start.elapsed(), 5 * SECOND, "{algorithm}: rejected, but not at once");
        });
    }
}

/// The last one that leaves makes room; others keep their times whoever
/// leaves, and nobody goes on top.
pub(super) fn who_leaves_harms_nobody(checked: &Checked<'_>) {
    for algorithm in checked_algorithms(checked) {
        paused(checked, of(algorithm, "leaves", Quota::per_second(1)), async |limiter| {
            let start = Instant::now();
            let mut callers: Vec<_> = (0..6).map(|_| comes(&limiter, Duration::MAX)).collect();
            drop(callers.pop());
            checked.settle();
            let last = comes(&limiter, 5 * SECOND);
            drop(callers.remove(2));
            checked.settle();
            for (place, (caller, _)) in [1, 3, 4, 5].into_iter().zip(callers.into_iter().skip(1).chain([last])) {
                let went = caller.await;
                assert!(went.is_ok(), "{algorithm}: whose place was {place}: {went:?}");
                assert_eq!(start.elapsed(), SECOND * place, "{algorithm}: whose place was {place}");
            }
            assert_eq!(limiter.stats().waiting, 0, "{algorithm}: somebody still waits");
            let next = limiter.acquire(&Descriptor::new("/").tenant("acme"), Duration::ZERO).await;
            assert!(next.is_err(), "{algorithm}: on top of those who waited");
        });
    }
}

/// Many who wait together take exactly as long as the rate says.
pub(super) fn the_whole_rate_is_used(checked: &Checked<'_>) {
    const CALLERS: u32 = 300;
    for algorithm in checked_algorithms(checked) {
        paused(checked, of(algorithm, "rate", Quota::per_second(20)), async |limiter| {
            let start = Instant::now();
            let mut waiting: Vec<_> = (0..CALLERS).map(|_| comes(&limiter, Duration::MAX)).collect();
            let mut went = 0;
            while start.elapsed() < 14 * SECOND {
                waiting.retain_mut(|(caller, permit)| permit.is_none() && look(caller).is_none());
                went = CALLERS as usize - waiting.len();
                let most = 20 + 20 * start.elapsed().as_millis() / 1_000;
                assert!(went as u128 <= most, "{algorithm}: {went} went in {:?}", start.elapsed());
                advance(Duration::from_millis(50)).await;
            }
            assert!(went >= 280, "{algorithm}: only {went} of {CALLERS} went in 14 seconds at 20 a second");
            waiting.retain_mut(|(caller, _)| look(caller).is_none());
            assert!(waiting.is_empty(), "{algorithm}: {} are left behind", waiting.len());
        });
    }
}
