//! Which failures count for a lane, and when it is idle.

use tokio::time::advance;

use super::*;

#[test]
fn a_lane_fails_by_its_own_consecutive_failures() {
    let lanes = LaneHealth::new(true);
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
    let lanes = LaneHealth::new(false);
    assert!(!(0..100).any(|lane| lanes.failed(lane, 1)));
}

#[tokio::test(start_paused = true)]
async fn a_lane_is_idle_a_second_after_its_last_use() {
    let lanes = LaneHealth::new(false);
    for _ in 0..3 {
        advance(IDLE - Duration::from_millis(1)).await;
        assert!(lanes.idle(1).await.is_none());
    }
    advance(IDLE).await;
    assert!(lanes.idle(1).await.is_some() && lanes.idle(1).await.is_none(), "it is checked once");
    assert!(lanes.idle(2).await.is_some(), "another lane");
}

#[tokio::test(start_paused = true)]
async fn callers_wait_while_an_idle_lane_is_checked() {
    let lanes = LaneHealth::new(false);
    advance(IDLE).await;
    let guard = lanes.idle(1).await;
    let mut second = std::pin::pin!(lanes.idle(1));
    assert!(std::future::poll_fn(|cx| std::task::Poll::Ready(second.as_mut().poll(cx).is_pending())).await);
    drop(guard);
    assert!(second.await.is_none());
}
