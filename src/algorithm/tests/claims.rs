//! What claims refund, and when charges count, to the unit and the nanosecond.

use super::*;
use crate::algorithm::{arrival::narrowed, gcra::is_same_arrival};

pub(super) const NO_CLAIM: Claim = Claim { units: 0, at: 0, until: 0, detail: 0, before: 0 };

/// Refunds units, as a backend does.
pub(super) fn refund<M: StateMachine>(machine: &M, state: &mut M::State, now: u64, units: u64, claim: &mut Claim) {
    machine.refund(state, now, units, claim);
    claim.units -= units;
}

/// The units that others have in the last window of a debt stay.
#[test]
fn a_debt_that_is_refunded_in_parts_refunds_only_its_own_units() {
    let machine = windows(10, true);
    let (mut state, mut claim) = (CompactState::default(), NO_CLAIM);
    machine.charge_debt(&mut state, NOW, 13, &mut claim);
    machine.commit(&mut state, NOW, NOW + SECOND, 4);
    refund(&machine, &mut state, NOW, 2, &mut claim);
    assert_eq!(machine.status_of(&state, NOW + SECOND).remaining, 5);
    refund(&machine, &mut state, NOW, 3, &mut claim);
    assert_eq!(machine.status_of(&state, NOW + SECOND).remaining, 6);

    let machine = SlidingWindow::new(10, SECOND, false);
    let (mut state, mut claim) = (WideState::default(), NO_CLAIM);
    machine.charge_debt(&mut state, NOW, 13, &mut claim);
    machine.commit(&mut state, NOW, NOW + SECOND, 4);
    refund(&machine, &mut state, NOW, 2, &mut claim);
    refund(&machine, &mut state, NOW, 3, &mut claim);
    let end = NOW + 2 * SECOND - 1;
    assert_eq!(machine.status_of(&state, end).remaining, 5, "four are used, and one has a little weight");
}

/// A refunded request leaves no window open, and neither does a cost of 0.
#[test]
fn an_anchored_window_opens_with_the_first_request_that_stays() {
    let machine = windows(2, false);
    let mut state = CompactState::default();
    machine.commit(&mut state, NOW, NOW, 0);
    assert_eq!(state, CompactState::default());
    let mut claim = Claim { units: 1, at: NOW, until: NOW + SECOND, detail: 1, ..NO_CLAIM };
    machine.commit(&mut state, NOW, NOW, 1);
    refund(&machine, &mut state, NOW + SECOND / 4, 1, &mut claim);
    let opened = NOW + SECOND / 2;
    machine.commit(&mut state, opened, opened, 2);
    assert_eq!(machine.earliest(&state, opened, 1), Some(opened + SECOND));
    // A window of the wall clock stays.
    let machine = windows(2, true);
    let (mut state, mut claim) = (CompactState::default(), claim);
    machine.commit(&mut state, NOW, NOW, 1);
    (claim.units, claim.until, claim.detail) = (1, NOW + SECOND, 1);
    refund(&machine, &mut state, NOW + SECOND / 4, 1, &mut claim);
    machine.commit(&mut state, opened, opened, 2);
    assert_eq!(machine.earliest(&state, opened, 1), Some(NOW + SECOND));
}

/// A departure may be put off only where other requests keep what they have.
#[test]
fn a_departure_is_put_off_at_most_to_the_end_of_its_window() {
    let (half, end) = (NOW + SECOND / 2, NOW + SECOND - 1);
    let (aligned, anchored) = (windows(10, true), windows(10, false));
    let mut state = CompactState::default();
    assert_eq!(aligned.latest_departure(&state, half), end);
    assert_eq!(anchored.latest_departure(&state, half), half, "it opens when it is charged");
    anchored.commit(&mut state, NOW, NOW, 1);
    assert_eq!(anchored.latest_departure(&state, half), end);
    let sliding = SlidingWindow::new(10, SECOND, false);
    assert_eq!(sliding.latest_departure(&WideState::default(), half), end);
    let log = SlidingLog { limit: 10, window: SECOND };
    assert_eq!(log.latest_departure(&RequestLog::default(), half), half);
}

#[test]
fn a_limit_of_nothing_admits_no_cost() {
    for cost in [0, 1] {
        assert_eq!(token_bucket(0, 5).earliest(&CompactState::default(), NOW, cost), None);
        assert_eq!(wide_token_bucket(0, SECOND, 5).earliest(&WideState::default(), NOW, cost), None);
        assert_eq!(windows(0, true).earliest(&CompactState::default(), NOW, cost), None);
        assert_eq!(SlidingWindow::new(0, SECOND, false).earliest(&WideState::default(), NOW, cost), None);
        let log = SlidingLog { limit: 0, window: SECOND };
        assert_eq!(log.earliest(&RequestLog::default(), NOW, cost), None);
    }
}

/// Thirds of a nanosecond count as well.
#[test]
fn a_part_of_a_nanosecond_is_kept_when_the_limit_changes() {
    let (old, new) = (token_bucket(3, 3), token_bucket(6, 6));
    let mut state = CompactState::default();
    old.commit(&mut state, NOW, NOW, 2);
    assert_eq!(new.status_of(&state, NOW + 333_333_333).remaining, 4, "a third is missing");
    assert_eq!(new.status_of(&state, NOW + 333_333_334).remaining, 5);
    assert_eq!(new.status_of(&state, NOW + 666_666_666).remaining, 5, "two thirds are missing");
    assert_eq!(new.status_of(&state, NOW + 666_666_667).remaining, 6);
}

/// A limit above 67 million is known a little rounded afterwards.
#[test]
fn units_used_under_a_huge_limit_are_kept_when_it_changes() {
    let (old, new) = (wide_token_bucket(300_000_001, SECOND, 1_000_000), token_bucket(600_000_000, 1_000_000));
    for used in 1..1_000 {
        let mut state = WideState::default();
        old.commit(&mut state, NOW, NOW, used);
        let left = new.status_of(&narrowed(state), NOW).remaining;
        assert!((1_000_000 - used - 1..=1_000_000 - used).contains(&left), "{left} left after {used}");
    }
}

/// No charge may hide in the nanosecond by which a refund rounds.
#[test]
fn arrivals_are_the_same_up_to_a_nanosecond_in_which_no_unit_fits() {
    for (arrival, shortest_interval, is_same) in [
        (9, 100, false),
        (10, 100, true),
        (11, 100, true),
        (12, 100, false),
        (11, 1, false),
        (10, 1, true),
        (10, 0, false),
    ] {
        assert_eq!(is_same_arrival(arrival, 10, shortest_interval), is_same, "{arrival}, {shortest_interval}");
    }
}

/// Two debts of one request that fill three windows, behind the units of others.
#[test]
fn a_debt_over_several_sliding_windows_leaves_no_trace() {
    let machine = SlidingWindow::new(10, SECOND, false);
    let (mut state, mut claim) = (WideState::default(), NO_CLAIM);
    machine.commit(&mut state, NOW, NOW, 4);
    let now = NOW + SECOND;
    machine.charge_debt(&mut state, now, 15, &mut claim);
    machine.charge_debt(&mut state, now, 10, &mut claim);
    assert_eq!(machine.status_of(&state, now + 2 * SECOND).remaining, 0);
    refund(&machine, &mut state, now, 25, &mut claim);
    assert_eq!(machine.status_of(&state, now).remaining, 6, "only the others' units");
}

/// The window counts more than the limit since that was lowered.
#[test]
fn a_debt_in_a_window_over_the_limit_keeps_its_weight() {
    let machine = SlidingWindow::new(10, SECOND, false);
    let (mut state, mut claim) = (WideState::default(), NO_CLAIM);
    SlidingWindow::new(20, SECOND, false).commit(&mut state, NOW, NOW, 20);
    machine.charge_debt(&mut state, NOW, 5, &mut claim);
    assert_eq!(machine.status_of(&state, NOW + SECOND * 19 / 10).remaining, 3, "a tenth of 20, and 5");
}

/// Others have a part of the first window, and the debt fills that and the next one.
#[test]
fn a_debt_behind_the_units_of_others_leaves_their_window_as_it_was() {
    let machine = SlidingWindow::new(10, SECOND, false);
    let (mut state, mut claim) = (WideState::default(), Claim { at: NOW, ..NO_CLAIM });
    machine.charge_debt(&mut state, NOW, 3, &mut claim);
    machine.commit(&mut state, NOW, NOW, 2);
    machine.charge_debt(&mut state, NOW, 8, &mut claim);
    refund(&machine, &mut state, NOW, 8, &mut claim);
    assert_eq!(machine.status_of(&state, NOW).remaining, 5, "they have two, and three are forfeited");
    assert_eq!(machine.status_of(&state, NOW + SECOND * 9 / 10).remaining, 5, "nothing was before");
}

/// Units of the debt that others followed are forfeited: their window stays full.
#[test]
fn a_debt_around_the_units_of_others_keeps_the_weight_of_what_it_forfeits() {
    let machine = SlidingWindow::new(10, SECOND, false);
    let (mut state, mut claim) = (WideState::default(), Claim { at: NOW, ..NO_CLAIM });
    machine.charge_debt(&mut state, NOW, 13, &mut claim);
    machine.commit(&mut state, NOW, NOW + SECOND, 2);
    machine.charge_debt(&mut state, NOW, 8, &mut claim);
    let units = claim.units;
    refund(&machine, &mut state, NOW, units, &mut claim);
    let half = NOW + SECOND * 3 / 2;
    assert_eq!(machine.status_of(&state, half).remaining, 3, "two of others, and half of ten");
}

/// An instance whose share became nothing settles requests from before.
#[test]
fn a_debt_where_nothing_is_allowed_does_no_harm() {
    fn settles<M: StateMachine>(machine: &M) {
        let (mut state, mut claim) = (M::State::default(), NO_CLAIM);
        machine.charge_debt(&mut state, NOW, 5, &mut claim);
        refund(machine, &mut state, NOW, claim.units.min(3), &mut claim);
        assert_eq!(machine.earliest(&state, NOW, 1), None);
        assert_eq!(machine.status_of(&state, NOW).remaining, 0);
    }
    settles(&token_bucket(0, 5));
    settles(&wide_token_bucket(0, SECOND, 5));
    settles(&windows(0, true));
    settles(&windows(0, false));
    settles(&SlidingWindow::new(0, SECOND, false));
    settles(&SlidingLog { limit: 0, window: SECOND });
}

/// Each that is refunded, the latest first, leaves the window as if it had never come.
#[test]
fn reservations_over_many_sliding_windows_leave_no_trace() {
    for (limit, cost) in [(10, 1), (10, 3), (10, 6), (4, 4), (1, 1)] {
        let machine = SlidingWindow::new(limit, SECOND, false);
        let mut state = WideState::default();
        machine.commit(&mut state, NOW, NOW, limit);
        let next = |state: &WideState| machine.earliest(state, NOW, cost).unwrap();
        let mut reserved = Vec::new();
        for _ in 0..100 {
            let at = next(&state);
            machine.commit(&mut state, NOW, at, cost);
            let until = at - at % SECOND + SECOND;
            reserved.push(Claim { units: cost, at, until, detail: cost, before: machine.version(&state) });
        }
        while let Some(mut claim) = reserved.pop() {
            assert!(machine.is_last(&state, NOW, &claim), "{cost} of {limit}, {} left", reserved.len());
            refund(&machine, &mut state, NOW, cost, &mut claim);
            assert_eq!(next(&state), claim.at, "{cost} of {limit}, {} left", reserved.len());
        }
        assert_eq!(machine.status_of(&state, NOW).remaining, 0, "what was used stays used");
        assert_eq!(machine.status_of(&state, NOW + 2 * SECOND).remaining, limit);
    }
}
