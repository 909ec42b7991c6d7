//! A home that ends, or is not driven.

use super::*;

fn deadline_of(home: &Arc<Home>) -> Arc<SharedDeadline> {
    SharedDeadline::new(DEADLINE, Arc::clone(home))
}

#[test]
fn what_was_pushed_outlives_its_runtime() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let lane: Tested =
        runtime().block_on(async { Arc::new(Lane::new(Doubles::new(9), limits(8), patience(), Home::new())) });
    lane.push(1);
    lane.push(2);
    assert_eq!(lock(&lane.queue).calls, 0);
    runtime().block_on(async {
        assert!(lane.home.move_if_ended().unwrap());
        assert_eq!(submit(&lane, 3, None).await.unwrap(), 6);
    });
    assert_eq!(sent(&lane), [[1, 2, 3]]);
    assert_idle(&lane);
}

#[test]
fn what_is_queued_on_a_runtime_that_is_not_driven_is_sent_from_the_next() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let (first, second) = (runtime(), runtime());
    let home = first.block_on(async { Home::new() });
    let lane: Tested = Arc::new(Lane::new(Doubles::new(9), limits(8), deadline_of(&home), home));
    lane.push(1);
    second.block_on(async {
        let started = Instant::now();
        let error = submit(&lane, 2, None).await.unwrap_err();
        assert_eq!((error.kind(), started.elapsed() <= DEADLINE), (BackendErrorKind::Timeout, true));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(lane.home.move_if_ended().unwrap());
        assert_eq!(submit(&lane, 3, None).await.unwrap(), 6);
        assert_eq!(sent(&lane), [[1, 3]], "what timed out is not sent");
        settle().await;
        assert_idle(&lane);
    });
    // Its call, which never took a batch, disturbs nothing.
    first.block_on(settle());
    assert_eq!(sent(&lane).len(), 1);
    assert_idle(&lane);
}

#[test]
fn requests_that_are_coalesced_are_sent_from_the_next_runtime() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let (first, second) = (runtime(), runtime());
    let home = first.block_on(async { Home::new() });
    let lane: Tested = Arc::new(Lane::new(Doubles::new(9), limits(8), deadline_of(&home), home));
    lane.push(1);
    second.block_on(async {
        submit(&lane, 2, Some(2)).await.unwrap_err();
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(lane.home.move_if_ended().unwrap());
        let joined = lane.coalesce(2).expect("the item that timed out is in the queue");
        assert_eq!(joined.await.unwrap().receive(), 4);
        assert_eq!(sent(&lane), [[1, 2]]);
        settle().await;
        assert_idle(&lane);
    });
}
