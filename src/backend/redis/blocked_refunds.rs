//! Refunds of reservations that later ones are built upon. Callers that hang up
//! while the store decides have often reserved one after another, so the later
//! refunds usually follow. The earlier ones are kept until then, and tried
//! again.
//!
//! Invariant: at most [`MAX_BLOCKED`] are kept; the oldest are forfeited.

use std::sync::Mutex;

use super::{
    plan::{Change, ClaimUpdate},
    sync::lock,
};

/// How many refunds each lane keeps.
const MAX_BLOCKED: usize = 256;

#[derive(Debug, Default)]
pub(super) struct BlockedRefunds(Mutex<Vec<Change>>);

impl BlockedRefunds {
    /// Takes what became of changes, each with whether a receipt owns it.
    /// Returns the refunds to try again.
    pub(super) fn update(&self, changes: impl Iterator<Item = (Change, ClaimUpdate, bool)>) -> Vec<Change> {
        let mut blocked = lock(&self.0);
        let mut refunded = Vec::new();
        for (change, update, is_owned) in changes {
            if change.is_built_upon(&update) {
                // The receipt has forfeited its own.
                if !is_owned {
                    let excess = (blocked.len() + 1).saturating_sub(MAX_BLOCKED);
                    blocked.drain(..excess);
                    blocked.push(change);
                }
            } else if change.is_refund() && !blocked.is_empty() {
                refunded.push((change, update));
            }
        }
        let mut again = Vec::new();
        for (last, update) in refunded {
            if blocked.iter().any(|change| change.precedes(&last, &update)) {
                again.extend(blocked.extract_if(.., |change| change.charge.key == last.charge.key));
            }
        }
        again
    }
}
