//! A lane: the queue before one connection, which batches what is sent at the
//! same time. It adds no delay: an idle lane sends at once, and a batch is what
//! arrived during the calls before it. So batches are as large as the store is
//! slow, without a setting.
//!
//! Up to two calls run at the same time. Below that a caller sends its item in
//! its own future, and no task is woken; else the next call that ends sends the
//! whole queue.
//!
//! Invariant: order is kept within a lane. What is pushed is sent before what
//! is submitted after it, and Redis runs a connection's commands in order. So a
//! caller that refunds and then charges finds its refund. The exception is a
//! second change of a claim while the first is on its way: it is deferred.

pub(crate) mod executor;
mod queue;

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
};

pub(crate) use self::queue::LaneLimits;
use self::{
    executor::{Executor, ExecutorResult, SendGuard},
    queue::{Batch, LaneQueue, Placement, QueueEntry, QueuedItem},
};
use super::{
    deadline::{SharedDeadline, timed_out},
    home::Home,
};
use crate::{backend::redis::sync::lock, error::BackendError};

/// One queue before one connection. An idle one is a few words.
pub(crate) struct Lane<E: Executor> {
    executor: E,
    /// For the time in the queue and the call together.
    deadline: Arc<SharedDeadline>,
    home: Arc<Home>,
    queue: Mutex<LaneQueue<E>>,
}

impl<E: Executor> Lane<E> {
    /// Spawns at `home` what outlives its caller.
    pub(crate) fn new(executor: E, limits: LaneLimits, deadline: Arc<SharedDeadline>, home: Arc<Home>) -> Self {
        Self { executor, deadline, home, queue: Mutex::new(LaneQueue::new(limits)) }
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
            match lane.enqueue(|queue| queue.place(item, coalesce_key))? {
                Placement::SendNow { generation, item } => {
                    let call = Box::pin(execute_one(CallGuard { lane: Arc::clone(&lane), generation }, item));
                    let deadline = Arc::clone(&lane.deadline);
                    deadline.decide(CallerDriven { call: Some(call), lane }).await
                }
                Placement::Queued(entry) => lane.wait(entry).await,
            }
        }
    }

    /// Joins an item of this key that is in the queue, without building one.
    /// The request is queued at once, before the future is polled.
    pub(crate) fn coalesce(
        self: &Arc<Self>,
        key: u128,
    ) -> Option<impl Future<Output = ExecutorResult<E>> + Send + use<E>> {
        let entry = self.enqueue(|queue| queue.coalesce(key))?;
        Some(Arc::clone(self).wait(entry))
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

    /// Queues something, and starts a call for it if one may start: none is running
    /// where the runtime of the last one has ended, or was left.
    fn enqueue<T>(self: &Arc<Self>, enqueue: impl FnOnce(&mut LaneQueue<E>) -> T) -> T {
        let (queued, next) = {
            let mut queue = lock(&self.queue);
            queue.follow(self.home.moves());
            (enqueue(&mut queue), queue.start_call())
        };
        self.spawn(next);
        queued
    }

    async fn wait(self: Arc<Self>, entry: QueueEntry<E>) -> ExecutorResult<E> {
        if let Some(result) = self.deadline.within(entry.result).await {
            return result.unwrap_or_else(|_| Err(no_result()));
        }
        let next = lock(&self.queue).recover(entry.ended);
        self.spawn(next);
        Err(timed_out())
    }

    fn spawn(self: &Arc<Self>, next: Option<u64>) {
        if let Some(generation) = next {
            let started = StartedCall { lane: Some(Arc::clone(self)), generation };
            self.home.runtime().handle.spawn(execute_batches(started));
        }
    }
}

/// A call. However it ends, by a result, a panic or the end of its runtime, the
/// next one starts.
struct CallGuard<E: Executor> {
    lane: Arc<Lane<E>>,
    generation: u64,
}

impl<E: Executor> Drop for CallGuard<E> {
    fn drop(&mut self) {
        let next = lock(&self.lane.queue).end_call(self.generation);
        self.lane.spawn(next);
    }
}

/// A call before it takes its batch. A runtime that has ended drops it; then its
/// requests fail at once.
struct StartedCall<E: Executor> {
    /// `None` once it runs.
    lane: Option<Arc<Lane<E>>>,
    generation: u64,
}

impl<E: Executor> StartedCall<E> {
    fn run(mut self) -> Option<(CallGuard<E>, Batch<E>)> {
        let call = CallGuard { lane: self.lane.take()?, generation: self.generation };
        let batch = lock(&call.lane.queue).take_batch(call.generation)?;
        Some((call, batch))
    }
}

impl<E: Executor> Drop for StartedCall<E> {
    fn drop(&mut self) {
        if let Some(lane) = &self.lane {
            let failed = lock(&lane.queue).on_lost(self.generation);
            // Wakes the callers, so the queue is no longer locked.
            drop(failed);
        }
    }
}

async fn execute_one<E: Executor>(call: CallGuard<E>, item: E::Item) -> ExecutorResult<E> {
    let mut results = call.lane.executor.execute(vec![(item, 1)], SendGuard::none()).await;
    results.pop().unwrap_or_else(|| Err(no_result()))
}

/// Executes the batch, and what was queued meanwhile, until the queue is empty.
async fn execute_batches<E: Executor>(started: StartedCall<E>) {
    let Some((call, batch)) = started.run() else { return };
    let lane = &call.lane;
    let mut next = Some(batch);
    while let Some(batch) = next {
        let mut callers = Vec::with_capacity(batch.len());
        let item = |queued: QueuedItem<E>| {
            let count = queued.callers.len().max(1);
            callers.push(queued.callers);
            (queued.item, count)
        };
        let items = batch.into_iter().map(item).collect();
        let (sending, generation) = (Arc::clone(lane), call.generation);
        let guard = SendGuard::new(move || {
            let next = lock(&sending.queue).on_sent(generation);
            sending.spawn(next);
        });
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
        next = lock(&lane.queue).on_ended(call.generation);
    }
}

fn no_result() -> BackendError {
    BackendError::unavailable("the call ended without an answer")
}

/// A call that its caller drives. It ends even if the caller is dropped.
struct CallerDriven<E: Executor> {
    call: Option<Pin<Box<dyn Future<Output = ExecutorResult<E>> + Send>>>,
    lane: Arc<Lane<E>>,
}

impl<E: Executor> Future for CallerDriven<E> {
    type Output = ExecutorResult<E>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<ExecutorResult<E>> {
        // Taken out while it is polled: one that panics is not polled again.
        let Some(mut call) = self.call.take() else { return Poll::Ready(Err(no_result())) };
        let polled = call.as_mut().poll(cx);
        if polled.is_pending() {
            self.call = Some(call);
        }
        polled
    }
}

impl<E: Executor> Drop for CallerDriven<E> {
    fn drop(&mut self) {
        if let Some(call) = self.call.take() {
            self.lane.home.runtime().handle.spawn(async move { drop(call.await) });
        }
    }
}

#[cfg(test)]
mod tests;
