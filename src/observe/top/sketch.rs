//! Which tenants have most, without a counter for each: [`Sketch`], the Space-Saving
//! algorithm (Metwally, Agrawal and El Abbadi, 2005).
//!
//! It knows neither rules nor clocks. Invariant: until counts are halved, each is at least
//! the true one and at most its `error` above, and no error exceeds the sum of all that was
//! added divided by the capacity.

use std::collections::{BTreeSet, HashMap};

use foldhash::fast::RandomState;

use crate::descriptor::Tenant;

/// Counts for at most `capacity` tenants. A new one beyond takes the place, and the count,
/// of the one with least.
#[derive(Debug)]
pub(super) struct Sketch {
    capacity: usize,
    tenants: Vec<Counted>,
    /// From a tenant's hash to its index.
    index: HashMap<u64, usize, RandomState>,
    /// Counts with their indices, the least first.
    order: BTreeSet<(u64, usize)>,
}

/// What is counted of one tenant.
#[derive(Debug)]
pub(super) struct Counted {
    /// The tenant's hash.
    pub(super) key: u64,
    pub(super) tenant: Option<Tenant>,
    pub(super) count: u64,
    /// How much of `count` may be of others.
    pub(super) error: u64,
    /// The least part that was left in this minute, and in the last one.
    remaining: [f64; 2],
}

impl Sketch {
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity, tenants: Vec::new(), index: HashMap::default(), order: BTreeSet::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tenants.is_empty()
    }

    pub(super) fn tenants(&self) -> &[Counted] {
        &self.tenants
    }

    /// The most that a tenant may have that is not counted here.
    pub(super) fn largest_error(&self) -> u64 {
        self.least().map_or(0, |(count, _)| count)
    }

    /// The least count, and its index, once there is room for no more.
    fn least(&self) -> Option<(u64, usize)> {
        self.order.first().filter(|_| self.tenants.len() == self.capacity).copied()
    }

    pub(super) fn add(&mut self, key: u64, tenant: impl FnOnce() -> Option<Tenant>, amount: u64, remaining: f64) {
        let index = match self.index.get(&key) {
            Some(index) => *index,
            None => self.insert(key, tenant()),
        };
        let counted = &mut self.tenants[index];
        self.order.remove(&(counted.count, index));
        counted.count = counted.count.saturating_add(amount);
        counted.remaining[0] = counted.remaining[0].min(remaining);
        self.order.insert((counted.count, index));
    }

    fn insert(&mut self, key: u64, tenant: Option<Tenant>) -> usize {
        let least = self.least();
        let count = least.map_or(0, |(count, _)| count);
        let new = Counted { key, tenant, count, error: count, remaining: [1.0; 2] };
        let index = match least {
            None => {
                self.tenants.push(new);
                self.tenants.len() - 1
            }
            Some((_, index)) => {
                self.index.remove(&std::mem::replace(&mut self.tenants[index], new).key);
                index
            }
        };
        self.index.insert(key, index);
        index
    }

    /// So many minutes have passed.
    pub(super) fn halve(&mut self, minutes: u64) {
        if minutes == 0 {
            return;
        }
        let halved = |count: u64| count.checked_shr(u32::try_from(minutes).unwrap_or(u32::MAX)).unwrap_or(0);
        for counted in &mut self.tenants {
            (counted.count, counted.error) = (halved(counted.count), halved(counted.error));
            let last = if minutes == 1 { counted.remaining[0] } else { 1.0 };
            counted.remaining = [1.0, last];
        }
        self.order = self.tenants.iter().enumerate().map(|(index, counted)| (counted.count, index)).collect();
        if self.tenants.iter().all(|counted| counted.count == 0) {
            *self = Self::new(self.capacity);
        }
    }
}

impl Counted {
    pub(super) fn least_remaining(&self) -> f64 {
        let [this, last] = self.remaining;
        this.min(last)
    }
}

#[cfg(test)]
mod tests;
