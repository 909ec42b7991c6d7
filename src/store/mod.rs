//! The bounded, sharded, keyed state of everything that is counted in this
//! process.
//!
//! A key is a keyed 128-bit fingerprint; no string is stored. A shard is one
//! lock over open-addressing tables whose slots hold fingerprint and state
//! side by side, so that a decision touches one lock and, nearly always, one
//! more cache line. All tiers of a key live in one shard.
//!
//! The number of states is capped. An idle state, one that cannot be told from
//! a new one, gives its place to the next that is needed: inserting looks at a
//! few slots more, and no background task is required. Where nothing is idle,
//! the newcomer is sent to the [`Store::lock_overflow`] shard.

mod shard;
mod table;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use spin::{
    mutex::{SpinMutex, SpinMutexGuard},
    relax::Yield,
};

pub(crate) use self::shard::{Shard, Shelf};
use crate::fingerprint::Fingerprint;

/// How many slots are looked at for an idle state when there is no place.
const SEARCH_WHEN_FULL: usize = 128;

/// How long, in nanoseconds, an idle state is kept while there are places: a
/// key that is idle between any two requests is spared being made anew.
const GRACE: u64 = 10_000_000_000;

/// How many are looked at each time a place is taken: more than one, so that
/// idle states leave faster than new ones come.
const SEARCH_ON_INSERT: usize = 4;

/// States that a shard should be able to hold at the cap, so that a newcomer
/// finds idle ones in its own shard.
const STATES_PER_SHARD: usize = 64;

#[derive(Debug)]
pub(crate) struct Store {
    shards: Box<[Padded<Lock>]>,
    overflow: Padded<Lock>,
    taken: Padded<AtomicUsize>,
    overflowed: AtomicU64,
    max_states: usize,
}

/// Held for tens of nanoseconds, so that a waiter spins, and yields to the
/// scheduler while it does. Parking would cost every decision a second locked
/// instruction, to learn on release that nobody waits.
type Lock = SpinMutex<Shard, Yield>;

pub(crate) type Guard<'s> = SpinMutexGuard<'s, Shard, Yield>;

/// Alone on its cache line, so that threads at work on neighbours do not slow
/// each other down.
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
            max_states,
        }
    }

    /// Where a key lives. Locks are taken in ascending order.
    #[inline]
    pub(crate) fn shard_of(&self, key: Fingerprint) -> usize {
        key.spread_over(self.shards.len())
    }

    #[inline]
    pub(crate) fn lock(&self, shard: usize) -> Guard<'_> {
        self.shards[shard].0.lock()
    }

    /// The shard of those for whom there was no place. Locked after all
    /// others; not capped, but for its keys, which are few: one for each tier
    /// of a policy.
    pub(crate) fn lock_overflow(&self) -> Guard<'_> {
        self.overflowed.fetch_add(1, Ordering::Relaxed);
        self.overflow.0.lock()
    }

    /// The same shard, for what was charged there before.
    pub(crate) fn lock_shared(&self) -> Guard<'_> {
        self.overflow.0.lock()
    }

    /// Drops some idle states of `shard`, before `states` new ones come.
    pub(crate) fn make_room(&self, shard: &mut Shard, states: usize, now: u64) {
        let slots = if self.has_room(states) { SEARCH_ON_INSERT * states } else { SEARCH_WHEN_FULL };
        self.release(shard.evict_idle(self.horizon(now, states), slots));
    }

    /// The time before which a state must have become idle to be dropped, when
    /// `states` new ones come.
    pub(crate) fn horizon(&self, now: u64, states: usize) -> u64 {
        if self.has_room(states) { now.saturating_sub(GRACE) } else { now }
    }

    fn has_room(&self, states: usize) -> bool {
        self.taken.0.load(Ordering::Relaxed) + states <= self.max_states
    }

    /// Takes a place for a new state, where there is one.
    pub(crate) fn reserve(&self) -> bool {
        let before = self.taken.0.fetch_add(1, Ordering::Relaxed);
        let fits = before < self.max_states;
        if !fits {
            self.release(1);
        }
        fits
    }

    /// Gives back places that were reserved and not used, or are idle.
    pub(crate) fn release(&self, states: usize) {
        if states > 0 {
            self.taken.0.fetch_sub(states, Ordering::Relaxed);
        }
    }

    /// How many states are held.
    pub(crate) fn len(&self) -> usize {
        self.taken.0.load(Ordering::Relaxed).min(self.max_states)
    }

    /// How many decisions had to share an overflow counter.
    pub(crate) fn overflowed(&self) -> u64 {
        self.overflowed.load(Ordering::Relaxed)
    }
}
