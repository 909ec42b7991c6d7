//! The conformance suite on the backends of this crate, and on flawed backends,
//! whose flaws it has to find.
#![cfg(feature = "test-util")]
#![allow(clippy::unwrap_used)]

use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::FutureExt;
use tokio::{
    runtime::Handle,
    task::yield_now,
    time::{Instant, interval_at},
};
use tower_ratelimit::{
    Algorithm,
    backend::{Backend, Decide, Local, Outcome, Receipt, Request, Share, Split, Usage},
    error::{BackendError, BackendErrorKind},
    testing::{
        Fault, FaultyBackend,
        conformance::{self, Suite},
    },
    time::Timestamp,
};

#[test]
fn local() {
    conformance::run(Local::new);
}

#[test]
fn local_with_a_cap() {
    Suite::new(Local::new).capped(|max_keys| Local::builder().max_keys(max_keys).build()).keys(100).run();
}

#[test]
fn a_split_of_one() {
    let split = || Split::new(Share::new(0, 1).unwrap());
    Suite::new(split).capped(move |max_keys| split().max_keys(max_keys)).run();
}

/// Behind a custom backend, so that the limiter does not call the engine
/// directly.
#[test]
fn a_split_of_one_with_late_answers() {
    Suite::new(|| {
        let backend = FaultyBackend::new(Split::new(Share::new(0, 1).unwrap()));
        backend.set(Fault::Slow);
        backend
    })
    .keys(1_000)
    .run();
}

/// All the weight is the whole share.
#[test]
fn a_split_in_which_one_instance_has_all_the_weight() {
    Suite::new(|| Split::new(Share::weighted(1, [0.0, 0.3, 0.0]).unwrap())).keys(1_000).run();
}

#[test]
fn local_with_late_answers() {
    let slow = |backend: Local| {
        let backend = FaultyBackend::new(backend);
        backend.set(Fault::Slow);
        backend
    };
    Suite::new(move || slow(Local::new()))
        .capped(move |max_keys| slow(Local::builder().max_keys(max_keys).build()))
        .keys(2_000)
        .run();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inside_a_runtime() {
    let backend = || {
        let backend = FaultyBackend::new(Local::new());
        backend.set(Fault::Slow);
        backend
    };
    Suite::new(backend).keys(100).run();
}

#[test]
fn in_real_time() {
    Suite::new(Local::new).algorithms([Algorithm::TokenBucket]).keys(100).real_time(Duration::from_millis(1)).run();
}

/// A decorator with no more than what every backend has to have.
#[derive(Debug, Default)]
struct Plain(Local);

impl Backend for Plain {
    fn decide(&self, request: &Request<'_>) -> Decide {
        self.0.decide(request)
    }

    fn refund(&self, receipt: &Receipt, now: Timestamp) {
        self.0.refund(receipt, now);
    }

    fn inner(&self) -> Option<&dyn Backend> {
        Some(&self.0)
    }
}

#[test]
fn a_decorator_has_what_its_backend_has() {
    let forgets = |backend: &dyn Backend| {
        backend.reset(&[], Timestamp::from_nanos(0)).now_or_never().is_some_and(|reset| reset.is_ok())
    };
    assert!(forgets(&Plain::default()) && !forgets(&Flawed::new(Flaw::None)));
    Suite::new(Plain::default).capped(|max_keys| Plain(Local::builder().max_keys(max_keys).build())).keys(100).run();
}

/// Decides at once, and answers from another runtime. Refunds arrive there later.
#[derive(Debug)]
struct Distant {
    inner: Arc<Local>,
    runtime: Handle,
}

impl Distant {
    fn later(&self, what: impl FnOnce(&Local) + Send + 'static) {
        let inner = Arc::clone(&self.inner);
        self.runtime.spawn(async move {
            interval_at(Instant::now() + Duration::from_millis(1), Duration::from_secs(1)).tick().await;
            what(&inner);
        });
    }
}

impl Backend for Distant {
    fn decide(&self, request: &Request<'_>) -> Decide {
        match self.inner.decide(request) {
            Decide::Now(result) => {
                let answer = self.runtime.spawn(async move {
                    yield_now().await;
                    result
                });
                Decide::Later(Box::pin(async move { answer.await.unwrap() }))
            }
            pending => pending,
        }
    }

    fn refund(&self, receipt: &Receipt, now: Timestamp) {
        let receipt = receipt.clone();
        self.later(move |inner| inner.refund(&receipt, now));
    }

    fn release(&self, receipt: &Receipt, now: Timestamp) {
        let receipt = receipt.clone();
        self.later(move |inner| inner.release(&receipt, now));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn from_afar() {
    let runtime = Handle::current();
    let distant = move || Distant { inner: Arc::default(), runtime: runtime.clone() };
    Suite::new(distant).keys(200).remote(Duration::from_millis(30)).run();
}

/// Anchored windows in a map, with one thing wrong.
#[derive(Debug)]
struct Flawed {
    flaw: Flaw,
    /// By key, window and the number of earlier tiers of that window: the end of
    /// the window, and the units counted in it.
    counts: Mutex<HashMap<(u128, u128), (Timestamp, u64)>>,
    yields: AtomicUsize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    None,
    ChecksThenUpdates,
    ChargesTierByTier,
    ChargesRejections,
    AnswersEarly,
    AnswersLate,
    ForgetsOnReload,
    NeverWaits,
    HasNoCap,
}

impl Flawed {
    fn new(flaw: Flaw) -> Self {
        Self { flaw, counts: Mutex::default(), yields: AtomicUsize::new(0) }
    }

    fn key(&self, fingerprint: u128, quota: &tower_ratelimit::Quota) -> (u128, u128) {
        let limit = if self.flaw == Flaw::ForgetsOnReload { u128::from(quota.limit()) << 70 } else { 0 };
        (fingerprint, quota.window().as_nanos() + limit)
    }

    /// Time left of the window, and units used in it.
    fn used(&self, key: (u128, u128), now: Timestamp) -> (Duration, u64) {
        match self.counts.lock().unwrap().get(&key) {
            Some((end, used)) if *end > now => (end.saturating_since(now), *used),
            _ => (Duration::ZERO, 0),
        }
    }

    fn charge(&self, key: (u128, u128), now: Timestamp, window: Duration, cost: u64) {
        let mut counts = self.counts.lock().unwrap();
        let (end, used) = counts.entry(key).or_insert((now, 0));
        if *end <= now {
            (*end, *used) = (now.saturating_add(window), 0);
        }
        *used += cost;
    }
}

impl Backend for Flawed {
    fn decide(&self, request: &Request<'_>) -> Decide {
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let _guard = (self.flaw != Flaw::ChecksThenUpdates).then(|| ONE_AT_A_TIME.lock().unwrap());
        let now = request.now;
        let tiers: Vec<_> = request
            .charges
            .iter()
            .flat_map(|charge| charge.tiers().iter().map(move |tier| (charge, *tier.quota())))
            .map(|(charge, quota)| (self.key(charge.fingerprint(), &quota), quota, charge.cost()))
            .collect();
        let (mut retry_after, mut never) = (None, false);
        for &(key, quota, cost) in &tiers {
            let (left, used) = self.used(key, now);
            if used + cost > quota.limit() {
                retry_after = retry_after.max(Some(left));
                never |= cost > quota.limit();
            } else if self.flaw == Flaw::ChargesTierByTier {
                self.charge(key, now, quota.window(), cost);
            }
        }
        if self.flaw == Flaw::ChecksThenUpdates && self.yields.fetch_add(1, Ordering::Relaxed).is_multiple_of(3) {
            std::thread::yield_now();
        }
        let rejected = retry_after.is_some();
        if rejected && self.flaw == Flaw::ChargesRejections && !never
            || !rejected && self.flaw != Flaw::ChargesTierByTier
        {
            for &(key, quota, cost) in &tiers {
                self.charge(key, now, quota.window(), cost);
            }
        }
        let retry_after = match self.flaw {
            Flaw::AnswersEarly => retry_after.map(|after| after / 2),
            Flaw::AnswersLate => retry_after.map(|after| after * 2),
            _ => retry_after,
        };
        let outcome = match rejected {
            false => Outcome::admitted(Duration::ZERO),
            true => Outcome::rejected(retry_after.filter(|_| !never)),
        };
        Decide::Now(Ok(tiers.iter().fold(outcome, |outcome, &(key, quota, cost)| {
            let (left, used) = self.used(key, now);
            outcome.tier(quota.limit().saturating_sub(used), left, rejected && used + cost > quota.limit())
        })))
    }

    fn refund(&self, _: &Receipt, _: Timestamp) {}

    fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        usage.keys = self.counts.lock().unwrap().len();
        usage
    }
}

/// The flaw that the suite finds in a backend, if any.
fn verdict(flaw: Flaw) -> Option<String> {
    let suite = Suite::new(move || Flawed::new(flaw)).algorithms([Algorithm::AnchoredWindow]).keys(2_000);
    let suite = if flaw == Flaw::HasNoCap { suite.capped(move |_| Flawed::new(flaw)) } else { suite };
    let suite = if flaw == Flaw::NeverWaits { suite } else { suite.without_waits() };
    let suite = suite.without_in_flight();
    let result = catch_unwind(AssertUnwindSafe(|| suite.run()));
    result.err().map(|panic| panic.downcast_ref::<String>().unwrap().clone())
}

/// A [`Local`] that mishandles in-flight units.
#[derive(Debug)]
struct Careless {
    inner: Local,
    releases: bool,
    refunds: bool,
}

impl Backend for Careless {
    fn decide(&self, request: &Request<'_>) -> Decide {
        self.inner.decide(request)
    }

    fn refund(&self, receipt: &Receipt, now: Timestamp) {
        if self.refunds {
            self.inner.refund(receipt, now);
        }
    }

    fn release(&self, receipt: &Receipt, now: Timestamp) {
        if self.releases {
            self.inner.release(receipt, now);
        }
    }
}

#[test]
fn missing_releases_are_found() {
    for (releases, refunds, expected) in [
        (true, true, None),
        (false, true, Some("concurrency limits are never exceeded: ")),
        (true, false, Some("a dropped wait")),
    ] {
        let make = move || Careless { inner: Local::new(), releases, refunds };
        let result = catch_unwind(AssertUnwindSafe(|| Suite::new(make).keys(100).run()));
        let said = result.err().map(|panic| panic.downcast_ref::<String>().unwrap().clone());
        match (expected, said) {
            (None, None) => {}
            (Some(expected), Some(said)) => assert!(said.starts_with(expected), "{said}"),
            (expected, said) => panic!("{expected:?}, and it said {said:?}"),
        }
    }
}

#[test]
fn a_correct_backend_has_no_flaw() {
    assert_eq!(verdict(Flaw::None), None);
}

#[test]
fn flaws_are_found() {
    for (flaw, expected) in [
        (Flaw::ChecksThenUpdates, "limits are never exceeded: "),
        (Flaw::ChargesTierByTier, "all or nothing over tiers: "),
        (Flaw::ChargesRejections, "all or nothing over tiers: "),
        (Flaw::AnswersEarly, "retry_after is exact: "),
        (Flaw::AnswersLate, "retry_after is exact: "),
        (Flaw::ForgetsOnReload, "a reload keeps usage: "),
        (Flaw::NeverWaits, "waits are reservations: "),
        (Flaw::HasNoCap, "the cap on keys holds: "),
    ] {
        let said = verdict(flaw).unwrap_or_else(|| panic!("{flaw:?} was not found"));
        assert!(said.starts_with(expected), "{flaw:?}: {said}");
    }
}

/// Fails once, while several threads ask.
#[derive(Debug, Default)]
struct FailsOnce(Local, AtomicUsize);

impl Backend for FailsOnce {
    fn decide(&self, request: &Request<'_>) -> Decide {
        if self.1.fetch_add(1, Ordering::Relaxed) == 100 {
            return Decide::Now(Err(BackendError::new(BackendErrorKind::Unavailable, "the line is cut")));
        }
        self.0.decide(request)
    }

    fn refund(&self, receipt: &Receipt, now: Timestamp) {
        self.0.refund(receipt, now);
    }
}

/// The threads that do not fail end as well.
#[test]
fn a_failure_is_named() {
    let result = catch_unwind(AssertUnwindSafe(|| Suite::new(FailsOnce::default).keys(100).run()));
    let message = *result.unwrap_err().downcast::<String>().unwrap();
    assert!(message.starts_with("limits are never exceeded: the backend failed: "), "{message}");
}
