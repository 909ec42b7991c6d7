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
        check::<()>(&steps)?;
    }
}

/// Adds and removes keys, and compares with a map each time.
fn check<A: Default>(steps: &[(u64, bool)]) -> Result<(), TestCaseError> {
    let mut table = Table::<[u64; 2], A>::default();
    let mut model = HashMap::new();
    for &(number, add) in steps {
        if add && !model.contains_key(&number) {
            table.insert(key(number), [number, 1], |_| false);
            model.insert(number, [number, 1]);
        } else if let Some(index) = table.find(key(number)) {
            table.remove_at(index);
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
fn a_fifth_to_two_fifths_of_a_table_are_free() {
    let mut table = Table::<[u64; 2]>::default();
    for number in 1..=2_000 {
        table.insert(key(number), [number, 0], |_| false);
        let (keys, entries) = (table.len, table.entries.len());
        assert!(keys * 5 <= entries * 4, "{keys} of {entries}");
        assert!(entries <= (keys * 5 / 3 + 1).max(SMALLEST), "{keys} of {entries}");
    }
}

#[test]
fn no_table_is_overfull_from_the_start() {
    assert!((1..5_000).all(|keys| !is_overfull(keys, entries_for(keys))));
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
