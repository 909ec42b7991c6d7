//! The states that new ones displaced latest: [`Displaced`]. It knows neither
//! algorithms nor the cap.
//!
//! Invariant: a state is kept, as it was, until `capacity` others were displaced
//! after it. At most twice as many are kept.

use super::shelf::Shelf;
use crate::{algorithm::State, fingerprint::Fingerprint};

/// A displaced state is kept for so many of the cap, at least.
pub(super) const STATES_PER_DISPLACED: usize = 8;

/// Two generations: when the current one is full, it replaces the previous one.
#[derive(Debug, Default)]
pub(super) struct Displaced<T> {
    current: T,
    previous: T,
    /// The states that were put into the current generation.
    put: usize,
}

impl<T: Default> Displaced<T> {
    pub(super) fn put<S: State>(&mut self, key: Fingerprint, state: S, capacity: usize)
    where
        T: Shelf<S>,
    {
        if self.put >= capacity {
            self.previous = std::mem::take(&mut self.current);
            self.put = 0;
        }
        self.put += 1;
        self.current.table_mut().insert(key, state, |_| false);
    }

    pub(super) fn find<S: State>(&self, key: Fingerprint) -> Option<&S>
    where
        T: Shelf<S>,
    {
        [&self.current, &self.previous].into_iter().find_map(|generation| Some(generation.find(key)?.1))
    }

    pub(super) fn find_mut<S: State>(&mut self, key: Fingerprint) -> Option<&mut S>
    where
        T: Shelf<S>,
    {
        self.generations().into_iter().find_map(|generation| generation.state_mut(key))
    }

    /// Removes the state of a key that gets an entry again.
    pub(super) fn take<S: State>(&mut self, key: Fingerprint) -> Option<S>
    where
        T: Shelf<S>,
    {
        self.generations().into_iter().find_map(|generation| {
            let index = generation.locate(key)?;
            Some(generation.table_mut().take(index).1)
        })
    }

    pub(super) fn generations(&mut self) -> [&mut T; 2] {
        [&mut self.current, &mut self.previous]
    }
}

#[cfg(all(test, not(tower_ratelimit_loom)))]
mod tests;
