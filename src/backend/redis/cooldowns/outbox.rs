//! Which cooldowns of this instance are to be published: [`Outbox`]. It sends nothing.
//!
//! Invariant: the number of keys is capped.

use std::{collections::HashMap, sync::Arc, time::Duration};

use foldhash::fast::RandomState;
use tokio::time::Instant;

/// The most keys. Those that were published are forgotten first.
const MAX_KNOWN: usize = 4_096;

/// A cooldown that is longer by at most this is not published again.
const TOLERANCE: Duration = Duration::from_millis(1);

/// When the cooldown of each key ends, and whether it was published.
#[derive(Debug, Default)]
pub(super) struct Outbox(HashMap<Arc<str>, (Instant, bool), RandomState>);

impl Outbox {
    /// Whether the cooldown is to be published: not if one as long is known, and not
    /// if too many are pending.
    pub(super) fn put(&mut self, key: String, end: Instant, now: Instant) -> bool {
        let key: Arc<str> = key.into();
        let known = self.0.get(&key).map(|(end, _)| *end);
        if known.is_some_and(|known| end <= known + TOLERANCE) {
            return false;
        }
        if known.is_none() && self.0.len() >= MAX_KNOWN {
            self.0.retain(|_, (end, is_published)| *end > now && !*is_published);
        }
        let has_space = known.is_some() || self.0.len() < MAX_KNOWN;
        if has_space {
            self.0.insert(key, (end, false));
        }
        has_space
    }

    /// Takes up to `most` of those that are pending, and forgets all that have ended.
    pub(super) fn take(&mut self, most: usize, now: Instant) -> Vec<(Arc<str>, Instant)> {
        self.0.retain(|_, (end, _)| *end > now);
        let pending = self.0.iter_mut().filter(|(_, (_, is_published))| !is_published).take(most);
        let take = |(key, (end, is_published)): (&Arc<str>, &mut (Instant, bool))| {
            *is_published = true;
            (Arc::clone(key), *end)
        };
        pending.map(take).collect()
    }

    /// What was taken could not be published.
    pub(super) fn put_back(&mut self, batch: Vec<(Arc<str>, Instant)>) {
        for (key, _) in batch {
            if let Some((_, is_published)) = self.0.get_mut(&key) {
                *is_published = false;
            }
        }
    }
}

#[cfg(test)]
mod tests;
