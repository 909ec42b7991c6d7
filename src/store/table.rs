//! A hash table of keys and states, with open addressing. It has no lock and no
//! cap.
//!
//! Invariant: no free entry lies between a key and its home, so that no
//! tombstones are needed.

use crate::fingerprint::Fingerprint;

/// A hash table with linear probing. An entry holds key and state side by side;
/// a cache line holds two small entries.
///
/// When the table is three quarters full, it is rebuilt, a third larger than the
/// live states need and without the idle ones. A removal moves the entries that
/// follow it back. So there are no tombstones, and lookups stay short however
/// many keys are removed.
#[derive(Debug)]
pub(crate) struct Table<S> {
    slots: Box<[Slot<S>]>,
    len: usize,
    hand: usize,
}

#[derive(Debug, Default)]
#[repr(align(32))]
struct Slot<S> {
    key: Fingerprint,
    state: S,
}

/// The smallest table that is allocated.
const SMALLEST: usize = 8;

impl<S> Default for Table<S> {
    fn default() -> Self {
        Self { slots: Box::default(), len: 0, hand: 0 }
    }
}

impl<S: Default> Table<S> {
    #[inline]
    pub(crate) fn find(&self, key: Fingerprint) -> Option<usize> {
        let slots = &*self.slots;
        if slots.is_empty() {
            return None;
        }
        let mut index = key.home(slots.len());
        loop {
            let slot = slots.get(index)?;
            if slot.key == key {
                return Some(index);
            }
            if slot.key == Fingerprint::NONE {
                return None;
            }
            index += 1;
            if index == slots.len() {
                index = 0;
            }
        }
    }

    /// The index of a key that is probably at `hint`.
    #[inline]
    pub(crate) fn find_near(&self, key: Fingerprint, hint: usize) -> Option<usize> {
        match self.slots.get(hint) {
            Some(slot) if slot.key == key => Some(hint),
            _ => self.find(key),
        }
    }

    #[inline]
    pub(crate) fn state(&self, index: usize) -> &S {
        &self.slots[index].state
    }

    #[inline]
    pub(crate) fn state_mut(&mut self, index: usize) -> &mut S {
        &mut self.slots[index].state
    }

    /// Adds a key that is not in the table. Returns how many idle states a
    /// rebuild dropped.
    pub(crate) fn insert(&mut self, key: Fingerprint, state: S, is_idle: impl Fn(&S) -> bool) -> usize {
        let mut evicted = 0;
        if (self.len + 1) * 4 > self.slots.len() * 3 {
            evicted = self.rebuild(is_idle);
        }
        self.place(Slot { key, state });
        evicted
    }

    fn place(&mut self, slot: Slot<S>) {
        let mut index = slot.key.home(self.slots.len());
        while self.slots[index].key != Fingerprint::NONE {
            index = self.next(index);
        }
        self.slots[index] = slot;
        self.len += 1;
    }

    fn rebuild(&mut self, is_idle: impl Fn(&S) -> bool) -> usize {
        let is_live = |slot: &Slot<S>| slot.key != Fingerprint::NONE && !is_idle(&slot.state);
        let live = self.slots.iter().filter(|slot| is_live(slot)).count();
        let evicted = self.len - live;
        let size = ((live + 1) * 16).div_ceil(9).max(SMALLEST);
        let old = std::mem::replace(&mut self.slots, (0..size).map(|_| Slot::default()).collect());
        (self.len, self.hand) = (0, 0);
        for slot in old.into_vec() {
            if is_live(&slot) {
                self.place(slot);
            }
        }
        evicted
    }

    /// Checks the next `count` entries for idle states and removes them. Returns
    /// how many it removed.
    pub(crate) fn evict(&mut self, count: usize, is_idle: impl Fn(&S) -> bool) -> usize {
        let before = self.len;
        for _ in 0..count.min(self.slots.len()) {
            if self.hand >= self.slots.len() {
                self.hand = 0;
            }
            let slot = &self.slots[self.hand];
            if slot.key != Fingerprint::NONE && is_idle(&slot.state) {
                // The entry that moves here is checked next.
                self.remove(self.hand);
            } else {
                self.hand += 1;
            }
        }
        before - self.len
    }

    fn remove(&mut self, mut hole: usize) {
        let mut index = hole;
        loop {
            index = self.next(index);
            let key = self.slots[index].key;
            if key == Fingerprint::NONE || index == hole {
                break;
            }
            // An entry may not move to before its home.
            let home = key.home(self.slots.len());
            if self.distance(home, index) >= self.distance(hole, index) {
                self.slots[hole] = std::mem::take(&mut self.slots[index]);
                hole = index;
            }
        }
        self.slots[hole] = Slot::default();
        self.len -= 1;
    }

    fn next(&self, index: usize) -> usize {
        if index + 1 == self.slots.len() { 0 } else { index + 1 }
    }

    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.slots.len() - from }
    }
}

#[cfg(test)]
mod tests {
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
            let mut table = Table::<[u64; 2]>::default();
            let mut model = HashMap::new();
            for (number, add) in steps {
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
        }
    }

    #[test]
    fn the_hand_removes_every_idle_state_and_no_other() {
        let mut table = Table::<[u64; 2]>::default();
        for number in 1..=1000 {
            table.insert(key(number), [number, 0], |_| false);
        }
        let mut evicted = 0;
        for _ in 0..2 * table.slots.len() {
            evicted += table.evict(1, |state| state[0] % 2 == 0);
        }
        assert_eq!((evicted, table.len), (500, 500));
        assert!((1..=1000).all(|number| table.find(key(number)).is_some() == (number % 2 == 1)));
    }

    #[test]
    fn a_small_slot_is_half_a_cache_line() {
        assert_eq!(size_of::<Slot<[u64; 2]>>(), 32);
    }

    #[test]
    fn rebuilding_leaves_idle_states_behind() {
        let mut table = Table::<[u64; 2]>::default();
        for number in 1..=10_000 {
            table.insert(key(number), [number, 0], |state| state[0] + 50 < number);
        }
        assert!(table.slots.len() < 400, "{}", table.slots.len());
        assert!(table.find(key(10_000)).is_some());
    }
}
