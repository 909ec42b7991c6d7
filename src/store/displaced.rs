//! The states that new ones displaced latest: [`Displaced`]. It knows neither
//! algorithms nor the cap.
//!
//! Invariant: a state is kept, as it was, until `capacity` others were displaced
//! after it. At most twice as many are kept.

use super::shelf::Shelf;
use crate::{algorithm::State, fingerprint::Fingerprint};

/// A displaced state is kept for so many of the cap, at least.
pub(super) const STATES_PER_DISPLACED: usize = 8;

/// Two generations: when the current one is full, it replaces the previous one.
#[derive(Debug, Default)]
pub(super) struct Displaced<G> {
    current: G,
    previous: G,
    /// The states that were put into the current generation.
    put: usize,
}

impl<G: Default> Displaced<G> {
    pub(super) fn put<S: State>(&mut self, key: Fingerprint, state: S, capacity: usize)
    where
        G: Shelf<S>,
    {
        if self.put >= capacity {
            self.previous = std::mem::take(&mut self.current);
            self.put = 0;
        }
        self.put += 1;
        self.current.table_mut().insert(key, state, |_| false);
    }

    pub(super) fn find<S: State>(&self, key: Fingerprint) -> Option<&S>
    where
        G: Shelf<S>,
    {
        [&self.current, &self.previous].into_iter().find_map(|generation| Some(generation.find(key)?.1))
    }

    pub(super) fn find_mut<S: State>(&mut self, key: Fingerprint) -> Option<&mut S>
    where
        G: Shelf<S>,
    {
        self.generations().into_iter().find_map(|generation| generation.state_mut(key))
    }

    /// Removes the state of a key that gets an entry again.
    pub(super) fn take<S: State>(&mut self, key: Fingerprint) -> Option<S>
    where
        G: Shelf<S>,
    {
        self.generations().into_iter().find_map(|generation| {
            let index = generation.find(key)?.0;
            Some(generation.table_mut().take(index).1)
        })
    }

    pub(super) fn generations(&mut self) -> [&mut G; 2] {
        [&mut self.current, &mut self.previous]
    }
}

#[cfg(all(test, not(tower_ratelimit_loom)))]
mod tests {
    use super::*;
    use crate::{algorithm::CompactState, store::table::Table};

    impl Shelf<CompactState> for Table<CompactState> {
        fn table(&self) -> Option<&Self> {
            Some(self)
        }

        fn table_mut(&mut self) -> &mut Self {
            self
        }
    }

    fn key(number: u64) -> Fingerprint {
        Fingerprint::new(number, number.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    #[test]
    fn states_are_kept_for_as_long_as_stated_and_no_longer() {
        let mut displaced = Displaced::<Table<CompactState>>::default();
        for number in 0..1_000 {
            displaced.put(key(number), [number, 1], 10);
            for earlier in number.saturating_sub(10)..=number {
                assert_eq!(displaced.find(key(earlier)), Some(&[earlier, 1]), "after {number}");
            }
            assert!(displaced.current.len() + displaced.previous.len() <= 20);
        }
    }

    #[test]
    fn a_state_is_taken_once() {
        let mut displaced = Displaced::<Table<CompactState>>::default();
        displaced.put(key(1), [7, 8], 1);
        displaced.put(key(2), [9, 10], 1);
        *displaced.find_mut(key(1)).unwrap() = [7, 9];
        assert_eq!(displaced.take(key(1)), Some([7, 9]));
        assert_eq!(displaced.take(key(1)), None);
        assert_eq!(displaced.take(key(2)), Some([9, 10]));
    }
}
