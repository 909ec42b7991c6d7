//! A lane: the queue before one connection, which batches what is sent at the
//! same time. It adds no delay: an idle lane sends at once, and a batch is what
//! arrived during the calls before it. So batches are as large as the store is
//! slow, without a setting.
//!
//! Up to two calls run at the same time, as tasks of the backend's runtime. When one ends,
//! the next one sends what was queued meanwhile.
//!
//! Invariant: order is kept within a lane. What is pushed is sent before what
//! is submitted after it, and Redis runs a connection's commands in order. So a
//! caller that refunds and then charges finds its refund: a request is coalesced only with a
//! queued item that nothing has been pushed after. The exception is a
//! second change of a claim while the first is on its way: it is parked.

use std::{
    collections::{HashMap, VecDeque},
    future::{Future, poll_fn},
    pin::pin,
    sync::{Arc, Mutex},
};

use foldhash::fast::RandomState;
use smallvec::SmallVec;
use tokio::{sync::oneshot, time::Instant};

use super::task_runtime::{Deadline, late};
use crate::{error::BackendError, sync::lock};

/// Carries out items, many in one call. Its output may be dropped instead of
/// received: the caller is gone.
pub(crate) trait Executor: Send + Sync + Sized + 'static {
    type Item: Send + 'static;
    type Output: Send + 'static;

    /// Carries out all items in their order, each for as many requests as its
    /// count says. No later item is sent before `call` has sent them.
    fn execute(
        &self,
        items: Vec<(Self::Item, usize)>,
        call: &mut RunningCall<Self>,
    ) -> impl Future<Output = Vec<ExecutorResult<Self>>> + Send;
}

pub(crate) type ExecutorResult<E> = Result<<E as Executor>::Output, BackendError>;

/// One queue before one connection. An idle one is a few words.
pub(crate) struct Lane<E: Executor> {
    pub(crate) executor: E,
    /// For the time in the queue and the call together.
    deadline: Deadline,
    queue: Mutex<LaneQueue<E::Item, E::Output>>,
}

impl<E: Executor> Lane<E> {
    pub(crate) fn new(executor: E, limits: LaneLimits, deadline: Deadline) -> Self {
        Self { executor, deadline, queue: Mutex::new(LaneQueue::new(limits)) }
    }

    /// Submits an item, and waits for its result until the deadline. Nothing is
    /// done before the future is first polled. Once it is dropped, an item in
    /// the queue is not sent, and the result of one that was sent is dropped.
    /// Items of one key may be coalesced.
    pub(crate) fn submit(
        self: &Arc<Self>,
        item: E::Item,
        coalesce_key: Option<u128>,
    ) -> impl Future<Output = ExecutorResult<E>> + Send + use<E> {
        let lane = Arc::clone(self);
        async move {
            let end = lane.deadline.end();
            received(lane.enqueue(|queue| queue.submit(item, coalesce_key, end))?, end).await
        }
    }

    /// Joins an item of this key that is in the queue, without building one.
    /// The request is queued at once, before the future is polled.
    pub(crate) fn coalesce(
        self: &Arc<Self>,
        key: u128,
    ) -> Option<impl Future<Output = ExecutorResult<E>> + Send + use<E>> {
        let end = self.deadline.end();
        Some(received(self.enqueue(|queue| queue.coalesce(key, end))?, end))
    }

    /// Sends an item that no caller waits for, before all that is submitted
    /// after it.
    pub(crate) fn push(self: &Arc<Self>, item: E::Item) {
        self.push_all(vec![item]);
    }

    /// Sends several items as [`Self::push`] does, in one call if none is running.
    pub(crate) fn push_all(self: &Arc<Self>, items: Vec<E::Item>) {
        self.enqueue(|queue| items.into_iter().for_each(|item| queue.push(item)));
    }

    /// The first deadline of these callers, who are of a running call, and of those in the
    /// queue. None comes before the other: a caller may have come after those in the queue,
    /// and have joined an item before them. One timer for all costs less than one for each. A
    /// request that comes while none waits ends later than this.
    fn next_end(&self, callers: &[Option<Caller<E::Output>>]) -> Instant {
        let own = callers.iter().flatten().map(|caller| caller.end);
        own.chain(lock(&self.queue).first_end()).min().unwrap_or_else(|| self.deadline.end())
    }

    /// Drops callers whose deadline has passed.
    fn drop_late(&self, callers: &mut [Option<Caller<E::Output>>]) {
        let now = Instant::now();
        callers.iter_mut().for_each(|caller| drop(caller.take_if(|caller| caller.end <= now)));
        let mut queue = lock(&self.queue);
        if queue.first_end().is_some_and(|end| end <= now) {
            queue.remove_abandoned(now);
        }
    }

    /// Changes the queue, and starts a call if one is to start.
    fn enqueue<T>(self: &Arc<Self>, change: impl FnOnce(&mut LaneQueue<E::Item, E::Output>) -> T) -> T {
        let (changed, starts) = {
            let mut queue = lock(&self.queue);
            (change(&mut queue), queue.starts_call())
        };
        if starts {
            self.deadline.runtime.spawn(execute_batch(RunningCall {
                lane: Arc::clone(self),
                has_started: false,
                is_sending: true,
            }));
        }
        changed
    }
}

/// A call of one batch. However it ends, by a result or a panic, the next one starts.
pub(crate) struct RunningCall<E: Executor> {
    lane: Arc<Lane<E>>,
    /// False if its runtime has ended before: then none would run.
    has_started: bool,
    /// Whether it delays all later batches of the lane: its own may not have been sent.
    is_sending: bool,
}

impl<E: Executor> RunningCall<E> {
    /// Runs a future that sends the batch when it is first polled.
    pub(crate) async fn send<F: Future>(&mut self, future: F) -> F::Output {
        let mut future = pin!(future);
        poll_fn(|cx| {
            let polled = future.as_mut().poll(cx);
            self.sent();
            polled
        })
        .await
    }

    fn sent(&mut self) {
        if std::mem::take(&mut self.is_sending) {
            self.lane.enqueue(|queue| queue.is_sending = false);
        }
    }
}

impl<E: Executor> Drop for RunningCall<E> {
    fn drop(&mut self) {
        if self.has_started {
            self.sent();
            return self.lane.enqueue(|queue| queue.calls -= 1);
        }
        let mut queue = lock(&self.lane.queue);
        queue.is_sending = false;
        queue.calls -= 1;
    }
}

/// Executes the queue's first batch.
async fn execute_batch<E: Executor>(mut call: RunningCall<E>) {
    call.has_started = true;
    let lane = Arc::clone(&call.lane);
    let batch = lock(&lane.queue).next_batch();
    if batch.is_empty() {
        return;
    }
    // One for each result; a pushed item has none.
    let mut callers: Vec<Option<Caller<E::Output>>> = Vec::with_capacity(batch.len());
    let item = |queued: QueuedItem<E::Item, E::Output>| {
        let first = callers.len();
        callers.extend(queued.callers.into_iter().map(Some));
        callers.resize_with(callers.len().max(first + 1), || None);
        (queued.item, callers.len() - first)
    };
    let items = batch.into_iter().map(item).collect();
    let mut executed = pin!(lane.executor.execute(items, &mut call));
    let mut results = loop {
        match lane.deadline.until(lane.next_end(&callers), &mut executed).await {
            Some(results) => break results.into_iter(),
            None => lane.drop_late(&mut callers),
        }
    };
    for caller in callers {
        let result = results.next().unwrap_or_else(|| Err(no_result()));
        // If the caller is gone, the result is dropped.
        drop(caller.map(|caller| caller.result.send(result)));
    }
}

/// Waits for the result of a request. No timer of its own: see [`Lane::next_end`].
async fn received<T>(result: ResultReceiver<T>, end: Instant) -> Result<T, BackendError> {
    result.await.unwrap_or_else(|_| Err(if Instant::now() < end { no_result() } else { late() }))
}

fn no_result() -> BackendError {
    BackendError::unavailable("the call ended without an answer")
}

/// The most requests that are coalesced into one item.
const MAX_COALESCED: usize = 4096;

/// The capacity that an empty queue keeps allocated.
const IDLE_CAPACITY: usize = 1024;

/// The bounds of a lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaneLimits {
    /// The most calls at the same time; at least 1.
    max_calls: usize,
    /// The most items in one call; at least 1.
    max_batch: usize,
    /// The most requests in the queue.
    max_queued: usize,
}

impl LaneLimits {
    /// Two calls at the same time: the server has the next one when it has
    /// finished one.
    pub(crate) fn new(max_batch: usize) -> Self {
        Self { max_calls: 2, max_batch, max_queued: max_batch.saturating_mul(64) }
    }
}

struct LaneQueue<I, O> {
    limits: LaneLimits,
    calls: usize,
    /// Whether a call has not sent its batch yet. No later item may overtake it.
    is_sending: bool,
    items: VecDeque<QueuedItem<I, O>>,
    /// The sequence number of the first item.
    first: u64,
    /// The requests in the queue.
    requests: usize,
    /// The sequence numbers of items that requests can be coalesced with.
    coalescable: HashMap<u128, u64, RandomState>,
}

/// The result of a request, which is closed at its deadline if there is none.
type ResultReceiver<O> = oneshot::Receiver<Result<O, BackendError>>;

/// Whom a result is for, and until when.
struct Caller<O> {
    result: oneshot::Sender<Result<O, BackendError>>,
    end: Instant,
}

struct QueuedItem<I, O> {
    item: I,
    coalesce_key: Option<u128>,
    /// The requests that it is for; none if it was pushed.
    callers: SmallVec<[Caller<O>; 1]>,
    is_pushed: bool,
}

impl<I, O> QueuedItem<I, O> {
    /// Drops the callers that are gone, or whose deadline has passed. Whether none is left.
    fn is_abandoned(&mut self, now: Instant) -> bool {
        self.callers.retain(|caller| !caller.result.is_closed() && now < caller.end);
        self.callers.is_empty() && !self.is_pushed
    }
}

impl<I, O> LaneQueue<I, O> {
    fn new(limits: LaneLimits) -> Self {
        Self {
            limits,
            calls: 0,
            is_sending: false,
            items: VecDeque::new(),
            first: 0,
            requests: 0,
            coalescable: HashMap::default(),
        }
    }

    /// Queues a request, or adds it to a queued item of its key.
    fn submit(&mut self, item: I, coalesce_key: Option<u128>, end: Instant) -> Result<ResultReceiver<O>, BackendError> {
        if let Some(result) = coalesce_key.and_then(|key| self.coalesce(key, end)) {
            return Ok(result);
        }
        if self.is_full() {
            return Err(BackendError::unavailable("too many requests are queued for the store"));
        }
        let (result, receiver) = oneshot::channel();
        let callers = SmallVec::from_buf([Caller { result, end }]);
        self.enqueue(QueuedItem { item, coalesce_key, callers, is_pushed: false });
        Ok(receiver)
    }

    /// Adds a request to a queued item of this key.
    fn coalesce(&mut self, key: u128, end: Instant) -> Option<ResultReceiver<O>> {
        let number = *self.coalescable.get(&key)?;
        if self.is_full() {
            return None;
        }
        let at = usize::try_from(number.checked_sub(self.first)?).ok()?;
        let queued = self.items.get_mut(at).filter(|queued| queued.callers.len() < MAX_COALESCED)?;
        let (result, receiver) = oneshot::channel();
        queued.callers.push(Caller { result, end });
        self.requests += 1;
        Some(receiver)
    }

    /// Queues an item that no caller waits for. Later requests are not
    /// coalesced with earlier ones: they would be decided before it. It is
    /// never rejected: a lost release would hold its units until the lease
    /// ends.
    fn push(&mut self, item: I) {
        self.enqueue(QueuedItem { item, coalesce_key: None, callers: SmallVec::new(), is_pushed: true });
    }

    /// Whether another call is to start: there is something to send, and nothing to wait
    /// for. It counts from now on, and takes its batch when it runs.
    fn starts_call(&mut self) -> bool {
        let starts = self.calls < self.limits.max_calls && !self.is_sending && !self.items.is_empty();
        if starts {
            self.calls += 1;
            self.is_sending = true;
        }
        starts
    }

    /// The first items of the queue, without those whose callers are gone.
    fn next_batch(&mut self) -> Vec<QueuedItem<I, O>> {
        let (now, mut batch) = (Instant::now(), Vec::with_capacity(self.items.len().min(self.limits.max_batch)));
        while batch.len() < self.limits.max_batch
            && let Some(mut queued) = self.pop()
        {
            if !queued.is_abandoned(now) {
                batch.push(queued);
            }
        }
        if self.items.is_empty() && self.items.capacity() > IDLE_CAPACITY {
            self.items = VecDeque::new();
        }
        batch
    }

    /// Whether no more requests fit, once the abandoned ones are removed.
    fn is_full(&mut self) -> bool {
        if self.requests >= self.limits.max_queued {
            self.remove_abandoned(Instant::now());
        }
        self.requests >= self.limits.max_queued
    }

    /// Removes requests whose callers are gone, or whose deadline has passed.
    fn remove_abandoned(&mut self, now: Instant) {
        let mut items = std::mem::take(&mut self.items);
        self.coalescable.clear();
        self.requests = 0;
        items.retain_mut(|queued| !queued.is_abandoned(now));
        items.into_iter().for_each(|queued| self.enqueue(queued));
    }

    /// The first deadline of the requests in the queue: those of an item, and items, are in
    /// the order in which they came.
    fn first_end(&self) -> Option<Instant> {
        self.items.iter().find_map(|queued| Some(queued.callers.first()?.end))
    }

    fn enqueue(&mut self, queued: QueuedItem<I, O>) {
        self.requests += queued.callers.len().max(1);
        if queued.is_pushed {
            self.coalescable.clear();
        }
        if let Some(key) = queued.coalesce_key {
            self.coalescable.insert(key, self.first + self.items.len() as u64);
        }
        self.items.push_back(queued);
    }

    fn pop(&mut self) -> Option<QueuedItem<I, O>> {
        let queued = self.items.pop_front()?;
        if let Some(key) = queued.coalesce_key
            && self.coalescable.get(&key) == Some(&self.first)
        {
            self.coalescable.remove(&key);
        }
        self.first += 1;
        self.requests = self.requests.saturating_sub(queued.callers.len().max(1));
        Some(queued)
    }
}

#[cfg(test)]
mod tests;
