use std::{fmt, time::Duration};

use super::{
    Checked,
    bench::{Bench, rule},
};
use crate::{
    decision::Decision,
    descriptor::Descriptor,
    limiter::Admission,
    policy::Policy,
    quota::{Algorithm, Quota},
};

const SECOND: Duration = Duration::from_secs(1);

/// Those that let one go each second, second by second.
pub(super) fn spacing(checked: &Checked<'_>) -> Vec<Algorithm> {
    use Algorithm::{AnchoredWindow, FixedWindow, SlidingLog, TokenBucket};
    // Where time passes by itself nobody knows how long a window is open yet.
    let aligned = checked.suite.real_time.is_none();
    let wanted = |algorithm: &Algorithm| match algorithm {
        TokenBucket | AnchoredWindow | SlidingLog => true,
        FixedWindow => aligned,
        _ => false,
    };
    checked.suite.algorithms.iter().copied().filter(|algorithm| checked.suite.waits && wanted(algorithm)).collect()
}

/// Up to five seconds of waiting.
fn bench<'s>(checked: &'s Checked<'_>, id: &str, tiers: &[Quota]) -> Bench<'s> {
    let rule = tiers.iter().fold(rule(id).max_wait(5 * SECOND), |rule, tier| rule.tier(*tier));
    checked.bench(Policy::new().rule(rule))
}

fn reserve(bench: &Bench<'_>) -> (Decision, Option<Box<Admission>>) {
    bench.reserve(&Descriptor::new("/").tenant("acme"), Duration::MAX)
}

#[track_caller]
fn assert_wait(bench: &Bench<'_>, what: impl fmt::Display, decision: &Decision, seconds: u32) {
    let (wait, promised) = (decision.wait(), seconds * SECOND);
    assert!(decision.is_allowed(), "{what}: rejected, not held back for {promised:?}");
    assert!(wait <= promised && wait + bench.tolerance() >= promised, "{what}: {wait:?}, not {promised:?}");
}

/// Those who wait go in the order in which they came, one by one, and none
/// goes that would have to wait too long.
pub(super) fn are_reservations(checked: &Checked<'_>) {
    for algorithm in spacing(checked) {
        let bench = bench(checked, &format!("waits-{algorithm}"), &[Quota::per_second(1).algorithm(algorithm)]);
        let held: Vec<_> = (0..=5)
            .map(|place| {
                let (decision, reservation) = reserve(&bench);
                assert_wait(&bench, algorithm, &decision, place);
                assert_eq!(reservation.is_some(), place > 0, "{algorithm}: a place is held by those who wait");
                reservation
            })
            .collect();
        let (rejected, _) = reserve(&bench);
        assert!(!rejected.is_allowed(), "{algorithm}: to wait {:?}, longer than its rule allows", rejected.wait());
        assert!(rejected.retry_after().is_some(), "{algorithm}: it could pass later");
        let (impatient, _) = bench.reserve(&Descriptor::new("/").tenant("acme"), SECOND);
        assert!(!impatient.is_allowed(), "{algorithm}: to wait {:?}, longer than it wants to", impatient.wait());

        held.into_iter().flatten().for_each(|reservation| drop(reservation.take_lease()));
        bench.pass(SECOND);
        assert_eq!(bench.admitted("/", "acme", 5), 0, "{algorithm}: overtook those who wait");
    }
}

/// Several tiers are charged for the one time at which all of them agree.
pub(super) fn are_for_all_tiers_together(checked: &Checked<'_>) {
    if !spacing(checked).contains(&Algorithm::FixedWindow) {
        return;
    }
    let pair = Quota::new(2, 4 * SECOND).algorithm(Algorithm::FixedWindow);
    for (id, tiers) in [("together", [Quota::per_second(1), pair]), ("together-turned", [pair, Quota::per_second(1)])] {
        let bench = bench(checked, id, &tiers);
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

/// The last place is free again when its holder leaves; another's is, or is
/// forfeited, but nobody goes sooner than the rate allows.
pub(super) fn dropped_gives_its_place_back(checked: &Checked<'_>) {
    for algorithm in spacing(checked) {
        let bench = bench(checked, &format!("dropped-{algorithm}"), &[Quota::per_second(1).algorithm(algorithm)]);
        let mut held: Vec<_> = (0..=3).map(|_| reserve(&bench).1).collect();
        held.pop();
        checked.settle();
        let (decision, last) = reserve(&bench);
        assert_wait(&bench, algorithm, &decision, 3);

        held.remove(1);
        checked.settle();
        let (decision, next) = reserve(&bench);
        assert!(decision.is_allowed(), "{algorithm}: rejected");
        assert!(decision.wait() + bench.tolerance() >= 4 * SECOND, "{algorithm}: {:?}", decision.wait());
        for reservation in held.into_iter().flatten().chain(last).chain(next) {
            drop(reservation.take_lease());
        }
        assert_eq!(bench.admitted("/", "acme", 5), 0, "{algorithm}: somebody overtakes");
    }
}
