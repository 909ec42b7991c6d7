//! Slots that are reserved for waiters, kept by the queue of what they charge
//! and not by the waiters. Knows neither the limiter nor its clock.
//!
//! A waiter that leaves hands its time to the next one, so that all behind it
//! move up; the last slot is then free, and is refunded or taken by the next
//! newcomer. Each of these takes constant time. Where tenants share a rule
//! fairly, they exchange slots in the same queues.
//!
//! Invariant: a slot is in exactly one queue, or was returned to its owner.

mod list;
mod queue;
mod rounds;

use std::task::{Context, Poll, Waker};

use self::queue::SlotQueue;
pub(in crate::limiter) use self::queue::{Newcomer, SlotTime};
use super::sharded::{Sharded, remove};
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
    id: u32,
    /// The time of its slot, as far as it knows. Others may move it.
    at: u64,
}

impl SlotEntry {
    pub(in crate::limiter) fn at(&self) -> Timestamp {
        Timestamp::from_nanos(self.at)
    }
}

/// Each operation is told which free slots the queue `keeps` for newcomers:
/// whether it keeps a slot, given whether there are excessively many. These are
/// more than one for each waiter, and after a newcomer, as many as before.
impl<S> SlotQueues<S> {
    /// Adds a waiter to the queue, with the slot that was reserved for it at
    /// `at`. Also returns the slots to be refunded.
    pub(in crate::limiter) fn enter(
        &self,
        queue: Fingerprint,
        newcomer: Newcomer,
        (at, slot): (Timestamp, S),
        keeps: impl Fn(&S, bool) -> bool,
    ) -> (SlotEntry, Vec<S>) {
        let enter = |slots: &mut SlotQueue<S>| slots.enter(newcomer, at.as_nanos(), slot);
        let ((id, at), surplus) = self.change(queue, newcomer.now, keeps, enter);
        (SlotEntry { queue, id, at }, surplus)
    }

    /// Adds a waiter that brings no slot; `None` where there is none for it in
    /// time. Also returns whether it takes the slot of another tenant's waiter.
    pub(in crate::limiter) fn enter_free(&self, queue: Fingerprint, newcomer: Newcomer) -> Option<(SlotEntry, bool)> {
        let mut shard = self.0.of(queue);
        let slots = shard.get_mut(&queue.to_u128())?;
        let waiting = slots.waiting();
        let (id, at) = slots.enter_free(newcomer)?;
        let is_taken = slots.waiting() == waiting;
        let called = slots.call(newcomer.now);
        drop(shard);
        called.into_iter().for_each(Waker::wake);
        Some((SlotEntry { queue, id, at }, is_taken))
    }

    /// The slot of a waiter as it stands at `now`; the waiter leaves with it if
    /// it is due.
    pub(in crate::limiter) fn look(
        &self,
        entry: &mut SlotEntry,
        now: Timestamp,
        keeps: impl Fn(&S, bool) -> bool,
    ) -> (Option<SlotTime<S>>, Vec<S>) {
        let look = |slots: &mut SlotQueue<S>| slots.look(entry.id, now.as_nanos());
        let (looked, surplus) = self.change(entry.queue, now.as_nanos(), keeps, look);
        if let Some((SlotTime::Later(at) | SlotTime::Now(at, _), _)) = &looked {
            entry.at = *at;
        }
        (looked.map(|(time, _)| time), surplus)
    }

    /// Removes a waiter. Returns the slots to be refunded.
    pub(in crate::limiter) fn leave(
        &self,
        entry: &SlotEntry,
        now: Timestamp,
        keeps: impl Fn(&S, bool) -> bool,
    ) -> Vec<S> {
        let leave = |slots: &mut SlotQueue<S>| slots.leave(entry.id, now.as_nanos());
        let ((unused, _), mut surplus) = self.change(entry.queue, now.as_nanos(), keeps, leave);
        surplus.extend(unused);
        surplus
    }

    /// Ready once the waiter's slot was moved up, and it has to look at it.
    pub(in crate::limiter) fn poll_called(&self, entry: &SlotEntry, cx: &Context<'_>) -> Poll<()> {
        let waker = cx.waker().clone();
        let mut shard = self.0.of(entry.queue);
        let polled = shard.get_mut(&entry.queue.to_u128()).map(|slots| slots.poll_called(entry.id, entry.at, waker));
        drop(shard);
        polled.map_or(Poll::Ready(()), |(polled, _)| polled)
    }

    /// Changes a queue, and settles what follows: the free slots that it does
    /// not keep are returned, and waiters whose slots were moved up are called.
    fn change<R>(
        &self,
        queue: Fingerprint,
        now: u64,
        keeps: impl Fn(&S, bool) -> bool,
        act: impl FnOnce(&mut SlotQueue<S>) -> R,
    ) -> (R, Vec<S>) {
        let mut shard = self.0.of(queue);
        let slots = shard.entry(queue.to_u128()).or_default();
        let (waiting, free) = (slots.waiting(), slots.free());
        let result = act(slots);
        let most = if slots.waiting() > waiting { free.saturating_sub(1) } else { slots.waiting() };
        let surplus = slots.take_surplus(now, most, keeps);
        let called = slots.call(now);
        if slots.is_empty() {
            remove(&mut shard, queue);
        }
        drop(shard);
        called.into_iter().for_each(Waker::wake);
        (result, surplus)
    }
}
