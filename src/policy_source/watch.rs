//! How an application starts a watch, [`Watch`] and [`RateLimiter::watch`], what it holds of
//! it, [`WatchHandle`], and the task, which asks the source, applies its documents, and reports
//! in a [`WatchStatus`].
//!
//! Dropping the handle stops the task. Invariants: the last good policy stays in force through
//! every failure, and a source that always answers at once cannot keep a thread busy. Where a
//! document changes both the policy and this instance's share, the change that admits less
//! comes first: the fleet never admits more than the larger of before and after.

use std::{fmt, sync::Arc, time::Duration};

use tokio::{
    runtime::Handle,
    sync::watch,
    task::{AbortHandle, spawn_blocking},
    time::{Instant, sleep_until},
};

use super::{Document, MAX_DELAY, PolicySource};
use crate::{
    backend::Share,
    backoff::Backoff,
    error::ConfigError,
    limiter::RateLimiter,
    observe::{self, Reload},
    policy::CompiledPolicy,
};

/// A source, and how to watch it.
///
/// ```
/// use tokio::sync::watch;
/// use tower_ratelimit::{
///     Quota, RateLimiter,
///     backend::{Share, Split},
///     policy_source::{FileSource, Watch},
/// };
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_ratelimit::ConfigError> {
/// // Instance 3; the file has the number of instances.
/// let (sender, shares) = watch::channel(Share::none());
/// let limiter = RateLimiter::builder().policy(Quota::per_second(960)).backend(Split::watch(shares)).build()?;
/// let handle = limiter.watch(Watch::new(FileSource::new("/etc/limits/policy.yaml")).share(3, sender))?;
/// # Ok(())
/// # }
/// ```
#[must_use]
pub struct Watch {
    source: Box<dyn PolicySource>,
    share: Option<ShareTarget>,
    retry: Backoff,
}

impl Watch {
    /// Watches `source`.
    pub fn new(source: impl PolicySource) -> Self {
        Self { source: Box::new(source), share: None, retry: backoff(MIN_RETRY, MAX_RETRY) }
    }

    /// Sets the share of a [`Split`](crate::backend::Split): that of instance
    /// `index`, of the number of instances in the document. A document without `instances`
    /// does not change the share.
    ///
    /// An instance whose index is not below the number of instances loses its
    /// share and admits nothing: the fleet has shrunk and it should stop.
    ///
    /// Where limits and the number of instances change at once, this instance
    /// never admits more than the larger of before and after.
    pub fn share(mut self, index: u64, sender: watch::Sender<Share>) -> Self {
        self.share = Some(ShareTarget { index, sender });
        self
    }

    /// The delays between questions to a failing source: `min` at first (100 ms
    /// by default), then doubled after each failure up to `max` (500 ms by
    /// default). Each is shortened at random to between half and all of it.
    /// Clamped to between 1 ms and a day.
    pub fn retry(mut self, min: Duration, max: Duration) -> Self {
        self.retry = backoff(min, max);
        self
    }
}

const MIN_RETRY: Duration = Duration::from_millis(100);
const MAX_RETRY: Duration = Duration::from_millis(500);

/// Before a failed source is asked again. Each delay is at least half a millisecond and at
/// most a day, so no setting spins or overflows a timer.
fn backoff(min: Duration, max: Duration) -> Backoff {
    let min = min.clamp(Duration::from_millis(1), MAX_DELAY);
    Backoff::new(min, max.clamp(min, MAX_DELAY)).jitter(true)
}

impl<S: PolicySource> From<S> for Watch {
    fn from(source: S) -> Self {
        Self::new(source)
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("source", &self.source.name()).finish_non_exhaustive()
    }
}

impl RateLimiter {
    /// Hot reload: keeps the limiter's policy equal to what a source holds,
    /// until the returned handle is dropped. Until the source has answered, the
    /// policy is the one that the limiter was built with.
    ///
    /// Spawns a task on the current Tokio runtime. The runtime needs its timer
    /// and, for sources on a network, its I/O enabled. Failures are described in
    /// [`policy_source`](crate::policy_source).
    ///
    /// ```no_run
    /// use tower_ratelimit::{Quota, RateLimiter, policy_source::FileSource};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_ratelimit::ConfigError> {
    /// let limiter = RateLimiter::new(Quota::per_second(10))?;
    /// let mut watch = limiter.watch(FileSource::new("/etc/limits/policy.yaml"))?;
    /// // Serve only once the file has been read:
    /// watch.wait_for(|status| status.is_current()).await;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// If there is no Tokio runtime.
    pub fn watch(&self, source: impl Into<Watch>) -> Result<WatchHandle, ConfigError> {
        let Watch { source, share, retry } = source.into();
        let runtime = Handle::try_current().map_err(|_| ConfigError::new("watch", "needs a Tokio runtime"))?;
        let (sender, status) = watch::channel(WatchStatus::default());
        let target = Target { limiter: self.clone(), share, source: source.name() };
        let task = runtime.spawn(WatchTask::new(target, sender).run(source, retry));
        Ok(WatchHandle { task: task.abort_handle(), status })
    }
}

/// A running watch. It stops when this handle is dropped.
///
/// The policy then stays in force. A document that is being applied at that
/// moment may still be put in force.
///
/// ```
/// use tower_ratelimit::{Quota, RateLimiter, policy_source::FileSource};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_ratelimit::ConfigError> {
/// let limiter = RateLimiter::new(Quota::per_second(10))?;
/// let watching = limiter.watch(FileSource::new("/no/such/policy.yaml"))?;
/// // For a status page. Keep the handle for as long as the process serves.
/// let status = watching.status();
/// assert!(!status.is_current());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "the watch stops when this is dropped"]
pub struct WatchHandle {
    task: AbortHandle,
    status: watch::Receiver<WatchStatus>,
}

impl WatchHandle {
    /// The current status.
    #[must_use]
    pub fn status(&self) -> WatchStatus {
        self.status.borrow().clone()
    }

    /// Sees every later status.
    #[cfg(feature = "admin")]
    pub(crate) fn subscribe(&self) -> watch::Receiver<WatchStatus> {
        self.status.clone()
    }

    /// Waits until `condition` holds for the status. `None` if the watch has
    /// stopped: the runtime has ended, or the source has panicked.
    ///
    /// A service that must not start under its built-in policy waits for
    /// [`WatchStatus::is_current`].
    pub async fn wait_for(&mut self, condition: impl FnMut(&WatchStatus) -> bool) -> Option<WatchStatus> {
        self.status.wait_for(condition).await.ok().map(|status| status.clone())
    }

    /// Whether the watch has stopped: the runtime has ended, or the source has
    /// panicked.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.task.is_finished()
    }
}

impl Drop for WatchHandle {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The state of a watch.
///
/// ```
/// use tower_ratelimit::policy_source::WatchStatus;
///
/// let status = WatchStatus::default();
/// assert!(!status.is_current(), "the source has not answered yet");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WatchStatus {
    /// Policies put in force.
    pub applied: u64,
    /// Documents rejected. A document that the source repeats counts once.
    pub rejected: u64,
    /// Failures of the source: it did not answer, or held no document.
    pub unavailable: u64,
    /// Why the policy in force differs, or may differ, from the document that
    /// the source holds.
    pub error: Option<Arc<str>>,
    /// The number of instances in the document in force, where the watch has no
    /// share to set ([`Watch::share`]) and ignores it.
    pub ignored_instances: Option<u64>,
}

impl WatchStatus {
    /// Whether the policy in force is the one that the source holds, as far as
    /// the last answer shows.
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.applied > 0 && self.error.is_none()
    }
}

/// The task of a watch.
struct WatchTask {
    target: Arc<Target>,
    status: watch::Sender<WatchStatus>,
    /// The last document of the source, valid or not.
    document: Option<Document>,
    /// Why that document was rejected.
    error: Option<Arc<str>>,
    /// The source failed when it was last asked.
    is_unavailable: bool,
}

/// The shortest time between two questions to a source.
const MIN_ROUND: Duration = Duration::from_millis(10);

impl WatchTask {
    fn new(target: Target, status: watch::Sender<WatchStatus>) -> Self {
        Reload::start();
        Self { target: Arc::new(target), status, document: None, error: None, is_unavailable: false }
    }

    async fn run(mut self, mut source: Box<dyn PolicySource>, retry: Backoff) {
        loop {
            let asked = Instant::now();
            let pause = match source.next().await {
                Ok(update) => {
                    retry.succeeded(&());
                    self.on_update(update).await;
                    MIN_ROUND.saturating_sub(asked.elapsed())
                }
                Err(error) => {
                    self.on_failure(&error.to_string());
                    retry.failed(&())
                }
            };
            sleep_until(Instant::now() + pause).await;
        }
    }

    fn on_failure(&mut self, reason: &str) {
        Reload::Unavailable.count(1);
        if !self.is_unavailable {
            self.log(Reload::Unavailable, reason);
        }
        self.is_unavailable = true;
        self.status.send_modify(|status| {
            status.unavailable += 1;
            status.error = Some(reason.into());
        });
        Reload::is_current(&self.target.source, false);
    }

    fn log(&self, result: Reload, why: &str) {
        result.log(&self.target.source, why, self.target.limiter.policy().rules().len());
    }

    async fn on_update(&mut self, update: Option<Document>) {
        if std::mem::take(&mut self.is_unavailable) {
            Reload::log_recovery(&self.target.source);
        }
        match update {
            Some(document) if self.document.as_ref() != Some(&document) => self.reload(document).await,
            _ => {
                let error = self.error.clone();
                self.status.send_if_modified(|status| std::mem::replace(&mut status.error, error.clone()) != error);
            }
        }
        Reload::is_current(&self.target.source, self.error.is_none());
    }

    async fn reload(&mut self, document: Document) {
        let (result, error, ignored) = match self.apply(document.clone()).await {
            Ok(ignored) => (Reload::Applied, None, ignored),
            Err(error) => (Reload::Rejected, Some(error), None),
        };
        result.count(1);
        // A document that differs each time may have the same error each time.
        if error.is_none() || error != self.error {
            self.log(result, error.as_deref().unwrap_or_default());
        }
        if ignored.is_some() && self.status.borrow().ignored_instances.is_none() {
            let problem = "the policy has the key `instances`, and its watch has no share to set: the key is ignored";
            observe::log_share_source(&self.target.source, problem);
        }
        (self.document, self.error) = (Some(document), error.clone());
        self.status.send_modify(|status| {
            match result {
                Reload::Applied => {
                    status.applied += 1;
                    status.ignored_instances = ignored;
                }
                _ => status.rejected += 1,
            }
            status.error = error;
        });
    }

    /// On a blocking thread: a large policy delays no other task, and a panic
    /// does not end this one.
    async fn apply(&self, document: Document) -> Result<Option<u64>, Arc<str>> {
        let target = Arc::clone(&self.target);
        match spawn_blocking(move || target.apply(&document)).await {
            Ok(applied) => applied.map_err(|error| error.to_string().into()),
            Err(error) => Err(format!("the policy could not be read: {error}").into()),
        }
    }
}

/// A watch that was ended on purpose raises no alarm any more.
impl Drop for WatchTask {
    fn drop(&mut self) {
        Reload::is_current(&self.target.source, !std::thread::panicking());
    }
}

/// What a watch changes: the limiter's policy and this instance's share.
struct Target {
    limiter: RateLimiter,
    share: Option<ShareTarget>,
    /// The source's name, for the log.
    source: String,
}

/// Where the share of the instance with this index is published.
struct ShareTarget {
    index: u64,
    sender: watch::Sender<Share>,
}

impl Target {
    /// Puts the document in force. Returns its number of instances if there is
    /// no share to set.
    fn apply(&self, document: &Document) -> Result<Option<u64>, ConfigError> {
        let (policy, instances) = document.parse()?;
        let Some((target, count)) = self.share.as_ref().zip(instances) else {
            self.limiter.set_policy(policy)?;
            return Ok(instances);
        };
        let share = Share::new(target.index, count).unwrap_or_else(|error| {
            observe::log_share_source(&self.source, &format!("{error}; this instance has no share any more"));
            Share::none()
        });
        if share.fraction() < target.sender.borrow().fraction() {
            CompiledPolicy::new(policy.clone())?;
            target.set(&share);
        }
        self.limiter.set_policy(policy)?;
        target.set(&share);
        Ok(None)
    }
}

impl ShareTarget {
    fn set(&self, share: &Share) {
        self.sender.send_if_modified(|current| std::mem::replace(current, share.clone()) != *share);
    }
}

#[cfg(test)]
mod tests;
