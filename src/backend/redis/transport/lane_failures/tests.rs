//! Which failures count for a lane.

use super::*;

#[test]
fn a_lane_fails_by_its_own_consecutive_failures() {
    let lanes = LaneFailures::new(true);
    assert!(!lanes.failed(1, 3) && !lanes.failed(1, 3));
    lanes.succeeded(1);
    lanes.succeeded(2);
    assert!(!lanes.failed(1, 3) && !lanes.failed(2, 3) && !lanes.failed(1, 3));
    lanes.succeeded(2);
    assert!(lanes.failed(1, 3));
    assert!(!lanes.failed(1, 3), "the count restarts");
}

#[test]
fn one_server_has_no_failing_lanes() {
    let lanes = LaneFailures::new(false);
    assert!(!(0..100).any(|lane| lanes.failed(lane, 1)));
}
