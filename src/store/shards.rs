//! Values behind a lock each, by key: [`Shards`]. It does not know what is behind
//! the locks.
//!
//! Invariant: who locks several shards locks them in ascending order.

use smallvec::SmallVec;

use super::sync::{Guard, Lock, Padded};
use crate::fingerprint::Fingerprint;

#[derive(Debug)]
pub(super) struct Shards<T>(Box<[Padded<Lock<T>>]>);

impl<T: Default> Shards<T> {
    pub(super) fn new(count: usize) -> Self {
        Self((0..count).map(|_| Padded::default()).collect())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn index_of(&self, key: Fingerprint) -> usize {
        key.spread_over(self.0.len())
    }

    pub(super) fn lock(&self, index: usize) -> Guard<'_, T> {
        self.0[index].0.lock()
    }

    /// Locks the shards of some keys.
    #[inline]
    pub(super) fn lock_all(
        &self,
        mut keys: impl ExactSizeIterator<Item = Fingerprint>,
    ) -> SmallVec<[(usize, Guard<'_, T>); 2]> {
        let mut guards = SmallVec::new();
        if keys.len() == 1
            && let Some(key) = keys.next()
        {
            let index = self.index_of(key);
            guards.push((index, self.lock(index)));
            return guards;
        }
        let mut indexes: SmallVec<[usize; 4]> = SmallVec::new();
        for index in keys.map(|key| self.index_of(key)) {
            if let Err(place) = indexes.binary_search(&index) {
                indexes.insert(place, index);
            }
        }
        for index in indexes {
            guards.push((index, self.lock(index)));
        }
        guards
    }
}
