//! A state that is replaced by one that another counter holds.

use super::*;
use crate::algorithm::state_machine::{CopiedState, QuotaStatus};

fn restored<M: StateMachine>(machine: &M, copied: CopiedState) -> M::State {
    let mut state = M::State::default();
    machine.commit(&mut state, NOW, NOW, 1);
    machine.restore(&mut state, copied);
    state
}

#[test]
fn a_bucket_that_is_restored_is_full_when_its_copy_is() {
    let copied = CopiedState { ends: NOW + SECOND * 3 / 10, ..CopiedState::default() };
    let missing = QuotaStatus { remaining: 7, reset: SECOND * 3 / 10 };
    let bucket = token_bucket(10, 10);
    assert_eq!(bucket.status_of(&restored(&bucket, copied), NOW), missing);
    let bucket = WideGcra::token_bucket(10, SECOND, 10);
    assert_eq!(bucket.status_of(&restored(&bucket, copied), NOW), missing);
    let bucket = LeakyBucket::new(10, SECOND, 10).unwrap();
    assert_eq!(bucket.earliest(&restored(&bucket, copied), NOW, 1), Some(copied.ends));
}

#[test]
fn a_window_that_is_restored_counts_what_its_copy_does() {
    let machine = windows(10, true);
    let copied = CopiedState { ends: NOW + SECOND, current: 4, previous: 0 };
    let state = restored(&machine, copied);
    assert_eq!(machine.status_of(&state, NOW), QuotaStatus { remaining: 6, reset: SECOND });

    let machine = SlidingWindow::new(10, SECOND, false);
    let copied = CopiedState { ends: NOW + 2 * SECOND, current: 3, previous: 6 };
    let state = restored(&machine, copied);
    assert_eq!(machine.status_of(&state, NOW), QuotaStatus { remaining: 1, reset: SECOND });
    assert_eq!(machine.status_of(&state, NOW + SECOND / 2).remaining, 4);
}

/// Its copy would not hold the time of every charge.
#[test]
fn a_log_is_not_restored() {
    let machine = SlidingLog { limit: 10, window: SECOND };
    let log = restored(&machine, CopiedState { ends: NOW + SECOND, current: 5, previous: 5 });
    assert_eq!(machine.status_of(&log, NOW), QuotaStatus { remaining: 9, reset: SECOND });
}
