mod queue;

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use tokio::{
    sync::Semaphore,
    task::JoinHandle,
    time::{Instant, timeout},
};

use super::*;
use crate::error::BackendErrorKind;

const DEADLINE: Duration = Duration::from_millis(50);

/// Answers each ask with its double, once it is let.
struct Doubles {
    sent: Mutex<Vec<Vec<u64>>>,
    abandoned: Mutex<Vec<u64>>,
    let_go: Semaphore,
    under_way: AtomicUsize,
    most: AtomicUsize,
}

impl Doubles {
    fn new(let_go: usize) -> Self {
        Self {
            sent: Mutex::default(),
            abandoned: Mutex::default(),
            let_go: Semaphore::new(let_go),
            under_way: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
        }
    }
}

const PANICS: u64 = 666;
const FALLS_SHORT: u64 = 777;

impl Executor for Doubles {
    type Item = u64;
    type Output = u64;

    async fn execute(&self, asks: Vec<(u64, usize)>, mut guard: SendGuard) -> Vec<Result<u64, BackendError>> {
        let asks: Vec<u64> = asks.into_iter().flat_map(|(ask, count)| std::iter::repeat_n(ask, count)).collect();
        self.sent.lock().unwrap().push(asks.clone());
        let under_way = self.under_way.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(under_way, Ordering::SeqCst);
        guard.with(self.let_go.acquire()).await.unwrap().forget();
        self.under_way.fetch_sub(1, Ordering::SeqCst);
        assert!(!asks.contains(&PANICS), "the panic that is tested");
        let answered = asks.len() - usize::from(asks.contains(&FALLS_SHORT));
        asks[..answered].iter().map(|ask| Ok(ask * 2)).collect()
    }

    fn abandon(&self, answer: u64) {
        self.abandoned.lock().unwrap().push(answer);
    }
}

type Tested = Arc<Lane<Doubles>>;

fn lane(let_go: usize, limits: LaneLimits) -> Tested {
    Arc::new(Lane::new(Doubles::new(let_go), limits, deadline(), Handle::current()))
}

fn deadline() -> Arc<SharedDeadline> {
    SharedDeadline::new(DEADLINE, Handle::current())
}

/// A deadline that is not what the test is about.
fn patience() -> Arc<SharedDeadline> {
    SharedDeadline::new(Duration::from_secs(60), Handle::current())
}

fn limits(max_batch: usize) -> LaneLimits {
    LaneLimits::new(max_batch)
}

fn ask(lane: &Tested, ask: u64) -> JoinHandle<Result<u64, BackendError>> {
    tokio::spawn(lane.submit(ask, None))
}

/// Lets everything run that can.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

fn sent(lane: &Tested) -> Vec<Vec<u64>> {
    lane.executor.sent.lock().unwrap().clone()
}

fn abandoned(lane: &Tested) -> Vec<u64> {
    lane.executor.abandoned.lock().unwrap().clone()
}

fn assert_idle<C: Executor>(lane: &Lane<C>) {
    let state = lock(&lane.queue);
    assert_eq!((state.calls, state.items.len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn alone_an_ask_goes_out_at_once_and_by_itself() {
    let lane = lane(11, limits(8));
    assert_eq!(lane.submit(0, None).await.unwrap(), 0);
    // That of the deadlines, which all share.
    let before = Handle::current().metrics().num_alive_tasks();
    assert_eq!(before, 1);
    for number in 1..=10 {
        assert_eq!(lane.submit(number, None).await.unwrap(), number * 2);
        assert_eq!(Handle::current().metrics().num_alive_tasks(), before, "no task is spawned");
    }
    assert_eq!(sent(&lane), (0..=10).map(|number| vec![number]).collect::<Vec<_>>());
    assert_idle(&lane);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_done_before_the_first_poll() {
    let lane = lane(10, limits(8));
    drop(lane.submit(1, None));
    settle().await;
    assert!(sent(&lane).is_empty() && abandoned(&lane).is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_queue_goes_out_in_order_and_in_batches() {
    let lane = lane(0, limits(4));
    let asks: Vec<_> = (1..=11).map(|number| ask(&lane, number)).collect();
    settle().await;
    assert_eq!(sent(&lane), [[1], [2]], "as many calls as may be under way");
    lane.executor.let_go.add_permits(1);
    settle().await;
    assert_eq!(sent(&lane)[2..], [[3, 4, 5, 6]]);
    lane.executor.let_go.add_permits(10);
    for (number, ask) in (1..).zip(asks) {
        assert_eq!(ask.await.unwrap().unwrap(), number * 2);
    }
    let mut last = sent(&lane).split_off(3);
    last.sort();
    assert_eq!(last, [vec![7, 8, 9, 10], vec![11]]);
    assert_eq!(lane.executor.most.load(Ordering::SeqCst), 2);
    settle().await;
    assert_idle(&lane);
}

#[tokio::test(start_paused = true)]
async fn who_leaves_the_queue_is_not_sent() {
    let lane = lane(0, limits(8));
    let asks: Vec<_> = (1..=5).map(|number| ask(&lane, number)).collect();
    settle().await;
    asks[3].abort();
    settle().await;
    lane.executor.let_go.add_permits(10);
    settle().await;
    assert_eq!(sent(&lane)[2..], [[3, 5]]);
    assert!(abandoned(&lane).is_empty());
    assert_idle(&lane);
}

#[tokio::test(start_paused = true)]
async fn a_call_ends_though_its_carrier_is_gone_and_the_queue_goes_on() {
    let lane = lane(0, limits(8));
    let asks: Vec<_> = (1..=4).map(|number| ask(&lane, number)).collect();
    settle().await;
    asks[0].abort();
    asks[1].abort();
    settle().await;
    assert!(abandoned(&lane).is_empty());
    lane.executor.let_go.add_permits(10);
    let mut asks = asks.into_iter().skip(2);
    assert_eq!(asks.next().unwrap().await.unwrap().unwrap(), 6);
    assert_eq!(asks.next().unwrap().await.unwrap().unwrap(), 8);
    assert_eq!(abandoned(&lane), [2, 4]);
    settle().await;
    assert_idle(&lane);
}

#[tokio::test(start_paused = true)]
async fn who_leaves_while_under_way_abandons_its_answer_only() {
    let lane = lane(0, limits(8));
    let asks: Vec<_> = (1..=5).map(|number| ask(&lane, number)).collect();
    settle().await;
    lane.executor.let_go.add_permits(2);
    settle().await;
    assert_eq!(sent(&lane)[2..], [[3, 4, 5]]);
    asks[3].abort();
    settle().await;
    lane.executor.let_go.add_permits(10);
    settle().await;
    assert_eq!(abandoned(&lane), [8]);
    let answers = asks.into_iter().map(|ask| async { ask.await.ok().map(Result::unwrap) });
    let mut seen = Vec::new();
    for answer in answers {
        seen.push(answer.await);
    }
    assert_eq!(seen, [Some(2), Some(4), Some(6), None, Some(10)]);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_came_but_was_not_taken_is_abandoned() {
    let lane = lane(0, limits(8));
    let _carried = [ask(&lane, 1), ask(&lane, 2)];
    settle().await;
    let mut waiting = Box::pin(lane.submit(3, None));
    assert!(std::future::poll_fn(|cx| Poll::Ready(waiting.as_mut().poll(cx))).await.is_pending());
    lane.executor.let_go.add_permits(10);
    settle().await;
    assert_eq!(sent(&lane)[2..], [[3]]);
    drop(waiting);
    assert_eq!(abandoned(&lane), [6]);
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_beyond_the_deadline() {
    let lane = lane(0, limits(8));
    let started = Instant::now();
    let asks: Vec<_> = (1..=3).map(|number| ask(&lane, number)).collect();
    for ask in asks {
        let error = ask.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), BackendErrorKind::Timeout);
    }
    let took = started.elapsed();
    assert!(took >= DEADLINE * 15 / 16 && took <= DEADLINE + Duration::from_millis(2), "{took:?}");
    lane.executor.let_go.add_permits(10);
    settle().await;
    assert_eq!(sent(&lane), [[1], [2]], "what timed out in the queue is never sent");
    assert_eq!(abandoned(&lane), [2, 4]);
    assert_eq!(lane.submit(9, None).await.unwrap(), 18);
    assert_idle(&lane);
}

#[tokio::test(start_paused = true)]
async fn the_queue_is_bounded_and_those_who_left_do_not_count() {
    let lane = lane(0, LaneLimits { max_queued: 3, ..limits(8) });
    let asks: Vec<_> = (1..=5).map(|number| ask(&lane, number)).collect();
    settle().await;
    let error = lane.submit(6, None).await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Unavailable);
    asks[4].abort();
    settle().await;
    let seventh = ask(&lane, 7);
    settle().await;
    lane.executor.let_go.add_permits(10);
    assert_eq!(seventh.await.unwrap().unwrap(), 14);
    assert_eq!(sent(&lane)[2..], [[3, 4, 7]]);
}

#[tokio::test(start_paused = true)]
async fn a_panic_does_not_wedge_the_lane() {
    let lane = lane(100, limits(8));
    for _ in 0..5 {
        assert!(ask(&lane, PANICS).await.unwrap_err().is_panic());
    }
    assert_idle(&lane);
    // And in a call for others.
    let (lane, asks) = {
        let lane = self::lane(0, limits(2));
        let asks: Vec<_> = [1, 2, 3, PANICS, 4, 5].map(|number| ask(&lane, number)).into();
        (lane, asks)
    };
    settle().await;
    lane.executor.let_go.add_permits(100);
    let mut answers = Vec::new();
    for ask in asks {
        answers.push(ask.await.unwrap().ok());
    }
    assert_eq!(answers, [Some(2), Some(4), None, None, Some(8), Some(10)]);
    settle().await;
    assert_idle(&lane);
}

#[tokio::test(start_paused = true)]
async fn who_is_not_answered_is_told() {
    let lane = lane(100, limits(8));
    assert_eq!(lane.submit(FALLS_SHORT, None).await.unwrap_err().kind(), BackendErrorKind::Unavailable);
    assert_idle(&lane);
}

#[tokio::test(start_paused = true)]
async fn carriers_that_are_no_longer_polled_hold_up_nobody_for_longer_than_a_deadline() {
    let lane = lane(100, limits(8));
    lane.executor.let_go.forget_permits(100);
    let mut stuck: Vec<_> = (1..=2).map(|number| Box::pin(lane.submit(number, None))).collect();
    for stuck in &mut stuck {
        assert!(std::future::poll_fn(|cx| Poll::Ready(stuck.as_mut().poll(cx))).await.is_pending());
    }
    let first = ask(&lane, 3);
    settle().await;
    tokio::time::advance(DEADLINE / 2).await;
    let second = ask(&lane, 4);
    settle().await;
    lane.executor.let_go.add_permits(100);
    assert_eq!(first.await.unwrap().unwrap_err().kind(), BackendErrorKind::Timeout);
    assert_eq!(second.await.unwrap().unwrap(), 8, "sent once the first had waited for a deadline");
    assert_eq!(lane.submit(5, None).await.unwrap(), 10, "and the lane goes on");
    drop(stuck);
    settle().await;
    assert_eq!(lane.submit(6, None).await.unwrap(), 12);
    assert_idle(&lane);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_ask_is_answered_exactly_once() {
    struct Yields(AtomicUsize);
    impl Executor for Yields {
        type Item = u64;
        type Output = u64;
        async fn execute(&self, asks: Vec<(u64, usize)>, mut guard: SendGuard) -> Vec<Result<u64, BackendError>> {
            self.0.fetch_add(asks.len(), Ordering::SeqCst);
            guard.with(tokio::task::yield_now()).await;
            asks.into_iter().map(|(ask, _)| Ok(ask * 2)).collect()
        }
        fn abandon(&self, answer: u64) {
            panic!("{answer} was abandoned");
        }
    }
    let limits = LaneLimits::new(16);
    let lane = Arc::new(Lane::new(Yields(AtomicUsize::new(0)), limits, patience(), Handle::current()));
    let tasks: Vec<_> = (0..8)
        .map(|task| {
            let lane = Arc::clone(&lane);
            tokio::spawn(async move {
                for number in 0..10_000 {
                    let ask = task * 10_000 + number;
                    assert_eq!(lane.submit(ask, None).await.unwrap(), ask * 2);
                }
            })
        })
        .collect();
    for task in tasks {
        timeout(Duration::from_secs(60), task).await.expect("nobody is left waiting").unwrap();
    }
    assert_eq!(lane.executor.0.load(Ordering::SeqCst), 80_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn whoever_leaves_whenever_each_answer_is_taken_or_abandoned() {
    struct Counts {
        answered: AtomicUsize,
        abandoned: AtomicUsize,
    }
    impl Executor for Counts {
        type Item = ();
        type Output = ();
        async fn execute(&self, asks: Vec<((), usize)>, mut guard: SendGuard) -> Vec<Result<(), BackendError>> {
            guard.with(tokio::task::yield_now()).await;
            self.answered.fetch_add(asks.len(), Ordering::SeqCst);
            asks.into_iter().map(|(ask, _)| Ok(ask)).collect()
        }
        fn abandon(&self, (): ()) {
            self.abandoned.fetch_add(1, Ordering::SeqCst);
        }
    }
    let limits = LaneLimits::new(4);
    let counts = Counts { answered: AtomicUsize::new(0), abandoned: AtomicUsize::new(0) };
    let lane = Arc::new(Lane::new(counts, limits, patience(), Handle::current()));
    let taken = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<_> = (0..8)
        .map(|task| {
            let (lane, taken) = (Arc::clone(&lane), Arc::clone(&taken));
            tokio::spawn(async move {
                for number in 0..5_000 {
                    let mut left = (number * 7 + task) % 5;
                    let mut asking = Box::pin(lane.submit((), None));
                    let answer = std::future::poll_fn(|cx| match asking.as_mut().poll(cx) {
                        Poll::Ready(answer) => Poll::Ready(Some(answer)),
                        Poll::Pending if left == 0 => Poll::Ready(None),
                        Poll::Pending => {
                            left -= 1;
                            cx.waker().wake_by_ref();
                            Poll::Pending
                        }
                    });
                    if let Some(answer) = answer.await {
                        answer.unwrap();
                        taken.fetch_add(1, Ordering::SeqCst);
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        timeout(Duration::from_secs(60), task).await.expect("nobody is left waiting").unwrap();
    }
    let count = |count: &AtomicUsize| count.load(Ordering::SeqCst);
    let [answered, abandoned] = [&lane.executor.answered, &lane.executor.abandoned];
    // A call of somebody who left has ended a moment before its answer is
    // abandoned.
    let mut looks = tokio::time::interval(Duration::from_millis(1));
    for _ in 0..10_000 {
        looks.tick().await;
        if lock(&lane.queue).calls == 0 && count(answered) == count(&taken) + count(abandoned) {
            break;
        }
    }
    assert_idle(&lane);
    assert_eq!(count(answered), count(&taken) + count(abandoned));
    assert!(count(&taken) > 0);
}
