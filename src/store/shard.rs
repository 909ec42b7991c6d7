//! The states behind one lock, in one table per kind of state. The lock and the
//! cap are the store's.
//!
//! Invariant: the lock and the table of small states fit into one cache line.

use super::table::Table;
use crate::algorithm::{CompactState, RequestLog, State, WideState};

/// The states behind one lock. Most quotas need two words of state; the other
/// tables are allocated when they are first needed.
#[derive(Debug, Default)]
pub(crate) struct Shard {
    small: Table<CompactState>,
    other: Option<Box<Other>>,
}

#[derive(Debug, Default)]
struct Other {
    wide: Table<WideState>,
    logs: Table<RequestLog>,
}

impl Shard {
    /// Checks the next `slots` entries of each table, and removes the states
    /// that are idle at `horizon`. Returns how many it removed.
    pub(super) fn evict_idle(&mut self, horizon: u64, slots: usize) -> usize {
        let mut evicted = self.small.evict(slots, |state| state.is_idle(horizon));
        if let Some(other) = &mut self.other {
            evicted += other.wide.evict(slots, |state| state.is_idle(horizon));
            evicted += other.logs.evict(slots, |log| log.is_idle(horizon));
        }
        evicted
    }
}

/// The table that holds a kind of state.
pub(crate) trait Shelf<S> {
    /// `None` while the table is not allocated.
    fn table(&self) -> Option<&Table<S>>;

    fn table_mut(&mut self) -> &mut Table<S>;
}

impl Shelf<CompactState> for Shard {
    #[inline]
    fn table(&self) -> Option<&Table<CompactState>> {
        Some(&self.small)
    }

    #[inline]
    fn table_mut(&mut self) -> &mut Table<CompactState> {
        &mut self.small
    }
}

impl Shelf<WideState> for Shard {
    fn table(&self) -> Option<&Table<WideState>> {
        self.other.as_deref().map(|other| &other.wide)
    }

    fn table_mut(&mut self) -> &mut Table<WideState> {
        &mut self.other.get_or_insert_default().wide
    }
}

impl Shelf<RequestLog> for Shard {
    fn table(&self) -> Option<&Table<RequestLog>> {
        self.other.as_deref().map(|other| &other.logs)
    }

    fn table_mut(&mut self) -> &mut Table<RequestLog> {
        &mut self.other.get_or_insert_default().logs
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn lock_and_hot_table_share_a_cache_line() {
        assert!(size_of::<super::super::Padded<super::super::Lock>>() <= 64);
    }
}
