//! The link to the store: runs scripts under the deadline and the circuit
//! breaker, probes while that is open, and notices when the store has lost its
//! data. It does not know what the scripts do.
//!
//! Invariant: a script runs at most once. After a timeout, or a lost connection,
//! nothing is known about whether it ran; only what certainly did not run is sent
//! again. So a connection that was idle is checked before it is used.

mod look;

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex, OnceLock, PoisonError, RwLock, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use redis::{RedisError, Value};
use tokio::{
    runtime::Handle,
    sync::Notify,
    time::{Instant, sleep_until},
};

use super::{
    breaker::{Breaker, BreakerEffect, CallPermit},
    connect::{Connections, open},
    deadline::SharedDeadline,
    epoch::{Epoch, LookTimes},
    failure::Failure,
    home::Home,
    home_runtime::HomeRuntime,
    lane_health::LaneHealth,
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
    connections: RwLock<Option<Arc<Opened>>>,
    epoch: Mutex<Epoch>,
    latest_time: AtomicU64,
    memory_lost: AtomicU64,
    memory_lost_listener: OnceLock<Box<dyn Fn() + Send + Sync>>,
    looks: LookTimes,
    /// Whether a call was made since the last look at the epoch.
    is_used: AtomicBool,
    used: Arc<Notify>,
    /// The deadline for a decision: its calls, and the callers that wait.
    pub(crate) deadline: Arc<SharedDeadline>,
    /// Counts the successful calls of a cluster.
    successes: AtomicU64,
    lane_health: LaneHealth,
    lane_failed: Arc<Notify>,
    pub(crate) report: Arc<StoreReport>,
    /// Runs the tasks that belong to this link.
    pub(crate) home: Arc<Home>,
    /// The start of the time by which log events are limited.
    origin: Instant,
}

/// Connections, and the runtime that drives them.
struct Opened {
    connections: Arc<Connections>,
    runtime: HomeRuntime,
}

impl Link {
    /// Connects. As [`Link::lazy`], it must be called inside a runtime.
    pub(crate) async fn connect(settings: Settings) -> Result<Arc<Self>, BackendError> {
        let link = Self::new(settings, None);
        link.reconnect(None).await.map_err(|failure| link.with_address(&failure.error))?;
        link.spawn_tasks();
        Ok(link)
    }

    /// Connects in the background; until then the breaker is open.
    pub(crate) fn lazy(settings: Settings) -> Arc<Self> {
        let cause = BackendError::unavailable(format!("not connected yet to {}", settings.servers));
        let link = Self::new(settings, Some(cause));
        link.spawn_tasks();
        link
    }

    fn new(settings: Settings, rejection: Option<BackendError>) -> Arc<Self> {
        let report = Arc::<StoreReport>::default();
        let home = Home::new();
        Arc::new(Self {
            breaker: Arc::new(Breaker::new(settings.breaker, Arc::clone(&report), rejection)),
            connections: RwLock::new(None),
            epoch: Mutex::default(),
            latest_time: AtomicU64::new(0),
            memory_lost: AtomicU64::new(0),
            memory_lost_listener: OnceLock::new(),
            looks: LookTimes::new(),
            is_used: AtomicBool::new(false),
            used: Arc::default(),
            deadline: SharedDeadline::new(settings.deadline, Arc::clone(&home)),
            successes: AtomicU64::new(0),
            lane_health: LaneHealth::new(settings.is_cluster()),
            lane_failed: Arc::default(),
            report,
            origin: Instant::now(),
            home,
            settings,
        })
    }

    fn spawn_tasks(self: &Arc<Self>) {
        let (link, breaker) = (Arc::downgrade(self), Arc::clone(&self.breaker));
        self.home.keep(move || probe(link.clone(), Arc::clone(&breaker)));
        let (link, used) = (Arc::downgrade(self), Arc::clone(&self.used));
        self.home.keep(move || watch_epoch(link.clone(), Arc::clone(&used)));
        let (link, failed) = (Arc::downgrade(self), Arc::clone(&self.lane_failed));
        self.home.keep(move || replace_failing_connections(link.clone(), Arc::clone(&failed)));
    }

    /// Moves to the caller's runtime if its own has ended, and with it all
    /// connections. Whether a probe that was due starts on it.
    pub(crate) fn revive(&self) -> Result<bool, BackendError> {
        if !self.home.move_if_ended()? {
            if self.is_probe_due() {
                // Nothing probes on a runtime that is not driven.
                self.home.suspect();
            }
            return Ok(false);
        }
        self.is_used.store(false, Ordering::Relaxed);
        self.breaker.ignore_earlier_calls();
        self.lane_health.forget();
        Ok(self.is_probe_due())
    }

    fn is_probe_due(&self) -> bool {
        self.breaker.rejection().is_some() && self.breaker.delay().is_zero()
    }

    /// Waits for the end of a probe, up to the deadline.
    pub(crate) async fn probed(&self) {
        self.deadline.within(self.breaker.probed()).await;
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
    /// while it was idle, or its runtime has ended. That is no failure, since
    /// nothing was sent over it.
    pub(crate) async fn ready(self: &Arc<Self>, lane: usize) -> Result<(), BackendError> {
        if self.lane_health.touch(lane) {
            return Ok(());
        }
        let start = Instant::now();
        if let Some(_guard) = self.lane_health.idle(lane).await {
            // Boxed, since it is rare and its future is large.
            let check: Pin<Box<dyn Future<Output = _> + Send + '_>> = Box::pin(self.check(lane));
            check.await?;
        }
        // Beyond this the caller may no longer wait, so nothing is sent for it.
        let in_time = start.elapsed() < self.settings.deadline * 15 / 16;
        if in_time { Ok(()) } else { Err(self.late().error) }
    }

    /// Checks the connection of a lane, and opens new ones if it is closed.
    async fn check(self: &Arc<Self>, lane: usize) -> Result<(), BackendError> {
        loop {
            self.revive()?;
            let permit = self.breaker.permit()?;
            let successes = self.successes.load(Ordering::Relaxed);
            let Some(opened) = self.opened() else { return Ok(()) };
            let is_open = !opened.runtime.is_over()
                && match self.deadline.within(opened.connections.ping(lane)).await {
                    Some(Err(error)) => Failure::of(&error).effect != Some(BreakerEffect::Open),
                    Some(Ok(_)) => true,
                    None => {
                        let late = self.late();
                        self.failed(lane, (permit, successes), &opened, &late);
                        return Err(late.error);
                    }
                };
            if is_open {
                return Ok(());
            }
            // At home, since the runtime of this caller may end before the connections
            // do. If home ends, another one takes its place.
            let (link, closed) = (Arc::clone(self), Arc::clone(&opened));
            match self.home.runtime().run(async move { link.reconnect(Some(&closed)).await }).await {
                Some(Ok(())) if self.opened().is_some_and(|opened| !opened.runtime.is_over()) => return Ok(()),
                None | Some(Ok(())) => {}
                Some(Err(failure)) => {
                    self.failed(lane, (permit, successes), &opened, &failure);
                    return Err(failure.error);
                }
            }
        }
    }

    /// [`ready`](Self::ready), and then [`call`](Self::call).
    pub(crate) async fn call_when_ready(self: &Arc<Self>, lane: usize, call: &Call) -> Result<Value, BackendError> {
        self.ready(lane).await?;
        self.call(lane, call).await
    }

    /// Runs a script, at most once, within the deadline. The lane must be ready.
    pub(crate) async fn call(&self, lane: usize, call: &Call) -> Result<Value, BackendError> {
        let permit = self.breaker.permit()?;
        let successes = self.successes.load(Ordering::Relaxed);
        if call.looks() {
            self.is_used.store(false, Ordering::Relaxed);
        } else if !self.is_used.load(Ordering::Relaxed) && !self.is_used.swap(true, Ordering::Relaxed) {
            self.used.notify_one();
        }
        let started = MEASURES.then(Instant::now);
        let Some(opened) = self.opened() else { return Err(BackendError::unavailable("not connected")) };
        let reply = self.deadline.within(opened.connections.evaluate(lane, call)).await;
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
                return Ok(if call.looks() { self.take_look(value) } else { value });
            }
            Some(Err(error)) => self.classify(&error),
            None => self.late(),
        };
        self.failed(lane, (permit, successes), &opened, &failure);
        Err(failure.error)
    }

    /// A call over these connections failed. `successes` is the count before it.
    fn failed(&self, lane: usize, (permit, successes): (CallPermit, u64), opened: &Opened, failure: &Failure) {
        let Some(effect) = failure.effect else { return self.breaker.succeeded(permit) };
        if opened.runtime.check_is_over() {
            // The connections ended with it, so the store did not fail.
            return self.lane_health.forget_lane(lane);
        }
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
        self.opened().map(|opened| Arc::clone(&opened.connections))
    }

    fn opened(&self) -> Option<Arc<Opened>> {
        self.connections.read().unwrap_or_else(PoisonError::into_inner).clone()
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
    /// epoch. Runs at home. Does nothing if other connections have taken the place
    /// of those that are `closed`.
    async fn reconnect(&self, closed: Option<&Arc<Opened>>) -> Result<(), Failure> {
        let runtime = self.home.runtime();
        if Handle::current().id() != runtime.handle.id() {
            // It has moved since, and what is opened here would not last.
            return Ok(());
        }
        let _reopening = runtime.reopening().lock().await;
        let is_present = |closed| self.opened().is_some_and(|present| Arc::ptr_eq(&present, closed));
        if closed.is_some_and(|closed| !is_present(closed)) {
            return Ok(());
        }
        let connections = Arc::new(open(&self.settings).await?);
        let epoch = self.read_epoch(&connections).await?;
        {
            let mut present = self.connections.write().unwrap_or_else(PoisonError::into_inner);
            if !runtime.is_over() {
                *present = Some(Arc::new(Opened { connections, runtime: runtime.clone() }));
            }
        }
        self.update_epoch(epoch);
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

/// Looks at the epoch once a second while the store is used, unless calls look that are
/// sent in any case.
async fn watch_epoch(link: Weak<Link>, used: Arc<Notify>) {
    loop {
        used.notified().await;
        let mut due = link.upgrade().map(|link| link.looks.next());
        while let Some(at) = due.filter(|at| *at > Instant::now()) {
            sleep_until(at).await;
            due = link.upgrade().map(|link| link.looks.next());
        }
        let Some(link) = link.upgrade() else { return };
        if link.is_used.swap(false, Ordering::Relaxed)
            && link.rejection().is_none()
            && let Some(opened) = link.opened()
        {
            link.looks.looked(false);
            if let Ok(epoch) = link.read_epoch(&opened.connections).await {
                link.update_epoch(epoch);
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
            let _ = link.reconnect(link.opened().as_ref()).await;
        }
        drop(link);
        sleep_until(Instant::now() + REPLACE_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests;
