//! A map from keys to values, split over several locks. A lock is held for one
//! lookup only, and never while a waker is woken.

use std::{collections::HashMap, sync::PoisonError};

use foldhash::fast::RandomState;

use super::sync::{Mutex, MutexGuard};
use crate::fingerprint::Fingerprint;

const SHARDS: usize = 16;

/// Removes the value of a key. A burst of keys does not keep its memory.
pub(super) fn remove<V>(shard: &mut Shard<V>, key: Fingerprint) {
    shard.remove(&key.to_u128());
    if shard.capacity() > 64 && shard.len() < shard.capacity() / 8 {
        shard.shrink_to_fit();
    }
}

pub(super) type Shard<V> = HashMap<u128, V, RandomState>;

#[derive(Debug)]
pub(super) struct Sharded<V>([Mutex<Shard<V>>; SHARDS]);

impl<V> Default for Sharded<V> {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Mutex::default()))
    }
}

impl<V> Sharded<V> {
    /// Locks the shard of a key.
    pub(super) fn of(&self, key: Fingerprint) -> MutexGuard<'_, Shard<V>> {
        self.0[key.spread_over(SHARDS)].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks one shard after the other.
    pub(super) fn each(&self) -> impl Iterator<Item = MutexGuard<'_, Shard<V>>> {
        self.0.iter().map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
