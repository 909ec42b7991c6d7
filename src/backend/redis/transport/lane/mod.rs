//! A lane: the queue before one connection, which batches what is sent at the
//! same time. It adds no delay: an idle lane sends at once, and a batch is what
//! arrived during the calls before it. So batches are as large as the store is
//! slow, without a setting.
//!
//! Up to two calls run at the same time, as tasks of the backend's runtime. A call
//! that ends sends what was queued meanwhile.
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

pub(crate) use self::queue::LaneLimits;
use self::queue::{LaneQueue, QueuedItem, ResultReceiver};
use super::task_runtime::{Deadline, TaskRuntime};
use crate::{backend::redis::sync::lock, error::BackendError};

/// Carries out items, many in one call. Its output may be dropped instead of
/// received: the caller is gone.
pub(crate) trait Executor: Send + Sync + Sized + 'static {
    type Item: Send + 'static;
    type Output: Send + 'static;

    /// Carries out all items in their order, each for as many requests as its
    /// count says. No later item is sent before `guard` is dropped.
    fn execute(
        &self,
        items: Vec<(Self::Item, usize)>,
        guard: SendGuard,
    ) -> impl Future<Output = Vec<ExecutorResult<Self>>> + Send;
}

pub(crate) type ExecutorResult<E> = Result<<E as Executor>::Output, BackendError>;

/// Delays all later batches of the lane until it is dropped.
pub(crate) struct SendGuard(Option<Box<dyn FnOnce() + Send>>);

impl SendGuard {
    fn new(on_sent: impl FnOnce() + Send + 'static) -> Self {
        Self(Some(Box::new(on_sent)))
    }

    /// Runs a future, and releases the lane once it has been polled.
    pub(crate) async fn with<F: Future>(&mut self, future: F) -> F::Output {
        let mut future = pin!(future);
        poll_fn(|cx| {
            let polled = future.as_mut().poll(cx);
            self.release();
            polled
        })
        .await
    }

    pub(crate) fn release(&mut self) {
        if let Some(on_sent) = self.0.take() {
            on_sent();
        }
    }
}

impl Drop for SendGuard {
    fn drop(&mut self) {
        self.release();
    }
}

/// One queue before one connection. An idle one is a few words.
pub(crate) struct Lane<E: Executor> {
    pub(crate) executor: E,
    /// For the time in the queue and the call together.
    deadline: Deadline,
    runtime: Arc<TaskRuntime>,
    queue: Mutex<LaneQueue<E::Item, E::Output>>,
}

impl<E: Executor> Lane<E> {
    pub(crate) fn new(executor: E, limits: LaneLimits, deadline: Deadline, runtime: Arc<TaskRuntime>) -> Self {
        Self { executor, deadline, runtime, queue: Mutex::new(LaneQueue::new(limits)) }
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
            let result = lane.enqueue(|queue| queue.submit(item, coalesce_key))?;
            lane.wait(result).await
        }
    }

    /// Joins an item of this key that is in the queue, without building one.
    /// The request is queued at once, before the future is polled.
    pub(crate) fn coalesce(
        self: &Arc<Self>,
        key: u128,
    ) -> Option<impl Future<Output = ExecutorResult<E>> + Send + use<E>> {
        let result = self.enqueue(|queue| queue.coalesce(key))?;
        let lane = Arc::clone(self);
        Some(async move { lane.wait(result).await })
    }

    /// Sends an item that no caller waits for, before all that is submitted
    /// after it.
    pub(crate) fn push(self: &Arc<Self>, item: E::Item) {
        self.enqueue(|queue| queue.push(item));
    }

    /// Sends several items as [`Self::push`] does, in one call if none is running.
    pub(crate) fn push_all(self: &Arc<Self>, items: Vec<E::Item>) {
        self.enqueue(|queue| items.into_iter().for_each(|item| queue.push(item)));
    }

    async fn wait(&self, result: ResultReceiver<E::Output>) -> ExecutorResult<E> {
        self.deadline.decide(async { result.await.unwrap_or_else(|_| Err(no_result())) }).await
    }

    /// Changes the queue, and starts a call if one is to start.
    fn enqueue<T>(self: &Arc<Self>, change: impl FnOnce(&mut LaneQueue<E::Item, E::Output>) -> T) -> T {
        let (changed, starts) = {
            let mut queue = lock(&self.queue);
            (change(&mut queue), queue.starts_call())
        };
        if starts {
            self.runtime.spawn(execute_batches(RunningCall { lane: Arc::clone(self), has_started: false }));
        }
        changed
    }
}

/// A call. However it ends, by a result or a panic, the next one starts.
struct RunningCall<E: Executor> {
    lane: Arc<Lane<E>>,
    /// False if its runtime has ended before: then none would run.
    has_started: bool,
}

impl<E: Executor> Drop for RunningCall<E> {
    fn drop(&mut self) {
        if self.has_started {
            return self.lane.enqueue(LaneQueue::end_call);
        }
        let mut queue = lock(&self.lane.queue);
        queue.on_sent();
        queue.end_call();
    }
}

/// Executes the queue's first batch, and what was queued meanwhile, until the queue is
/// empty.
async fn execute_batches<E: Executor>(mut call: RunningCall<E>) {
    call.has_started = true;
    let lane = &call.lane;
    loop {
        let sending = Arc::clone(lane);
        let guard = SendGuard::new(move || sending.enqueue(LaneQueue::on_sent));
        let batch = lock(&lane.queue).next_batch();
        execute(lane, batch, guard).await;
        if !lock(&lane.queue).continues_call() {
            return;
        }
    }
}

async fn execute<E: Executor>(lane: &Lane<E>, batch: Vec<QueuedItem<E::Item, E::Output>>, guard: SendGuard) {
    if batch.is_empty() {
        return;
    }
    let mut callers = Vec::with_capacity(batch.len());
    let item = |queued: QueuedItem<E::Item, E::Output>| {
        let count = queued.callers.len().max(1);
        callers.push(queued.callers);
        (queued.item, count)
    };
    let items = batch.into_iter().map(item).collect();
    let mut results = lane.executor.execute(items, guard).await.into_iter();
    for callers in callers {
        if callers.is_empty() {
            // The result of a pushed item.
            drop(results.next());
        }
        for caller in callers {
            // If the caller is gone, the result is dropped.
            let _ = caller.send(results.next().unwrap_or_else(|| Err(no_result())));
        }
    }
}

fn no_result() -> BackendError {
    BackendError::unavailable("the call ended without an answer")
}

#[cfg(test)]
mod tests;
