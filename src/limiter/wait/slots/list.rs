//! A doubly linked list in one allocation. An entry keeps its id until it is
//! removed, so it leaves from anywhere without a search.
//!
//! Invariant: an id is valid until [`List::remove`], also of an entry that was
//! detached from the order; later entries reuse it, the lowest one first. So the
//! nodes at the end become vacant, and their memory is returned.

use std::{cmp::Reverse, collections::BinaryHeap};

/// Entries in order, by their ids.
#[derive(Debug)]
pub(super) struct List<T> {
    nodes: Vec<Node<T>>,
    first: u32,
    last: u32,
    /// The nodes without a value. Those beyond the last node are ignored.
    vacant: BinaryHeap<Reverse<u32>>,
    len: u32,
    detached: u32,
}

#[derive(Debug)]
struct Node<T> {
    value: Option<T>,
    previous: u32,
    next: u32,
}

/// Whether memory is to be returned: three quarters of it are unused.
pub(super) fn is_sparse(used: usize, capacity: usize) -> bool {
    capacity > 64 && used < capacity / 4
}

/// Stands for no entry.
const NONE: u32 = u32::MAX;

/// The neighbour of an entry that is detached.
const DETACHED: u32 = u32::MAX - 1;

impl<T> Default for List<T> {
    fn default() -> Self {
        Self { nodes: Vec::new(), first: NONE, last: NONE, vacant: BinaryHeap::new(), len: 0, detached: 0 }
    }
}

impl<T> List<T> {
    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    fn node(&mut self, id: u32) -> Option<&mut Node<T>> {
        self.nodes.get_mut(id as usize)
    }

    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        self.node(id)?.value.as_mut()
    }

    pub(super) fn first(&self) -> Option<u32> {
        (self.first != NONE).then_some(self.first)
    }

    pub(super) fn last(&self) -> Option<u32> {
        (self.last != NONE).then_some(self.last)
    }

    pub(super) fn after(&self, id: u32) -> Option<u32> {
        self.nodes.get(id as usize).map(|node| node.next).filter(|next| *next != NONE)
    }

    pub(super) fn before(&self, id: u32) -> Option<u32> {
        self.nodes.get(id as usize).map(|node| node.previous).filter(|previous| *previous != NONE)
    }

    /// Inserts a value before an entry; without one, at the end.
    pub(super) fn insert_before(&mut self, next: Option<u32>, value: T) -> u32 {
        let next = next.unwrap_or(NONE);
        let previous = if next == NONE { self.last } else { self.before(next).unwrap_or(NONE) };
        let node = Node { value: Some(value), previous, next };
        let id = self.vacant.pop().map_or(NONE, |Reverse(id)| id);
        let id = match self.node(id) {
            Some(vacant) => {
                *vacant = node;
                id
            }
            None => {
                self.vacant.clear();
                if self.nodes.is_empty() {
                    // Most queues hold one waiter.
                    self.nodes.reserve_exact(1);
                }
                self.nodes.push(node);
                u32::try_from(self.nodes.len() - 1).unwrap_or(NONE)
            }
        };
        self.set_next(previous, id);
        self.set_previous(next, id);
        self.len += 1;
        id
    }

    /// Removes an entry, detached or not.
    pub(super) fn remove(&mut self, id: u32) -> Option<T> {
        if !self.is_detached(id) {
            self.detach(id);
        }
        let value = self.node(id)?.value.take()?;
        self.detached -= 1;
        self.vacant.push(Reverse(id));
        self.shrink();
        Some(value)
    }

    /// Drops the vacant nodes at the end. Their memory is returned once three
    /// quarters of it are unused, so both take constant time on average.
    fn shrink(&mut self) {
        while self.nodes.last().is_some_and(|node| node.value.is_none()) {
            self.nodes.pop();
        }
        let used = self.nodes.len();
        if is_sparse(used, self.nodes.capacity()) {
            self.nodes.shrink_to(2 * used);
            self.vacant.retain(|Reverse(id)| (*id as usize) < used);
            self.vacant.shrink_to(2 * used);
        }
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.nodes.capacity().max(self.vacant.capacity())
    }

    /// How many entries are out of the order, and not removed.
    pub(super) fn detached(&self) -> usize {
        self.detached as usize
    }

    pub(super) fn is_detached(&self, id: u32) -> bool {
        self.nodes.get(id as usize).is_some_and(|node| node.previous == DETACHED)
    }

    /// Takes an entry out of the order. It keeps its id until it is removed.
    pub(super) fn detach(&mut self, id: u32) {
        let Some(node) = self.node(id).filter(|node| node.value.is_some()) else { return };
        let (previous, next) = (node.previous, node.next);
        (node.previous, node.next) = (DETACHED, DETACHED);
        self.len -= 1;
        self.detached += 1;
        self.set_next(previous, next);
        self.set_previous(next, previous);
    }

    /// Sets what follows an entry; with `NONE`, the first entry.
    fn set_next(&mut self, id: u32, next: u32) {
        match self.node(id) {
            Some(node) => node.next = next,
            None => self.first = next,
        }
    }

    /// Sets what precedes an entry; with `NONE`, the last entry.
    fn set_previous(&mut self, id: u32, previous: u32) {
        match self.node(id) {
            Some(node) => node.previous = previous,
            None => self.last = previous,
        }
    }
}
