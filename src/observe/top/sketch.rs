//! Which tenants have most, without a counter for each: [`Sketch`], the Space-Saving
//! algorithm (Metwally, Agrawal and El Abbadi, 2005) over a heap.
//!
//! It knows neither rules nor clocks. Invariant: until counts are halved, each is at least
//! the true one and at most its `error` above, and no error exceeds the sum of all that was
//! added divided by the capacity.

use std::collections::HashMap;

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
    /// Once it is full: the indices as a heap, the least count first.
    heap: Vec<usize>,
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
    /// Its position in the heap.
    place: usize,
}

impl Sketch {
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity, tenants: Vec::new(), index: HashMap::default(), heap: Vec::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tenants.is_empty()
    }

    pub(super) fn tenants(&self) -> &[Counted] {
        &self.tenants
    }

    /// The most that a tenant may have that is not counted here.
    pub(super) fn largest_error(&self) -> u64 {
        self.heap.first().map_or(0, |least| self.tenants[*least].count)
    }

    pub(super) fn add(&mut self, key: u64, tenant: impl FnOnce() -> Option<Tenant>, amount: u64, remaining: f64) {
        let index = match self.index.get(&key) {
            Some(index) => *index,
            None => self.insert(key, tenant()),
        };
        let counted = &mut self.tenants[index];
        counted.count = counted.count.saturating_add(amount);
        counted.remaining[0] = counted.remaining[0].min(remaining);
        if !self.heap.is_empty() {
            self.sift_down(self.tenants[index].place);
        } else if self.tenants.len() == self.capacity {
            self.build_heap();
        }
    }

    fn insert(&mut self, key: u64, tenant: Option<Tenant>) -> usize {
        let mut new = Counted { key, tenant, count: 0, error: 0, remaining: [1.0; 2], place: 0 };
        let index = match self.heap.first() {
            None => {
                self.tenants.push(new);
                self.tenants.len() - 1
            }
            Some(&least) => {
                let displaced = &mut self.tenants[least];
                self.index.remove(&displaced.key);
                (new.count, new.error) = (displaced.count, displaced.count);
                *displaced = new;
                least
            }
        };
        self.index.insert(key, index);
        index
    }

    /// A sorted list is a heap.
    fn build_heap(&mut self) {
        self.heap = (0..self.tenants.len()).collect();
        self.heap.sort_by_key(|index| self.tenants[*index].count);
        for (place, index) in self.heap.iter().enumerate() {
            self.tenants[*index].place = place;
        }
    }

    /// Restores the order of the heap, below a place whose count has grown.
    fn sift_down(&mut self, mut place: usize) {
        let count = |sketch: &Self, place: usize| sketch.tenants[sketch.heap[place]].count;
        loop {
            let children = (2 * place + 1..self.heap.len()).take(2);
            let Some(least) = children.min_by_key(|child| count(self, *child)) else { return };
            if count(self, place) <= count(self, least) {
                return;
            }
            self.heap.swap(place, least);
            for moved in [place, least] {
                self.tenants[self.heap[moved]].place = moved;
            }
            place = least;
        }
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
