//! The waiters of a slot queue, in order. Knows no slots.
//!
//! Invariant: a waiter keeps its id until it is removed, wherever others put it.

use std::{
    collections::{BTreeMap, btree_map},
    mem,
    task::Waker,
};

/// Waiters by position. A waiter joins at the end, where its position is its id.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    /// Boxed, since a node has room for eleven, and most queues hold one waiter.
    by_position: BTreeMap<u64, Box<Waiter>>,
    /// The positions of those that are not at their ids any more. Boxed, since
    /// there are none in most queues.
    #[allow(clippy::box_collection, reason = "one word for each queue where none was moved")]
    moved: Option<Box<BTreeMap<u64, u64>>>,
    next_id: u64,
}

#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) id: u64,
    /// When its timer fires: not before its slot's time.
    pub(super) wakes_at: u64,
    pub(super) waker: Option<Waker>,
    /// Only where tenants exchange slots.
    pub(super) rank: Option<Box<Rank>>,
}

/// Which waiters it is behind, and which can pass it.
#[derive(Debug)]
pub(super) struct Rank {
    pub(super) tenant: u64,
    pub(super) round: u64,
    /// The time of the last slot that it can be moved back to.
    pub(super) latest: u64,
    /// Whether that is its own deadline.
    pub(super) is_limited: bool,
}

impl Waiters {
    pub(super) fn len(&self) -> usize {
        self.by_position.len()
    }

    pub(super) fn iter_mut(&mut self) -> btree_map::ValuesMut<'_, u64, Box<Waiter>> {
        self.by_position.values_mut()
    }

    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut Waiter> {
        let position = self.moved.as_ref().and_then(|moved| moved.get(&id)).copied().unwrap_or(id);
        self.by_position.get_mut(&position).map(|waiter| &mut **waiter).filter(|waiter| waiter.id == id)
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<Waiter> {
        self.get_mut(id)?;
        let position = self.moved.as_mut().and_then(|moved| moved.remove(&id)).unwrap_or(id);
        self.by_position.remove(&position).map(|waiter| *waiter)
    }

    /// Adds a waiter, which passes the last `passed` ones: each of them moves back
    /// by one position. Returns its id.
    pub(super) fn join(&mut self, passed: usize, wakes_at: u64, rank: Option<Box<Rank>>) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.by_position.insert(id, Box::new(Waiter { id, wakes_at, waker: None, rank }));
        if passed == 0 {
            return id;
        }
        let moved = self.moved.get_or_insert_default();
        let mut behind: Option<(u64, &mut Box<Waiter>)> = None;
        for (position, waiter) in self.by_position.iter_mut().rev().take(passed + 1) {
            if let Some((position, behind)) = behind {
                mem::swap(waiter, behind);
                moved.insert(behind.id, position);
            }
            behind = Some((*position, waiter));
        }
        moved.extend(behind.map(|(position, newcomer)| (newcomer.id, position)));
        id
    }
}
