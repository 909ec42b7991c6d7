//! What is cached, for how long, and where.

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
fn a_ttl_of_zero_turns_it_off() {
    let off = RejectionCache::new(64, Duration::ZERO);
    off.insert(KEY, (1, 100), off.generation(), ());
    assert_eq!(off.get(KEY, 1), None);
    assert!(off.entries.get().is_none());
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
