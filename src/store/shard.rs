//! The states behind one lock, in one table per kind of state. The lock and the
//! cap are the store's.
//!
//! Invariant: the lock and the table of small states fit into one cache line.

use super::table::Table;
use crate::{
    algorithm::{CompactState, RequestLog, State, WideState},
    fingerprint::Fingerprint,
};

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
    /// Checks the next `entries` entries of each table, and removes the states
    /// that are idle at `horizon`. Returns how many it removed.
    pub(super) fn evict_idle(&mut self, horizon: u64, entries: usize) -> usize {
        let mut evicted = self.small.evict(entries, |state| state.is_idle(horizon));
        if let Some(other) = &mut self.other {
            evicted += other.wide.evict(entries, |state| state.is_idle(horizon));
            evicted += other.logs.evict(entries, |log| log.is_idle(horizon));
        }
        evicted
    }
}

/// The table that holds a kind of state.
pub(crate) trait Shelf<S: State> {
    /// `None` while the table is not allocated.
    fn table(&self) -> Option<&Table<S>>;

    fn table_mut(&mut self) -> &mut Table<S>;

    /// The state of a key, and its index.
    #[inline]
    fn find<'s>(&'s self, key: Fingerprint) -> Option<(usize, &'s S)>
    where
        S: 's,
    {
        let table = self.table()?;
        table.find(key).map(|index| (index, table.state(index)))
    }

    /// Reads the state of a key, or a new one.
    #[inline]
    fn read<R>(&self, key: Fingerprint, read: impl FnOnce(&S) -> R) -> R {
        match self.find(key) {
            Some((_, state)) => read(state),
            None => read(&S::default()),
        }
    }

    #[inline]
    fn state_mut<'s>(&'s mut self, key: Fingerprint) -> Option<&'s mut S>
    where
        S: 's,
    {
        let index = self.table()?.find(key)?;
        Some(self.table_mut().state_mut(index))
    }

    /// Changes the state of a key, which is created if it does not exist.
    /// Returns how many states that were idle at `horizon` were dropped
    /// meanwhile.
    fn change(&mut self, key: Fingerprint, horizon: u64, change: impl FnOnce(&mut S)) -> usize {
        if let Some(state) = self.state_mut(key) {
            change(state);
            return 0;
        }
        let mut state = S::default();
        change(&mut state);
        self.table_mut().insert(key, state, |state| state.is_idle(horizon))
    }
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
