use std::{
    collections::HashMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use foldhash::fast::RandomState;
use smallvec::SmallVec;

use super::{RateLimiter, report};
use crate::{backend::Charge, fingerprint::Fingerprint};

/// Counts those who wait, in all and by key, and lets no more in than may.
///
/// Only who waits comes here. A key is known for as long as somebody waits
/// for it, so that there are never more keys than waiters' charges.
#[derive(Debug)]
pub(super) struct Room {
    limits: Limits,
    waiting: AtomicUsize,
    keys: [Mutex<HashMap<u128, usize, RandomState>>; SHARDS],
}

const SHARDS: usize = 16;

/// How many may wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) in_all: usize,
    pub(super) per_key: usize,
}

impl Default for Limits {
    /// Some hundred megabytes of waiters at the most, a tenth of them for one
    /// key: one tenant cannot take all places.
    fn default() -> Self {
        Self { in_all: 100_000, per_key: 10_000 }
    }
}

/// Whether there was room for a request that may have to wait.
#[derive(Debug)]
pub(super) enum Seat {
    /// It was not asked for: the request goes, or does not wait.
    NotAsked,
    Taken(Waiter),
    /// There is none.
    Full,
}

/// A place in the room, until it is dropped.
#[derive(Debug)]
pub(super) struct Waiter {
    limiter: RateLimiter,
    keys: SmallVec<[Fingerprint; 1]>,
}

impl Room {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, waiting: AtomicUsize::new(0), keys: Default::default() }
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    fn shard(&self, key: Fingerprint) -> MutexGuard<'_, HashMap<u128, usize, RandomState>> {
        self.keys[key.spread_over(SHARDS)].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One key at a time: who finds the second one full leaves the first.
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
                // A rush must not be paid for ever after.
                if keys.capacity() > 64 && keys.len() < keys.capacity() / 8 {
                    keys.shrink_to_fit();
                }
            }
        }
    }
}

impl RateLimiter {
    /// A place to wait in, for a request with these charges.
    pub(super) fn seat(&self, charges: &[Charge<'_>]) -> Seat {
        let room = &self.inner.room;
        let one_more = |waiting| (waiting < room.limits.in_all).then_some(waiting + 1);
        if room.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_err() {
            return Seat::Full;
        }
        report::waiters(&self.inner.gauges, 1.0);
        // From here on it leaves what it has entered, however this ends.
        let mut waiter = Waiter { limiter: self.clone(), keys: SmallVec::new() };
        for charge in charges {
            if !room.enter_key(charge.applied.key) {
                return Seat::Full;
            }
            waiter.keys.push(charge.applied.key);
        }
        Seat::Taken(waiter)
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let room = &self.limiter.inner.room;
        self.keys.iter().for_each(|key| room.leave_key(*key));
        room.waiting.fetch_sub(1, Ordering::Relaxed);
        report::waiters(&self.limiter.inner.gauges, -1.0);
    }
}
