//! The failed items of a [`Backoff`](super::Backoff), and which one to replace
//! when they are at their bound.
//!
//! Every item has exactly one entry in `ends`.

use std::{
    borrow::Borrow,
    collections::{BTreeMap, HashMap},
    hash::Hash,
};

/// The items with failures.
#[derive(Debug)]
pub(super) struct Items<K> {
    items: HashMap<K, Item>,
    /// The items by the end of their wait, then by age.
    ends: BTreeMap<(u64, u64), K>,
    next: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    pub(super) failures: u32,
    pub(super) until: u64,
    pub(super) delay: u64,
    /// Unique to each failure.
    pub(super) number: u64,
}

impl<K> Items<K> {
    pub(super) fn new() -> Self {
        Self { items: HashMap::new(), ends: BTreeMap::new(), next: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    #[cfg(test)]
    pub(super) fn waits(&self) -> usize {
        self.ends.len()
    }
}

impl<K: Hash + Eq + Clone> Items<K> {
    pub(super) fn get<Q>(&self, item: &Q) -> Option<Item>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.items.get(item).copied()
    }

    /// As [`Self::get`]. If `now` is before the failure, the clock was set
    /// back, and the wait restarts.
    pub(super) fn get_at<Q>(&mut self, item: &Q, now: u64) -> Option<Item>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let known = self.items.get_mut(item)?;
        if now < known.until.saturating_sub(known.delay) {
            let key = self.ends.remove(&(known.until, known.number));
            known.until = now.saturating_add(known.delay);
            self.ends.extend(key.map(|key| ((known.until, known.number), key)));
        }
        Some(*known)
    }

    pub(super) fn forget<Q>(&mut self, item: &Q)
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        if let Some(known) = self.items.remove(item) {
            self.ends.remove(&(known.until, known.number));
        }
    }

    /// Records a failure. `wait` computes the end and the length of the wait
    /// from the number of failures. Returns the length.
    pub(super) fn fail<Q>(&mut self, item: &Q, most: usize, wait: impl FnOnce(u32) -> (u64, u64)) -> u64
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let before = self.get(item);
        if let Some(before) = before {
            self.ends.remove(&(before.until, before.number));
        } else if self.items.len() >= most
            && let Some((_, first)) = self.ends.pop_first()
        {
            self.items.remove(first.borrow());
        }
        let failures = before.map_or(0, |before| before.failures).saturating_add(1);
        let (until, delay) = wait(failures);
        let known = Item { failures, until, delay, number: self.next };
        self.next += 1;
        self.items.insert(item.to_owned(), known);
        self.ends.insert((until, known.number), item.to_owned());
        delay
    }
}
