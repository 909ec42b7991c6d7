//! Round-robin between tenants over the slots of one counter. Knows no clocks,
//! limiters or keys.

use std::collections::{HashMap, VecDeque};

use foldhash::fast::RandomState;

/// Who waits for one counter, by turns of their tenants: which of the slots
/// that were reserved is whose. Knows nothing of clocks and limiters.
///
/// There are as many slots as waiters, both in order; each waiter has the slot
/// of its own place. A newcomer brings a slot, as late as first come, first
/// served would have it, and goes in where its tenant's turn is, so that some
/// others move one slot back. Nobody ever moves forward: whoever looks at its
/// slot when its time has come is never too late for it. Who leaves takes the
/// slot along.
///
/// **Rounds**: a waiter's is one more than its tenant's last one, but not
/// before the one that goes at present. So tenants take turns, and one that
/// was away has saved nothing up.
#[derive(Debug)]
pub(super) struct Group<S> {
    waiters: VecDeque<Waiter>,
    slots: VecDeque<Slot<S>>,
    /// The round of the last one that went.
    round: u64,
    /// Each tenant's last round.
    tenants: HashMap<u128, u64, RandomState>,
    next: u64,
}

#[derive(Debug)]
struct Waiter {
    id: u64,
    round: u64,
    /// The last slot's time that it can be moved to.
    latest: u64,
}

#[derive(Debug)]
struct Slot<S> {
    at: u64,
    what: S,
}

/// What a waiter's slot is.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::limiter) enum SlotTime<S> {
    /// To be waited for, until this time.
    Later(u64),
    /// Its own; it has left the group.
    Now(S),
}

/// By how much longer than first come, first served would have it a waiter is
/// held up at the most: however many tenants come, nobody starves.
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

    /// A newcomer with the slot that was reserved for it at `now`; it can
    /// wait until `deadline`. Returns its id, and the time of the slot that it
    /// has so far.
    pub(super) fn enter(&mut self, tenant: u128, now: u64, at: u64, deadline: u64, what: S) -> (u64, u64) {
        let last = self.tenants.get(&tenant).map_or(0, |last| last.saturating_add(1));
        let round = last.max(self.round);
        self.tenants.insert(tenant, round);
        self.forget();

        let brought = self.slots.partition_point(|slot| slot.at <= at);
        self.slots.insert(brought, Slot { at, what });
        // Before all of a later round, as far as they can move back by one.
        // Never behind the slot that it brought, for then those in between
        // would move forward.
        let stays = |place: &usize| {
            let waiter = &self.waiters[*place];
            waiter.round <= round || self.slots[*place + 1].at > waiter.latest
        };
        let place = (0..brought).rev().find(stays).map_or(0, |stays| stays + 1);

        let id = self.next;
        self.next += 1;
        let longest = at.saturating_add(at.saturating_sub(now).saturating_mul(LONGEST - 1));
        self.waiters.insert(place, Waiter { id, round, latest: deadline.min(longest) });
        (id, self.slots[place].at)
    }

    /// The slot of a waiter, which leaves with it if its time has come.
    /// `None` where it is not there.
    pub(super) fn look(&mut self, id: u64, now: u64) -> Option<SlotTime<S>> {
        let place = self.place(id)?;
        let at = self.slots[place].at;
        if at > now {
            return Some(SlotTime::Later(at));
        }
        let waiter = self.waiters.remove(place)?;
        self.round = self.round.max(waiter.round);
        Some(SlotTime::Now(self.slots.remove(place)?.what))
    }

    /// Takes a waiter out, with its slot.
    pub(super) fn leave(&mut self, id: u64) -> Option<S> {
        let place = self.place(id)?;
        self.waiters.remove(place);
        self.slots.remove(place).map(|slot| slot.what)
    }

    /// Who goes is among the first.
    fn place(&self, id: u64) -> Option<usize> {
        self.waiters.iter().position(|waiter| waiter.id == id)
    }

    /// Tenants whose last round is over are as good as new ones. Where a
    /// stream of new ones never lets a round end, it is ended; and where that
    /// does not help either, all start anew.
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
