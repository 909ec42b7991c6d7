//! What the wait queues share: a map from keys to values behind several locks,
//! and how wakers are run. Decides nothing.
//!
//! Invariant: a lock is held for one look-up, and that of a queue of slots while an
//! engine in this process decides or refunds. A waker is foreign code, which may
//! panic or do anything else: it runs and is dropped when no lock is held and the
//! change that it announces is complete.

use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::PoisonError,
    task::Waker,
};

use foldhash::fast::RandomState;

/// With `--cfg tower_ratelimit_loom`, loom's, which runs a test with every
/// interleaving of its threads: see `scripts/loom`.
#[cfg(all(test, tower_ratelimit_loom))]
pub(super) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, AtomicUsize},
};
#[cfg(not(all(test, tower_ratelimit_loom)))]
pub(super) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, AtomicUsize},
};

use crate::fingerprint::Fingerprint;

const SHARDS: usize = 16;

pub(super) type Shard<V> = HashMap<u128, V, RandomState>;

#[derive(Debug, Default)]
pub(super) struct Sharded<V>([Mutex<Shard<V>>; SHARDS]);

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

/// Removes the value of a key. A burst of keys does not keep its memory.
pub(super) fn remove<V>(shard: &mut Shard<V>, key: Fingerprint) {
    shard.remove(&key.to_u128());
    if is_sparse(shard.len(), shard.capacity()) {
        shard.shrink_to(2 * shard.len());
    }
}

/// Whether memory is to be returned: three quarters of it are unused.
pub(super) fn is_sparse(used: usize, capacity: usize) -> bool {
    capacity > 64 && used < capacity / 4
}

/// Wakes each of them. A panic is reported by the panic hook, and reaches neither
/// the request that caused the wake nor the other wakers.
pub(super) fn wake_all(wakers: impl IntoIterator<Item = Waker>) {
    wakers.into_iter().for_each(|waker| run(|| waker.wake()));
}

/// Drops a waker that is not needed any more.
pub(super) fn discard(waker: Option<Waker>) {
    run(|| drop(waker));
}

fn run(foreign: impl FnOnce()) {
    _ = catch_unwind(AssertUnwindSafe(foreign));
}
