//! The bounded, sharded, keyed state of everything that is counted in this
//! process.
//!
//! A key is a keyed 128-bit fingerprint; no string is stored. A shard is one
//! lock over open-addressing tables whose entries hold fingerprint and state
//! side by side. So a decision for one key touches one lock and usually one more
//! cache line. All tiers of a key are in one shard. Decides nothing.
//!
//! Invariant: the number of states is capped. An idle state equals a new one and
//! may be dropped. Each insertion checks a few entries for idle states, so no
//! background task is needed. If the cap is reached and none is idle, the new
//! key displaces the state of another key, which is kept aside until an eighth as
//! many others were displaced as the cap allows. Only if no state may be
//! displaced, the new key uses the overflow shard ([`Store::lock_overflow`]).

mod shard;
#[cfg(feature = "redis")]
mod sharded;
mod shards;
mod table;

use std::sync::{Arc, atomic::Ordering};

use smallvec::SmallVec;

#[cfg(feature = "redis")]
pub(crate) use self::sharded::{Evictable, ShardedTable};
use self::{shard::SEARCH_WHEN_FULL, shards::AtomicU64};
pub(crate) use self::{
    shard::{Shard, Stored},
    shards::{Lock, Padded, Shards},
};
use crate::{algorithm::LogMemory, fingerprint::Fingerprint, observe::Gauge};

/// How long, in nanoseconds, an idle state is kept below the cap. A key that is
/// idle between any two requests then need not be inserted for each of them.
const GRACE: u64 = 10_000_000_000;

/// How many entries of each table are checked for each new state: more than
/// one, so that idle states are removed faster than new ones are added.
const SEARCH_ON_INSERT: usize = 4;

/// The fewest shards, if the cap allows more. The tables of so many are still small, so with
/// short searches, for 20,000 keys: of 10,000 or 20,000, one thread decides in a tenth less
/// time than with 128 shards, and two in a seventh less.
const MIN_SHARDS: usize = 512;

/// How many states a shard should hold at the cap, so that a new key finds idle
/// states in its shard.
const STATES_PER_SHARD: usize = 64;

/// A displaced state is kept for so many of the cap, at least.
const STATES_PER_DISPLACED: usize = 8;

/// How exactly the store knows the latest time, in nanoseconds.
const TIME_STEP: u64 = 1_000_000_000;

/// A clock that is set back by less, in nanoseconds, is waited for: a thread with
/// an old reading must not move states. The latest time may be rounded up by a second.
const SET_BACK: u64 = 11_000_000_000;

/// The bytes that all sliding logs together may take, for each state of the cap.
const LOG_BYTES_PER_STATE: usize = 64;

/// The bytes that they may always take: those of the longest log, twice.
const LEAST_LOG_BYTES: usize = 2 << 20;

#[derive(Debug)]
pub(crate) struct Store {
    shards: Shards<Shard>,
    overflow: Padded<Lock<Shard>>,
    taken: Padded<Gauge>,
    overflowed: AtomicU64,
    displaced: AtomicU64,
    /// The longest wait that was reserved, in nanoseconds.
    longest_wait: AtomicU64,
    /// The latest time of a decision, rounded up by at most a second.
    latest: Padded<AtomicU64>,
    /// The entries of sliding logs.
    pub(crate) log_memory: Arc<LogMemory>,
    max_states: usize,
}

pub(crate) type Guard<'s> = shards::Guard<'s, Shard>;

impl Store {
    pub(crate) fn new(max_states: usize) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let wanted = (cores * 64).clamp(MIN_SHARDS, 4096);
        let shards = wanted.min(max_states / STATES_PER_SHARD).max(1);
        Self {
            shards: Shards::new(shards),
            overflow: Padded::default(),
            taken: Padded(Gauge::new("rate_limiting.keys")),
            overflowed: AtomicU64::new(0),
            displaced: AtomicU64::new(0),
            longest_wait: AtomicU64::new(0),
            latest: Padded::default(),
            log_memory: LogMemory::new(max_states.saturating_mul(LOG_BYTES_PER_STATE).max(LEAST_LOG_BYTES)),
            max_states,
        }
    }

    /// The index of a key's shard. Shards are locked in ascending order.
    pub(crate) fn shard_of(&self, key: Fingerprint) -> usize {
        self.shards.index_of(key)
    }

    /// Locks the shard of a key.
    pub(crate) fn lock(&self, key: Fingerprint) -> Guard<'_> {
        self.shards.lock(self.shards.index_of(key))
    }

    /// Locks the shards of some keys. Each comes with its index.
    pub(crate) fn lock_all(
        &self,
        keys: impl Iterator<Item = Fingerprint> + Clone,
    ) -> SmallVec<[(usize, Guard<'_>); 2]> {
        self.shards.lock_all(keys)
    }

    /// Locks the shard of overflow counters, for keys without an entry, and
    /// counts the overflow. It is locked after all other shards. It has no cap,
    /// but few keys: one for each tier of a rule.
    pub(crate) fn lock_overflow(&self) -> Guard<'_> {
        self.overflowed.fetch_add(1, Ordering::Relaxed);
        self.overflow.0.lock()
    }

    /// Locks the shard of overflow counters, to change what was charged there
    /// before. Counts no overflow.
    pub(crate) fn lock_shared(&self) -> Guard<'_> {
        self.overflow.0.lock()
    }

    /// Reserves an entry of `shard` for a new state, and drops some idle states.
    /// At the cap, an idle state or else one that `displace` removes makes way
    /// for it. Returns whether there is an entry.
    pub(crate) fn reserve(&self, shard: &mut Shard, now: u64, displace: impl FnOnce(&mut Shard) -> bool) -> bool {
        let fits = self.taken.0.add() < self.max_states;
        let (horizon, entries) =
            if fits { (now.saturating_sub(GRACE), SEARCH_ON_INSERT) } else { (now, SEARCH_WHEN_FULL) };
        let dropped = shard.evict_idle(horizon, entries);
        self.release(dropped);
        if fits || dropped > 0 {
            return true;
        }
        let is_displaced = displace(shard);
        self.release(1);
        self.displaced.fetch_add(u64::from(is_displaced), Ordering::Relaxed);
        is_displaced
    }

    /// The time before which a state must have become idle to be dropped, when a
    /// new one is added.
    pub(crate) fn horizon(&self, now: u64) -> u64 {
        if self.taken.0.value() < self.max_states { now.saturating_sub(GRACE) } else { now }
    }

    /// How many displaced states a shard keeps at least.
    pub(crate) fn displaced_per_shard(&self) -> usize {
        self.max_states.div_ceil(self.shards.len() * STATES_PER_DISPLACED).max(1)
    }

    /// Records the time of a decision, so that the store notices when the clock is
    /// set back. Writes once a second.
    pub(crate) fn record_time(&self, now: u64) {
        if now > self.latest.0.load(Ordering::Relaxed) {
            self.latest.0.fetch_max(now.saturating_add(TIME_STEP), Ordering::Relaxed);
        }
    }

    /// A wait of so many nanoseconds was reserved.
    pub(crate) fn record_wait(&self, nanos: u64) {
        self.longest_wait.fetch_max(nanos, Ordering::Relaxed);
    }

    /// How far beyond its span a state can be ahead of a clock that was set back;
    /// `None` if it was not.
    pub(crate) fn bound_after_set_back(&self, now: u64) -> Option<u64> {
        let is_behind = now.saturating_add(SET_BACK) < self.latest.0.load(Ordering::Relaxed);
        is_behind.then(|| self.longest_wait.load(Ordering::Relaxed))
    }

    /// Releases entries that were reserved and not used, or whose idle states
    /// were dropped.
    pub(crate) fn release(&self, states: usize) {
        if states > 0 {
            self.taken.0.release(states);
        }
    }

    /// The number of states, without those of overflow counters.
    pub(crate) fn len(&self) -> usize {
        self.taken.0.value().min(self.max_states)
    }

    /// The number of states that were displaced by new ones.
    pub(crate) fn displaced(&self) -> u64 {
        self.displaced.load(Ordering::Relaxed)
    }

    /// The number of decisions that used an overflow counter.
    pub(crate) fn overflowed(&self) -> u64 {
        self.overflowed.load(Ordering::Relaxed)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.release(self.taken.0.value());
    }
}
