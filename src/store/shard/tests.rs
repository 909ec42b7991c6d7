use super::Shard;
use crate::store::sync::{Lock, Padded};

#[test]
fn lock_and_hot_table_share_a_cache_line() {
    assert!(size_of::<Padded<Lock<Shard>>>() <= 64);
}
