//! What claims refund of a log, to the unit and the nanosecond.

use proptest::prelude::*;

use super::{claims::*, *};

const LOG: SlidingLog = SlidingLog { limit: 10, window: SECOND };

/// Units that were added at the time of the request are found among later ones.
#[test]
fn a_debt_at_one_time_is_found_in_a_log() {
    let (mut log, mut claim) = (RequestLog::default(), NO_CLAIM);
    LOG.charge_debt(&mut log, NOW, 2, &mut claim);
    LOG.charge_debt(&mut log, NOW, 1, &mut claim);
    LOG.commit(&mut log, NOW + 1, NOW + 1, 1);
    refund(&LOG, &mut log, NOW + 1, 3, &mut claim);
    assert_eq!(LOG.status_of(&log, NOW + 1).remaining, 9);
}

/// They share an entry with those of others, which has another time than the request.
#[test]
fn a_debt_at_a_later_time_takes_no_unit_of_others() {
    let (mut log, mut claim) = (RequestLog::default(), NO_CLAIM);
    let later = NOW + SECOND / 2;
    LOG.charge_debt(&mut log, NOW, 5, &mut claim);
    LOG.charge_debt(&mut log, later, 2, &mut claim);
    LOG.commit(&mut log, later, later, 3);
    refund(&LOG, &mut log, later, 7, &mut claim);
    let left = LOG.status_of(&log, NOW + SECOND).remaining;
    assert!(left <= 7, "the others have three, but {left} are left");
}

/// A part of the debt reused the entries of earlier units, and was refunded since.
#[test]
fn a_debt_is_found_again_once_its_end_is_refunded() {
    let (mut log, mut claim) = (RequestLog::default(), NO_CLAIM);
    LOG.commit(&mut log, NOW, NOW, 4);
    LOG.charge_debt(&mut log, NOW, 6, &mut claim);
    LOG.charge_debt(&mut log, NOW + 1, 5, &mut claim);
    refund(&LOG, &mut log, NOW + 1, 6, &mut claim);
    LOG.commit(&mut log, NOW + 2, NOW + 2, 1);
    refund(&LOG, &mut log, NOW + 2, 5, &mut claim);
    assert_eq!(LOG.status_of(&log, NOW + 2).remaining, 5, "four and one are used");
}

#[test]
fn a_debt_of_a_reservation_is_refunded_with_it() {
    let (mut log, mut claim) = (RequestLog::default(), NO_CLAIM);
    LOG.commit(&mut log, NOW, NOW, 10);
    let next = reserve(&LOG, &mut log, NOW);
    let own = reserve(&LOG, &mut log, NOW);
    (claim.units, claim.at, claim.detail) = (1, own, LOG.version(&log));
    LOG.charge_debt(&mut log, NOW, 12, &mut claim);
    refund(&LOG, &mut log, NOW, 13, &mut claim);
    assert_eq!(reserve(&LOG, &mut log, NOW), own, "behind the reservation for {next}");
}

/// A unit stops counting W after its time.
#[test]
fn a_debt_finds_the_places_of_units_that_leave_at_its_time() {
    let (mut log, mut claim) = (RequestLog::default(), NO_CLAIM);
    LOG.commit(&mut log, NOW, NOW, 1);
    let now = NOW + SECOND;
    LOG.charge_debt(&mut log, now, 10, &mut claim);
    LOG.charge_debt(&mut log, now, 1, &mut NO_CLAIM.clone());
    refund(&LOG, &mut log, now, 10, &mut claim);
    assert_eq!(LOG.status_of(&log, now).remaining, 10 - 1);
}

/// The claim has units of two times, and others came since: older units leave instead.
#[test]
fn a_debt_of_two_times_is_refunded_among_the_units_of_others() {
    let (mut log, mut claim) = (RequestLog::default(), NO_CLAIM);
    LOG.commit(&mut log, NOW, NOW, 3);
    LOG.charge_debt(&mut log, NOW + 1, 1, &mut claim);
    LOG.charge_debt(&mut log, NOW + 2, 2, &mut claim);
    LOG.commit(&mut log, NOW + 3, NOW + 3, 1);
    refund(&LOG, &mut log, NOW + 3, 3, &mut claim);
    assert_eq!(LOG.status_of(&log, NOW + 3).remaining, 6, "others have four");
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Pass(u64),
    Take(usize, u64),
    Debt(usize, u64),
    Refund(usize, u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        2 => (0..SECOND / 3).prop_map(Step::Pass),
        2 => (0..4_usize, 1..4_u64).prop_map(|(owner, units)| Step::Take(owner, units)),
        3 => (0..4_usize, 1..4_u64).prop_map(|(owner, units)| Step::Debt(owner, units)),
        3 => (0..4_usize, 1..6_u64).prop_map(|(owner, units)| Step::Refund(owner, units)),
    ];
    prop::collection::vec(step, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2_000, ..ProptestConfig::default() })]

    /// At no later time does a log count less than if the refunded units had never been
    /// charged.
    #[test]
    fn no_unit_comes_back_twice(steps in steps()) {
        let machine = SlidingLog { limit: 1_000, window: SECOND };
        let (mut log, mut now, mut net) = (RequestLog::default(), NOW, Vec::new());
        let mut claims = [NO_CLAIM; 4];
        for step in steps {
            match step {
                Step::Pass(nanos) => now += nanos,
                Step::Take(owner, units) => {
                    machine.commit(&mut log, now, now, units);
                    // It stands for another request of the same owner.
                    net.iter_mut().filter(|(of, _, _)| *of == owner).for_each(|(of, _, _)| *of = usize::MAX);
                    claims[owner] = Claim { units, at: now, until: 0, detail: machine.version(&log), before: 0 };
                    net.push((owner, now, units));
                }
                Step::Debt(owner, units) => {
                    machine.charge_debt(&mut log, now, units, &mut claims[owner]);
                    net.push((owner, now, units));
                }
                Step::Refund(owner, units) => {
                    let mut rest = units.min(claims[owner].units);
                    refund(&machine, &mut log, now, rest, &mut claims[owner]);
                    for (_, _, own) in net.iter_mut().rev().filter(|(of, _, _)| *of == owner) {
                        let given = rest.min(*own);
                        (*own, rest) = (*own - given, rest - given);
                    }
                }
            }
            for later in (0..=10).map(|tenth| now + tenth * SECOND / 10) {
                let least: u64 = net.iter().filter(|(_, at, _)| at + SECOND > later).map(|(_, _, units)| units).sum();
                let used = 1_000 - machine.status_of(&log, later).remaining;
                prop_assert!(used >= least, "{} instead of {}, after {:?}: {:?}", used, least, step, net);
            }
        }
    }
}
