//! What the floors share for tasks and locks. It knows nothing of Redis.
//!
//! Invariant: a background task never outlives its owner.

use std::{
    future::Future,
    pin::Pin,
    sync::{Mutex, MutexGuard, PoisonError},
    task::Poll,
};

use tokio::{runtime::Handle, task::AbortHandle};

/// Locks, whether or not a thread panicked while it held the lock: no holder
/// leaves the data half-written.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Background tasks of one owner. Dropping it ends them.
#[derive(Debug)]
pub(crate) struct Tasks {
    runtime: Handle,
    handles: Mutex<Vec<AbortHandle>>,
}

impl Tasks {
    pub(crate) fn new(runtime: Handle) -> Self {
        Self { runtime, handles: Mutex::default() }
    }

    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let handle = self.runtime.spawn(task).abort_handle();
        let mut handles = lock(&self.handles);
        handles.retain(|handle| !handle.is_finished());
        handles.push(handle);
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        lock(&self.handles).iter().for_each(AbortHandle::abort);
    }
}

/// Runs all futures at once. They are first polled in their order.
pub(crate) async fn join_all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut futures: Vec<Pin<Box<F>>> = futures.map(Box::pin).collect();
    let mut outputs: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    std::future::poll_fn(move |cx| {
        let mut is_pending = false;
        for (future, output) in futures.iter_mut().zip(&mut outputs) {
            if output.is_none() {
                match future.as_mut().poll(cx) {
                    Poll::Ready(done) => *output = Some(done),
                    Poll::Pending => is_pending = true,
                }
            }
        }
        if is_pending { Poll::Pending } else { Poll::Ready(outputs.iter_mut().filter_map(Option::take).collect()) }
    })
    .await
}
