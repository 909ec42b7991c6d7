//! Who goes along with whom, and before whom.

use super::*;

#[tokio::test(start_paused = true)]
async fn who_asks_the_same_goes_along() {
    let lane = lane(0, limits(2));
    let alike = |likeness| {
        let lane = Arc::clone(&lane);
        tokio::spawn(async move { lane.submit(u64::from(likeness as u32), Some(likeness)).await })
    };
    let first: Vec<_> = [1, 2].map(alike).into();
    settle().await;
    assert!(lane.coalesce(7).is_none(), "nobody to go along with");
    let queued: Vec<_> = [7, 7, 8, 7, 9, 8].map(alike).into();
    settle().await;
    let joined = lane.coalesce(9).expect("one stands in the queue");
    lane.executor.let_go.add_permits(1);
    settle().await;
    assert_eq!(sent(&lane)[2..], [[7, 7, 7, 8, 8]], "two, with all that are alike");
    assert!(lane.coalesce(7).is_none(), "it has gone");
    lane.executor.let_go.add_permits(10);
    assert_eq!(joined.await.unwrap(), 18);
    for (ask, answer) in first.into_iter().chain(queued).zip([2, 4, 14, 14, 16, 14, 18, 16]) {
        assert_eq!(ask.await.unwrap().unwrap(), answer);
    }
    assert_idle(&lane);
}

#[tokio::test(start_paused = true)]
async fn who_leaves_the_others_does_not_count() {
    let lane = lane(0, limits(8));
    let _busy = [ask(&lane, 1), ask(&lane, 2)];
    settle().await;
    let queued: Vec<_> = (0..4)
        .map(|_| {
            let lane = Arc::clone(&lane);
            tokio::spawn(async move { lane.submit(5, Some(5)).await })
        })
        .collect();
    settle().await;
    queued[0].abort();
    queued[2].abort();
    settle().await;
    lane.executor.let_go.add_permits(10);
    settle().await;
    assert_eq!(sent(&lane)[2..], [[5, 5]]);
    // All of them: nothing is sent.
    let mut gone = lock(&lane.queue);
    assert_eq!(gone.requests, 0);
    assert!(gone.next_batch().is_none());
}

#[tokio::test(start_paused = true)]
async fn what_is_pushed_goes_before_who_asks_later() {
    for busy in [0, 1, 2] {
        let lane = lane(0, limits(8));
        let before: Vec<_> = (1..=busy).map(|number| ask(&lane, number)).collect();
        settle().await;
        lane.push(50);
        // Polled at once, before any task has run.
        let mut asking = Box::pin(lane.submit(60, None));
        assert!(std::future::poll_fn(|cx| Poll::Ready(asking.as_mut().poll(cx))).await.is_pending());
        lane.executor.let_go.add_permits(10);
        assert_eq!(asking.await.unwrap(), 120);
        let order: Vec<u64> = sent(&lane).into_iter().flatten().filter(|ask| *ask >= 50).collect();
        assert_eq!(order, [50, 60], "{busy} under way");
        assert_eq!(abandoned(&lane), [100], "nobody wants that answer");
        for ask in before {
            ask.await.unwrap().unwrap();
        }
        settle().await;
        assert_idle(&lane);
    }
}
