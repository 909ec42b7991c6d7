use std::{
    borrow::Borrow,
    collections::{BTreeMap, HashMap},
    hash::Hash,
};

/// What has failed, and who goes first where there is no more room.
#[derive(Debug)]
pub(super) struct Items<K> {
    known: HashMap<K, Item>,
    /// By the end of their wait; those that end together, by age.
    ends: BTreeMap<(u64, u64), K>,
    next: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    pub(super) failures: u32,
    pub(super) until: u64,
    pub(super) delay: u64,
    /// Another one with each failure of any item.
    pub(super) number: u64,
}

impl<K> Items<K> {
    pub(super) fn new() -> Self {
        Self { known: HashMap::new(), ends: BTreeMap::new(), next: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.known.len()
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
        self.known.get(item).copied()
    }

    /// As `get`; but where it is earlier than the time of the failure, the
    /// clock was set back, and the wait starts now.
    pub(super) fn get_at<Q>(&mut self, item: &Q, now: u64) -> Option<Item>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let known = self.known.get_mut(item)?;
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
        if let Some(known) = self.known.remove(item) {
            self.ends.remove(&(known.until, known.number));
        }
    }

    /// One failure more; `wait` gives its end and length from how many there
    /// are. Returns the length.
    pub(super) fn fail<Q>(&mut self, item: &Q, most: usize, wait: impl FnOnce(u32) -> (u64, u64)) -> u64
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let before = self.get(item);
        if let Some(before) = before {
            self.ends.remove(&(before.until, before.number));
        } else if self.known.len() >= most
            && let Some((_, first)) = self.ends.pop_first()
        {
            self.known.remove(first.borrow());
        }
        let failures = before.map_or(0, |before| before.failures).saturating_add(1);
        let (until, delay) = wait(failures);
        let known = Item { failures, until, delay, number: self.next };
        self.next += 1;
        self.known.insert(item.to_owned(), known);
        self.ends.insert((until, known.number), item.to_owned());
        delay
    }
}
