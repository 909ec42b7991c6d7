//! The task of a watch: asks the source, applies its documents, and reports in a
//! [`WatchStatus`].
//!
//! The last good policy stays in force through every failure, and a source that
//! always answers at once cannot keep a thread busy. Where a document changes
//! both the policy and this instance's share, the change that admits less comes
//! first: the fleet never admits more than the larger of before and after.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    task::spawn_blocking,
    time::{Instant, sleep_until},
};

use super::{document::Document, source::PolicySource};
use crate::{
    backend::Share,
    backoff::Backoff,
    error::ConfigError,
    limiter::RateLimiter,
    observe::{self, Reload},
    policy::CompiledPolicy,
};

/// The shortest time between two questions to a source.
const MIN_ROUND: Duration = Duration::from_millis(10);

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

pub(super) struct WatchTask {
    target: Arc<Target>,
    status: watch::Sender<WatchStatus>,
    /// The last document of the source, valid or not.
    document: Option<Document>,
    /// Why that document was rejected.
    error: Option<Arc<str>>,
    /// The source failed when it was last asked.
    is_unavailable: bool,
}

impl WatchTask {
    pub(super) fn new(target: Target, status: watch::Sender<WatchStatus>) -> Self {
        Reload::start();
        Self { target: Arc::new(target), status, document: None, error: None, is_unavailable: false }
    }

    pub(super) async fn run(mut self, mut source: Box<dyn PolicySource>, retry: Backoff) {
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
pub(super) struct Target {
    pub(super) limiter: RateLimiter,
    pub(super) share: Option<ShareTarget>,
    /// The source's name, for the log.
    pub(super) source: String,
}

/// Where the share of the instance with this index is published.
pub(super) struct ShareTarget {
    pub(super) index: u64,
    pub(super) sender: watch::Sender<Share>,
}

impl Target {
    /// Puts the document in force. Returns its number of instances if there is
    /// no share to set.
    pub(super) fn apply(&self, document: &Document) -> Result<Option<u64>, ConfigError> {
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
