//! A hash table of keys and states, with open addressing. It has no lock and no
//! cap.
//!
//! Invariant: no free entry lies between a key and its home, so that no
//! tombstones are needed.

use crate::fingerprint::Fingerprint;

/// A hash table with linear probing. An entry holds key and state side by side.
///
/// When four fifths of the entries are taken, the table is rebuilt without the idle
/// states, and then has room for at least a quarter more. A removal moves the
/// entries that follow it back. So there are no tombstones, and lookups stay short
/// however many keys are removed.
#[derive(Debug)]
pub(crate) struct Table<S, A = Aligned> {
    entries: Box<[Entry<S, A>]>,
    len: usize,
    cursor: usize,
}

#[derive(Debug, Default)]
struct Entry<S, A> {
    key: Fingerprint,
    state: S,
    _alignment: A,
}

/// Aligns entries to half a cache line, which is one small entry, so that a search
/// reads few lines. `()` in its place wastes no memory on states of odd sizes.
#[derive(Debug, Default)]
#[repr(align(32))]
pub(crate) struct Aligned;

/// How many of how many entries may be taken.
const FULL: (usize, usize) = (4, 5);

/// The smallest table that is allocated.
const SMALLEST: usize = 8;

/// Whether so many keys are too many for a table of so many entries.
fn is_overfull(keys: usize, entries: usize) -> bool {
    keys * FULL.1 > entries * FULL.0
}

/// How many entries a table for so many keys, and for some more, gets.
fn entries_for(keys: usize) -> usize {
    (keys * FULL.1 * FULL.1).div_ceil(FULL.0 * FULL.0).max(SMALLEST)
}

impl<S, A> Default for Table<S, A> {
    fn default() -> Self {
        Self { entries: Box::default(), len: 0, cursor: 0 }
    }
}

impl<S: Default, A: Default> Table<S, A> {
    #[inline]
    pub(crate) fn find(&self, key: Fingerprint) -> Option<usize> {
        let entries = &*self.entries;
        if entries.is_empty() {
            return None;
        }
        let mut index = key.home(entries.len());
        loop {
            let entry = entries.get(index)?;
            if entry.key == key {
                return Some(index);
            }
            if entry.key == Fingerprint::NONE {
                return None;
            }
            index += 1;
            if index == entries.len() {
                index = 0;
            }
        }
    }

    pub(crate) fn state(&self, index: usize) -> &S {
        &self.entries[index].state
    }

    pub(crate) fn state_mut(&mut self, index: usize) -> &mut S {
        &mut self.entries[index].state
    }

    #[cfg(feature = "redis")]
    pub(crate) fn get_mut(&mut self, key: Fingerprint) -> Option<&mut S> {
        self.find(key).map(|index| self.state_mut(index))
    }

    /// Adds a key that is not in the table. Returns how many idle states a
    /// rebuild dropped.
    pub(crate) fn insert(&mut self, key: Fingerprint, state: S, is_idle: impl Fn(&S) -> bool) -> usize {
        let mut evicted = 0;
        if is_overfull(self.len + 1, self.entries.len()) {
            evicted = self.rebuild(is_idle);
        }
        self.put(Entry { key, state, _alignment: A::default() });
        evicted
    }

    fn put(&mut self, entry: Entry<S, A>) {
        let mut index = entry.key.home(self.entries.len());
        while self.entries[index].key != Fingerprint::NONE {
            index = self.next(index);
        }
        self.entries[index] = entry;
        self.len += 1;
    }

    fn rebuild(&mut self, is_idle: impl Fn(&S) -> bool) -> usize {
        let is_live = |entry: &Entry<S, A>| entry.key != Fingerprint::NONE && !is_idle(&entry.state);
        let live = self.entries.iter().filter(|entry| is_live(entry)).count();
        let evicted = self.len - live;
        let size = entries_for(live + 1);
        let old = std::mem::replace(&mut self.entries, (0..size).map(|_| Entry::default()).collect());
        (self.len, self.cursor) = (0, 0);
        for entry in old.into_vec() {
            if is_live(&entry) {
                self.put(entry);
            }
        }
        evicted
    }

    /// Checks the next `count` entries for idle states and removes them. Returns
    /// how many it removed.
    pub(crate) fn evict(&mut self, count: usize, is_idle: impl Fn(&S) -> bool) -> usize {
        let before = self.len;
        for _ in 0..count.min(self.entries.len()) {
            if self.cursor >= self.entries.len() {
                self.cursor = 0;
            }
            let entry = &self.entries[self.cursor];
            if entry.key != Fingerprint::NONE && is_idle(&entry.state) {
                // The entry that moves here is checked next.
                self.remove_at(self.cursor);
            } else {
                self.cursor += 1;
            }
        }
        before - self.len
    }

    /// The entries that [`Self::evict`] checked last, if it removed none: the
    /// index, the key and the state of each.
    pub(crate) fn checked(&self, count: usize) -> impl Iterator<Item = (usize, Fingerprint, &S)> {
        let count = count.min(self.entries.len());
        let start = self.cursor + self.entries.len() - count;
        let entries = (start..start + count).map(|index| index % self.entries.len());
        let entries = entries.map(|index| (index, self.entries[index].key, &self.entries[index].state));
        entries.filter(|(_, key, _)| *key != Fingerprint::NONE)
    }

    #[cfg(feature = "redis")]
    pub(crate) fn states_mut(&mut self) -> impl Iterator<Item = (Fingerprint, &mut S)> {
        let used = self.entries.iter_mut().filter(|entry| entry.key != Fingerprint::NONE);
        used.map(|entry| (entry.key, &mut entry.state))
    }

    /// Removes the entry at an index.
    pub(crate) fn take(&mut self, index: usize) -> (Fingerprint, S) {
        let (key, state) = (self.entries[index].key, std::mem::take(&mut self.entries[index].state));
        self.remove_at(index);
        (key, state)
    }

    /// Removes a key, if it is in the table.
    pub(crate) fn remove(&mut self, key: Fingerprint) -> Option<S> {
        self.find(key).map(|index| self.take(index).1)
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    fn remove_at(&mut self, mut hole: usize) {
        let mut index = hole;
        loop {
            index = self.next(index);
            let key = self.entries[index].key;
            if key == Fingerprint::NONE || index == hole {
                break;
            }
            // An entry may not move to before its home.
            let home = key.home(self.entries.len());
            if self.distance(home, index) >= self.distance(hole, index) {
                self.entries[hole] = std::mem::take(&mut self.entries[index]);
                hole = index;
            }
        }
        self.entries[hole] = Entry::default();
        self.len -= 1;
    }

    fn next(&self, index: usize) -> usize {
        if index + 1 == self.entries.len() { 0 } else { index + 1 }
    }

    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.entries.len() - from }
    }
}

#[cfg(test)]
mod tests;
