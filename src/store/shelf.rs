//! [`Shelf`]: access to the table of one kind of state, in what has several.
//!
//! It stores nothing. Invariants: no table is allocated by a search, and a key has
//! one state, in whichever form it is counted.

use std::sync::Arc;

use super::table::Table;
use crate::{
    algorithm::{LogMemory, State},
    fingerprint::Fingerprint,
};

/// The table that holds a kind of state.
pub(crate) trait Shelf<S: State> {
    /// `None` while the table is not allocated.
    fn table(&self) -> Option<&Table<S>>;

    fn table_mut(&mut self) -> &mut Table<S>;

    /// Removes the state of a key that was counted in another form, and returns it in
    /// this one. Buckets have two, and a reload may change to the other.
    fn take_other_form(&mut self, _key: Fingerprint) -> Option<S> {
        None
    }

    /// The state of a key, and its index.
    fn find<'s>(&'s self, key: Fingerprint) -> Option<(usize, &'s S)>
    where
        S: 's,
    {
        let table = self.table()?;
        table.find(key).map(|index| (index, table.state(index)))
    }

    /// The index of the state of a key, whichever form it was counted in.
    fn locate(&mut self, key: Fingerprint) -> Option<usize> {
        if let Some(index) = self.table().and_then(|table| table.find(key)) {
            return Some(index);
        }
        let state = self.take_other_form(key)?;
        self.table_mut().insert(key, state, |_| false);
        self.table_mut().find(key)
    }

    fn state_mut<'s>(&'s mut self, key: Fingerprint) -> Option<&'s mut S>
    where
        S: 's,
    {
        let index = self.locate(key)?;
        Some(self.table_mut().state_mut(index))
    }

    /// Changes the state of a key, which is created if it does not exist.
    /// Returns how many states that were idle at `horizon` were dropped
    /// meanwhile.
    fn change(
        &mut self,
        memory: &Arc<LogMemory>,
        key: Fingerprint,
        horizon: u64,
        change: impl FnOnce(&mut S),
    ) -> usize {
        if let Some(state) = self.state_mut(key) {
            change(state);
            state.account(memory);
            return 0;
        }
        let mut state = S::default();
        change(&mut state);
        state.account(memory);
        self.table_mut().insert(key, state, |state| state.is_idle(horizon))
    }
}
