//! [`Shelf`]: access to the table of one kind of state, in what has several.
//!
//! It stores nothing. Invariant: no table is allocated by a search.

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

    /// The state of a key, and its index.
    #[inline]
    fn find<'s>(&'s self, key: Fingerprint) -> Option<(usize, &'s S)>
    where
        S: 's,
    {
        let table = self.table()?;
        table.find(key).map(|index| (index, table.state(index)))
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
