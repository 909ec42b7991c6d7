use std::collections::HashMap;

use proptest::prelude::*;

use super::super::*;

fn add(sketch: &mut Sketch, key: u64, amount: u64) {
    sketch.add(key, || Some(Tenant::new(key.to_string())), amount, 1.0);
}

/// Amounts by few keys, some of which are heavy.
fn additions() -> impl Strategy<Value = Vec<(u64, u64)>> {
    let key = prop_oneof![0..4u64, 0..200u64];
    prop::collection::vec((key, 0..50u64), 0..600)
}

proptest! {
    /// Against counters for all: the bound of each tenant, and of those that are not there.
    #[test]
    fn errors_are_bounds(additions in additions(), capacity in 1..20usize) {
        let (mut sketch, mut exact) = (Sketch::new(capacity), HashMap::<u64, u64>::new());
        for (key, amount) in &additions {
            add(&mut sketch, *key, *amount);
            *exact.entry(*key).or_default() += amount;
        }
        let bound = exact.values().sum::<u64>() / capacity as u64;
        prop_assert!(sketch.largest_error() <= bound);
        prop_assert_eq!(sketch.tenants.values().map(|counted| counted.count).sum::<u64>(), exact.values().sum::<u64>());
        for (key, counted) in &sketch.tenants {
            let own = exact.remove(key).unwrap();
            prop_assert!(counted.count - counted.error <= own && own <= counted.count, "{own} {counted:?}");
            prop_assert!(counted.error <= sketch.largest_error());
            prop_assert_eq!(counted.tenant.as_ref().unwrap().id().to_string(), key.to_string());
        }
        prop_assert!(exact.values().all(|forgotten| *forgotten <= sketch.largest_error()));
    }

    /// The order survives additions and halving.
    #[test]
    fn the_least_is_displaced(additions in additions(), capacity in 1..20usize, halved_at in 0..600usize) {
        let mut sketch = Sketch::new(capacity);
        for (step, (key, amount)) in additions.iter().enumerate() {
            add(&mut sketch, *key, *amount);
            if step == halved_at {
                sketch.halve(1);
            }
            let least = sketch.tenants.values().map(|counted| counted.count).min().unwrap_or(0);
            let is_full = sketch.tenants.len() == capacity;
            prop_assert_eq!(sketch.largest_error(), if is_full { least } else { 0 });
            prop_assert!(sketch.tenants.len() <= capacity && sketch.order.len() == sketch.tenants.len());
        }
    }
}

#[test]
fn counts_fade_minute_by_minute() {
    let mut sketch = Sketch::new(2);
    add(&mut sketch, 1, 100);
    sketch.add(1, || None, 1, 0.25);
    sketch.halve(1);
    let counted = &sketch.tenants[&1];
    assert_eq!((counted.count, counted.least_remaining()), (50, 0.25));
    sketch.halve(2);
    let counted = &sketch.tenants[&1];
    assert_eq!((counted.count, counted.least_remaining()), (12, 1.0));
    sketch.halve(u64::MAX);
    assert!(sketch.tenants.is_empty());
}
