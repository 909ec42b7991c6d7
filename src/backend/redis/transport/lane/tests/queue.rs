//! What is coalesced, and in which order items are sent.

use super::*;

#[tokio::test(start_paused = true)]
async fn items_of_one_key_are_coalesced() {
    let lane = lane(0, limits(2));
    let coalesced = |key| {
        let lane = Arc::clone(&lane);
        tokio::spawn(async move { submit(&lane, u64::from(key as u32), Some(key)).await })
    };
    let mut first = Vec::new();
    for key in [1, 2] {
        first.push(coalesced(key));
        settle().await;
    }
    assert!(lane.coalesce(7).is_none(), "no item is queued");
    let queued: Vec<_> = [7, 7, 8, 7, 9, 8].map(coalesced).into();
    settle().await;
    let joined = lane.coalesce(9).expect("an item is queued");
    lane.executor.permits.add_permits(1);
    settle().await;
    assert_eq!(sent(&lane)[2..], [[7, 7, 7, 8, 8]], "two items, with all requests of their keys");
    assert!(lane.coalesce(7).is_none(), "it has been sent");
    lane.executor.permits.add_permits(10);
    assert_eq!(joined.await.unwrap().receive(), 18);
    for (result, expected) in first.into_iter().chain(queued).zip([2, 4, 14, 14, 16, 14, 18, 16]) {
        assert_eq!(result.await.unwrap().unwrap(), expected);
    }
    settle().await;
    assert_idle(&lane);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_request_is_not_counted_in_a_coalesced_item() {
    let lane = lane(0, limits(8));
    let _busy = spawn_all(&lane, 1..=2).await;
    let queued: Vec<_> = (0..4)
        .map(|_| {
            let lane = Arc::clone(&lane);
            tokio::spawn(async move { submit(&lane, 5, Some(5)).await })
        })
        .collect();
    settle().await;
    queued[0].abort();
    queued[2].abort();
    settle().await;
    lane.executor.permits.add_permits(10);
    settle().await;
    assert_eq!(sent(&lane)[2..], [[5, 5]]);
    // If all are cancelled, nothing is sent.
    let mut queue = lock(&lane.queue);
    assert_eq!(queue.requests, 0);
    assert!(queue.next_batch().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_pushed_item_is_sent_before_later_items() {
    for busy in [0, 1, 2] {
        let lane = lane(0, limits(8));
        let before = spawn_all(&lane, 1..=busy).await;
        lane.push(50);
        // Polled at once, before any task has run.
        let mut asking = Box::pin(submit(&lane, 60, None));
        assert!(std::future::poll_fn(|cx| Poll::Ready(asking.as_mut().poll(cx))).await.is_pending());
        lane.executor.permits.add_permits(10);
        assert_eq!(asking.await.unwrap(), 120);
        let order: Vec<u64> = sent(&lane).into_iter().flatten().filter(|item| *item >= 50).collect();
        assert_eq!(order, [50, 60], "{busy} calls running");
        assert_eq!(dropped(&lane), [100], "no caller receives that result");
        for result in before {
            result.await.unwrap().unwrap();
        }
        settle().await;
        assert_idle(&lane);
    }
}

#[tokio::test(start_paused = true)]
async fn no_item_is_coalesced_across_a_pushed_one_when_a_full_queue_drops_the_abandoned() {
    let lane = lane(0, LaneLimits { max_queued: 4, ..limits(8) });
    let _busy = spawn_all(&lane, 1..=2).await;
    let early = tokio::spawn(submit(&lane, 7, Some(7)));
    settle().await;
    lane.push(50);
    let gone = [spawn(&lane, 3), spawn(&lane, 4)];
    settle().await;
    gone.iter().for_each(JoinHandle::abort);
    settle().await;
    let later = [tokio::spawn(submit(&lane, 8, None)), tokio::spawn(submit(&lane, 7, Some(7)))];
    settle().await;
    lane.executor.permits.add_permits(10);
    for (result, expected) in [early].into_iter().chain(later).zip([14, 16, 14]) {
        assert_eq!(result.await.unwrap().unwrap(), expected);
    }
    assert_eq!(sent(&lane)[2..], [[7, 50, 8, 7]]);
}
