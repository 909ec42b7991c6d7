//! A bounded table of states that decide beside the counters: [`ShardedTable`]. It
//! knows neither algorithms nor the store's cap, and displaces nothing: a key without
//! room gets no state.
//!
//! Invariant: the number of states is capped, and none is dropped that is in use.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::{
    shards::{Guard, Shards},
    table::Table,
};
use crate::fingerprint::Fingerprint;

/// The most states.
const MAX_STATES: usize = 1_000_000;

/// How many shards there are.
const SHARDS: usize = 128;

/// How many states are checked for idle ones when one is added.
const CHECKED: usize = 4;

/// For how many nanoseconds a state is kept that is not used.
const GRACE: u64 = 10_000_000_000;

/// A state of a [`ShardedTable`].
pub(crate) trait Evictable: Default {
    /// Whether it was not used since `before`, and nothing is lost if it is dropped.
    fn is_idle(&self, before: u64) -> bool;
}

type Shard<S> = Table<S, ()>;

/// A bounded table. Times are nanoseconds.
#[derive(Debug)]
pub(crate) struct ShardedTable<S> {
    shards: Shards<Shard<S>>,
    len: AtomicUsize,
}

impl<S: Evictable> ShardedTable<S> {
    pub(crate) fn new() -> Self {
        Self { shards: Shards::new(SHARDS), len: AtomicUsize::new(0) }
    }

    fn lock(&self, key: Fingerprint) -> Guard<'_, Shard<S>> {
        self.shards.lock(self.shards.index_of(key))
    }

    /// Runs `with` on the state of a key, if it has one.
    pub(crate) fn with<R>(&self, key: Fingerprint, with: impl FnOnce(&mut S) -> R) -> Option<R> {
        self.lock(key).get_mut(key).map(with)
    }

    /// Runs `with` on the state of a key, which is added if it has none. `None` if
    /// there is no room.
    pub(crate) fn with_new<R>(&self, key: Fingerprint, now: u64, with: impl FnOnce(&mut S) -> R) -> Option<R> {
        let mut shard = self.lock(key);
        let index = match shard.find(key) {
            None if self.add(&mut shard, key, now.saturating_sub(GRACE)) => shard.find(key)?,
            found => found?,
        };
        Some(with(shard.state_mut(index)))
    }

    /// Runs `with` on all states, shard by shard.
    pub(crate) fn for_each(&self, mut with: impl FnMut(Fingerprint, &mut S)) {
        for shard in 0..SHARDS {
            self.shards.lock(shard).states_mut().for_each(|(key, state)| with(key, state));
        }
    }

    /// Adds a state if there is room, and drops some that are idle.
    fn add(&self, shard: &mut Shard<S>, key: Fingerprint, before: u64) -> bool {
        let is_idle = |state: &S| state.is_idle(before);
        let mut dropped = shard.evict(CHECKED, is_idle);
        let has_room = self.len.fetch_add(1, Ordering::Relaxed) < MAX_STATES + dropped;
        dropped += if has_room { shard.insert(key, S::default(), is_idle) } else { 1 };
        self.len.fetch_sub(dropped, Ordering::Relaxed);
        has_room
    }
}
