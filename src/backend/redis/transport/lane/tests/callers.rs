//! Callers that are cancelled, dropped, or no longer polled.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_cancelled_item_in_the_queue_is_not_sent() {
    let lane = lane(0, limits(8));
    let items = spawn_all(&lane, 1..=5).await;
    items[3].abort();
    settle().await;
    lane.executor.permits.add_permits(10);
    settle().await;
    assert_eq!(sent(&lane)[2..], [[3, 5]]);
    assert!(dropped(&lane).is_empty());
    assert_idle(&lane);
}

#[tokio::test(start_paused = true)]
async fn a_call_ends_although_its_caller_is_dropped() {
    let lane = lane(0, limits(8));
    let items = spawn_all(&lane, 1..=4).await;
    items[0].abort();
    items[1].abort();
    settle().await;
    assert!(dropped(&lane).is_empty());
    lane.executor.permits.add_permits(10);
    let mut items = items.into_iter().skip(2);
    assert_eq!(items.next().unwrap().await.unwrap().unwrap(), 6);
    assert_eq!(items.next().unwrap().await.unwrap().unwrap(), 8);
    assert_eq!(dropped(&lane), [2, 4]);
    settle().await;
    assert_idle(&lane);
}

#[tokio::test(start_paused = true)]
async fn a_caller_dropped_during_a_call_drops_only_its_result() {
    let lane = lane(0, limits(8));
    let items = spawn_all(&lane, 1..=5).await;
    lane.executor.permits.add_permits(2);
    settle().await;
    assert_eq!(sent(&lane)[2..], [[3, 4, 5]]);
    items[3].abort();
    settle().await;
    lane.executor.permits.add_permits(10);
    settle().await;
    assert_eq!(dropped(&lane), [8]);
    let results = items.into_iter().map(|result| async { result.await.ok().map(Result::unwrap) });
    let mut seen = Vec::new();
    for result in results {
        seen.push(result.await);
    }
    assert_eq!(seen, [Some(2), Some(4), Some(6), None, Some(10)]);
}

#[tokio::test(start_paused = true)]
async fn a_result_that_was_not_received_is_dropped() {
    let lane = lane(0, limits(8));
    let _sent_alone = spawn_all(&lane, 1..=2).await;
    let mut waiting = Box::pin(submit(&lane, 3, None));
    assert!(std::future::poll_fn(|cx| Poll::Ready(waiting.as_mut().poll(cx))).await.is_pending());
    lane.executor.permits.add_permits(10);
    settle().await;
    assert_eq!(sent(&lane)[2..], [[3]]);
    drop(waiting);
    assert_eq!(dropped(&lane), [6]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_result_is_received_or_dropped_whenever_callers_leave() {
    struct Counts {
        results: AtomicUsize,
        dropped: Arc<AtomicUsize>,
    }
    impl Executor for Counts {
        type Item = ();
        type Output = Tracked;
        async fn execute(
            &self,
            items: Vec<((), usize)>,
            call: &mut RunningCall<Self>,
        ) -> Vec<Result<Tracked, BackendError>> {
            call.send(tokio::task::yield_now()).await;
            self.results.fetch_add(items.len(), Ordering::SeqCst);
            let result = |_| {
                let dropped = Arc::clone(&self.dropped);
                let on_drop = move |_| _ = dropped.fetch_add(1, Ordering::SeqCst);
                Ok(Tracked { value: 0, on_drop: Some(Arc::new(on_drop)) })
            };
            items.into_iter().map(result).collect()
        }
    }
    let counts = Counts { results: AtomicUsize::new(0), dropped: Arc::default() };
    let lane = lane_with(counts, LaneLimits::new(4), PATIENCE);
    let received = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<_> = (0..8)
        .map(|task| {
            let (lane, received) = (Arc::clone(&lane), Arc::clone(&received));
            tokio::spawn(async move {
                for number in 0..5_000 {
                    let mut left = (number * 7 + task) % 5;
                    let mut submitted = Box::pin(submit(&lane, (), None));
                    let result = std::future::poll_fn(|cx| match submitted.as_mut().poll(cx) {
                        Poll::Ready(result) => Poll::Ready(Some(result)),
                        Poll::Pending if left == 0 => Poll::Ready(None),
                        Poll::Pending => {
                            left -= 1;
                            cx.waker().wake_by_ref();
                            Poll::Pending
                        }
                    });
                    if let Some(result) = result.await {
                        result.unwrap();
                        received.fetch_add(1, Ordering::SeqCst);
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        timeout(Duration::from_secs(60), task).await.expect("no caller is left waiting").unwrap();
    }
    let count = |count: &AtomicUsize| count.load(Ordering::SeqCst);
    let [results, dropped] = [&lane.executor.results, &*lane.executor.dropped];
    // The call of a dropped caller ends a moment before its result is dropped.
    let mut looks = tokio::time::interval(Duration::from_millis(1));
    for _ in 0..10_000 {
        looks.tick().await;
        if lock(&lane.queue).calls == 0 && count(results) == count(&received) + count(dropped) {
            break;
        }
    }
    assert_idle(&lane);
    assert_eq!(count(results), count(&received) + count(dropped));
    assert!(count(&received) > 0);
}

#[tokio::test(start_paused = true)]
async fn callers_that_are_no_longer_polled_do_not_block_the_lane() {
    let lane = lane(100, limits(8));
    let mut stuck: Vec<_> = (1..=2).map(|number| Box::pin(submit(&lane, number, None))).collect();
    for stuck in &mut stuck {
        assert!(std::future::poll_fn(|cx| Poll::Ready(stuck.as_mut().poll(cx))).await.is_pending());
    }
    assert_eq!(submit(&lane, 3, None).await.unwrap(), 6);
    drop(stuck);
    settle().await;
    assert_idle(&lane);
}
