//! A bounded in-process cache of rejections, so that a key over its limit is
//! rejected without a call. It decides nothing itself.
//!
//! Invariant: no entry outlives the time that the rejection names, the TTL, or
//! the last [`RejectionCache::clear`].

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::time::nanos;

/// A hash table without probing: a new entry replaces the one with the same
/// index. So it never grows, and a flood of keys only costs others a call.
#[derive(Debug)]
pub(super) struct RejectionCache<T> {
    /// Allocated at the first rejection.
    entries: OnceLock<Box<[CacheEntry<T>]>>,
    size: usize,
    /// Nanoseconds; 0 turns the cache off.
    ttl: u64,
    /// Counts the clearings; entries from before the last one are void.
    generation: AtomicU64,
}

type CacheEntry<T> = spin::Mutex<Option<Entry<T>>>;

#[derive(Debug)]
struct Entry<T> {
    key: u128,
    from: u64,
    until: u64,
    generation: u64,
    rejection: T,
}

impl<T: Clone> RejectionCache<T> {
    pub(super) fn new(size: usize, ttl: Duration) -> Self {
        Self { entries: OnceLock::new(), size, ttl: nanos(ttl), generation: AtomicU64::new(0) }
    }

    /// The rejection of `key` in force at `now`. One from the future is not:
    /// the clock went back, by an unknown time.
    pub(super) fn get(&self, key: u128, now: u64) -> Option<T> {
        let entry = self.entry(self.entries.get()?, key)?.lock();
        let entry = entry.as_ref().filter(|entry| entry.key == key && (entry.from..entry.until).contains(&now))?;
        (entry.generation == self.generation()).then(|| entry.rejection.clone())
    }

    /// To be read before the call whose rejection is inserted.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Caches that `key` is rejected from `now` until `until`, at most for the
    /// TTL. It is void if the cache was cleared since `generation` was read.
    pub(super) fn insert(&self, key: u128, (now, until): (u64, u64), generation: u64, rejection: T) {
        let until = until.min(now.saturating_add(self.ttl));
        if until <= now {
            return;
        }
        let entries = self.entries.get_or_init(|| (0..self.size).map(|_| spin::Mutex::new(None)).collect());
        if let Some(entry) = self.entry(entries, key) {
            *entry.lock() = Some(Entry { key, from: now, until, generation, rejection });
        }
    }

    pub(super) fn clear(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    fn entry<'a, E>(&self, entries: &'a [E], key: u128) -> Option<&'a E> {
        // Keys are hashes already; both halves count, evenly over the entries.
        let hash = (key as u64) ^ ((key >> 64) as u64).rotate_left(32);
        entries.get(((u128::from(hash) * entries.len() as u128) >> 64) as usize)
    }
}

#[cfg(test)]
mod tests;
