//! Remembers for a while who was denied, so that a key over its limit is
//! rejected without asking.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::time::nanos;

/// A bounded cache of denials. Each key has one place, shared with others: who
/// comes last stays. So it never grows, and a flood of keys costs others no
/// more than a question to the store.
#[derive(Debug)]
pub(super) struct Denied<T> {
    /// Made at the first denial: nobody pays for a cache that is not used.
    places: OnceLock<Box<[Place<T>]>>,
    most: usize,
    /// Nanoseconds; 0 where nothing is remembered.
    longest: u64,
    /// Counts the clearings; entries of an earlier one are void.
    clearings: AtomicU64,
}

type Place<T> = spin::Mutex<Option<Entry<T>>>;

#[derive(Debug)]
struct Entry<T> {
    key: u128,
    from: u64,
    until: u64,
    clearing: u64,
    denial: T,
}

impl<T: Clone> Denied<T> {
    /// Has `most` places, and remembers for `longest`; zero of either: nothing.
    pub(super) fn new(most: usize, longest: Duration) -> Self {
        let longest = if most == 0 { 0 } else { nanos(longest) };
        Self { places: OnceLock::new(), most, longest, clearings: AtomicU64::new(0) }
    }

    /// The denial that holds for `key` at `now`. One from the future does not:
    /// the clock went back, and nobody knows how far.
    #[inline]
    pub(super) fn get(&self, key: u128, now: u64) -> Option<T> {
        let entry = self.place(self.places.get()?, key)?.lock();
        let entry = entry.as_ref().filter(|entry| entry.key == key && (entry.from..entry.until).contains(&now))?;
        (entry.clearing == self.clearings.load(Ordering::Acquire)).then(|| entry.denial.clone())
    }

    /// To be asked before the question that may be answered by a denial.
    pub(super) fn clearing(&self) -> u64 {
        self.clearings.load(Ordering::Acquire)
    }

    /// Remembers that `key` is denied from `now` until `until`, but not for
    /// longer than was set; nor at all, if all was forgotten since it was
    /// asked, in this clearing.
    pub(super) fn put(&self, key: u128, (now, until): (u64, u64), clearing: u64, denial: T) {
        let until = until.min(now.saturating_add(self.longest));
        if until <= now {
            return;
        }
        let places = self.places.get_or_init(|| (0..self.most).map(|_| spin::Mutex::new(None)).collect());
        if let Some(place) = self.place(places, key) {
            *place.lock() = Some(Entry { key, from: now, until, clearing, denial });
        }
    }

    /// Forgets all.
    pub(super) fn clear(&self) {
        self.clearings.fetch_add(1, Ordering::AcqRel);
    }

    #[inline]
    fn place<'a, P>(&self, places: &'a [P], key: u128) -> Option<&'a P> {
        // Keys are hashes already; both halves count, evenly over the places.
        let hash = (key as u64) ^ ((key >> 64) as u64).rotate_left(32);
        places.get(((u128::from(hash) * places.len() as u128) >> 64) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const KEY: u128 = 7 << 64 | 9;

    fn denied() -> Denied<&'static str> {
        Denied::new(64, Duration::from_secs(1))
    }

    #[test]
    fn a_denial_holds_until_it_ends() {
        let denied = denied();
        assert_eq!(denied.get(KEY, 10), None);
        assert!(denied.places.get().is_none(), "nothing is allocated before the first denial");
        denied.put(KEY, (10, 50), denied.clearing(), "no");
        assert_eq!((denied.get(KEY, 10), denied.get(KEY, 49)), (Some("no"), Some("no")));
        assert_eq!(denied.get(KEY, 50), None, "its end");
        assert_eq!(denied.get(KEY, 9), None, "a clock that went back");
        assert_eq!(denied.get(KEY + 1, 20), None, "another key");
    }

    #[test]
    fn it_is_kept_for_no_longer_than_was_set() {
        let denied = denied();
        denied.put(KEY, (5, u64::MAX), denied.clearing(), "no");
        assert_eq!(denied.get(KEY, 5 + SECOND - 1), Some("no"));
        assert_eq!(denied.get(KEY, 5 + SECOND), None);
        denied.put(KEY, (u64::MAX - 1, u64::MAX), denied.clearing(), "no");
        assert_eq!(denied.get(KEY, u64::MAX - 1), Some("no"));
    }

    #[test]
    fn a_newer_denial_takes_the_place() {
        let one = Denied::new(1, Duration::from_secs(1));
        one.put(1, (0, 100), one.clearing(), "old");
        one.put(2, (0, 100), one.clearing(), "new");
        assert_eq!((one.get(1, 1), one.get(2, 1)), (None, Some("new")));
        one.put(2, (0, 100), one.clearing(), "newer");
        assert_eq!(one.get(2, 1), Some("newer"));
    }

    #[test]
    fn all_is_forgotten_at_once_and_the_cache_goes_on() {
        let denied = denied();
        (0..64).for_each(|key| denied.put(key << 58, (0, 100), denied.clearing(), "no"));
        denied.clear();
        assert!((0..64).all(|key| denied.get(key << 58, 1).is_none()));
        denied.put(KEY, (1, 100), denied.clearing(), "again");
        assert_eq!(denied.get(KEY, 1), Some("again"));
    }

    #[test]
    fn who_asked_before_all_was_forgotten_is_not_remembered() {
        let denied = denied();
        let clearing = denied.clearing();
        denied.clear();
        denied.put(KEY, (1, 100), clearing, "no");
        assert_eq!(denied.get(KEY, 1), None);
    }

    #[test]
    fn it_can_be_off() {
        for off in [Denied::new(0, Duration::from_secs(1)), Denied::new(64, Duration::ZERO)] {
            off.put(KEY, (1, 100), off.clearing(), ());
            assert_eq!(off.get(KEY, 1), None);
            assert!(off.places.get().is_none());
        }
    }

    #[test]
    fn a_denial_in_the_past_is_not_remembered() {
        let denied = denied();
        denied.put(KEY, (10, 50), denied.clearing(), "no");
        denied.put(KEY, (60, 60), denied.clearing(), "empty");
        assert_eq!(denied.get(KEY, 20), Some("no"));
    }

    #[test]
    fn keys_spread_over_all_places() {
        let denied = Denied::new(100, Duration::from_secs(1));
        let hash = |key: u128| key.wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835);
        (0..2000).for_each(|key| denied.put(hash(key), (0, 100), denied.clearing(), key));
        let filled = denied.places.get().unwrap().iter().filter(|place| place.lock().is_some()).count();
        assert_eq!(filled, 100);
    }
}
