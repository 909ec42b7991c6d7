//! Values behind a lock each, by key: [`Shards`]. It does not know what is behind
//! the locks.
//!
//! Invariant: who locks several shards locks them in ascending order.

use smallvec::SmallVec;

use super::sync::{Guard, Lock, Padded};
use crate::fingerprint::Fingerprint;

#[derive(Debug)]
pub(crate) struct Shards<T>(Box<[Padded<Lock<T>>]>);

impl<T: Default> Shards<T> {
    pub(crate) fn new(count: usize) -> Self {
        Self((0..count).map(|_| Padded::default()).collect())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn index_of(&self, key: Fingerprint) -> usize {
        key.spread_over(self.0.len())
    }

    pub(crate) fn lock(&self, index: usize) -> Guard<'_, T> {
        self.0[index].0.lock()
    }

    /// Locks the shards of some keys, each once.
    pub(super) fn lock_all(
        &self,
        keys: impl Iterator<Item = Fingerprint> + Clone,
    ) -> SmallVec<[(usize, Guard<'_, T>); 2]> {
        let indexes = keys.map(|key| self.index_of(key));
        let mut locked = SmallVec::new();
        let mut next = indexes.clone().min();
        while let Some(index) = next {
            locked.push((index, self.lock(index)));
            next = indexes.clone().filter(|other| *other > index).min();
        }
        locked
    }
}
