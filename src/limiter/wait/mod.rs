//! Waiting: how many requests may wait, the queues that they wait in, and what those share:
//! a map from keys to values behind several locks, and how wakers are run. Nothing in here
//! decides a request or knows the limiter.
//!
//! | a request waits for | in | served |
//! |---|---|---|
//! | a slot that is reserved, at a known time | `slots/queue.rs` | in order of arrival; of a `fair` rule by rounds of tenants |
//! | what cannot be reserved: in-flight units, an adaptive rate | `fifo.rs` | by priority, and in order of arrival within one |
//!
//! Invariants: a waiting request is woken or has a timer, and one that is dropped has left
//! its queue. A key is known only while a request waits for it, so the maps hold at most one
//! entry per charge of a waiter. A lock is held for one look-up, and that of a queue of slots
//! while an engine in this process decides or refunds. A waker is foreign code, which may
//! panic or do anything else: it runs and is dropped when no lock is held and the change that
//! it announces is complete.

pub(super) mod fifo;
pub(super) mod slots;

#[cfg(all(test, tower_ratelimit_loom))]
#[path = "tests/interleavings.rs"]
mod interleavings;

use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, PoisonError},
    task::Waker,
};

use foldhash::fast::RandomState;
use smallvec::SmallVec;

/// With `--cfg tower_ratelimit_loom`, loom's, which runs a test with every
/// interleaving of its threads: see `scripts/loom`.
#[cfg(all(test, tower_ratelimit_loom))]
use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, AtomicUsize},
};
#[cfg(not(all(test, tower_ratelimit_loom)))]
use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, AtomicUsize},
};

use crate::{fingerprint::Fingerprint, observe::Gauge};

/// Counts waiters, in all and per key, against their limits.
#[derive(Debug)]
pub(super) struct WaiterLimit {
    limits: Limits,
    waiting: Gauge,
    keys: Sharded<usize>,
}

/// The most requests that may wait at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) in_all: usize,
    pub(super) per_key: usize,
}

impl Default for Limits {
    /// At most about a hundred megabytes of waiters. A tenth of them per key, so
    /// that one tenant cannot use up the limit.
    fn default() -> Self {
        Self { in_all: 100_000, per_key: 10_000 }
    }
}

/// Whether a request was admitted as a waiter.
#[derive(Debug, Default)]
pub(super) enum WaiterGrant {
    /// Not asked for: the request has not had to wait.
    #[default]
    NotRequested,
    Granted(#[allow(dead_code, reason = "counts until it is dropped")] Waiter),
    /// A limit is reached.
    Full,
}

/// One request that counts as waiting, until this is dropped.
#[derive(Debug)]
pub(super) struct Waiter {
    limit: Arc<WaiterLimit>,
    keys: SmallVec<[Fingerprint; 1]>,
}

impl WaiterLimit {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, waiting: Gauge::new("rate_limiting.queued_requests"), keys: Sharded::default() }
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.value()
    }

    /// Counts a request that waits for these keys.
    pub(super) fn enter(self: &Arc<Self>, keys: impl Iterator<Item = Fingerprint>) -> WaiterGrant {
        self.count(keys, self.limits)
    }

    /// Counts a request that replaces a waiter of the same keys, whatever the
    /// limits.
    pub(super) fn replace(self: &Arc<Self>, keys: impl Iterator<Item = Fingerprint>) -> WaiterGrant {
        self.count(keys, Limits { in_all: usize::MAX, per_key: usize::MAX })
    }

    fn count(self: &Arc<Self>, keys: impl Iterator<Item = Fingerprint>, limits: Limits) -> WaiterGrant {
        if !self.waiting.add_up_to(limits.in_all) {
            return WaiterGrant::Full;
        }
        // Dropping the waiter leaves every key that it has entered so far.
        let mut waiter = Waiter { limit: Arc::clone(self), keys: SmallVec::new() };
        for key in keys {
            let mut shard = self.keys.of(key);
            let waiting = shard.get(&key.to_u128()).copied().unwrap_or(0);
            if waiting >= limits.per_key {
                drop(shard);
                return WaiterGrant::Full;
            }
            shard.insert(key.to_u128(), waiting + 1);
            waiter.keys.push(key);
        }
        WaiterGrant::Granted(waiter)
    }

    fn leave_key(&self, key: Fingerprint) {
        let mut keys = self.keys.of(key);
        if let Some(waiting) = keys.get_mut(&key.to_u128()) {
            *waiting -= 1;
            if *waiting == 0 {
                remove(&mut keys, key);
            }
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.keys.iter().for_each(|key| self.limit.leave_key(*key));
        self.limit.waiting.subtract();
    }
}

const SHARDS: usize = 16;

type Shard<V> = HashMap<u128, V, RandomState>;

#[derive(Debug, Default)]
struct Sharded<V>([Mutex<Shard<V>>; SHARDS]);

impl<V> Sharded<V> {
    /// Locks the shard of a key.
    fn of(&self, key: Fingerprint) -> MutexGuard<'_, Shard<V>> {
        self.0[key.spread_over(SHARDS)].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks one shard after the other.
    fn each(&self) -> impl Iterator<Item = MutexGuard<'_, Shard<V>>> {
        self.0.iter().map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Removes the value of a key. A burst of keys does not keep its memory.
fn remove<V>(shard: &mut Shard<V>, key: Fingerprint) {
    shard.remove(&key.to_u128());
    if is_sparse(shard.len(), shard.capacity()) {
        shard.shrink_to(2 * shard.len());
    }
}

/// Whether memory is to be returned: three quarters of it are unused.
fn is_sparse(used: usize, capacity: usize) -> bool {
    capacity > 64 && used < capacity / 4
}

/// Wakes each of them. A panic is reported by the panic hook, and reaches neither
/// the request that caused the wake nor the other wakers.
fn wake_all(wakers: impl IntoIterator<Item = Waker>) {
    wakers.into_iter().for_each(|waker| run(|| waker.wake()));
}

/// Drops a waker that is not needed any more.
fn discard(waker: Option<Waker>) {
    run(|| drop(waker));
}

fn run(foreign: impl FnOnce()) {
    _ = catch_unwind(AssertUnwindSafe(foreign));
}
