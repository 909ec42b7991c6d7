//! What the public API does not reach directly: reservations, refunds, and
//! states written under another limit.

mod claims;
mod logs;
mod shares;
mod wide_buckets;

use super::{
    Claim, CompactState, State, StateMachine, WideState,
    arrival::BucketState,
    fixed_window::FixedWindow,
    gcra::{BucketQuota, Gcra},
    share::{Share, ShareHistory},
    sliding_log::{RequestLog, SlidingLog},
    sliding_window::SlidingWindow,
    window::{Calendar, WindowLimit},
};

const SECOND: u64 = 1_000_000_000;
const NOW: u64 = 1_700_000_000 * SECOND;

type Bucket = Gcra<CompactState>;
type WideBucket = Gcra<WideState>;

fn bucket<S: BucketState>(limit: u64, window: u64, burst: u64, is_spaced: bool) -> Gcra<S> {
    let bucket = Gcra::new(BucketQuota { limit, window, burst, is_spaced }, &ShareHistory::new(Share::whole()));
    assert!(S::IS_WIDE || limit == 0 || bucket.is_compact());
    bucket
}

fn token_bucket(limit: u64, burst: u64) -> Bucket {
    bucket(limit, SECOND, burst, false)
}

fn wide_token_bucket(limit: u64, window: u64, burst: u64) -> WideBucket {
    bucket(limit, window, burst, false)
}

fn leaky_bucket(limit: u64, burst: u64) -> Bucket {
    bucket(limit, SECOND, burst, true)
}

fn windows(limit: u64, is_aligned: bool) -> FixedWindow {
    FixedWindow { limits: WindowLimit::same(limit, Calendar::even(SECOND)), is_aligned, is_smooth: false }
}

/// Reserves one unit and returns its departure time.
fn reserve<M: StateMachine>(machine: &M, state: &mut M::State, now: u64) -> u64 {
    let at = machine.earliest(state, now, 1).unwrap();
    machine.commit(state, now, at, 1);
    at
}

fn reservations<M: StateMachine>(machine: &M, count: usize) -> Vec<u64> {
    let mut state = M::State::default();
    (0..count).map(|_| reserve(machine, &mut state, NOW)).collect()
}

/// Reservations never overtake, and at most `per_window` lie in any window.
fn check_reservations<M: StateMachine>(machine: &M, per_window: usize, window: u64) {
    let times = reservations(machine, 1_000);
    assert!(times.is_sorted());
    for (index, start) in times.iter().enumerate() {
        let within = times[index..].iter().take_while(|time| **time < start + window).count();
        assert!(within <= per_window, "{within} from {start}");
    }
    let span = times[999] - NOW;
    assert!(span <= 11 * SECOND, "units were wasted: {span}");
}

#[test]
fn reservations_keep_the_limit_and_waste_no_unit() {
    check_reservations(&token_bucket(100, 1), 100, SECOND);
    check_reservations(&leaky_bucket(100, 100), 100, SECOND);
    check_reservations(&wide_token_bucket(100, SECOND, 1), 100, SECOND);
    check_reservations(&windows(100, true), 100, SECOND);
    check_reservations(&windows(100, false), 100, SECOND);
    check_reservations(&SlidingLog { limit: 100, window: SECOND }, 100, SECOND);
}

#[test]
fn a_sliding_window_reserves_as_its_weight_allows() {
    let times = reservations(&SlidingWindow::new(100, SECOND, false), 1_000);
    assert!(times.is_sorted());
    assert!(times[999] - NOW <= 11 * SECOND);
}

#[test]
fn used_units_are_kept_when_the_limit_changes() {
    let old = bucket::<CompactState>(60, 60 * SECOND, 60, false);
    let mut state = CompactState::default();
    old.commit(&mut state, NOW, NOW, 40);
    let raised = bucket::<CompactState>(600, 60 * SECOND, 600, false);
    assert_eq!(raised.status_of(&state, NOW).remaining, 560);
    let lowered = bucket::<CompactState>(30, 60 * SECOND, 30, false);
    assert_eq!(lowered.status_of(&state, NOW).remaining, 0);
    // 11 have come back by then, at the old rate: the answer holds.
    assert_eq!(lowered.earliest(&state, NOW, 1), Some(NOW + 11 * SECOND));
    assert_eq!(lowered.status_of(&state, NOW + 11 * SECOND).remaining, 1);
    raised.commit(&mut state, NOW, NOW, 1);
    assert_eq!(raised.status_of(&state, NOW).remaining, 559);

    let old = wide_token_bucket(60, 60 * SECOND, 60);
    let mut state = WideState::default();
    old.commit(&mut state, NOW, NOW, 40);
    assert_eq!(wide_token_bucket(600, 60 * SECOND, 600).status_of(&state, NOW).remaining, 560);
}

/// The store may drop an idle state, and with it what is missing of the last
/// nanosecond.
#[test]
fn a_state_is_idle_only_after_its_last_nanosecond() {
    let machine = token_bucket(3, 3);
    let mut state = CompactState::default();
    machine.commit(&mut state, NOW, NOW, 1);
    let last = NOW + SECOND / 3;
    assert_eq!(machine.status_of(&state, last).remaining, 2, "a third of a nanosecond is missing");
    assert_eq!(machine.earliest(&state, last, 3), Some(last + 1));
    assert!(!state.is_idle(last) && state.is_idle(last + 1));
}

fn claim(at: u64, cost: u64, reset: u64) -> Claim {
    Claim { at, units: cost, until: at + reset, detail: cost, before: 0 }
}

/// Refunds the whole claim.
fn refund_all<M: StateMachine>(machine: &M, state: &mut M::State, now: u64, mut claim: Claim) {
    machine.refund(state, now, claim.units, &mut claim);
}

#[test]
fn the_latest_charge_is_refunded_whole() {
    let machine = token_bucket(10, 5);
    let mut state = CompactState::default();
    machine.commit(&mut state, NOW, NOW, 3);
    machine.commit(&mut state, NOW, NOW, 2);
    let full_in = machine.status_of(&state, NOW).reset;
    refund_all(&machine, &mut state, NOW, claim(NOW, 2, full_in));
    assert_eq!(machine.status_of(&state, NOW).remaining, 2);
}

#[test]
fn an_earlier_charge_refunds_only_what_has_not_come_back() {
    let machine = token_bucket(10, 5);
    let mut state = CompactState::default();
    machine.commit(&mut state, NOW, NOW, 1);
    let first = claim(NOW, 1, machine.status_of(&state, NOW).reset);
    // Full again, then one more: nothing of the first is left to refund.
    let later = NOW + SECOND;
    machine.commit(&mut state, later, later, 1);
    refund_all(&machine, &mut state, later, first);
    assert_eq!(machine.status_of(&state, later).remaining, 4);
}

#[test]
fn a_reservation_that_a_later_one_builds_upon_is_forfeited() {
    let machine = leaky_bucket(10, 10);
    let mut state = CompactState::default();
    reserve(&machine, &mut state, NOW);
    let at = reserve(&machine, &mut state, NOW);
    let second = claim(at, 1, machine.status_of(&state, NOW).reset - (at - NOW));
    let third = reserve(&machine, &mut state, NOW);
    refund_all(&machine, &mut state, NOW, second);
    assert_eq!(machine.earliest(&state, NOW, 1), Some(third + SECOND / 10));
}

#[test]
fn a_charge_under_another_limit_is_not_mistaken_for_the_latest() {
    let (low, high) = (token_bucket(10, 10), token_bucket(40, 40));
    let mut state = CompactState::default();
    low.commit(&mut state, NOW, NOW, 10);
    let old = claim(NOW, 1, SECOND);
    high.commit(&mut state, NOW, NOW, 30);
    assert_eq!(high.status_of(&state, NOW).reset, SECOND, "the arrival time that was claimed");
    assert!(!low.is_last(&state, NOW, &old));
    refund_all(&low, &mut state, NOW, old);
    assert_eq!(high.status_of(&state, NOW).remaining, 0);
}

#[test]
fn windows_refund_to_the_window_that_was_charged() {
    let machine = windows(2, true);
    let mut state = CompactState::default();
    machine.commit(&mut state, NOW, NOW, 2);
    refund_all(&machine, &mut state, NOW, claim(NOW - SECOND, 1, SECOND));
    assert_eq!(machine.earliest(&state, NOW, 1), Some(NOW + SECOND));
    refund_all(&machine, &mut state, NOW, claim(NOW, 1, SECOND));
    assert_eq!(machine.earliest(&state, NOW, 1), Some(NOW));

    let machine = SlidingLog { limit: 2, window: SECOND };
    let mut log = RequestLog::default();
    machine.commit(&mut log, NOW, NOW, 2);
    let latest = Claim { until: 0, detail: machine.version(&log), ..claim(NOW, 1, SECOND) };
    refund_all(&machine, &mut log, NOW, latest);
    assert_eq!(machine.status_of(&log, NOW).remaining, 1);
}
