//! The way to the store: calls, the breaker over them, and what happens when
//! the store is another one than before.

use std::{
    collections::BTreeMap,
    fmt,
    future::Future,
    hash::{BuildHasher, Hasher, RandomState},
    sync::{
        Arc, Mutex, PoisonError, RwLock, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use redis::{RedisError, RedisResult, ServerErrorKind, Value};
use tokio::{
    runtime::Handle,
    sync::Notify,
    task::AbortHandle,
    time::{Instant, sleep_until, timeout},
};

use super::{
    connect::{Connections, open},
    epoch::{self, Epoch},
    failure::Failure,
    script::{self, Call},
    settings::Settings,
    suspects::Suspects,
    ticker::Ticker,
};
use crate::{
    backend::breaker::Breaker,
    error::BackendError,
    observe::{StoreReport, TIMES_CALLS},
    time::Timestamp,
};

/// How often the store is asked whether it is the same, at most.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The way to the store. Dropped, it ends what it does in the background.
pub(super) struct Link {
    settings: Settings,
    breaker: Arc<Breaker>,
    connections: RwLock<Option<Arc<Connections>>>,
    epoch: Mutex<Epoch>,
    memory_lost: AtomicU64,
    listeners: Mutex<Vec<Arc<dyn Fn() + Send + Sync>>>,
    /// Whether anything was called since the last look.
    used: AtomicBool,
    in_use: Arc<Notify>,
    deadline: Arc<Ticker>,
    /// Counts the answers of a cluster.
    answered: AtomicU64,
    suspects: Suspects,
    suspicious: Arc<Notify>,
    report: Arc<StoreReport>,
    runtime: Handle,
    origin: Instant,
    tasks: Mutex<Vec<AbortHandle>>,
}

impl Link {
    /// Connects. Must be called inside a runtime, as [`Link::lazy`] must.
    pub(super) async fn connect(settings: Settings) -> Result<Arc<Self>, BackendError> {
        let report = Arc::<StoreReport>::default();
        let breaker = Breaker::closed(settings.breaker, Arc::clone(&report));
        let link = Self::new(settings, breaker, report);
        link.revive().await.map_err(|failure| link.named(&failure.error))?;
        link.begin();
        Ok(link)
    }

    /// Connects in the background, and rejects meanwhile.
    pub(super) fn lazy(settings: Settings) -> Arc<Self> {
        let report = Arc::<StoreReport>::default();
        let cause = BackendError::unavailable(format!("not connected yet to {}", settings.place));
        let breaker = Breaker::open(settings.breaker, Arc::clone(&report), cause);
        let link = Self::new(settings, breaker, report);
        link.begin();
        link
    }

    fn new(settings: Settings, breaker: Breaker, report: Arc<StoreReport>) -> Arc<Self> {
        let suspects = Suspects::new(settings.is_cluster());
        let deadline = Ticker::new(settings.deadline, Handle::current());
        Arc::new(Self {
            settings,
            deadline,
            breaker: Arc::new(breaker),
            connections: RwLock::new(None),
            epoch: Mutex::default(),
            memory_lost: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            listeners: Mutex::default(),
            used: AtomicBool::new(false),
            in_use: Arc::default(),
            suspects,
            suspicious: Arc::default(),
            report,
            runtime: Handle::current(),
            origin: Instant::now(),
            tasks: Mutex::default(),
        })
    }

    fn begin(self: &Arc<Self>) {
        let attends = self.runtime.spawn(attend(Arc::downgrade(self), Arc::clone(&self.breaker)));
        let watches = self.runtime.spawn(watch(Arc::downgrade(self), Arc::clone(&self.in_use)));
        let renews = self.runtime.spawn(renew(Arc::downgrade(self), Arc::clone(&self.suspicious)));
        let tasks = [&attends, &watches, &renews].map(tokio::task::JoinHandle::abort_handle);
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).extend(tasks);
    }

    /// How long a decision may take: its calls, and those who wait for them.
    pub(super) fn deadline(&self) -> &Arc<Ticker> {
        &self.deadline
    }

    /// Where tasks of this link belong.
    pub(super) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Why nothing is asked at present; `None` where it is.
    #[inline]
    pub(super) fn rejects(&self) -> Option<BackendError> {
        self.breaker.rejects()
    }

    /// How often the store was found to have lost what it had counted.
    pub(super) fn memory_lost(&self) -> u64 {
        self.memory_lost.load(Ordering::Relaxed)
    }

    /// Calls `listener` whenever the store has lost its memory. It must not
    /// block.
    pub(super) fn on_memory_lost(&self, listener: impl Fn() + Send + Sync + 'static) {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::new(listener));
    }

    /// Runs a script, at most once, within the deadline. Where it times out,
    /// nobody knows whether it ran.
    pub(super) async fn call(&self, lane: usize, call: &Call) -> Result<Value, BackendError> {
        let pass = self.breaker.pass()?;
        let answered = self.answered.load(Ordering::Relaxed);
        if !self.used.load(Ordering::Relaxed) && !self.used.swap(true, Ordering::Relaxed) {
            self.in_use.notify_one();
        }
        let started = TIMES_CALLS.then(Instant::now);
        let answer = match self.connections() {
            Some(connections) => self.deadline.within(evaluate(&connections, lane, call)).await,
            None => return Err(BackendError::unavailable("not connected")),
        };
        if let Some(started) = started {
            self.report.called(started.elapsed());
        }
        let failure = match answer {
            Some(Ok(value)) => {
                self.breaker.succeeded(pass);
                self.suspects.answered(lane);
                if self.settings.is_cluster() {
                    self.answered.fetch_add(1, Ordering::Relaxed);
                }
                return Ok(value);
            }
            Some(Err(error)) => self.judge(&error),
            None => Failure::timeout(format!("no answer within {:?}", self.settings.deadline)),
        };
        if failure.weight.is_some() && self.suspects.failed(lane, self.settings.breaker.failures) {
            self.suspicious.notify_one();
        }
        // As long as others answer, a node that does not is not the cluster.
        let weight = failure.weight.filter(|_| self.answered.load(Ordering::Relaxed) == answered);
        match weight {
            Some(weight) => self.breaker.failed(pass, weight, &self.named(&failure.error)),
            None if failure.weight.is_none() => self.breaker.succeeded(pass),
            None => {}
        }
        Err(failure.error)
    }

    pub(super) fn connections(&self) -> Option<Arc<Connections>> {
        self.connections.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn judge(&self, error: &RedisError) -> Failure {
        match self.settings.is_cluster() {
            true => Failure::of_one_node(error),
            false => Failure::of(error),
        }
    }

    /// The same error, with the address.
    fn named(&self, error: &BackendError) -> BackendError {
        let why = std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
        BackendError::new(error.kind(), format!("redis at {}: {why}", self.settings.place))
    }

    /// Connects anew, loads the scripts, evaluates one, and sees whether this
    /// still is the memory that counted.
    async fn revive(&self) -> Result<(), Failure> {
        let connections = Arc::new(open(&self.settings).await?);
        let epoch = self.epoch_of(&connections).await?;
        *self.connections.write().unwrap_or_else(PoisonError::into_inner) = Some(connections);
        self.observe(epoch);
        Ok(())
    }

    /// What the memory is known by at present.
    async fn epoch_of(&self, connections: &Connections) -> Result<Epoch, Failure> {
        let key = format!("{}:epoch", self.settings.prefix);
        let call = Call::new(&script::EPOCH, [&*key], 1, random_id().as_bytes());
        let answer = self.within(evaluate(connections, 0, &call)).await;
        let text = answer
            .and_then(|answer| redis::from_redis_value::<String>(answer).map_err(|error| self.judge(&error.into())));
        let (id, seen) = match text {
            Ok(text) => epoch::parse(&text).unzip(),
            // The node that has the key is not the cluster.
            Err(failure) if failure.weight.is_some() => {
                self.within(connections.any_evaluates()).await.map_err(|_| failure)?;
                (None, None)
            }
            Err(failure) => return Err(failure),
        };
        // Where there is one server, its memory is known by what is in it: a
        // failover to one that has it all has lost nothing.
        let processes = match self.settings.is_cluster() {
            true => self.within(async { Ok(connections.processes().await) }).await.unwrap_or_default(),
            false => BTreeMap::new(),
        };
        Ok(Epoch { id, seen, processes })
    }

    async fn within<T>(&self, asked: impl Future<Output = RedisResult<T>>) -> Result<T, Failure> {
        let within = self.settings.connect_timeout;
        match timeout(within, asked).await {
            Ok(answer) => answer.map_err(|error| self.judge(&error)),
            Err(_) => Err(Failure::timeout(format!("no answer within {within:?}"))),
        }
    }

    /// Takes what was seen of the store; where it lost its memory, tells all.
    fn observe(&self, now: Epoch) {
        let lost = self.epoch.lock().unwrap_or_else(PoisonError::into_inner).observe(now);
        let Some(what) = lost else { return };
        self.memory_lost.fetch_add(1, Ordering::Relaxed);
        self.report.memory_lost(what, Timestamp::UNIX_EPOCH.saturating_add(self.origin.elapsed()));
        let listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner).clone();
        listeners.iter().for_each(|listener| listener());
    }

    /// Looks whether the store is the same, beside what is called.
    async fn look(&self) {
        self.used.store(false, Ordering::Relaxed);
        let Some(connections) = self.connections().filter(|_| self.rejects().is_none()) else { return };
        if let Ok(epoch) = self.epoch_of(&connections).await {
            self.observe(epoch);
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let open = self.rejects().is_some();
        f.debug_struct("Link").field("settings", &self.settings).field("open", &open).finish_non_exhaustive()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let tasks = self.tasks.get_mut().unwrap_or_else(PoisonError::into_inner);
        tasks.iter().for_each(AbortHandle::abort);
    }
}

/// By its hash, and where the server does not know it, by its text. Only what
/// was not run is ever sent twice: this, and what a cluster points elsewhere.
async fn evaluate(connections: &Connections, lane: usize, call: &Call) -> RedisResult<Value> {
    match connections.send(lane, call.by_hash()).await {
        Err(error) if error.kind() == redis::ErrorKind::Server(ServerErrorKind::NoScript) => {
            connections.send(lane, &call.by_text()).await
        }
        answer => answer,
    }
}

/// Probes the store while the breaker is open.
async fn attend(link: Weak<Link>, breaker: Arc<Breaker>) {
    loop {
        breaker.opened().await;
        sleep_until(Instant::now() + breaker.delay()).await;
        let Some(link) = link.upgrade() else { return };
        breaker.half_open();
        match link.revive().await {
            Ok(()) => breaker.close(),
            Err(failure) => breaker.reopen(&link.named(&failure.error)),
        }
    }
}

/// Looks after the store's memory, once a second while it is used.
async fn watch(link: Weak<Link>, in_use: Arc<Notify>) {
    loop {
        in_use.notified().await;
        let Some(link) = link.upgrade() else { return };
        link.look().await;
        drop(link);
        sleep_until(Instant::now() + LOOK_EVERY).await;
    }
}

/// Connects to a cluster anew where one lane fails for ever while others do
/// not: the driver does not notice that a node which froze was replaced.
async fn renew(link: Weak<Link>, suspicious: Arc<Notify>) {
    loop {
        suspicious.notified().await;
        let Some(link) = link.upgrade() else { return };
        if link.rejects().is_none() {
            // In vain, everything stays as it is; the next failures ask again.
            let _ = link.revive().await;
        }
        drop(link);
        sleep_until(Instant::now() + LOOK_EVERY).await;
    }
}

fn random_id() -> String {
    let random = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", random(), random())
}

#[cfg(test)]
mod tests;
