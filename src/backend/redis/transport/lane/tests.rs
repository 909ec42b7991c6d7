mod callers;
mod queue;

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    task::Poll,
    time::Duration,
};

use tokio::{
    sync::Semaphore,
    task::JoinHandle,
    time::{Instant, timeout},
};

use super::*;
use crate::{backend::redis::transport::task_runtime::TaskRuntime, error::BackendErrorKind};

const DEADLINE: Duration = Duration::from_millis(50);

/// A result that reports whether it was dropped without being received.
struct Tracked {
    value: u64,
    on_drop: Option<Arc<dyn Fn(u64) + Send + Sync>>,
}

impl Tracked {
    fn receive(mut self) -> u64 {
        self.on_drop = None;
        self.value
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        if let Some(on_drop) = self.on_drop.take() {
            on_drop(self.value);
        }
    }
}

/// Doubles each item, once it has a permit.
struct Doubles {
    sent: Mutex<Vec<Vec<u64>>>,
    dropped: Arc<Mutex<Vec<u64>>>,
    permits: Semaphore,
    running: AtomicUsize,
    most_running: AtomicUsize,
}

impl Doubles {
    fn new(permits: usize) -> Self {
        Self {
            sent: Mutex::default(),
            dropped: Arc::default(),
            permits: Semaphore::new(permits),
            running: AtomicUsize::new(0),
            most_running: AtomicUsize::new(0),
        }
    }
}

const PANICS: u64 = 666;
const HAS_NO_RESULT: u64 = 777;

impl Executor for Doubles {
    type Item = u64;
    type Output = Tracked;

    async fn execute(
        &self,
        items: Vec<(u64, usize)>,
        call: &mut RunningCall<Self>,
    ) -> Vec<Result<Tracked, BackendError>> {
        let items: Vec<u64> = items.into_iter().flat_map(|(item, count)| std::iter::repeat_n(item, count)).collect();
        lock(&self.sent).push(items.clone());
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_running.fetch_max(running, Ordering::SeqCst);
        call.send(self.permits.acquire()).await.unwrap().forget();
        self.running.fetch_sub(1, Ordering::SeqCst);
        assert!(!items.contains(&PANICS), "the panic that is tested");
        let results = items.len() - usize::from(items.contains(&HAS_NO_RESULT));
        let result = |item: &u64| {
            let dropped = Arc::clone(&self.dropped);
            let on_drop: Arc<dyn Fn(u64) + Send + Sync> = Arc::new(move |value| lock(&dropped).push(value));
            Ok(Tracked { value: item * 2, on_drop: Some(on_drop) })
        };
        items[..results].iter().map(result).collect()
    }
}

type Tested = Arc<Lane<Doubles>>;

fn lane(permits: usize, limits: LaneLimits) -> Tested {
    lane_with(Doubles::new(permits), limits, DEADLINE)
}

fn lane_with<E: Executor>(executor: E, limits: LaneLimits, deadline: Duration) -> Arc<Lane<E>> {
    let runtime = Arc::new(TaskRuntime::current());
    Arc::new(Lane::new(executor, limits, Deadline::new(deadline, &runtime)))
}

/// A deadline that the test does not reach.
const PATIENCE: Duration = Duration::from_secs(60);

fn limits(max_batch: usize) -> LaneLimits {
    LaneLimits::new(max_batch)
}

fn submit<E: Executor<Output = Tracked>>(
    lane: &Arc<Lane<E>>,
    item: E::Item,
    key: Option<u128>,
) -> impl Future<Output = Result<u64, BackendError>> + use<E> {
    let result = lane.submit(item, key);
    async move { result.await.map(Tracked::receive) }
}

/// Submits items one after the other: each of the first two is a call of its own.
async fn spawn_all(lane: &Tested, items: impl IntoIterator<Item = u64>) -> Vec<JoinHandle<Result<u64, BackendError>>> {
    let mut results = Vec::new();
    for item in items {
        results.push(spawn(lane, item));
        settle().await;
    }
    results
}

fn spawn(lane: &Tested, item: u64) -> JoinHandle<Result<u64, BackendError>> {
    tokio::spawn(submit(lane, item, None))
}

/// Runs all tasks that are ready.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

fn sent(lane: &Tested) -> Vec<Vec<u64>> {
    lock(&lane.executor.sent).clone()
}

fn dropped(lane: &Tested) -> Vec<u64> {
    lock(&lane.executor.dropped).clone()
}

fn assert_idle<C: Executor>(lane: &Lane<C>) {
    let state = lock(&lane.queue);
    assert_eq!((state.calls, state.items.len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn an_idle_lane_sends_an_item_at_once_and_alone() {
    let lane = lane(11, limits(8));
    for number in 0..=10 {
        assert_eq!(submit(&lane, number, None).await.unwrap(), number * 2);
    }
    assert_eq!(sent(&lane), (0..=10).map(|number| vec![number]).collect::<Vec<_>>());
    settle().await;
    assert_idle(&lane);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_before_the_first_poll() {
    let lane = lane(10, limits(8));
    drop(submit(&lane, 1, None));
    settle().await;
    assert!(sent(&lane).is_empty() && dropped(&lane).is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_queue_is_sent_in_order_and_in_batches() {
    let lane = lane(0, limits(4));
    let items = spawn_all(&lane, 1..=11).await;
    assert_eq!(sent(&lane), [[1], [2]], "as many calls as may run at the same time");
    lane.executor.permits.add_permits(1);
    settle().await;
    assert_eq!(sent(&lane)[2..], [[3, 4, 5, 6]]);
    lane.executor.permits.add_permits(10);
    for (number, result) in (1..).zip(items) {
        assert_eq!(result.await.unwrap().unwrap(), number * 2);
    }
    let mut last = sent(&lane).split_off(3);
    last.sort();
    assert_eq!(last, [vec![7, 8, 9, 10], vec![11]]);
    assert_eq!(lane.executor.most_running.load(Ordering::SeqCst), 2);
    settle().await;
    assert_idle(&lane);
}

#[tokio::test(start_paused = true)]
async fn no_caller_waits_beyond_the_deadline() {
    let lane = lane(0, limits(8));
    let started = Instant::now();
    let items = spawn_all(&lane, 1..=3).await;
    for result in items {
        let error = result.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), BackendErrorKind::Timeout);
    }
    let took = started.elapsed();
    assert!(took >= DEADLINE * 15 / 16 && took <= DEADLINE + Duration::from_millis(2), "{took:?}");
    lane.executor.permits.add_permits(10);
    settle().await;
    assert_eq!(sent(&lane), [[1], [2]], "what timed out in the queue is never sent");
    assert_eq!(dropped(&lane), [2, 4]);
    assert_eq!(submit(&lane, 9, None).await.unwrap(), 18);
    settle().await;
    assert_idle(&lane);
}

/// No caller waits for the calls before them, so it is not their deadline that ends it.
#[tokio::test(start_paused = true)]
async fn no_caller_waits_beyond_the_deadline_for_pushed_items() {
    for after in [0, 20, 49, 50, 70] {
        let lane = lane(0, limits(8));
        for item in [50, 51] {
            lane.push(item);
            settle().await;
        }
        tokio::time::advance(Duration::from_millis(after)).await;
        let started = Instant::now();
        assert_eq!(submit(&lane, 3, None).await.unwrap_err().kind(), BackendErrorKind::Timeout);
        let took = started.elapsed();
        assert!(took >= DEADLINE && took <= DEADLINE + Duration::from_millis(2), "{took:?} after {after} ms");
        assert_eq!(sent(&lane), [[50], [51]]);
    }
}

/// A later one has joined the item before, whose call is waited for.
#[tokio::test(start_paused = true)]
async fn a_caller_who_joined_an_item_late_delays_no_deadline_behind_it() {
    let pass = async |millis| {
        settle().await;
        tokio::time::advance(Duration::from_millis(millis)).await;
        settle().await;
    };
    let lane = lane(0, LaneLimits { max_calls: 1, ..limits(1) });
    let _running = spawn(&lane, 1);
    pass(10).await;
    let submitted = |item, key| {
        let lane = Arc::clone(&lane);
        tokio::spawn(async move { submit(&lane, item, key).await })
    };
    let _first = submitted(2, Some(7));
    pass(1).await;
    let (started, behind) = (Instant::now(), submitted(3, None));
    pass(20).await;
    let _late = submitted(2, Some(7));
    pass(1).await;
    lane.executor.permits.add_permits(1);
    assert_eq!(behind.await.unwrap().unwrap_err().kind(), BackendErrorKind::Timeout);
    let took = started.elapsed();
    assert!(took >= DEADLINE && took <= DEADLINE + Duration::from_millis(2), "{took:?}");
    assert_eq!(sent(&lane), [&[1][..], &[2, 2]]);
}

#[tokio::test(start_paused = true)]
async fn the_queue_is_bounded_and_cancelled_items_do_not_count() {
    let lane = lane(0, LaneLimits { max_queued: 3, ..limits(8) });
    let items = spawn_all(&lane, 1..=5).await;
    let error = submit(&lane, 6, None).await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Unavailable);
    items[4].abort();
    settle().await;
    let seventh = spawn(&lane, 7);
    settle().await;
    lane.executor.permits.add_permits(10);
    assert_eq!(seventh.await.unwrap().unwrap(), 14);
    assert_eq!(sent(&lane)[2..], [[3, 4, 7]]);
}

#[tokio::test(start_paused = true)]
async fn a_panic_does_not_block_the_lane() {
    let lane = lane(100, limits(8));
    for _ in 0..5 {
        assert_eq!(spawn(&lane, PANICS).await.unwrap().unwrap_err().kind(), BackendErrorKind::Unavailable);
    }
    settle().await;
    assert_idle(&lane);
    // The same in a call for several callers.
    let lane = self::lane(0, limits(2));
    let items = spawn_all(&lane, [1, 2, 3, PANICS, 4, 5]).await;
    lane.executor.permits.add_permits(100);
    let mut results = Vec::new();
    for result in items {
        results.push(result.await.unwrap().ok());
    }
    assert_eq!(results, [Some(2), Some(4), None, None, Some(8), Some(10)]);
    settle().await;
    assert_idle(&lane);
}

#[tokio::test(start_paused = true)]
async fn a_missing_result_is_an_error() {
    let lane = lane(100, limits(8));
    assert_eq!(submit(&lane, HAS_NO_RESULT, None).await.unwrap_err().kind(), BackendErrorKind::Unavailable);
    settle().await;
    assert_idle(&lane);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_item_has_exactly_one_result() {
    struct Yields(AtomicUsize);
    impl Executor for Yields {
        type Item = u64;
        type Output = Tracked;
        async fn execute(
            &self,
            items: Vec<(u64, usize)>,
            call: &mut RunningCall<Self>,
        ) -> Vec<Result<Tracked, BackendError>> {
            self.0.fetch_add(items.len(), Ordering::SeqCst);
            call.send(tokio::task::yield_now()).await;
            let on_drop = |value| panic!("{value} was dropped");
            let result = |(item, _)| Ok(Tracked { value: item * 2, on_drop: Some(Arc::new(on_drop)) });
            items.into_iter().map(result).collect()
        }
    }
    let lane = lane_with(Yields(AtomicUsize::new(0)), LaneLimits::new(16), PATIENCE);
    let tasks: Vec<_> = (0..8)
        .map(|task| {
            let lane = Arc::clone(&lane);
            tokio::spawn(async move {
                for number in 0..10_000 {
                    let item = task * 10_000 + number;
                    assert_eq!(submit(&lane, item, None).await.unwrap(), item * 2);
                }
            })
        })
        .collect();
    for task in tasks {
        timeout(Duration::from_secs(60), task).await.expect("no caller is left waiting").unwrap();
    }
    assert_eq!(lane.executor.0.load(Ordering::SeqCst), 80_000);
}
