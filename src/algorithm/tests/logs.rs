//! What claims refund of a log, to the unit and the nanosecond.

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
