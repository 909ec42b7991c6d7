//! Round-robin between tenants over the slots of one counter. Knows no clocks,
//! limiters or keys.

use std::collections::{HashMap, VecDeque};

use foldhash::fast::RandomState;

/// The waiters for one counter in round-robin order of their tenants, and which
/// of the reserved slots each of them has.
///
/// There are as many slots as waiters, both in order; the n-th waiter has the
/// n-th slot. A newcomer brings a slot, as late as first come, first served
/// would have it, and is inserted where its tenant is next, which moves some
/// others one slot back. No waiter is ever moved forward, so a waiter that looks
/// at its slot when that is due is never late. A waiter that leaves takes its
/// slot along.
///
/// **Rounds**: a waiter's round is one more than its tenant's last one, but not
/// before the current one. So tenants alternate, and an idle tenant saves
/// nothing up.
#[derive(Debug)]
pub(super) struct Group<S> {
    waiters: VecDeque<Waiter>,
    slots: VecDeque<Slot<S>>,
    /// The round of the last waiter that was admitted.
    round: u64,
    /// Each tenant's last round.
    tenants: HashMap<u128, u64, RandomState>,
    next: u64,
}

#[derive(Debug)]
struct Waiter {
    id: u64,
    round: u64,
    /// The time of the last slot that it can be moved to.
    latest: u64,
}

#[derive(Debug)]
struct Slot<S> {
    at: u64,
    slot: S,
}

/// A waiter's slot.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::limiter) enum SlotTime<S> {
    /// Not due before this time.
    Later(u64),
    /// Due. The waiter has left the group with it.
    Now(S),
}

/// A waiter waits at most so many times as long as first come, first served
/// would have it: no tenant starves, however many come.
pub(super) const LONGEST: u64 = 16;

/// How many tenants are remembered beside those that wait.
const KEPT: usize = 64;

impl<S> Default for Group<S> {
    fn default() -> Self {
        Self { waiters: VecDeque::new(), slots: VecDeque::new(), round: 0, tenants: HashMap::default(), next: 0 }
    }
}

impl<S> Group<S> {
    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// Adds a newcomer with the slot that was reserved for it at `now`. It can
    /// wait until `deadline`. Returns its id, and the time of its slot so far.
    pub(super) fn enter(&mut self, tenant: u128, now: u64, at: u64, deadline: u64, slot: S) -> (u64, u64) {
        let last = self.tenants.get(&tenant).map_or(0, |last| last.saturating_add(1));
        let round = last.max(self.round);
        self.tenants.insert(tenant, round);
        self.forget();

        let brought = self.slots.partition_point(|slot| slot.at <= at);
        self.slots.insert(brought, Slot { at, slot });
        // Before all of a later round that can be moved back by one. Never
        // behind the slot that it brought: that would move others forward.
        let stays = |index: &usize| {
            let waiter = &self.waiters[*index];
            waiter.round <= round || self.slots[*index + 1].at > waiter.latest
        };
        let index = (0..brought).rev().find(stays).map_or(0, |last| last + 1);

        let id = self.next;
        self.next += 1;
        let longest = at.saturating_add(at.saturating_sub(now).saturating_mul(LONGEST - 1));
        self.waiters.insert(index, Waiter { id, round, latest: deadline.min(longest) });
        (id, self.slots[index].at)
    }

    /// The slot of a waiter, which leaves with it if it is due at `now`. `None`
    /// if there is no such waiter.
    pub(super) fn look(&mut self, id: u64, now: u64) -> Option<SlotTime<S>> {
        let index = self.position(id)?;
        let at = self.slots[index].at;
        if at > now {
            return Some(SlotTime::Later(at));
        }
        let waiter = self.waiters.remove(index)?;
        self.round = self.round.max(waiter.round);
        Some(SlotTime::Now(self.slots.remove(index)?.slot))
    }

    /// Removes a waiter with its slot.
    pub(super) fn leave(&mut self, id: u64) -> Option<S> {
        let index = self.position(id)?;
        self.waiters.remove(index);
        self.slots.remove(index).map(|slot| slot.slot)
    }

    /// A linear search: a waiter that is due is among the first.
    fn position(&self, id: u64) -> Option<usize> {
        self.waiters.iter().position(|waiter| waiter.id == id)
    }

    /// Forgets tenants whose last round is over. If a stream of new tenants
    /// keeps the round from ending, the round is ended; if that is not enough,
    /// all tenants are forgotten.
    fn forget(&mut self) {
        let most = 2 * self.waiters.len() + KEPT;
        for ended in 0..2 {
            if self.tenants.len() <= most {
                return;
            }
            self.round = self.round.saturating_add(ended);
            let round = self.round;
            self.tenants.retain(|_, last| *last >= round);
        }
        if self.tenants.len() > most {
            self.tenants.clear();
        }
    }
}

#[cfg(test)]
mod tests;
