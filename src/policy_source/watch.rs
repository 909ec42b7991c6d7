//! How an application starts a watch, [`Watch`] and [`RateLimiter::watch`], and
//! what it holds of it: [`WatchHandle`].
//!
//! The task and its status are in `task.rs`. Invariant: dropping the handle stops the task.

use std::{fmt, time::Duration};

use tokio::{runtime::Handle, sync::watch, task::AbortHandle};

use super::{
    source::{MAX_DELAY, PolicySource},
    task::{ShareTarget, Target, WatchStatus, WatchTask},
};
use crate::{backend::Share, backoff::Backoff, error::ConfigError, limiter::RateLimiter};

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
pub(super) fn backoff(min: Duration, max: Duration) -> Backoff {
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
