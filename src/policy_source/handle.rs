//! What the application holds of a watch: [`WatchHandle`] and [`WatchStatus`].
//!
//! Dropping the handle stops the task. Nothing here talks to the source.

use std::sync::Arc;

use tokio::{sync::watch, task::AbortHandle};

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
    /// share to set ([`Watch::share`](super::Watch::share)) and ignores it.
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

/// A running watch. It stops when this handle is dropped.
///
/// The policy then stays in force. A document that is being applied at that
/// moment may still be put in force.
#[derive(Debug)]
#[must_use = "the watch stops when this is dropped"]
pub struct WatchHandle {
    pub(super) task: AbortHandle,
    pub(super) status: watch::Receiver<WatchStatus>,
}

impl WatchHandle {
    /// The current status.
    #[must_use]
    pub fn status(&self) -> WatchStatus {
        self.status.borrow().clone()
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
