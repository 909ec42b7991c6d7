//! How many requests may wait at once, in all and per key. Requests that do
//! not wait never come here.
//!
//! Invariant: a key is known only while a request waits for it, so the maps
//! hold at most one entry per charge of a waiter.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use foldhash::fast::RandomState;
use smallvec::SmallVec;

use crate::{fingerprint::Fingerprint, limiter::observe::Gauge};

/// Counts waiters, in all and per key, against their limits.
#[derive(Debug)]
pub(in crate::limiter) struct WaiterLimit {
    limits: Limits,
    waiting: AtomicUsize,
    gauge: Gauge,
    keys: [Mutex<HashMap<u128, usize, RandomState>>; SHARDS],
}

const SHARDS: usize = 16;

/// The most requests that may wait at once.
#[derive(Clone, Copy, Debug)]
pub(in crate::limiter) struct Limits {
    pub(in crate::limiter) in_all: usize,
    pub(in crate::limiter) per_key: usize,
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
pub(in crate::limiter) enum WaiterGrant {
    /// Not asked for: the request has not had to wait.
    #[default]
    NotRequested,
    Granted(#[allow(dead_code, reason = "counts until it is dropped")] Waiter),
    /// A limit is reached.
    Full,
}

/// One request that counts as waiting, until this is dropped.
#[derive(Debug)]
pub(in crate::limiter) struct Waiter {
    limit: Arc<WaiterLimit>,
    keys: SmallVec<[Fingerprint; 1]>,
}

impl WaiterLimit {
    pub(in crate::limiter) fn new(limits: Limits) -> Self {
        let gauge = Gauge::new("rate_limiting.queued_requests");
        Self { limits, waiting: AtomicUsize::new(0), gauge, keys: Default::default() }
    }

    pub(in crate::limiter) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Counts a request that waits for these keys.
    pub(in crate::limiter) fn enter(self: &Arc<Self>, keys: impl Iterator<Item = Fingerprint>) -> WaiterGrant {
        let one_more = |waiting| (waiting < self.limits.in_all).then_some(waiting + 1);
        if self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_err() {
            return WaiterGrant::Full;
        }
        self.gauge.change(1.0);
        // Dropping the waiter leaves every key that it has entered so far.
        let mut waiter = Waiter { limit: Arc::clone(self), keys: SmallVec::new() };
        for key in keys {
            if !self.enter_key(key) {
                return WaiterGrant::Full;
            }
            waiter.keys.push(key);
        }
        WaiterGrant::Granted(waiter)
    }

    fn shard(&self, key: Fingerprint) -> MutexGuard<'_, HashMap<u128, usize, RandomState>> {
        self.keys[key.spread_over(SHARDS)].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter_key(&self, key: Fingerprint) -> bool {
        let mut keys = self.shard(key);
        let waiting = keys.get(&key.to_u128()).copied().unwrap_or(0);
        let enters = waiting < self.limits.per_key;
        if enters {
            keys.insert(key.to_u128(), waiting + 1);
        }
        enters
    }

    fn leave_key(&self, key: Fingerprint) {
        let mut keys = self.shard(key);
        if let Some(waiting) = keys.get_mut(&key.to_u128()) {
            *waiting -= 1;
            if *waiting == 0 {
                keys.remove(&key.to_u128());
                // A burst of waiters must not keep its memory for good.
                if keys.capacity() > 64 && keys.len() < keys.capacity() / 8 {
                    keys.shrink_to_fit();
                }
            }
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.keys.iter().for_each(|key| self.limit.leave_key(*key));
        self.limit.waiting.fetch_sub(1, Ordering::Relaxed);
        self.limit.gauge.change(-1.0);
    }
}
