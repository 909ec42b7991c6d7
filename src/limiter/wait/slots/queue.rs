//! The waiters that are charged the same, in order, and the slots that are
//! reserved for them. Knows no clocks, limiters or keys. Which waiters a newcomer
//! passes is decided in `join`.
//!
//! | the waiter | its timer fires | happens |
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
    super::is_sparse,
    waiters::{Rank, Rounds, Waiter, Waiters},
};

/// Waiters and slots, both in order.
#[derive(Debug)]
pub(super) struct SlotQueue<S> {
    waiters: Waiters,
    slots: VecDeque<Slot<S>>,
    /// Only where tenants exchange slots.
    rounds: Option<Box<Rounds>>,
    /// The end of a cooldown: a slot before it is of no use. Those that have one
    /// since before the cooldown reserve another when it comes.
    usable_from: u64,
    /// How often waiters were moved up.
    moves: u32,
    /// How many of the first waiters are to be looked at.
    reach: u32,
    /// The waiters that have lost their slots, and do not know it yet.
    dismissed: u32,
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
    pub(in crate::limiter) usable_from: u64,
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
const REACHED: u32 = 64;

/// A waiter waits at most so many times as long as first come, first served
/// would have it: no tenant starves, however many come.
const LONGEST: u64 = 16;

/// A tenant that has so many more waiters than a newcomer's tenant gives way to
/// it even by a waiter that cannot be moved back: that one loses its slot.
const GREEDY: usize = 8;

/// How many of the last waiters are searched for one of a greedier tenant.
const SEARCHED: usize = 16;

/// How many waiters that have lost their slots may not know it yet. They count
/// as waiters until they do.
const MOST_DISMISSED: u32 = 64;

/// For how long, in nanoseconds, the slot of a waiter that was due but left can
/// be used by the next one: as long as a timer may be late.
const USABLE: u64 = 1_000_000;

impl<S> Default for SlotQueue<S> {
    fn default() -> Self {
        let (waiters, slots) = (Waiters::default(), VecDeque::new());
        Self { waiters, slots, rounds: None, usable_from: 0, moves: 0, reach: 0, dismissed: 0 }
    }
}

impl<S> SlotQueue<S> {
    pub(super) fn waiting(&self) -> usize {
        self.waiters.len()
    }

    /// Whether no waiter has an entry.
    pub(super) fn is_empty(&self) -> bool {
        self.waiters.len() == 0 && self.dismissed == 0
    }

    /// The number of slots without a waiter.
    pub(super) fn free(&self) -> usize {
        self.slots.len() - self.waiters.len()
    }

    /// Removes a waiter that has its slot. One that is not served gives its round
    /// back.
    fn remove(&mut self, id: u64, is_served: bool) -> Option<Waiter> {
        let waiter = self.waiters.remove(id)?;
        if let (Some(rounds), Some(rank)) = (&mut self.rounds, &waiter.rank) {
            rounds.leave(rank.tenant, rank.round, is_served);
        }
        Some(waiter)
    }

    /// A waiter knows that it has lost its slot.
    fn forget_dismissed(&mut self) {
        self.dismissed = self.dismissed.saturating_sub(1);
    }

    /// Adds a waiter with the slot that was reserved for it. Returns its id, and
    /// the time of the slot that it gets.
    ///
    /// It joins at the end. Where tenants exchange slots, it then passes all of
    /// a later round that can be moved back. And it takes no slot that is too
    /// late for it: the one that it brought is not.
    pub(super) fn enter(&mut self, newcomer: Newcomer, at: u64, slot: S) -> (u64, u64) {
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
    pub(super) fn enter_free(&mut self, newcomer: Newcomer) -> Option<(u64, u64)> {
        let waiting = self.waiters.len();
        if self.free() == 0 {
            let is_in_time = self.slots.back().is_some_and(|last| last.at <= newcomer.deadline);
            let victim = self.latest_of_a_greedier_tenant(newcomer.tenant?).filter(|_| is_in_time)?;
            self.dismiss(victim);
        }
        let at = self.slots.get(self.waiters.len())?.at;
        let is_in_time = at > newcomer.now && at >= newcomer.usable_from && at <= newcomer.deadline;
        (is_in_time || self.waiters.len() < waiting).then(|| self.join(newcomer, at, self.waiters.len()))
    }

    /// The last waiter of a tenant that has at least two more than this one.
    /// Rounds are in order, so it is among the last.
    fn latest_of_a_greedier_tenant(&mut self, tenant: u64) -> Option<u64> {
        let rounds = self.rounds.as_ref().filter(|_| self.dismissed < MOST_DISMISSED)?;
        let own = rounds.waiting(tenant);
        for waiter in self.waiters.iter_mut().rev().take(SEARCHED) {
            if rounds.waiting(waiter.rank.as_ref()?.tenant) > own + 1 {
                return Some(waiter.id);
            }
        }
        None
    }

    /// Takes the slot of a waiter, and calls it.
    fn dismiss(&mut self, id: u64) {
        if let Some(waiter) = self.remove(id, false)
            && let Some(rounds) = &mut self.rounds
        {
            rounds.dismissed.extend(waiter.waker);
            self.dismissed += 1;
        }
    }

    fn join(&mut self, newcomer: Newcomer, at: u64, brought: usize) -> (u64, u64) {
        let Newcomer { tenant, now, usable_from, deadline } = newcomer;
        let waiting = self.waiters.len();
        if tenant.is_some() {
            self.rounds.get_or_insert_default();
        }
        let rounds = self.rounds.as_ref();
        let round = tenant.zip(rounds).map_or(0, |(tenant, rounds)| rounds.next(tenant));
        let own = tenant.zip(rounds).map_or(0, |(tenant, rounds)| rounds.waiting(tenant));
        let gives_way =
            |rank: &Rank| rank.is_limited && rounds.is_some_and(|rounds| rounds.waiting(rank.tenant) > own + GREEDY);
        let can_dismiss = self.dismissed < MOST_DISMISSED;
        let (mut index, mut victim) = (waiting, None);
        for waiter in self.waiters.iter_mut().rev() {
            if self.slots[index - 1].at < usable_from {
                break;
            }
            let behind = self.slots[index].at;
            // Behind the slot that it brought, it delays no waiter.
            let passes = index > brought && behind > deadline;
            match waiter.rank.as_ref().filter(|rank| rank.round > round) {
                None if !passes => break,
                Some(rank) if !passes && behind > rank.latest => {
                    if !can_dismiss || !gives_way(rank) {
                        break;
                    }
                    // Those before it are moved back into its slot.
                    victim = Some(waiter.id);
                }
                _ => waiter.wakes_at = waiter.wakes_at.max(behind),
            }
            index -= 1;
        }
        let wakes_at = self.slots[index].at;
        let longest = at.saturating_add(at.saturating_sub(now).saturating_mul(LONGEST - 1));
        let (latest, is_limited) = (deadline.min(longest), deadline <= longest);
        let rank = tenant.map(|tenant| Box::new(Rank { tenant, round, latest, is_limited }));
        let id = self.waiters.join(waiting - index, wakes_at, rank);
        if let (Some(tenant), Some(rounds)) = (tenant, &mut self.rounds) {
            rounds.join(tenant, round, waiting);
        }
        if let Some(victim) = victim {
            self.dismiss(victim);
        }
        (id, wakes_at)
    }

    /// The slot of a waiter, which leaves with it if it is due at `now`.
    pub(super) fn look(&mut self, id: u64, now: u64) -> Left<SlotTime<S>> {
        let first = self.slots.front().map_or(0, |slot| slot.at);
        if let Some(waiter) = self.waiters.get_mut(id)
            && (waiter.wakes_at > now || first > now)
        {
            waiter.wakes_at = waiter.wakes_at.max(first);
            return (SlotTime::Later(waiter.wakes_at), None);
        }
        match self.remove(id, true) {
            Some(Waiter { wakes_at, waker, .. }) => {
                // Those before it are due as well: which slot is whose does not matter.
                let slot = self.slots.pop_front();
                (slot.map_or(SlotTime::Lost, |slot| SlotTime::Now(wakes_at, slot.slot)), waker)
            }
            None => {
                self.forget_dismissed();
                (SlotTime::Lost, None)
            }
        }
    }

    /// A waiter joins during a cooldown that ends at `until`. Returns the free
    /// slots before it: the newcomer cannot use them, nor can later ones.
    pub(super) fn cool_down(&mut self, until: u64) -> impl Iterator<Item = S> {
        self.usable_from = self.usable_from.max(until);
        self.take_free_before(until)
    }

    fn take_free_before(&mut self, time: u64) -> impl Iterator<Item = S> {
        let waiting = self.waiting();
        let end = self.slots.partition_point(|slot| slot.at < time).max(waiting);
        self.slots.drain(waiting..end).map(|slot| slot.slot)
    }

    /// Removes a waiter. One that was due before `now` takes its slot along:
    /// later, the next one could use it in addition to its own. So does one whose
    /// slot is before the end of a cooldown: of those behind it, some may have
    /// slots that they can use.
    pub(super) fn leave(&mut self, id: u64, now: u64) -> Left<Option<S>> {
        let Some(waiter) = self.remove(id, false) else {
            self.forget_dismissed();
            return (None, None);
        };
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
        self.moves = self.moves.wrapping_add(1);
        self.reach = self.reach.max(4 << self.moves.trailing_zeros().min(24));
    }

    /// Removes free slots: those whose time has passed, and then those that are not
    /// kept, the last one first. `keeps` is told whether there are more than
    /// `most`. Without waiters, none is kept.
    pub(super) fn take_surplus(&mut self, now: u64, most: usize, keeps: impl Fn(&S, bool) -> bool) -> Vec<S> {
        let mut surplus: Vec<_> = self.take_free_before(now.saturating_add(1)).collect();
        let waiting = self.waiting();
        let is_kept = |slots: &Self, last: &Slot<S>| waiting > 0 && keeps(&last.slot, slots.free() > most);
        while self.free() > 0 && self.slots.back().is_some_and(|last| !is_kept(self, last)) {
            surplus.extend(self.slots.pop_back().map(|slot| slot.slot));
        }
        if is_sparse(self.slots.len(), self.slots.capacity()) {
            self.slots.shrink_to(2 * self.slots.len());
        }
        surplus
    }

    /// Returns the wakers of the first waiters whose slots were moved up, to be woken when no
    /// lock is held.
    ///
    /// Some may not be polled: one that is due at `now` but has not left, or was
    /// called and has not looked, does not count as one of the first. Whether the
    /// others are polled is not known before they are due, so that those behind
    /// them are called as well; a few slots too late, so that one that leaves
    /// does not wake all of them.
    pub(super) fn call(&mut self, now: u64) -> Vec<Waker> {
        let mut called = self.rounds.as_mut().map(|rounds| mem::take(&mut rounds.dismissed)).unwrap_or_default();
        let mut exact = 0;
        let reach = mem::take(&mut self.reach).max(REACHED) as usize;
        for (index, (waiter, slot)) in self.waiters.iter_mut().zip(&self.slots).take(reach).enumerate() {
            let slack = if exact < CALLED { 0 } else { index };
            let latest = self.slots.get(index + slack).or(self.slots.back()).map_or(slot.at, |slot| slot.at);
            exact += usize::from(waiter.waker.is_some() && waiter.wakes_at > now);
            if waiter.waker.is_none() || waiter.wakes_at > latest {
                waiter.wakes_at = waiter.wakes_at.min(slot.at);
                called.extend(waiter.waker.take());
            }
        }
        called
    }

    /// Ready once a waiter whose timer fires at `wakes_at` has to set it to an
    /// earlier time.
    pub(super) fn poll_called(&mut self, id: u64, wakes_at: u64, waker: Waker) -> Left<Poll<()>> {
        match self.waiters.get_mut(id) {
            Some(waiter) if waiter.wakes_at >= wakes_at => (Poll::Pending, waiter.waker.replace(waker)),
            _ => (Poll::Ready(()), Some(waker)),
        }
    }
}

#[cfg(test)]
mod tests;
