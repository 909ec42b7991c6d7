//! The runtime that runs what outlives its caller: connections, background tasks,
//! batches, and calls whose caller is gone. When it has ended, or is not driven,
//! the runtime of the next caller takes its place, and the background tasks start
//! again there.
//!
//! Invariant: a background task never outlives its home, and a panic ends none.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    runtime::Handle,
    task::JoinSet,
    time::{Instant, sleep_until},
};

use super::home_runtime::HomeRuntime;
use crate::{backend::redis::sync::lock, error::BackendError};

/// A background task that has panicked starts again after so long.
const RESTART_DELAY: Duration = Duration::from_secs(1);

pub(crate) struct Home {
    /// Whether the runtime may have to be replaced. Spares requests the lock.
    is_doubtful: Arc<AtomicBool>,
    moves: AtomicU64,
    state: Mutex<State>,
}

struct State {
    runtime: HomeRuntime,
    tasks: Vec<StartTask>,
    running: JoinSet<()>,
}

type StartTask = Arc<dyn Fn() -> Task + Send + Sync>;

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Home {
    /// On the present runtime.
    pub(crate) fn new() -> Arc<Self> {
        let is_doubtful = Arc::default();
        let runtime = HomeRuntime::new(Handle::current(), Arc::clone(&is_doubtful));
        let running = with_sentinel(&runtime);
        let state = Mutex::new(State { runtime, tasks: Vec::new(), running });
        Arc::new(Self { is_doubtful, moves: AtomicU64::new(0), state })
    }

    pub(crate) fn runtime(&self) -> HomeRuntime {
        lock(&self.state).runtime.clone()
    }

    /// How often it has moved.
    pub(crate) fn moves(&self) -> u64 {
        self.moves.load(Ordering::Acquire)
    }

    /// Something took too long, so the runtime has to show that it is driven.
    pub(crate) fn suspect(&self) {
        self.runtime().suspect();
    }

    /// Runs a background task for as long as this exists. The task must not own it.
    pub(crate) fn keep<T>(&self, task: impl Fn() -> T + Send + Sync + 'static)
    where
        T: Future<Output = ()> + Send + 'static,
    {
        let task: StartTask = Arc::new(move || Box::pin(task()));
        let State { runtime, tasks, running } = &mut *lock(&self.state);
        running.spawn_on(keep_running(Arc::clone(&task)), &runtime.handle);
        tasks.push(task);
    }

    /// Moves to the caller's runtime if its own has ended, or is not driven. Whether
    /// it has moved.
    pub(crate) fn move_if_ended(&self) -> Result<bool, BackendError> {
        if !self.is_doubtful.load(Ordering::Acquire) {
            return Ok(false);
        }
        let state = &mut *lock(&self.state);
        self.is_doubtful.swap(false, Ordering::AcqRel);
        let current = Handle::try_current();
        if !state.runtime.is_over() {
            self.is_doubtful.fetch_or(state.runtime.is_suspected(), Ordering::AcqRel);
            // A caller on the same runtime has no better one.
            let is_other = current.as_ref().is_ok_and(|current| current.id() != state.runtime.handle.id());
            if !is_other || !state.runtime.is_stuck() {
                return Ok(false);
            }
        }
        let Ok(current) = current else {
            self.is_doubtful.store(true, Ordering::Release);
            let reason =
                "the tokio runtime of this backend has ended; call it on another one, which it will use instead";
            return Err(BackendError::unavailable(reason));
        };
        state.runtime.leave();
        state.runtime = HomeRuntime::new(current, Arc::clone(&self.is_doubtful));
        state.running = with_sentinel(&state.runtime);
        for task in &state.tasks {
            state.running.spawn_on(keep_running(Arc::clone(task)), &state.runtime.handle);
        }
        self.moves.fetch_add(1, Ordering::AcqRel);
        Ok(true)
    }
}

/// The sentinel comes before all other tasks, and before connections: most
/// runtimes drop the oldest task first, so it reports before those fail.
fn with_sentinel(runtime: &HomeRuntime) -> JoinSet<()> {
    let mut running = JoinSet::new();
    running.spawn_on(runtime.sentinel(), &runtime.handle);
    running
}

/// Runs a task, and again after a panic.
async fn keep_running(task: StartTask) {
    loop {
        // Ends the task with this future.
        let mut running = JoinSet::new();
        running.spawn(task());
        match running.join_next().await {
            Some(Err(error)) if error.is_panic() => sleep_until(Instant::now() + RESTART_DELAY).await,
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests;
