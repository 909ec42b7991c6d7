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
    tenants: Tenants,
    /// Counts with the tenants' hashes, the least first.
    order: BTreeSet<(u64, u64)>,
}

/// By hash.
type Tenants = HashMap<u64, Counted, RandomState>;

/// What is counted of one tenant.
#[derive(Debug)]
pub(super) struct Counted {
    pub(super) tenant: Option<Tenant>,
    pub(super) count: u64,
    /// How much of `count` may be of others.
    pub(super) error: u64,
    /// The least part that was left in this minute, and in the last one.
    remaining: [f64; 2],
}

impl Sketch {
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity, tenants: Tenants::default(), order: BTreeSet::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tenants.is_empty()
    }

    pub(super) fn tenants(&self) -> &Tenants {
        &self.tenants
    }

    /// The most that a tenant may have that is not counted here.
    pub(super) fn largest_error(&self) -> u64 {
        let least = self.order.first().filter(|_| self.tenants.len() == self.capacity);
        least.map_or(0, |(count, _)| *count)
    }

    /// Where there is room for no more, a new tenant displaces the one with least.
    pub(super) fn add(&mut self, key: u64, tenant: impl FnOnce() -> Option<Tenant>, amount: u64, remaining: f64) {
        let error = self.largest_error();
        let new = || Counted { tenant: tenant(), count: error, error, remaining: [1.0; 2] };
        let counted = self.tenants.entry(key).or_insert_with(new);
        self.order.remove(&(counted.count, key));
        counted.count = counted.count.saturating_add(amount);
        counted.remaining[0] = counted.remaining[0].min(remaining);
        self.order.insert((counted.count, key));
        if self.tenants.len() > self.capacity
            && let Some((_, least)) = self.order.pop_first()
        {
            self.tenants.remove(&least);
        }
    }

    /// So many minutes have passed.
    pub(super) fn halve(&mut self, minutes: u64) {
        if minutes == 0 {
            return;
        }
        let halved = |count: u64| count.checked_shr(u32::try_from(minutes).unwrap_or(u32::MAX)).unwrap_or(0);
        for counted in self.tenants.values_mut() {
            (counted.count, counted.error) = (halved(counted.count), halved(counted.error));
            let last = if minutes == 1 { counted.remaining[0] } else { 1.0 };
            counted.remaining = [1.0, last];
        }
        self.order = self.tenants.iter().map(|(key, counted)| (counted.count, *key)).collect();
        if self.tenants.values().all(|counted| counted.count == 0) {
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
