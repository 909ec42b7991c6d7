//! Wakers that panic: foreign code that a caller's departure runs must not cost
//! anybody a unit or a slot.

use std::{
    panic::{self, AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Once,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use tower_ratelimit::{Policy, Quota, Rule};

use super::{Caller, SECOND, by, limiter};

/// A waker that counts its calls, and may panic.
#[derive(Default)]
struct Hostile {
    calls: AtomicUsize,
    panics: bool,
}

impl Wake for Hostile {
    fn wake(self: Arc<Self>) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        assert!(!self.panics, "hostile waker");
    }
}

/// Keeps the expected panics out of the test's output.
fn silence() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if info.payload().downcast_ref::<&str>() != Some(&"hostile waker") {
                usual(info);
            }
        }));
    });
}

fn poll_with(caller: &mut Caller, waker: &Arc<Hostile>) {
    let waker = Waker::from(Arc::clone(waker));
    if let Poll::Ready(outcome) = caller.future.as_mut().poll(&mut Context::from_waker(&waker)) {
        caller.outcome = Some(outcome);
    }
}

#[tokio::test(start_paused = true)]
async fn a_waker_that_panics_leaks_no_unit() {
    silence();
    let limiter =
        limiter(Policy::new().rule(Rule::new("r").tier(Quota::concurrent(5)).tier(Quota::per_second(1).burst(1))));
    drop(limiter.acquire(&by("acme"), SECOND).await.unwrap());
    let mut callers: Vec<_> = (0..4).map(|_| Caller::arrive(&limiter, "acme", Duration::MAX)).collect();
    let hostile = Arc::new(Hostile { panics: true, ..Hostile::default() });
    callers.iter_mut().skip(1).for_each(|caller| poll_with(caller, &hostile));
    let first = callers.remove(0);
    _ = catch_unwind(AssertUnwindSafe(|| drop(first)));
    assert!(hostile.calls.load(Ordering::Relaxed) > 0);
    drop(callers);
    let mut permits = Vec::new();
    for _ in 0..5 {
        permits.push(limiter.acquire(&by("acme"), 20 * SECOND).await.expect("each unit came back"));
    }
    assert!(limiter.acquire(&by("acme"), 20 * SECOND).await.is_err(), "and none came back twice");
    drop(permits);
    assert_eq!((limiter.stats().waiting, limiter.stats().permits), (0, 0));
}

/// One waker that panics does not keep the others from being woken.
#[tokio::test(start_paused = true)]
async fn a_waker_that_panics_keeps_no_other_asleep() {
    silence();
    let limiter = limiter(Quota::per_second(1).burst(1));
    drop(limiter.acquire(&by("acme"), SECOND).await.unwrap());
    let mut callers: Vec<_> = (0..3).map(|_| Caller::arrive(&limiter, "acme", Duration::MAX)).collect();
    let (hostile, other) = (Arc::new(Hostile { panics: true, ..Hostile::default() }), Arc::new(Hostile::default()));
    poll_with(&mut callers[1], &hostile);
    poll_with(&mut callers[2], &other);
    let first = callers.remove(0);
    _ = catch_unwind(AssertUnwindSafe(|| drop(first)));
    assert_eq!((hostile.calls.load(Ordering::Relaxed), other.calls.load(Ordering::Relaxed)), (1, 1));
}

/// A permit with units of a shadow rule too: the first release wakes a waiter
/// that panics, and the other units come back all the same.
#[tokio::test(start_paused = true)]
async fn a_waker_that_panics_keeps_no_permit_from_its_release() {
    silence();
    let rule = |id: &str| Rule::new(id).tier(Quota::concurrent(1));
    let limiter = limiter(Policy::new().rule(rule("shadow").shadow(true)).rule(rule("enforced")));
    let permit = limiter.acquire(&by("acme"), SECOND).await.unwrap();
    limiter.set_policy(Policy::new().rule(rule("shadow")).rule(rule("enforced"))).unwrap();
    let mut waiter = Caller::arrive(&limiter, "acme", Duration::MAX);
    let hostile = Arc::new(Hostile { panics: true, ..Hostile::default() });
    poll_with(&mut waiter, &hostile);
    _ = catch_unwind(AssertUnwindSafe(|| drop(permit)));
    assert!(hostile.calls.load(Ordering::Relaxed) > 0);
    drop(waiter);
    assert!(limiter.acquire(&by("acme"), SECOND).await.is_ok(), "both units came back");
    assert_eq!(limiter.stats().waiting, 0);
}
