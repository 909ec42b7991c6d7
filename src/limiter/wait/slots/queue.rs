//! The waiters that are charged the same, in order, and the slots that are
//! reserved for them. Knows no clocks, limiters or keys.
//!
//! | the waiter | its timer | happens |
//! |---|---|---|
//! | has the first slots, and they were moved up | too late | it is called, and sets its timer |
//! | was moved back, for fairness | too early | it looks at its slot, and sets its timer |
//! | has lost its slot to another tenant's waiter | too late | it is called, and leaves |
//! | any other | at its slot, or later | nothing |
//!
//! Invariant: the n-th waiter has the n-th slot, and slots behind the last
//! waiter's are free. A waiter that leaves moves all behind it up by one slot,
//! without touching them.

use std::{
    collections::VecDeque,
    mem,
    task::{Poll, Waker},
};

use super::{
    list::{List, is_sparse},
    rounds::Rounds,
};

/// Waiters and slots, both in order.
#[derive(Debug)]
pub(super) struct SlotQueue<S> {
    waiters: List<Waiter>,
    slots: VecDeque<Slot<S>>,
    /// Only where tenants exchange slots.
    rounds: Option<Box<Rounds>>,
    /// The end of a cooldown: a slot before it is of no use. Those that have one
    /// since before the cooldown reserve another when it comes.
    usable_from: u64,
    /// How often waiters were moved up.
    moves: usize,
    /// How many of the first waiters are to be looked at.
    reach: usize,
}

#[derive(Debug)]
struct Waiter {
    /// When its timer fires: not before its slot's time.
    wakes_at: u64,
    waker: Option<Waker>,
    /// Only where tenants exchange slots.
    rank: Option<Box<Rank>>,
}

/// Which waiters it is behind, and which can pass it.
#[derive(Debug)]
struct Rank {
    tenant: u64,
    round: u64,
    /// The time of the last slot that it can be moved back to.
    latest: u64,
    /// Whether that is its own deadline.
    is_limited: bool,
}

#[derive(Debug)]
struct Slot<S> {
    at: u64,
    slot: S,
}

/// A waiter that joins.
#[derive(Clone, Copy, Debug)]
pub(in crate::limiter) struct Newcomer {
    /// The tenant, where tenants exchange slots.
    pub(in crate::limiter) tenant: Option<u64>,
    pub(in crate::limiter) now: u64,
    /// The end of the cooldown during which it joins.
    pub(in crate::limiter) earliest: u64,
    /// The time of the last slot that it can wait for.
    pub(in crate::limiter) deadline: u64,
}

/// A waiter's slot.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::limiter) enum SlotTime<S> {
    /// Not due before this time.
    Later(u64),
    /// Due, since this time. The waiter has left the queue with it.
    Now(u64, S),
    /// Another tenant's waiter has it. The waiter has left the queue.
    Lost,
}

/// What a waiter leaves with. Its waker may run any code when it is dropped, so
/// it has to outlive the lock.
pub(super) type Left<T> = (T, Option<Waker>);

/// Wakers to be woken when no lock is held.
pub(super) type Called = Vec<Waker>;

/// How many of the first waiters have exact timers. Each that leaves calls the
/// next ones.
const CALLED: usize = 4;

/// How many of the first waiters are looked at each time. Those behind the first
/// [`CALLED`] ones have timers that are at most twice as many slots away: as
/// many as these may not be polled, and do not keep those behind them waiting.
///
/// More are looked at more rarely: the first `4n` after `n` moves, where `n` is
/// a power of two. So a timer is at most three times as many slots away as its
/// slot, however many are not polled. Of `m` moves, each then looks at `2 log m`
/// waiters on average, and a waiter is called `log m` times.
const REACHED: usize = 64;

/// A waiter waits at most so many times as long as first come, first served
/// would have it: no tenant starves, however many come.
pub(super) const LONGEST: u64 = 16;

/// A tenant that has so many more waiters than a newcomer's tenant gives way to
/// it even by a waiter that cannot be moved back: that one loses its slot.
pub(super) const GREEDY: usize = 8;

/// How many of the last waiters are searched for one of a greedier tenant.
const SEARCHED: usize = 16;

/// How many waiters that have lost their slots may not know it yet. They count
/// as waiters until they do.
const MOST_DETACHED: usize = 64;

/// For how long, in nanoseconds, the slot of a waiter that was due but left can
/// be used by the next one: as long as a timer may be late.
const USABLE: u64 = 1_000_000;

impl<S> Default for SlotQueue<S> {
    fn default() -> Self {
        Self { waiters: List::default(), slots: VecDeque::new(), rounds: None, usable_from: 0, moves: 0, reach: 0 }
    }
}

impl<S> SlotQueue<S> {
    pub(super) fn waiting(&self) -> usize {
        self.waiters.len()
    }

    /// Whether no waiter has an entry.
    pub(super) fn is_empty(&self) -> bool {
        self.waiters.len() + self.waiters.detached() == 0
    }

    /// The number of slots without a waiter.
    pub(super) fn free(&self) -> usize {
        self.slots.len() - self.waiters.len()
    }

    /// Adds a waiter with the slot that was reserved for it. Returns its id, and
    /// the time of the slot that it gets.
    ///
    /// It joins at the end. Where tenants exchange slots, it then passes all of
    /// a later round that can be moved back. And it takes no slot that is too
    /// late for it: the one that it brought is not.
    pub(super) fn enter(&mut self, newcomer: Newcomer, at: u64, slot: S) -> (u32, u64) {
        if self.slots.is_empty() {
            // Most queues hold one waiter.
            self.slots.reserve_exact(1);
        }
        let brought = self.slots.partition_point(|slot| slot.at <= at);
        self.slots.insert(brought, Slot { at, slot });
        if brought < self.waiters.len() {
            self.moved_up();
        }
        self.join(newcomer, at, brought)
    }

    /// Adds a waiter that brings no slot: it takes a free one, or one of a tenant
    /// that has more waiters. `None` where there is none in time.
    pub(super) fn enter_free(&mut self, newcomer: Newcomer) -> Option<(u32, u64)> {
        let waiting = self.waiters.len();
        if self.free() == 0 {
            let is_in_time = self.slots.back().is_some_and(|last| last.at <= newcomer.deadline);
            let victim = self.latest_of_a_greedier_tenant(newcomer.tenant?).filter(|_| is_in_time)?;
            self.dismiss(victim);
        }
        let at = self.slots.get(self.waiters.len())?.at;
        let is_in_time = at > newcomer.now && at >= newcomer.earliest && at <= newcomer.deadline;
        (is_in_time || self.waiters.len() < waiting).then(|| self.join(newcomer, at, self.waiters.len()))
    }

    /// The last waiter of a tenant that has at least two more than this one.
    /// Rounds are in order, so it is among the last.
    fn latest_of_a_greedier_tenant(&mut self, tenant: u64) -> Option<u32> {
        if self.waiters.detached() >= MOST_DETACHED {
            return None;
        }
        let rounds = self.rounds.as_ref()?;
        let own = rounds.waiting(tenant);
        let mut last = self.waiters.last();
        for _ in 0..SEARCHED {
            let id = last?;
            let rank = self.waiters.get_mut(id)?.rank.as_ref()?;
            if rounds.waiting(rank.tenant) > own + 1 {
                return Some(id);
            }
            last = self.waiters.before(id);
        }
        None
    }

    /// Takes the slot of a waiter, and calls it.
    fn dismiss(&mut self, id: u32) {
        self.waiters.detach(id);
        if let (Some(waiter), Some(rounds)) = (self.waiters.get_mut(id), &mut self.rounds) {
            waiter.wakes_at = 0;
            waiter.rank.iter().for_each(|rank| rounds.leave(rank.tenant, rank.round));
            rounds.dismissed.extend(waiter.waker.take());
        }
    }

    fn join(&mut self, newcomer: Newcomer, at: u64, brought: usize) -> (u32, u64) {
        let Newcomer { tenant, now, earliest, deadline } = newcomer;
        let waiting = self.waiters.len();
        if tenant.is_some() {
            self.rounds.get_or_insert_default();
        }
        let rounds = self.rounds.as_ref();
        let round = tenant.zip(rounds).map_or(0, |(tenant, rounds)| rounds.next(tenant));
        let own = tenant.zip(rounds).map_or(0, |(tenant, rounds)| rounds.waiting(tenant));
        let gives_way =
            |rank: &Rank| rank.is_limited && rounds.is_some_and(|rounds| rounds.waiting(rank.tenant) > own + GREEDY);
        let can_dismiss = self.waiters.detached() < MOST_DETACHED;
        let (mut index, mut next, mut victim) = (waiting, None, None);
        while let Some(id) = next.map_or(self.waiters.last(), |next| self.waiters.before(next)) {
            if self.slots[index - 1].at < earliest {
                break;
            }
            let behind = self.slots[index].at;
            // Behind the slot that it brought, it delays no waiter.
            let passes = index > brought && behind > deadline;
            let Some(waiter) = self.waiters.get_mut(id) else { break };
            match waiter.rank.as_ref().filter(|rank| rank.round > round) {
                None if !passes => break,
                Some(rank) if !passes && behind > rank.latest => {
                    if !can_dismiss || !gives_way(rank) {
                        break;
                    }
                    // Those before it are moved back into its slot.
                    victim = Some(id);
                }
                _ => waiter.wakes_at = waiter.wakes_at.max(behind),
            }
            (index, next) = (index - 1, Some(id));
        }
        let wakes_at = self.slots[index].at;
        let longest = at.saturating_add(at.saturating_sub(now).saturating_mul(LONGEST - 1));
        let (latest, is_limited) = (deadline.min(longest), deadline <= longest);
        let rank = tenant.map(|tenant| Box::new(Rank { tenant, round, latest, is_limited }));
        let id = self.waiters.insert_before(next, Waiter { wakes_at, waker: None, rank });
        if let (Some(tenant), Some(rounds)) = (tenant, &mut self.rounds) {
            rounds.join(tenant, round, waiting);
        }
        if let Some(victim) = victim {
            self.dismiss(victim);
        }
        (id, wakes_at)
    }

    /// The slot of a waiter, which leaves with it if it is due at `now`.
    pub(super) fn look(&mut self, id: u32, now: u64) -> Option<Left<SlotTime<S>>> {
        if self.waiters.is_detached(id) {
            let waiter = self.waiters.remove(id)?;
            return Some((SlotTime::Lost, waiter.waker));
        }
        let waiter = self.waiters.get_mut(id)?;
        let first = self.slots.front()?.at;
        if waiter.wakes_at > now || first > now {
            waiter.wakes_at = waiter.wakes_at.max(first);
            return Some((SlotTime::Later(waiter.wakes_at), None));
        }
        let Waiter { wakes_at, waker, rank } = self.waiters.remove(id)?;
        if let (Some(rounds), Some(rank)) = (&mut self.rounds, rank) {
            rounds.admitted(rank.tenant, rank.round);
        }
        // Those before it are due as well: which slot is whose does not matter.
        self.slots.pop_front().map(|slot| (SlotTime::Now(wakes_at, slot.slot), waker))
    }

    /// A waiter joins during a cooldown that ends at `until`. Returns the free
    /// slots before it: the newcomer cannot use them, nor can later ones.
    pub(super) fn cool_down(&mut self, until: u64) -> impl Iterator<Item = S> {
        self.usable_from = self.usable_from.max(until);
        let waiting = self.waiting();
        let unusable = self.slots.partition_point(|slot| slot.at < until).max(waiting);
        self.slots.drain(waiting..unusable).map(|slot| slot.slot)
    }

    /// Removes a waiter. One that was due before `now` takes its slot along:
    /// later, the next one could use it in addition to its own. So does one whose
    /// slot is before the end of a cooldown: of those behind it, some may have
    /// slots that they can use.
    pub(super) fn leave(&mut self, id: u32, now: u64) -> Left<Option<S>> {
        let is_detached = self.waiters.is_detached(id);
        let Some(waiter) = self.waiters.remove(id) else { return (None, None) };
        if is_detached {
            return (None, waiter.waker);
        }
        if let (Some(rounds), Some(rank)) = (&mut self.rounds, &waiter.rank) {
            rounds.leave(rank.tenant, rank.round);
        }
        let is_unused = |at: u64| at.saturating_add(USABLE) < now;
        let is_usable = waiter.wakes_at >= self.usable_from;
        let takes = (is_unused(waiter.wakes_at) || !is_usable)
            && self.slots.front().is_some_and(|first| is_unused(first.at) || first.at < self.usable_from);
        let slot = if takes { self.slots.pop_front() } else { None };
        if slot.is_none() {
            self.moved_up();
        }
        (slot.map(|slot| slot.slot), waiter.waker)
    }

    /// Waiters were moved up by a slot.
    fn moved_up(&mut self) {
        self.moves += 1;
        self.reach = self.reach.max(4 << self.moves.trailing_zeros().min(24));
    }

    /// Removes free slots, the last one first: those whose time has passed, and
    /// those that are not kept. `keeps` is told whether there are more than
    /// `most`. Without waiters, none is kept.
    pub(super) fn take_surplus(&mut self, now: u64, most: usize, keeps: impl Fn(&S, bool) -> bool) -> Vec<S> {
        let (waiting, mut surplus) = (self.waiting(), Vec::new());
        let is_kept = |slots: &Self, last: &Slot<S>| waiting > 0 && keeps(&last.slot, slots.free() > most);
        while self.free() > 0 && self.slots.back().is_some_and(|last| last.at <= now || !is_kept(self, last)) {
            surplus.extend(self.slots.pop_back().map(|slot| slot.slot));
        }
        while self.slots.get(waiting).is_some_and(|free| free.at <= now) {
            surplus.extend(self.slots.remove(waiting).map(|slot| slot.slot));
        }
        if is_sparse(self.slots.len(), self.slots.capacity()) {
            self.slots.shrink_to(2 * self.slots.len());
        }
        surplus
    }

    /// Calls the first waiters whose slots were moved up.
    ///
    /// Some may not be polled: one that is due at `now` but has not left, or was
    /// called and has not looked, does not count as one of the first. Whether the
    /// others are polled is not known before they are due, so that those behind
    /// them are called as well; a few slots too late, so that one that leaves
    /// does not wake all of them.
    pub(super) fn call(&mut self, now: u64) -> Called {
        let mut called = self.rounds.as_mut().map(|rounds| mem::take(&mut rounds.dismissed)).unwrap_or_default();
        let (mut next, mut exact) = (self.waiters.first(), 0);
        let reach = mem::take(&mut self.reach).max(REACHED);
        for (index, slot) in self.slots.iter().take(reach).enumerate() {
            let Some(waiter) = next.and_then(|id| self.waiters.get_mut(id)) else { break };
            let slack = if exact < CALLED { 0 } else { index };
            let latest = self.slots.get(index + slack).or(self.slots.back()).map_or(slot.at, |slot| slot.at);
            exact += usize::from(waiter.waker.is_some() && waiter.wakes_at > now);
            if waiter.waker.is_none() || waiter.wakes_at > latest {
                waiter.wakes_at = waiter.wakes_at.min(slot.at);
                called.extend(waiter.waker.take());
            }
            next = next.and_then(|id| self.waiters.after(id));
        }
        called
    }

    /// Ready once a waiter whose timer fires at `wakes_at` has to set it to an
    /// earlier time.
    pub(super) fn poll_called(&mut self, id: u32, wakes_at: u64, waker: Waker) -> Left<Poll<()>> {
        match self.waiters.get_mut(id) {
            Some(waiter) if waiter.wakes_at >= wakes_at => (Poll::Pending, waiter.waker.replace(waker)),
            _ => (Poll::Ready(()), Some(waker)),
        }
    }
}

#[cfg(test)]
mod tests;
