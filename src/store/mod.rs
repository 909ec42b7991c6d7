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
//! key displaces the state of another key; what that had used is remembered in a
//! sketch for some time. Only if no state may be displaced, the new key uses the
//! overflow shard ([`Store::lock_overflow`]).

mod shard;
mod sketch;
mod table;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use spin::{
    mutex::{SpinMutex, SpinMutexGuard},
    relax::Yield,
};

use self::shard::SEARCH_WHEN_FULL;
pub(crate) use self::shard::{Shard, Shelf};
use crate::fingerprint::Fingerprint;

/// How long, in nanoseconds, an idle state is kept below the cap. A key that is
/// idle between any two requests then need not be inserted for each of them.
const GRACE: u64 = 10_000_000_000;

/// How many entries of each table are checked for each new state: more than
/// one, so that idle states are removed faster than new ones are added.
const SEARCH_ON_INSERT: usize = 4;

/// How many states a shard should hold at the cap, so that a new key finds idle
/// states in its shard.
const STATES_PER_SHARD: usize = 64;

#[derive(Debug)]
pub(crate) struct Store {
    shards: Box<[Padded<Lock>]>,
    overflow: Padded<Lock>,
    taken: Padded<AtomicUsize>,
    overflowed: AtomicU64,
    displaced: AtomicU64,
    /// How far ahead of the clock the longest wait or the largest debt was, in
    /// nanoseconds.
    furthest: AtomicU64,
    max_states: usize,
}

/// The lock of a shard. It is held for tens of nanoseconds, so a thread that
/// waits for it spins and yields to the scheduler. Parking would cost every
/// decision a second atomic instruction, to find on unlock that none waits.
type Lock = SpinMutex<Shard, Yield>;

pub(crate) type Guard<'s> = SpinMutexGuard<'s, Shard, Yield>;

/// Fills whole cache lines, so that threads that use neighbouring values do not
/// slow each other down.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Padded<T>(pub(crate) T);

impl Store {
    pub(crate) fn new(max_states: usize) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let wanted = (cores * 64).clamp(128, 4096);
        let shards = wanted.min(max_states / STATES_PER_SHARD).max(1);
        Self {
            shards: (0..shards).map(|_| Padded::default()).collect(),
            overflow: Padded::default(),
            taken: Padded::default(),
            overflowed: AtomicU64::new(0),
            displaced: AtomicU64::new(0),
            furthest: AtomicU64::new(0),
            max_states,
        }
    }

    /// The shard of a key. Shards are locked in ascending order.
    #[inline]
    pub(crate) fn shard_of(&self, key: Fingerprint) -> usize {
        key.spread_over(self.shards.len())
    }

    #[inline]
    pub(crate) fn lock(&self, shard: usize) -> Guard<'_> {
        self.shards[shard].0.lock()
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
        let fits = self.taken.0.fetch_add(1, Ordering::Relaxed) < self.max_states;
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
        if self.taken.0.load(Ordering::Relaxed) < self.max_states { now.saturating_sub(GRACE) } else { now }
    }

    /// The cells that a shard's sketch of displaced keys has in each half.
    pub(crate) fn sketch_cells(&self) -> usize {
        self.max_states.div_ceil(self.shards.len()).saturating_mul(sketch::CELLS)
    }

    /// A wait was reserved, or a debt charged, that ends so many nanoseconds ahead.
    pub(crate) fn record_ahead(&self, nanos: u64) {
        self.furthest.fetch_max(nanos, Ordering::Relaxed);
    }

    /// How far beyond its span a state can be ahead of the clock.
    pub(crate) fn furthest(&self) -> u64 {
        self.furthest.load(Ordering::Relaxed)
    }

    /// Releases entries that were reserved and not used, or whose idle states
    /// were dropped.
    pub(crate) fn release(&self, states: usize) {
        if states > 0 {
            self.taken.0.fetch_sub(states, Ordering::Relaxed);
        }
    }

    /// The number of states, without those of overflow counters.
    pub(crate) fn len(&self) -> usize {
        self.taken.0.load(Ordering::Relaxed).min(self.max_states)
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
