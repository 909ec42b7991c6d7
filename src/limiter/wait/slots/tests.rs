//! The queues together: which slots are returned to their owner, and when.

use std::cell::RefCell;

use super::*;

/// Keeps a free slot for each waiter: a backend that cannot tell whether a refund is
/// exact.
#[derive(Default)]
struct Owner {
    refunded: RefCell<Vec<u64>>,
}

impl SlotOwner<u64> for Owner {
    fn keeps(&self, _: &u64, are_too_many: bool) -> bool {
        !are_too_many
    }

    fn refund(&self, slot: &u64) {
        self.refunded.borrow_mut().push(*slot);
    }

    fn refunded(&self, _: u64) {}
}

const START: Timestamp = Timestamp::from_nanos(0);

fn key(number: u64) -> Fingerprint {
    Fingerprint::from_u128(u128::from(number) << 64 | u128::from(number))
}

/// Enters with a slot at `at`.
fn enter(queues: &SlotQueues<u64>, queue: Fingerprint, at: u64, owner: &Owner) -> SlotEntry {
    let newcomer = Newcomer { tenant: None, now: 0, usable_from: 0, deadline: u64::MAX };
    queues.lock(queue).enter(newcomer, (Timestamp::from_nanos(at), at), owner)
}

#[test]
fn a_free_slot_is_kept_for_each_waiter() {
    let (queues, owner) = (SlotQueues::default(), Owner::default());
    let mut entries: Vec<_> = (1..=5).map(|at| enter(&queues, key(1), at, &owner)).collect();
    for _ in 0..2 {
        queues.leave(&entries.remove(0), START, &owner);
        assert!(owner.refunded.borrow().is_empty(), "three wait, or more");
    }
    queues.leave(&entries.remove(0), START, &owner);
    assert_eq!(*owner.refunded.borrow(), [5], "two wait, and two slots are free");
    for entry in &mut entries {
        assert!(matches!(queues.look(entry, START, &owner), SlotTime::Later(_)));
    }
    assert_eq!(*owner.refunded.borrow(), [5], "a look changes nothing");
    entries.push(enter(&queues, key(1), 6, &owner));
    assert_eq!(*owner.refunded.borrow(), [5, 6], "a newcomer takes a slot for the one that it brings");
    entries.iter().for_each(|entry| queues.leave(entry, START, &owner));
    let mut refunded = owner.refunded.take();
    refunded.sort_unstable();
    assert_eq!(refunded, [1, 2, 3, 4, 5, 6], "each once");
}

#[test]
fn a_burst_of_keys_keeps_no_memory() {
    const KEYS: u64 = 20_000;
    let (queues, owner) = (SlotQueues::default(), Owner::default());
    let entries: Vec<_> = (0..KEYS).map(|number| enter(&queues, key(number), 1, &owner)).collect();
    assert_eq!(queues.0.each().map(|shard| shard.len()).sum::<usize>(), entries.len());
    for entry in &entries {
        queues.leave(entry, START, &owner);
    }
    assert_eq!(queues.0.each().map(|shard| shard.len()).sum::<usize>(), 0);
    let capacity: usize = queues.0.each().map(|shard| shard.capacity()).sum();
    assert!(capacity <= 16 * 128, "of {KEYS} keys: {capacity}");
}
