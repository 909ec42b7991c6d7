//! A hash table of keys and states, with open addressing. It has no lock and no
//! cap.
//!
//! Invariant: no free entry lies between a key and its home, so that no
//! tombstones are needed.

use crate::fingerprint::Fingerprint;

/// A hash table with linear probing. An entry holds key and state side by side.
///
/// When the table is as full as its layout allows, it is rebuilt without the idle
/// states. A small one then has room for as many again, a larger one for at least a
/// third more (a fifth if [`Dense`]). A removal moves the entries that follow it back. So there are
/// no tombstones, and lookups stay short however many keys are removed.
#[derive(Debug)]
pub(crate) struct Table<S, L = Aligned> {
    entries: Box<[Entry<S, L>]>,
    len: usize,
    cursor: usize,
}

#[derive(Debug, Default)]
struct Entry<S, L> {
    key: Fingerprint,
    state: S,
    /// It only aligns the entry.
    _layout: L,
}

/// How entries lie in memory, and how full a table may get.
pub(crate) trait Layout: Default {
    /// How many of how many entries may be taken.
    const FULL: (usize, usize);

    /// The most entries of a small table, of which [`SMALL_FULL`] may be taken.
    const SMALL: usize;

    /// Whether so many keys are too many for a table of so many entries.
    fn is_overfull(keys: usize, entries: usize) -> bool {
        let (taken, of) = if entries <= Self::SMALL { SMALL_FULL } else { Self::FULL };
        keys * of > entries * taken
    }

    /// How many entries a table for so many keys, and for some more, gets. It is not
    /// overfull: what is not small has more than `SMALL` entries, and may be fuller.
    fn entries_for(keys: usize) -> usize {
        let (taken, of) = Self::FULL;
        let entries = match keys * 2 * SMALL_FULL.1 / SMALL_FULL.0 {
            small if small <= Self::SMALL => small,
            _ => (keys * of * of).div_ceil(taken * taken).max(Self::SMALL + 1),
        };
        entries.max(SMALLEST)
    }
}

/// For small states and short searches: a cache line holds two small entries.
#[derive(Debug, Default)]
#[repr(align(32))]
pub(crate) struct Aligned;

impl Layout for Aligned {
    const FULL: (usize, usize) = (3, 4);
    /// In fuller tables more searches look at a second entry, which no processor can
    /// predict. A decision on one of 1,000 keys, in random order, takes 35.8 ns where they
    /// are at most a third full, and 36.9 where a half.
    const SMALL: usize = 128;
}

/// For states of odd sizes that many keys have: less of the table is free.
#[cfg(feature = "redis")]
#[derive(Debug, Default)]
pub(crate) struct Dense;

#[cfg(feature = "redis")]
impl Layout for Dense {
    const FULL: (usize, usize) = (5, 6);
    const SMALL: usize = 0;
}

/// How many of how many entries of a small table may be taken.
const SMALL_FULL: (usize, usize) = (1, 3);

/// The smallest table that is allocated.
const SMALLEST: usize = 8;

impl<S, L> Default for Table<S, L> {
    fn default() -> Self {
        Self { entries: Box::default(), len: 0, cursor: 0 }
    }
}

impl<S: Default, L: Layout> Table<S, L> {
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

    /// The index of a key that is probably at `hint`.
    #[inline]
    pub(crate) fn find_near(&self, key: Fingerprint, hint: usize) -> Option<usize> {
        match self.entries.get(hint) {
            Some(entry) if entry.key == key => Some(hint),
            _ => self.find(key),
        }
    }

    #[inline]
    pub(crate) fn state(&self, index: usize) -> &S {
        &self.entries[index].state
    }

    #[inline]
    pub(crate) fn state_mut(&mut self, index: usize) -> &mut S {
        &mut self.entries[index].state
    }

    /// Adds a key that is not in the table. Returns how many idle states a
    /// rebuild dropped.
    pub(crate) fn insert(&mut self, key: Fingerprint, state: S, is_idle: impl Fn(&S) -> bool) -> usize {
        let mut evicted = 0;
        if L::is_overfull(self.len + 1, self.entries.len()) {
            evicted = self.rebuild(is_idle);
        }
        self.put(Entry { key, state, _layout: L::default() });
        evicted
    }

    fn put(&mut self, entry: Entry<S, L>) {
        let mut index = entry.key.home(self.entries.len());
        while self.entries[index].key != Fingerprint::NONE {
            index = self.next(index);
        }
        self.entries[index] = entry;
        self.len += 1;
    }

    fn rebuild(&mut self, is_idle: impl Fn(&S) -> bool) -> usize {
        let is_live = |entry: &Entry<S, L>| entry.key != Fingerprint::NONE && !is_idle(&entry.state);
        let live = self.entries.iter().filter(|entry| is_live(entry)).count();
        let evicted = self.len - live;
        let size = L::entries_for(live + 1);
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
                self.remove(self.cursor);
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
        self.remove(index);
        (key, state)
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    fn remove(&mut self, mut hole: usize) {
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
