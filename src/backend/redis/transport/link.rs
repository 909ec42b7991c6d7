//! The link to the store: runs scripts under the deadline and the circuit
//! breaker, probes while that is open, and notices when the store has lost its
//! data. It does not know what the scripts do.
//!
//! Invariant: a script runs at most once. After a timeout, or a lost connection,
//! nothing is known about whether it ran; only what certainly did not run is sent
//! again. So a connection that was idle is checked before it is used.

mod dataset_check;

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwapOption;
use redis::{RedisError, Value};
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use super::{
    breaker::{Breaker, BreakerEffect, CallPermit},
    connect::{Connections, open},
    dataset::{DatasetId, LastCheck},
    failure::Failure,
    lane_health::LaneHealth,
    task_runtime::{Deadline, TaskRuntime},
};
use crate::{
    backend::redis::{settings::Settings, wire::Call},
    error::{BackendError, BackendErrorKind},
    observe::{MEASURES, StoreReport},
    time::Timestamp,
};

/// The shortest time between two attempts to replace connections that fail.
const REPLACE_INTERVAL: Duration = Duration::from_secs(1);

/// Connections to the store. Dropping it ends its background tasks.
pub(crate) struct Link {
    pub(crate) settings: Settings,
    breaker: Arc<Breaker>,
    connections: ArcSwapOption<Connections>,
    /// Locked while connections are opened in place of others.
    reopening: tokio::sync::Mutex<()>,
    dataset: Mutex<DatasetId>,
    latest_time: AtomicU64,
    memory_lost: AtomicU64,
    memory_lost_listener: OnceLock<Box<dyn Fn() + Send + Sync>>,
    last_check: LastCheck,
    /// Whether a call was made since the last check of the dataset.
    is_used: AtomicBool,
    used: Arc<Notify>,
    /// The deadline for a decision: its calls, and the callers that wait.
    pub(crate) deadline: Deadline,
    /// Counts the successful calls of a cluster.
    successes: AtomicU64,
    lane_health: LaneHealth,
    lane_failed: Arc<Notify>,
    pub(crate) report: Arc<StoreReport>,
    pub(crate) runtime: Arc<TaskRuntime>,
    /// The start of the time by which log events are limited.
    origin: Instant,
}

impl Link {
    pub(crate) async fn connect(settings: Settings) -> Result<Arc<Self>, BackendError> {
        let link = Self::new(settings, None)?;
        let own = Arc::clone(&link);
        let connected = link.runtime.spawn(async move { own.reconnect(None).await });
        let connected = connected.await.map_err(|ended| BackendError::unavailable(ended.to_string()))?;
        connected.map_err(|failure| link.with_address(&failure.error))?;
        link.keep_tasks();
        Ok(link)
    }

    /// Connects in the background; until then the breaker is open.
    pub(crate) fn lazy(settings: Settings) -> Result<Arc<Self>, BackendError> {
        let cause = BackendError::unavailable(format!("not connected yet to {}", settings.servers));
        let link = Self::new(settings, Some(cause))?;
        link.keep_tasks();
        Ok(link)
    }

    fn new(settings: Settings, rejection: Option<BackendError>) -> Result<Arc<Self>, BackendError> {
        let report = Arc::<StoreReport>::default();
        let runtime = match settings.uses_current_runtime {
            true => TaskRuntime::current(),
            false => TaskRuntime::start()
                .map_err(|error| BackendError::unavailable(format!("no thread for its tasks: {error}")))?,
        };
        let runtime = Arc::new(runtime);
        Ok(Arc::new(Self {
            breaker: Arc::new(Breaker::new(settings.breaker, Arc::clone(&report), rejection)),
            connections: ArcSwapOption::empty(),
            reopening: tokio::sync::Mutex::default(),
            dataset: Mutex::default(),
            latest_time: AtomicU64::new(0),
            memory_lost: AtomicU64::new(0),
            memory_lost_listener: OnceLock::new(),
            last_check: LastCheck::new(),
            is_used: AtomicBool::new(false),
            used: Arc::default(),
            deadline: Deadline::new(settings.deadline, &runtime),
            successes: AtomicU64::new(0),
            lane_health: LaneHealth::new(settings.is_cluster()),
            lane_failed: Arc::default(),
            report,
            origin: Instant::now(),
            runtime,
            settings,
        }))
    }

    fn keep_tasks(self: &Arc<Self>) {
        self.runtime.keep(probe(Arc::downgrade(self), Arc::clone(&self.breaker)));
        self.runtime.keep(watch_dataset(Arc::downgrade(self), Arc::clone(&self.used)));
        self.runtime.keep(replace_failing_connections(Arc::downgrade(self), Arc::clone(&self.lane_failed)));
    }

    /// Why calls are rejected; `None` while the breaker is closed.
    #[inline]
    pub(crate) fn rejection(&self) -> Option<BackendError> {
        self.breaker.rejection()
    }

    /// How often the store was found to have lost data.
    pub(crate) fn memory_lost(&self) -> u64 {
        self.memory_lost.load(Ordering::Relaxed)
    }

    /// The latest time that the server's clock has had, in microseconds since the
    /// Unix epoch, if it was set back since; else 0.
    pub(crate) fn latest_time(&self) -> u64 {
        self.latest_time.load(Ordering::Relaxed)
    }

    /// Calls the one `listener` whenever the store has lost data. It must not
    /// block.
    pub(crate) fn on_memory_lost(&self, listener: impl Fn() + Send + Sync + 'static) {
        let _ = self.memory_lost_listener.set(Box::new(listener));
    }

    /// Makes sure that the lane's connection is open. The server may have closed it
    /// while it was idle. That is no failure, since nothing was sent over it.
    pub(crate) async fn ready(&self, lane: usize) -> Result<(), BackendError> {
        if self.lane_health.touch(lane) {
            return Ok(());
        }
        let start = Instant::now();
        if let Some(_guard) = self.lane_health.idle(lane).await {
            // Boxed, since it is rare and its future is large.
            let check: Pin<Box<dyn Future<Output = _> + Send + '_>> = Box::pin(self.check(lane));
            check.await?;
        }
        // Beyond this the caller no longer waits, so nothing is sent for it.
        if start.elapsed() < self.settings.deadline { Ok(()) } else { Err(self.late().error) }
    }

    /// Checks the connection of a lane, and opens new ones if it is closed.
    async fn check(&self, lane: usize) -> Result<(), BackendError> {
        let permit = self.breaker.permit()?;
        let successes = self.successes.load(Ordering::Relaxed);
        let Some(connections) = self.connections() else { return Ok(()) };
        let failure = match self.deadline.within(connections.ping(lane)).await {
            Some(Err(error)) if Failure::of(&error).effect == Some(BreakerEffect::Open) => {
                match self.reconnect(Some(&connections)).await {
                    Ok(()) => return Ok(()),
                    Err(failure) => failure,
                }
            }
            Some(_) => return Ok(()),
            None => self.late(),
        };
        self.failed(lane, (permit, successes), &failure);
        Err(failure.error)
    }

    /// [`ready`](Self::ready), and then [`call`](Self::call).
    pub(crate) async fn call_when_ready(&self, lane: usize, call: &Call) -> Result<Value, BackendError> {
        self.ready(lane).await?;
        self.call(lane, call).await
    }

    /// Runs a script, at most once, within the deadline. The lane must be ready.
    pub(crate) async fn call(&self, lane: usize, call: &Call) -> Result<Value, BackendError> {
        let permit = self.breaker.permit()?;
        let successes = self.successes.load(Ordering::Relaxed);
        if call.checks_dataset() {
            self.is_used.store(false, Ordering::Relaxed);
        } else if !self.is_used.load(Ordering::Relaxed) && !self.is_used.swap(true, Ordering::Relaxed) {
            self.used.notify_one();
        }
        let started = MEASURES.then(Instant::now);
        let Some(connections) = self.connections() else { return Err(BackendError::unavailable("not connected")) };
        let reply = self.deadline.within(connections.evaluate(lane, call)).await;
        if let Some(started) = started {
            self.report.called(started.elapsed());
        }
        let failure = match reply {
            Some(Ok(value)) => {
                self.breaker.succeeded(permit);
                self.lane_health.succeeded(lane);
                if self.settings.is_cluster() {
                    self.successes.fetch_add(1, Ordering::Relaxed);
                }
                return Ok(if call.checks_dataset() { self.take_check(value) } else { value });
            }
            Some(Err(error)) => self.classify(&error),
            None => self.late(),
        };
        self.failed(lane, (permit, successes), &failure);
        Err(failure.error)
    }

    /// A call failed. `successes` is the count before it.
    fn failed(&self, lane: usize, (permit, successes): (CallPermit, u64), failure: &Failure) {
        let Some(effect) = failure.effect else { return self.breaker.succeeded(permit) };
        if failure.error.kind() == BackendErrorKind::OutOfMemory {
            self.report.out_of_memory(self.log_time());
        }
        if self.lane_health.failed(lane, self.settings.breaker.failures) {
            self.lane_failed.notify_one();
        }
        // While other nodes reply, a node that does not is not the whole cluster.
        if self.successes.load(Ordering::Relaxed) == successes {
            self.breaker.failed(permit, effect, &self.with_address(&failure.error));
        }
    }

    /// The time by which log events are limited.
    fn log_time(&self) -> Timestamp {
        Timestamp::UNIX_EPOCH.saturating_add(self.origin.elapsed())
    }

    fn late(&self) -> Failure {
        Failure::timeout(format!("no answer within {:?}", self.settings.deadline))
    }

    pub(crate) fn connections(&self) -> Option<Arc<Connections>> {
        self.connections.load_full()
    }

    fn classify(&self, error: &RedisError) -> Failure {
        match self.settings.is_cluster() {
            true => Failure::of_one_node(error),
            false => Failure::of(error),
        }
    }

    fn with_address(&self, error: &BackendError) -> BackendError {
        let why = std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
        BackendError::new(error.kind(), format!("redis at {}: {why}", self.settings.servers))
    }

    /// Opens new connections, loads the scripts, runs one, and checks the
    /// dataset. Does nothing if other connections have taken the place of those that
    /// are `closed`.
    async fn reconnect(&self, closed: Option<&Arc<Connections>>) -> Result<(), Failure> {
        let _reopening = self.reopening.lock().await;
        let is_present = |closed| self.connections().is_some_and(|present| Arc::ptr_eq(&present, closed));
        if closed.is_some_and(|closed| !is_present(closed)) {
            return Ok(());
        }
        let connections = Arc::new(open(&self.settings).await?);
        let dataset = self.read_dataset(&connections).await?;
        self.connections.store(Some(connections));
        self.update_dataset(dataset);
        Ok(())
    }
}

/// Probes the store while the breaker is open. A probe opens a new connection.
async fn probe(link: Weak<Link>, breaker: Arc<Breaker>) {
    loop {
        breaker.opened().await;
        sleep_until(Instant::now() + breaker.delay()).await;
        let Some(link) = link.upgrade() else { return };
        breaker.half_open();
        match link.reconnect(None).await {
            Ok(()) => breaker.close(),
            Err(failure) => breaker.reopen(&link.with_address(&failure.error)),
        }
    }
}

/// Checks the dataset once a second while the store is used, unless calls that are sent in
/// any case do.
async fn watch_dataset(link: Weak<Link>, used: Arc<Notify>) {
    loop {
        used.notified().await;
        let mut due = link.upgrade().map(|link| link.last_check.next());
        while let Some(at) = due.filter(|at| *at > Instant::now()) {
            sleep_until(at).await;
            due = link.upgrade().map(|link| link.last_check.next());
        }
        let Some(link) = link.upgrade() else { return };
        if link.is_used.swap(false, Ordering::Relaxed)
            && link.rejection().is_none()
            && let Some(connections) = link.connections()
        {
            link.last_check.checked(false);
            if let Ok(dataset) = link.read_dataset(&connections).await {
                link.update_dataset(dataset);
            }
        }
    }
}

/// Reconnects to a cluster where one lane fails while others do not: the driver
/// does not notice that a frozen node was replaced.
async fn replace_failing_connections(link: Weak<Link>, lane_failed: Arc<Notify>) {
    loop {
        lane_failed.notified().await;
        let Some(link) = link.upgrade() else { return };
        if link.rejection().is_none() {
            // If it fails, the old connections stay; more failures repeat it.
            let _ = link.reconnect(link.connections().as_ref()).await;
        }
        drop(link);
        sleep_until(Instant::now() + REPLACE_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests;
