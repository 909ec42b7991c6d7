//! What many keys have in common, kept once: [`Shared`]. It knows nothing of what it keeps.
//!
//! Invariant: what no key keeps any more is dropped, at the latest when as much was added.

use std::{collections::HashSet, hash::Hash, sync::Arc};

use foldhash::fast::RandomState;

/// How many values are kept before unused ones are looked for.
const LEAST_KEPT: usize = 64;

/// Values of which equal ones are kept once.
#[derive(Debug)]
pub(crate) struct Shared<T> {
    all: HashSet<Arc<T>, RandomState>,
    /// How many there may be before unused ones are dropped.
    most: usize,
}

impl<T> Default for Shared<T> {
    fn default() -> Self {
        Self { all: HashSet::default(), most: LEAST_KEPT }
    }
}

impl<T: Eq + Hash> Shared<T> {
    /// The value that is kept of all that equal this one.
    pub(crate) fn of(&mut self, own: T) -> Arc<T> {
        if let Some(known) = self.all.get(&own) {
            return Arc::clone(known);
        }
        if self.all.len() >= self.most {
            self.all.retain(|value| Arc::strong_count(value) > 1);
            self.most = (2 * self.all.len()).max(LEAST_KEPT);
        }
        let own = Arc::new(own);
        self.all.insert(Arc::clone(&own));
        own
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }
}
