//! Checks of delayed requests: reservations, several tiers, refunds.

use std::{fmt, time::Duration};

use super::bench::{Bench, Fixture, rule};
use crate::{
    decision::Decision,
    descriptor::Descriptor,
    limiter::Admission,
    policy::Policy,
    quota::{Algorithm, Quota},
};

const SECOND: Duration = Duration::from_secs(1);

/// The algorithms that admit one request per second at even distances.
pub(super) fn spaced_algorithms(fixture: &Fixture<'_>) -> Vec<Algorithm> {
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

/// A bench with waits of up to five seconds.
fn bench<'s>(fixture: &'s Fixture<'_>, id: &str, tiers: &[Quota]) -> Bench<'s> {
    let rule = tiers.iter().fold(rule(id).max_wait(5 * SECOND), |rule, tier| rule.tier(*tier));
    fixture.bench(Policy::new().rule(rule))
}

fn reserve(bench: &Bench<'_>) -> (Decision, Option<Box<Admission>>) {
    bench.reserve(&Descriptor::new("/").tenant("acme"), Duration::MAX)
}

#[track_caller]
fn assert_wait(bench: &Bench<'_>, what: impl fmt::Display, decision: &Decision, seconds: u32) {
    let (wait, promised) = (decision.wait(), seconds * SECOND);
    assert!(decision.is_allowed(), "{what}: rejected, not delayed by {promised:?}");
    assert!(wait <= promised && wait + bench.tolerance() >= promised, "{what}: {wait:?}, not {promised:?}");
}

/// Delayed requests are admitted in order of arrival, one by one. A request
/// that would wait too long is rejected.
pub(super) fn are_reservations(fixture: &Fixture<'_>) {
    for algorithm in spaced_algorithms(fixture) {
        let bench = bench(fixture, &format!("waits-{algorithm}"), &[Quota::per_second(1).algorithm(algorithm)]);
        let held: Vec<_> = (0..=5)
            .map(|position| {
                let (decision, reservation) = reserve(&bench);
                assert_wait(&bench, algorithm, &decision, position);
                assert_eq!(
                    reservation.is_some(),
                    position > 0,
                    "{algorithm}: only delayed requests have a reservation"
                );
                reservation
            })
            .collect();
        let (rejected, _) = reserve(&bench);
        assert!(!rejected.is_allowed(), "{algorithm}: to wait {:?}, longer than its rule allows", rejected.wait());
        assert!(rejected.retry_after().is_some(), "{algorithm}: it could pass later");
        let (impatient, _) = bench.reserve(&Descriptor::new("/").tenant("acme"), SECOND);
        assert!(!impatient.is_allowed(), "{algorithm}: to wait {:?}, longer than its own limit", impatient.wait());

        held.into_iter().flatten().for_each(|reservation| drop(reservation.take_lease()));
        bench.pass(SECOND);
        assert_eq!(bench.admitted("/", "acme", 5), 0, "{algorithm}: admitted before the delayed requests");
    }
}

/// Several tiers are charged at the one time that suits all of them.
pub(super) fn suit_all_tiers(fixture: &Fixture<'_>) {
    if !spaced_algorithms(fixture).contains(&Algorithm::FixedWindow) {
        return;
    }
    let pair = Quota::new(2, 4 * SECOND).algorithm(Algorithm::FixedWindow);
    for (id, tiers) in [("together", [Quota::per_second(1), pair]), ("together-reversed", [pair, Quota::per_second(1)])]
    {
        let bench = bench(fixture, id, &tiers);
        let held: Vec<_> = [0, 1, 4, 5]
            .map(|seconds| {
                let (decision, reservation) = reserve(&bench);
                assert_wait(&bench, id, &decision, seconds);
                reservation
            })
            .into_iter()
            .flatten()
            .collect();
        held.into_iter().for_each(|reservation| drop(reservation.take_lease()));
    }
}

/// Dropped reservations free their slots. One before others hands its slot on,
/// so that those behind it move up. The rate is never exceeded.
pub(super) fn are_refunded_when_dropped(fixture: &Fixture<'_>) {
    for algorithm in spaced_algorithms(fixture) {
        let bench = bench(fixture, &format!("dropped-{algorithm}"), &[Quota::per_second(1).algorithm(algorithm)]);
        drop((0..=1).map(|_| reserve(&bench).1).collect::<Vec<_>>());
        fixture.settle();
        let mut held: Vec<_> = (1..=3)
            .map(|position| {
                let (decision, reservation) = reserve(&bench);
                assert_wait(&bench, algorithm, &decision, position);
                reservation
            })
            .collect();
        held.pop();
        fixture.settle();
        let (decision, last) = reserve(&bench);
        assert_wait(&bench, algorithm, &decision, 3);

        held.remove(0);
        fixture.settle();
        let (decision, next) = reserve(&bench);
        assert_wait(&bench, algorithm, &decision, 3);
        for reservation in held.into_iter().flatten().chain(last).chain(next) {
            drop(reservation.take_lease());
        }
        assert_eq!(bench.admitted("/", "acme", 5), 0, "{algorithm}: admitted before the delayed requests");
    }
}
