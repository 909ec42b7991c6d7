use std::{
    sync::{
        Barrier,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use super::{
    Checked,
    acquire::{comes, look, paused},
    bench::rule,
};
use crate::{decision::RateLimitedKind, descriptor::Descriptor, policy::Policy, quota::Quota};

const THREADS: usize = 8;
const LIMIT: usize = 3;

/// Eight threads take units and give them back, for several keys: never are
/// more held than the limit says, and in the end all are free.
pub(super) fn never_one_too_many(checked: &Checked<'_>) {
    if !checked.suite.in_flight {
        return;
    }
    const KEYS: usize = 16;
    let bench = checked.bench(Policy::new().rule(rule("in-flight").tier(Quota::concurrent(LIMIT as u64))));
    let held: Vec<_> = (0..KEYS).map(|_| AtomicUsize::new(0)).collect();
    let barrier = Barrier::new(THREADS);
    let tenants: Vec<_> = (0..KEYS).map(|key| format!("tenant-{key}")).collect();
    thread::scope(|scope| {
        for number in 0..THREADS {
            let (bench, held, barrier, tenants) = (&bench, &held, &barrier, &tenants);
            scope.spawn(move || {
                barrier.wait();
                for turn in 0..200 {
                    let key = turn % KEYS;
                    let Ok(permit) = bench.take(&Descriptor::new("/").tenant(tenants[key].as_str())) else { continue };
                    let others = held[key].fetch_add(1, Ordering::SeqCst);
                    assert!(others < LIMIT, "{} are in flight, of {LIMIT}", others + 1);
                    thread::yield_now();
                    held[key].fetch_sub(1, Ordering::SeqCst);
                    // Given back in either way.
                    if (turn + number) % 3 == 0 { permit.refund() } else { drop(permit) }
                }
            });
        }
    });
    checked.settle();
    for tenant in &tenants {
        let all = bench.take(&Descriptor::new("/").tenant(tenant.as_str()).cost(LIMIT as u64));
        assert!(all.is_ok(), "{tenant}: some units never came back");
    }
}

/// A rate is not charged where nothing is free, and nothing is held where a
/// rate rejects.
pub(super) fn all_or_nothing(checked: &Checked<'_>) {
    if !checked.suite.in_flight {
        return;
    }
    let policy = Policy::new().rule(rule("in-flight-and-rate").tier(Quota::concurrent(2)).tier(Quota::per_day(3)));
    let bench = checked.bench(policy);
    let request = Descriptor::new("/").tenant("acme");
    let held: Vec<_> = (0..2).map(|_| bench.take(&request).expect("two are free")).collect();
    for _ in 0..20 {
        let rejected = bench.take(&request).expect_err("none is free");
        assert_eq!(rejected.kind(), RateLimitedKind::QuotaExceeded, "none is free");
    }
    drop(held);
    checked.settle();
    let last = bench.take(&request).expect("those that were rejected were not charged");
    drop(last);
    checked.settle();
    for _ in 0..20 {
        assert!(bench.take(&request).is_err(), "the rate is used up");
    }
    let never = bench.take(&request.clone().cost(3)).expect_err("more than there ever are");
    assert_eq!(never.kind(), RateLimitedKind::NeverFits, "more than there ever are");
    // Those held nothing, and raising the rate lets two in again.
    let more = rule("in-flight-and-rate").tier(Quota::concurrent(2)).tier(Quota::per_day(10));
    bench.limiter.set_policy(Policy::new().rule(more)).expect("a valid policy");
    let all = bench.take(&request.cost(2));
    assert!(all.is_ok(), "a rejection by the rate held a unit");
}

/// Who waits goes when one comes back, in the order in which they came.
pub(super) fn a_line(checked: &Checked<'_>) {
    if !checked.suite.in_flight || !checked.suite.waits || checked.suite.real_time.is_some() {
        return;
    }
    let policy = Policy::new().rule(rule("in-flight-line").tier(Quota::concurrent(1)));
    paused(checked, policy, async |limiter| {
        let (_, first) = comes(&limiter, Duration::MAX);
        let mut inside = first.expect("the first goes at once");
        let mut line: Vec<_> = (0..5).map(|_| comes(&limiter, Duration::MAX).0).collect();
        // From the middle: the others keep their order.
        drop(line.remove(2));
        checked.settle();
        while !line.is_empty() {
            assert!(line.iter_mut().all(|caller| look(caller).is_none()), "one too many");
            drop(inside);
            checked.settle();
            let mut next = line.remove(0);
            let overtaken = line.iter_mut().any(|caller| look(caller).is_some());
            assert!(!overtaken, "not the one who came first");
            inside = (0..4).find_map(|_| look(&mut next)).expect("the one who came first goes");
        }
    });
}
