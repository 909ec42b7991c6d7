//! The runtime that runs what outlives its caller: background tasks, batches, and
//! calls whose caller is gone. When it has ended, the runtime of the next caller
//! takes its place, and the background tasks start again there.
//!
//! Invariant: a background task never outlives its home.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::{runtime::Handle, task::JoinSet};

use crate::{backend::redis::sync::lock, error::BackendError};

pub(crate) struct Home {
    has_ended: Arc<AtomicBool>,
    state: Mutex<State>,
}

struct State {
    runtime: Handle,
    tasks: Vec<Box<dyn Fn() -> Task + Send>>,
    running: JoinSet<()>,
}

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Home {
    /// On the present runtime.
    pub(crate) fn new() -> Arc<Self> {
        let (has_ended, runtime) = (Arc::default(), Handle::current());
        let running = with_sentinel(&has_ended, &runtime);
        let state = Mutex::new(State { runtime, tasks: Vec::new(), running });
        Arc::new(Self { has_ended, state })
    }

    /// Whether its runtime has ended, and no other has taken its place.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    pub(crate) fn runtime(&self) -> Handle {
        lock(&self.state).runtime.clone()
    }

    /// Runs a background task for as long as this exists. The task must not own it.
    pub(crate) fn keep<T>(&self, task: impl Fn() -> T + Send + 'static)
    where
        T: Future<Output = ()> + Send + 'static,
    {
        let State { runtime, tasks, running } = &mut *lock(&self.state);
        running.spawn_on(task(), runtime);
        tasks.push(Box::new(move || Box::pin(task())));
    }

    /// Moves to the caller's runtime if its own has ended. Whether it has moved.
    pub(crate) fn move_if_ended(&self) -> Result<bool, BackendError> {
        if !self.has_ended() {
            return Ok(false);
        }
        let Ok(current) = Handle::try_current() else {
            let reason =
                "the tokio runtime of this backend has ended; call it on another one, which it will use instead";
            return Err(BackendError::unavailable(reason));
        };
        let state = &mut *lock(&self.state);
        if !self.has_ended.swap(false, Ordering::AcqRel) {
            return Ok(false);
        }
        state.running = with_sentinel(&self.has_ended, &current);
        state.runtime = current;
        let tasks = state.tasks.iter().map(|task| task());
        tasks.for_each(|task| _ = state.running.spawn_on(task, &state.runtime));
        Ok(true)
    }
}

/// The sentinel comes before all other tasks, and before connections: most
/// runtimes drop the oldest task first, so it reports before those fail.
fn with_sentinel(has_ended: &Arc<AtomicBool>, runtime: &Handle) -> JoinSet<()> {
    let mut running = JoinSet::new();
    running.spawn_on(sentinel(has_ended), runtime);
    running
}

/// Ends only with its runtime, which it reports.
fn sentinel(has_ended: &Arc<AtomicBool>) -> impl Future<Output = ()> + Send + 'static {
    struct Report(Arc<AtomicBool>);

    impl Drop for Report {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }

    let report = Report(Arc::clone(has_ended));
    async move {
        let _report = report;
        std::future::pending().await
    }
}
