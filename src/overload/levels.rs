//! How much the last requests mattered, [`Levels`], and which of them a part of all is.
//!
//! A level is a class and, within it, one of 128 groups of tenants. Invariant: the lowest
//! levels are cut off first, and of one level as much as the part needs.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::atomic::{AtomicU16, AtomicU32, AtomicUsize, Ordering},
};

use super::CLASSES;
use crate::{
    descriptor::{Priority, TenantId},
    time::Timestamp,
};

/// The groups of tenants of one class.
const GROUPS: usize = 128;

const LEVELS: usize = CLASSES * GROUPS;

/// How many requests are remembered.
const SEEN: usize = 1_000;

/// How finely a level is cut.
const PARTS: u32 = 1_000;

/// The levels of the last requests.
#[derive(Debug)]
pub(super) struct Levels {
    /// One more than the level; 0 for none.
    seen: [AtomicU16; SEEN],
    next: AtomicUsize,
    counts: [AtomicU32; LEVELS],
    /// Spreads the requests of the level that is cut.
    turn: AtomicU32,
    /// Spreads the requests without a tenant over the groups.
    anonymous: AtomicUsize,
}

impl Default for Levels {
    fn default() -> Self {
        Self {
            seen: [const { AtomicU16::new(0) }; SEEN],
            next: AtomicUsize::new(0),
            counts: [const { AtomicU32::new(0) }; LEVELS],
            turn: AtomicU32::new(0),
            anonymous: AtomicUsize::new(0),
        }
    }
}

/// The level of a tenant's requests. Instances agree on it.
fn level(priority: Priority, tenant: TenantId<'_>, now: Timestamp) -> usize {
    let mut hasher = DefaultHasher::new();
    (tenant, now.as_secs() / 3_600).hash(&mut hasher);
    // Fewer than 128.
    priority as usize * GROUPS + (hasher.finish() % GROUPS as u64) as usize
}

impl Levels {
    /// The level of a request. Those without a tenant have each in turn.
    pub(super) fn of(&self, priority: Priority, tenant: Option<TenantId<'_>>, now: Timestamp) -> usize {
        match tenant {
            Some(tenant) => level(priority, tenant, now),
            // Far from the one before: 47 has no divisor in common with the groups.
            None => priority as usize * GROUPS + self.anonymous.fetch_add(47, Ordering::Relaxed) % GROUPS,
        }
    }

    pub(super) fn record(&self, level: usize) {
        let place = &self.seen[self.next.fetch_add(1, Ordering::Relaxed) % SEEN];
        let before = place.swap(u16::try_from(level + 1).unwrap_or(0), Ordering::Relaxed);
        self.counts[level].fetch_add(1, Ordering::Relaxed);
        if let Some(before) = usize::from(before).checked_sub(1) {
            self.counts[before].fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The cut below which this part of the requests that were seen lies.
    pub(super) fn cut(&self, fraction: f64) -> u32 {
        let counts = self.counts.each_ref().map(|count| f64::from(count.load(Ordering::Relaxed)));
        let mut left = fraction * counts.iter().sum::<f64>();
        for (level, count) in counts.into_iter().enumerate() {
            if left < count {
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to `PARTS`")]
                let part = (left / count * f64::from(PARTS)) as u32;
                return position(level) + part;
            }
            left -= count;
        }
        // Nothing was seen yet.
        0
    }

    /// Whether a request of this level lies below the cut.
    pub(super) fn is_below(&self, level: usize, cut: u32) -> bool {
        let (start, end) = (position(level), position(level + 1));
        if !(start..end).contains(&cut) {
            return end <= cut;
        }
        // A step that has no divisor in common with the parts visits each once, far from
        // the one before.
        let turn = self.turn.fetch_add(617, Ordering::Relaxed) % PARTS;
        start + turn < cut
    }
}

fn position(level: usize) -> u32 {
    u32::try_from(level).unwrap_or(0) * PARTS
}

#[cfg(test)]
mod tests;
