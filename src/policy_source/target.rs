//! What a watch changes: the limiter's policy and this instance's share.
//!
//! An invalid document changes neither. Where both change, the change that
//! admits less comes first: the fleet never admits more than the larger of
//! before and after.

use tokio::sync::watch;

use super::document::Document;
use crate::{backend::Share, error::ConfigError, limiter::RateLimiter, observe, policy::CompiledPolicy};

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
