//! Slots that are reserved for waiters, kept by the queue of what they charge
//! and not by the waiters. Knows neither the limiter nor its clock.
//!
//! A waiter that leaves hands its time to the next one, so that all behind it
//! move up; the last slot is then free, and is refunded or taken by the next
//! newcomer. Each of these takes `O(log n)` time on average. Where tenants share
//! a rule fairly, they exchange slots in the same queues; a newcomer then takes
//! time in proportion to the waiters that it passes.
//!
//! A slot is reserved, entered, handed on and returned under the lock of its queue:
//! otherwise one that is returned while another thread has reserved a later one, and has
//! not entered it yet, would be lost.
//!
//! Invariant: a slot is in exactly one queue, or was returned to its owner.

mod queue;
mod waiters;

#[cfg(test)]
mod tests;

use std::task::{Context, Poll};

use self::queue::{Left, SlotQueue};
pub(in crate::limiter) use self::queue::{Newcomer, SlotTime};
use super::{MutexGuard, Shard, Sharded, discard, remove, wake_all};
use crate::{fingerprint::Fingerprint, time::Timestamp};

/// The queues of a limiter. Only requests that are charged exactly the same
/// share one. A queue without waiters is dropped.
#[derive(Debug)]
pub(in crate::limiter) struct SlotQueues<S>(Sharded<Box<SlotQueue<S>>>);

impl<S> Default for SlotQueues<S> {
    fn default() -> Self {
        Self(Sharded::default())
    }
}

/// A waiter's entry in a queue. The owner calls [`SlotQueues::leave`] before it
/// drops it, unless the entry has left with its slot.
#[derive(Debug)]
pub(in crate::limiter) struct SlotEntry {
    queue: Fingerprint,
    id: u64,
    /// The time of its slot, as far as it knows. Others may move it.
    at: u64,
}

impl SlotEntry {
    pub(in crate::limiter) fn at(&self) -> Timestamp {
        Timestamp::from_nanos(self.at)
    }
}

/// The owner of the slots.
pub(in crate::limiter) trait SlotOwner<S> {
    /// Whether the queue keeps a free slot for newcomers. It may have too many:
    /// more than one for each waiter, or after a newcomer, as many as before.
    fn keeps(&self, slot: &S, are_too_many: bool) -> bool;

    /// Called with each slot that the queue does not keep, while the queue is
    /// locked. May not run foreign code.
    fn refund(&self, slot: &S);

    /// Called with the same slots when no lock is held, and before any waiter is
    /// woken.
    fn refunded(&self, slot: S);
}

/// A locked queue. A request that reserves a slot for it holds this until the slot is entered.
pub(in crate::limiter) struct LockedQueue<'q, S> {
    shard: MutexGuard<'q, Shard<Box<SlotQueue<S>>>>,
    queue: Fingerprint,
}

impl<S> SlotQueues<S> {
    pub(in crate::limiter) fn lock(&self, queue: Fingerprint) -> LockedQueue<'_, S> {
        LockedQueue { shard: self.0.of(queue), queue }
    }

    /// Adds a waiter that brings no slot; `None` where there is none for it in
    /// time. Also returns whether it takes the slot of another tenant's waiter.
    pub(in crate::limiter) fn enter_free(
        &self,
        queue: Fingerprint,
        newcomer: Newcomer,
        owner: &impl SlotOwner<S>,
    ) -> Option<(SlotEntry, bool)> {
        self.lock(queue).change(newcomer.now, owner, |slots, surplus| {
            surplus.extend(slots.cool_down(newcomer.usable_from));
            let waiting = slots.waiting();
            let entered = slots.enter_free(newcomer);
            let is_taken = slots.waiting() == waiting;
            (entered.map(|(id, at)| (SlotEntry { queue, id, at }, is_taken)), None)
        })
    }

    /// The slot of a waiter as it stands at `now`; the waiter leaves with it if
    /// it is due.
    pub(in crate::limiter) fn look(
        &self,
        entry: &mut SlotEntry,
        now: Timestamp,
        owner: &impl SlotOwner<S>,
    ) -> SlotTime<S> {
        let looked =
            self.lock(entry.queue).change(now.as_nanos(), owner, |slots, _| slots.look(entry.id, now.as_nanos()));
        if let SlotTime::Later(at) | SlotTime::Now(at, _) = &looked {
            entry.at = *at;
        }
        looked
    }

    /// Removes a waiter.
    pub(in crate::limiter) fn leave(&self, entry: &SlotEntry, now: Timestamp, owner: &impl SlotOwner<S>) {
        self.lock(entry.queue).change(now.as_nanos(), owner, |slots, surplus| {
            let (unused, waker) = slots.leave(entry.id, now.as_nanos());
            surplus.extend(unused);
            ((), waker)
        });
    }

    /// Ready once the waiter's slot was moved up, and it has to look at it.
    pub(in crate::limiter) fn poll_called(&self, entry: &SlotEntry, cx: &Context<'_>) -> Poll<()> {
        let waker = cx.waker().clone();
        let mut shard = self.0.of(entry.queue);
        let polled = shard.get_mut(&entry.queue.to_u128()).map(|slots| slots.poll_called(entry.id, entry.at, waker));
        drop(shard);
        let (polled, unused) = polled.unwrap_or((Poll::Ready(()), None));
        discard(unused);
        polled
    }
}

impl<S> LockedQueue<'_, S> {
    pub(in crate::limiter) fn queue(&self) -> Fingerprint {
        self.queue
    }

    /// Adds a waiter to the queue, with the slot that was reserved for it at
    /// `at`.
    pub(in crate::limiter) fn enter(
        self,
        newcomer: Newcomer,
        (at, slot): (Timestamp, S),
        owner: &impl SlotOwner<S>,
    ) -> SlotEntry {
        let queue = self.queue;
        let (id, at) = self.change(newcomer.now, owner, |slots, surplus| {
            surplus.extend(slots.cool_down(newcomer.usable_from));
            (slots.enter(newcomer, at.as_nanos(), slot), None)
        });
        SlotEntry { queue, id, at }
    }

    /// Changes the queue, and settles what follows: the free slots that it does
    /// not keep are refunded, and waiters whose slots were moved up are called.
    fn change<R>(
        self,
        now: u64,
        owner: &impl SlotOwner<S>,
        act: impl FnOnce(&mut SlotQueue<S>, &mut Vec<S>) -> Left<R>,
    ) -> R {
        let Self { mut shard, queue } = self;
        let slots = shard.entry(queue.to_u128()).or_default();
        let (waiting, free) = (slots.waiting(), slots.free());
        let mut surplus = Vec::new();
        let (result, unused) = act(slots, &mut surplus);
        let most = if slots.waiting() > waiting { free.saturating_sub(1) } else { slots.waiting() };
        surplus.extend(slots.take_surplus(now, most, |slot, are_too_many| owner.keeps(slot, are_too_many)));
        surplus.iter().for_each(|slot| owner.refund(slot));
        let called = slots.call(now);
        if slots.is_empty() {
            remove(&mut shard, queue);
        }
        drop(shard);
        surplus.into_iter().for_each(|slot| owner.refunded(slot));
        discard(unused);
        wake_all(called);
        result
    }
}
