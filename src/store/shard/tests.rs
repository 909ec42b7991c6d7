use super::*;
use crate::store::shards::{Lock, Padded};

#[test]
fn lock_and_hot_table_share_a_cache_line() {
    assert!(size_of::<Padded<Lock<Shard>>>() <= 64);
}

fn key(number: u64) -> Fingerprint {
    Fingerprint::new(number, number.wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

#[test]
fn states_are_kept_for_as_long_as_stated_and_no_longer() {
    let mut displaced = Displaced::default();
    for number in 0..1_000 {
        displaced.put(key(number), [number, 1_u64], 10);
        for earlier in number.saturating_sub(10)..=number {
            assert_eq!(displaced.find(key(earlier)), Some(&[earlier, 1_u64]), "after {number}");
        }
        assert!(
            displaced
                .generations()
                .map(|generation| CompactState::table(generation).unwrap().len())
                .iter()
                .sum::<usize>()
                <= 20
        );
    }
}

#[test]
fn a_state_is_taken_once() {
    let mut displaced = Displaced::default();
    displaced.put(key(1), [7_u64, 8], 1);
    displaced.put(key(2), [9_u64, 10], 1);
    *displaced.find_mut(key(1)).unwrap() = [7, 9];
    assert_eq!(displaced.take(key(1)), Some([7_u64, 9]));
    assert_eq!(displaced.take::<CompactState>(key(1)), None);
    assert_eq!(displaced.take(key(2)), Some([9_u64, 10]));
}
