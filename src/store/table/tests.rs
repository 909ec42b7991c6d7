use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

fn key(number: u64) -> Fingerprint {
    // Few homes, so that runs are long and wrap around.
    Fingerprint::new(number, (number % 7) << 61 | number)
}

proptest! {
    #[test]
    fn behaves_as_a_map(steps in prop::collection::vec((0u64..40, any::<bool>()), 0..400)) {
        check::<Aligned>(&steps)?;
        #[cfg(feature = "redis")]
        check::<Dense>(&steps)?;
    }
}

/// Adds and removes keys, and compares with a map each time.
fn check<L: Layout>(steps: &[(u64, bool)]) -> Result<(), TestCaseError> {
    let mut table = Table::<[u64; 2], L>::default();
    let mut model = HashMap::new();
    for &(number, add) in steps {
        if add && !model.contains_key(&number) {
            table.insert(key(number), [number, 1], |_| false);
            model.insert(number, [number, 1]);
        } else if let Some(index) = table.find(key(number)) {
            table.remove(index);
            prop_assert!(model.remove(&number).is_some());
        }
        prop_assert_eq!(table.len, model.len());
        for number in 0..40 {
            let found = table.find(key(number)).map(|index| *table.state(index));
            prop_assert_eq!(found, model.get(&number).copied());
        }
    }
    Ok(())
}

/// How many bytes a key takes: a layout that is fuller takes less, and is never full.
#[cfg(feature = "redis")]
#[test]
fn a_dense_table_has_fewer_free_entries() {
    fn bytes<L: Layout>() -> usize {
        let mut table = Table::<[u64; 1], L>::default();
        let sizes = (1..=10_000).map(|number| {
            table.insert(key(number), [number], |_| false);
            assert!(table.len < table.entries.len());
            size_of_val(&*table.entries) / table.len
        });
        sizes.skip(5_000).sum::<usize>() / 5_000
    }
    let (aligned, dense) = (bytes::<Aligned>(), bytes::<Dense>());
    assert!(dense * 3 < aligned * 2, "{dense} and {aligned} bytes");
}

#[test]
fn the_cursor_removes_every_idle_state_and_no_other() {
    let mut table = Table::<[u64; 2]>::default();
    for number in 1..=1000 {
        table.insert(key(number), [number, 0], |_| false);
    }
    let mut evicted = 0;
    for _ in 0..2 * table.entries.len() {
        evicted += table.evict(1, |state| state[0] % 2 == 0);
    }
    assert_eq!((evicted, table.len), (500, 500));
    assert!((1..=1000).all(|number| table.find(key(number)).is_some() == (number % 2 == 1)));
}

#[test]
fn two_thirds_of_a_small_table_are_free_and_a_quarter_of_a_large_one() {
    let mut table = Table::<[u64; 2]>::default();
    for number in 1..=2_000 {
        table.insert(key(number), [number, 0], |_| false);
        let (keys, entries) = (table.len, table.entries.len());
        let is_small = entries <= Aligned::SMALL;
        assert!(if is_small { keys * 3 <= entries } else { keys * 4 <= entries * 3 }, "{keys} of {entries}");
        let most = if is_small { keys * 6 } else { (keys * 16 / 9 + 1).max(Aligned::SMALL + 1) };
        assert!(entries <= most.max(SMALLEST), "{keys} of {entries}");
    }
}

#[test]
fn no_table_is_overfull_from_the_start() {
    fn check<L: Layout>() {
        assert!((1..5_000).all(|keys| !L::is_overfull(keys, L::entries_for(keys))));
    }
    check::<Aligned>();
    #[cfg(feature = "redis")]
    check::<Dense>();
}

#[test]
fn a_small_entry_is_half_a_cache_line() {
    assert_eq!(size_of::<Entry<[u64; 2], Aligned>>(), 32);
}

#[test]
fn rebuilding_leaves_idle_states_behind() {
    let mut table = Table::<[u64; 2]>::default();
    for number in 1..=10_000 {
        table.insert(key(number), [number, 0], |state| state[0] + 50 < number);
    }
    assert!(table.entries.len() < 400, "{}", table.entries.len());
    assert!(table.find(key(10_000)).is_some());
}
