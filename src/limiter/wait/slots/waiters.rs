//! The waiters of a slot queue, in order, and the rounds of their tenants. Knows no slots.
//!
//! Invariants: a waiter keeps its id until it is removed, wherever others put it. A tenant's
//! waiters have rounds of their own, in order of arrival; a round counts while its waiter
//! waits, and after that only if it was served.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, btree_map},
    mem,
    task::Waker,
};

use foldhash::fast::RandomState;

use super::super::is_sparse;

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

/// A waiter's round is one more than its tenant's last one, but not before the
/// current one. So tenants alternate, and an idle tenant saves nothing up.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    /// The round of the last waiter that was admitted.
    current: u64,
    pub(super) tenants: HashMap<u64, Tenant, RandomState>,
    /// To be called: other tenants' waiters have their slots.
    pub(super) dismissed: Vec<Waker>,
}

#[derive(Debug, Default)]
pub(super) struct Tenant {
    /// The rounds of its waiters.
    waiting: BTreeSet<u64>,
    /// The last round in which it was admitted.
    served: Option<u64>,
}

/// How many tenants are remembered beside those that wait.
pub(super) const KEPT: usize = 64;

impl Rounds {
    /// The round of a tenant's next waiter.
    pub(super) fn next(&self, tenant: u64) -> u64 {
        let last = self.tenants.get(&tenant).and_then(|tenant| tenant.served.max(tenant.waiting.last().copied()));
        last.map_or(0, |last| last.saturating_add(1)).max(self.current)
    }

    /// How many waiters a tenant has.
    pub(super) fn waiting(&self, tenant: u64) -> usize {
        self.tenants.get(&tenant).map_or(0, |tenant| tenant.waiting.len())
    }

    /// A waiter joins, behind `waiting` others.
    pub(super) fn join(&mut self, tenant: u64, round: u64, waiting: usize) {
        self.tenants.entry(tenant).or_default().waiting.insert(round);
        self.forget(2 * waiting + KEPT);
    }

    /// A waiter leaves. One that leaves unserved gives its round back.
    pub(super) fn leave(&mut self, tenant: u64, round: u64, is_served: bool) {
        if is_served {
            self.current = self.current.max(round);
        }
        if let Some(tenant) = self.tenants.get_mut(&tenant) {
            tenant.waiting.remove(&round);
            tenant.served = tenant.served.max(is_served.then_some(round));
        }
    }

    /// Forgets tenants that do not wait and whose last round is over. If a
    /// stream of new tenants keeps the round from ending, the round is ended; if
    /// that is not enough, all that do not wait are forgotten.
    fn forget(&mut self, most: usize) {
        for ended in 0..2 {
            if self.tenants.len() > most {
                self.current = self.current.saturating_add(ended);
                let current = self.current;
                self.tenants.retain(|_, tenant| !tenant.waiting.is_empty() || tenant.served >= Some(current));
            }
        }
        if self.tenants.len() > most {
            self.tenants.retain(|_, tenant| !tenant.waiting.is_empty());
        }
        if is_sparse(self.tenants.len(), self.tenants.capacity()) {
            self.tenants.shrink_to(2 * self.tenants.len());
        }
    }
}
