//! A bounded table of states that decide beside the counters: [`ShardedTable`]. Each
//! shard has its lock. It knows neither algorithms nor the store's cap, and displaces
//! nothing: a key without room gets no state.
//!
//! Invariant: the number of states is capped, and none is dropped that is in use.

use std::sync::atomic::Ordering;

use super::{
    sync::{AtomicUsize, Lock, Padded},
    table::{Dense, Table},
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

type Shard<S> = Table<S, Dense>;

/// A bounded table. Times are nanoseconds.
#[derive(Debug)]
pub(crate) struct ShardedTable<S> {
    shards: Box<[Padded<Lock<Shard<S>>>]>,
    len: AtomicUsize,
}

impl<S: Evictable> ShardedTable<S> {
    pub(crate) fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| Padded::default()).collect(), len: AtomicUsize::new(0) }
    }

    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Runs `with` on the state of a key, if it has one.
    #[inline]
    pub(crate) fn with<R>(&self, key: Fingerprint, with: impl FnOnce(&mut S) -> R) -> Option<R> {
        let mut shard = self.shards[key.spread_over(SHARDS)].0.lock();
        let index = shard.find(key)?;
        Some(with(shard.state_mut(index)))
    }

    /// Runs `with` on the state of a key, which is added if it has none. `None` if
    /// there is no room.
    #[inline]
    pub(crate) fn with_new<R>(&self, key: Fingerprint, now: u64, with: impl FnOnce(&mut S) -> R) -> Option<R> {
        let mut shard = self.shards[key.spread_over(SHARDS)].0.lock();
        let index = match shard.find(key) {
            Some(index) => index,
            None => self.add(&mut shard, key, now.saturating_sub(GRACE))?,
        };
        Some(with(shard.state_mut(index)))
    }

    /// Runs `with` on all states, shard by shard.
    pub(crate) fn for_each(&self, mut with: impl FnMut(Fingerprint, &mut S)) {
        for shard in &self.shards {
            shard.0.lock().states_mut().for_each(|(key, state)| with(key, state));
        }
    }

    /// Adds a state, and drops some that are idle. Returns its index.
    #[cold]
    fn add(&self, shard: &mut Shard<S>, key: Fingerprint, before: u64) -> Option<usize> {
        let is_idle = |state: &S| state.is_idle(before);
        let dropped = shard.evict(CHECKED, is_idle);
        self.len.fetch_sub(dropped, Ordering::Relaxed);
        if self.len.fetch_add(1, Ordering::Relaxed) >= MAX_STATES {
            self.len.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let dropped = shard.insert(key, S::default(), is_idle);
        self.len.fetch_sub(dropped, Ordering::Relaxed);
        shard.find(key)
    }
}
