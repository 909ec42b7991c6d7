//! How many requests may wait at once, in all and per key. Requests that do
//! not wait never come here.
//!
//! Invariant: a key is known only while a request waits for it, so the maps
//! hold at most one entry per charge of a waiter.

use std::sync::Arc;

use smallvec::SmallVec;

use super::shards::{Sharded, remove};
use crate::{fingerprint::Fingerprint, observe::Gauge};

/// Counts waiters, in all and per key, against their limits.
#[derive(Debug)]
pub(in crate::limiter) struct WaiterLimit {
    limits: Limits,
    waiting: Gauge,
    keys: Sharded<usize>,
}

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
        Self { limits, waiting: Gauge::new("rate_limiting.queued_requests"), keys: Sharded::default() }
    }

    pub(in crate::limiter) fn waiting(&self) -> usize {
        self.waiting.value()
    }

    /// Counts a request that waits for these keys.
    pub(in crate::limiter) fn enter(self: &Arc<Self>, keys: impl Iterator<Item = Fingerprint>) -> WaiterGrant {
        self.count(keys, self.limits)
    }

    /// Counts a request that replaces a waiter of the same keys, whatever the
    /// limits.
    pub(in crate::limiter) fn replace(self: &Arc<Self>, keys: impl Iterator<Item = Fingerprint>) -> WaiterGrant {
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
