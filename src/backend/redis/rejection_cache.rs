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

use smallvec::SmallVec;

use crate::{
    backend::{Outcome, OutcomeKind, TierState},
    time::nanos,
};

/// A rejection as it is cached. Times are the limiter's, in nanoseconds.
#[derive(Debug)]
pub(super) struct CachedRejection {
    pub(super) until: u64,
    pub(super) at: u64,
    pub(super) tiers: SmallVec<[TierState; 2]>,
}

impl CachedRejection {
    /// The rejection of a request at `now`.
    pub(super) fn outcome(&self, now: u64) -> Outcome {
        let passed = now.saturating_sub(self.at);
        let tiers = self.tiers.iter();
        let tiers = tiers.map(|tier| TierState { reset: tier.reset.saturating_sub(passed), ..*tier }).collect();
        let answer = OutcomeKind::Rejected { retry_after: Some(self.until.saturating_sub(now)) };
        Outcome { answer, tiers, decided_at: None }
    }
}

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
        let ttl = if size == 0 { 0 } else { nanos(ttl) };
        Self { entries: OnceLock::new(), size, ttl, generation: AtomicU64::new(0) }
    }

    /// The rejection of `key` in force at `now`. One from the future is not:
    /// the clock went back, by an unknown time.
    #[inline]
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

    #[inline]
    fn entry<'a, E>(&self, entries: &'a [E], key: u128) -> Option<&'a E> {
        // Keys are hashes already; both halves count, evenly over the entries.
        let hash = (key as u64) ^ ((key >> 64) as u64).rotate_left(32);
        entries.get(((u128::from(hash) * entries.len() as u128) >> 64) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const KEY: u128 = 7 << 64 | 9;

    fn cache() -> RejectionCache<&'static str> {
        RejectionCache::new(64, Duration::from_secs(1))
    }

    #[test]
    fn a_rejection_is_cached_until_it_ends() {
        let cache = cache();
        assert_eq!(cache.get(KEY, 10), None);
        assert!(cache.entries.get().is_none(), "nothing is allocated before the first rejection");
        cache.insert(KEY, (10, 50), cache.generation(), "no");
        assert_eq!((cache.get(KEY, 10), cache.get(KEY, 49)), (Some("no"), Some("no")));
        assert_eq!(cache.get(KEY, 50), None, "it has ended");
        assert_eq!(cache.get(KEY, 9), None, "the clock went back");
        assert_eq!(cache.get(KEY + 1, 20), None, "another key");
    }

    #[test]
    fn no_rejection_outlives_the_ttl() {
        let cache = cache();
        cache.insert(KEY, (5, u64::MAX), cache.generation(), "no");
        assert_eq!(cache.get(KEY, 5 + SECOND - 1), Some("no"));
        assert_eq!(cache.get(KEY, 5 + SECOND), None);
        cache.insert(KEY, (u64::MAX - 1, u64::MAX), cache.generation(), "no");
        assert_eq!(cache.get(KEY, u64::MAX - 1), Some("no"));
    }

    #[test]
    fn a_newer_rejection_replaces_an_older_one() {
        let one = RejectionCache::new(1, Duration::from_secs(1));
        one.insert(1, (0, 100), one.generation(), "old");
        one.insert(2, (0, 100), one.generation(), "new");
        assert_eq!((one.get(1, 1), one.get(2, 1)), (None, Some("new")));
        one.insert(2, (0, 100), one.generation(), "newer");
        assert_eq!(one.get(2, 1), Some("newer"));
    }

    #[test]
    fn a_cleared_cache_is_empty_and_usable() {
        let cache = cache();
        (0..64).for_each(|key| cache.insert(key << 58, (0, 100), cache.generation(), "no"));
        cache.clear();
        assert!((0..64).all(|key| cache.get(key << 58, 1).is_none()));
        cache.insert(KEY, (1, 100), cache.generation(), "again");
        assert_eq!(cache.get(KEY, 1), Some("again"));
    }

    #[test]
    fn a_rejection_from_before_a_clear_is_not_cached() {
        let cache = cache();
        let generation = cache.generation();
        cache.clear();
        cache.insert(KEY, (1, 100), generation, "no");
        assert_eq!(cache.get(KEY, 1), None);
    }

    #[test]
    fn zero_size_or_ttl_turns_it_off() {
        for off in [RejectionCache::new(0, Duration::from_secs(1)), RejectionCache::new(64, Duration::ZERO)] {
            off.insert(KEY, (1, 100), off.generation(), ());
            assert_eq!(off.get(KEY, 1), None);
            assert!(off.entries.get().is_none());
        }
    }

    #[test]
    fn a_rejection_that_has_ended_is_not_cached() {
        let cache = cache();
        cache.insert(KEY, (10, 50), cache.generation(), "no");
        cache.insert(KEY, (60, 60), cache.generation(), "empty");
        assert_eq!(cache.get(KEY, 20), Some("no"));
    }

    #[test]
    fn keys_are_spread_over_all_entries() {
        let cache = RejectionCache::new(100, Duration::from_secs(1));
        let hash = |key: u128| key.wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835);
        (0..2000).for_each(|key| cache.insert(hash(key), (0, 100), cache.generation(), key));
        let filled = cache.entries.get().unwrap().iter().filter(|entry| entry.lock().is_some()).count();
        assert_eq!(filled, 100);
    }
}
