//! The runtime of a backend: [`TaskRuntime`], a thread that drives its connections,
//! its calls and its background tasks. Callers of other runtimes, or of none, wait for
//! what happens here. It does not know what it runs.
//!
//! Invariant: it is driven for as long as the backend exists, whatever becomes of the
//! runtimes of its callers.

use std::{
    future::Future,
    io,
    pin::pin,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use tokio::{
    runtime::{Builder, Handle},
    sync::oneshot,
    task::{JoinHandle, JoinSet},
    time::{Instant, Timeout, timeout_at},
};

use crate::{error::BackendError, sync::lock};

/// A timer that is later than this shows a machine that stalls.
const LATE: Duration = Duration::from_millis(5);

pub(crate) struct TaskRuntime {
    handle: Handle,
    /// Background tasks. They end with this.
    tasks: Mutex<JoinSet<()>>,
    /// Ends the thread when it is dropped.
    _running: Option<oneshot::Sender<()>>,
}

impl TaskRuntime {
    /// A thread of its own.
    pub(crate) fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (running, ended) = oneshot::channel::<()>();
        let run = move || _ = runtime.block_on(ended);
        thread::Builder::new().name("rate-limit-redis".into()).spawn(run)?;
        Ok(Self { handle, tasks: Mutex::default(), _running: Some(running) })
    }

    /// The caller's runtime, for tests whose clock is paused.
    pub(crate) fn current() -> Self {
        Self { handle: Handle::current(), tasks: Mutex::default(), _running: None }
    }

    pub(crate) fn spawn<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.handle.spawn(task)
    }

    /// Runs a background task for as long as this exists. The task must not own it.
    pub(crate) fn keep(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = lock(&self.tasks);
        while tasks.try_join_next().is_some() {}
        tasks.spawn_on(task, &self.handle);
    }
}

/// How long a decision may take, queueing included.
#[derive(Clone)]
pub(crate) struct Deadline {
    limit: Duration,
    pub(super) runtime: Arc<TaskRuntime>,
}

impl Deadline {
    pub(crate) fn new(limit: Duration, runtime: &Arc<TaskRuntime>) -> Self {
        Self { limit, runtime: Arc::clone(runtime) }
    }

    /// When what starts now has to end.
    pub(crate) fn end(&self) -> Instant {
        Instant::now() + self.limit
    }

    /// `None` if the end comes first. A machine that stalls is late: then what has
    /// arrived meanwhile is read first.
    pub(crate) async fn until<F: Future>(&self, end: Instant, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        if let Ok(output) = self.timeout_at(end, &mut future).await {
            return Some(output);
        }
        let now = Instant::now();
        if now < end + LATE {
            return None;
        }
        self.timeout_at(now + LATE, &mut future).await.ok()
    }

    /// The timer runs on the backend's runtime: the caller may be on none.
    fn timeout_at<F: Future>(&self, end: Instant, future: F) -> Timeout<F> {
        let _entered = self.runtime.handle.enter();
        timeout_at(end, future)
    }

    /// `None` if the deadline passes first.
    pub(crate) async fn within<F: Future>(&self, future: F) -> Option<F::Output> {
        self.until(self.end(), future).await
    }
}

/// What a decision fails with at its deadline.
pub(crate) fn late() -> BackendError {
    BackendError::timeout("no answer within the deadline")
}
