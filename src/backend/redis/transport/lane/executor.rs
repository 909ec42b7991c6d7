//! What carries out the items of a lane. The lane decides when they are sent;
//! the executor decides how.
//!
//! Invariant: an executor returns one result for each request, and within a
//! bounded time, since the lane sends more only then.

use std::{
    future::{Future, poll_fn},
    pin::pin,
};

use crate::error::BackendError;

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
    pub(super) fn new(on_sent: impl FnOnce() + Send + 'static) -> Self {
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
