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
//! caller that refunds and then charges finds its refund. The exception is a
//! second change of a claim while the first is on its way: it is parked.

mod queue;

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::{Arc, Mutex},
};

use tokio::time::Instant;

pub(crate) use self::queue::LaneLimits;
use self::queue::{Caller, LaneQueue, QueuedItem, ResultReceiver};
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
            self.lane.enqueue(LaneQueue::on_sent);
        }
    }
}

impl<E: Executor> Drop for RunningCall<E> {
    fn drop(&mut self) {
        if self.has_started {
            self.sent();
            return self.lane.enqueue(LaneQueue::end_call);
        }
        let mut queue = lock(&self.lane.queue);
        queue.on_sent();
        queue.end_call();
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

#[cfg(test)]
mod tests;
