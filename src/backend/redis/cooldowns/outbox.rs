//! The cooldowns that are still to be published, and those that were. It
//! publishes nothing.
//!
//! Invariant: both are bounded, and a cooldown is published again only if it
//! lasts longer.

use std::{collections::HashMap, sync::Arc, time::Duration};

use foldhash::fast::RandomState;
use tokio::time::Instant;

/// The most keys that are pending, and that are known to be published.
const MAX_KEYS: usize = 4_096;

/// A cooldown that is longer by at most this is not published again.
const TOLERANCE: Duration = Duration::from_millis(1);

/// When the cooldown of each key ends.
type Ends = HashMap<Arc<str>, Instant, RandomState>;

#[derive(Debug, Default)]
pub(super) struct Outbox {
    pending: Ends,
    published: Ends,
}

impl Outbox {
    /// Whether the cooldown is to be published: not if one as long was, and not
    /// if too many are pending.
    pub(super) fn put(&mut self, key: String, end: Instant, now: Instant) -> bool {
        let key: Arc<str> = key.into();
        if self.published.get(&key).is_some_and(|published| end <= *published + TOLERANCE) {
            return false;
        }
        extend(&mut self.pending, key, end, now)
    }

    /// Takes up to `most` of them, and forgets those that have ended.
    pub(super) fn take(&mut self, most: usize, now: Instant) -> Vec<(Arc<str>, Instant)> {
        self.pending.retain(|_, end| *end > now);
        let keys: Vec<_> = self.pending.keys().take(most).cloned().collect();
        keys.into_iter().filter_map(|key| self.pending.remove_entry(&key)).collect()
    }

    /// The batch was published.
    pub(super) fn published(&mut self, batch: Vec<(Arc<str>, Instant)>, now: Instant) {
        for (key, end) in batch {
            if self.published.contains_key(&key) || has_space(&mut self.published, now) {
                self.published.insert(key, end);
            }
        }
    }

    /// The batch could not be published.
    pub(super) fn put_back(&mut self, batch: Vec<(Arc<str>, Instant)>, now: Instant) {
        for (key, end) in batch {
            extend(&mut self.pending, key, end, now);
        }
    }
}

/// Adds the key, or extends its cooldown. `false` if there is no space.
fn extend(ends: &mut Ends, key: Arc<str>, end: Instant, now: Instant) -> bool {
    if let Some(known) = ends.get_mut(&key) {
        *known = end.max(*known);
        return true;
    }
    has_space(ends, now) && ends.insert(key, end).is_none()
}

fn has_space(ends: &mut Ends, now: Instant) -> bool {
    if ends.len() >= MAX_KEYS {
        ends.retain(|_, end| *end > now);
    }
    ends.len() < MAX_KEYS
}

#[cfg(test)]
mod tests;
