//! Checks of concurrency limits.

use std::{
    sync::{
        Barrier,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use super::{
    bench::{Fixture, rule},
    waits::{arrive, poll_permit, with_waits},
};
use crate::{decision::RateLimitedKind, descriptor::Descriptor, policy::Policy, quota::Quota};

const THREADS: usize = 8;
const LIMIT: usize = 3;

/// Eight threads acquire and release units of several keys. The limit is never
/// exceeded, and in the end all units are free.
pub(super) fn limits_are_never_exceeded(fixture: &Fixture<'_>) {
    if !fixture.suite.in_flight {
        return;
    }
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
pub(super) fn all_or_nothing(fixture: &Fixture<'_>) {
    if !fixture.suite.in_flight {
        return;
    }
    let policy = Policy::new().rule(rule("in-flight-and-rate").tier(Quota::concurrent(2)).tier(Quota::per_day(3)));
    let bench = fixture.bench(policy);
    let request = Descriptor::new("/").tenant("acme");
    let held: Vec<_> = (0..2).map(|_| bench.take(&request).expect("two are free")).collect();
    for _ in 0..20 {
        let rejected = bench.take(&request).expect_err("none is free");
        assert_eq!(rejected.kind(), RateLimitedKind::QuotaExceeded, "none is free");
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
