use std::sync::Arc;

use tokio::{sync::watch, task::AbortHandle};

/// What has come of watching.
///
/// ```
/// use tower_ratelimit::policy_source::WatchStatus;
///
/// let status = WatchStatus::default();
/// assert!(!status.is_current(), "nothing has come yet");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WatchStatus {
    /// How many policies were put in force.
    pub applied: u64,
    /// How many could not be; what comes again and again counts once.
    pub rejected: u64,
    /// How often the source did not answer, or held nothing.
    pub unavailable: u64,
    /// Why the policy in force is not what the source holds, or may not be.
    pub trouble: Option<Arc<str>>,
    /// Over how many instances the policy in force says that its limits are
    /// split, where nobody heeds it: the watch was given no share to tell
    /// ([`Watch::share`](super::Watch::share)).
    pub ignored_instances: Option<u64>,
}

impl WatchStatus {
    /// Whether what is in force is what the source holds, as far as is known.
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.applied > 0 && self.trouble.is_none()
    }
}

/// Watches a source, for as long as it is held.
///
/// Dropped, it stops; the policy stays in force, and one that was about to be
/// put in force at that moment may still be.
#[derive(Debug)]
#[must_use = "dropped, it stops watching"]
pub struct Watching {
    task: AbortHandle,
    status: watch::Receiver<WatchStatus>,
}

impl Watching {
    pub(super) fn new(task: AbortHandle, status: watch::Receiver<WatchStatus>) -> Self {
        Self { task, status }
    }

    /// What has come of it up to now.
    #[must_use]
    pub fn status(&self) -> WatchStatus {
        self.status.borrow().clone()
    }

    /// Waits until the status is so; `None` where nobody watches any more,
    /// since the runtime has ended or the source has panicked.
    ///
    /// A service that must not start under the policy that it was built with
    /// waits for [`WatchStatus::is_current`].
    pub async fn wait_for(&mut self, condition: impl FnMut(&WatchStatus) -> bool) -> Option<WatchStatus> {
        self.status.wait_for(condition).await.ok().map(|status| status.clone())
    }

    /// Whether nobody watches any more, since the runtime has ended or the
    /// source has panicked.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.task.is_finished()
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.task.abort();
    }
}
