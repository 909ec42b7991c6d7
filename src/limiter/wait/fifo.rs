//! Wait queues for what cannot be reserved: one queue per key, by priority, and first
//! come, first served within one. They hold wakers only, and decide nothing.
//!
//! The end of a concurrency limit's wait is unknown, so no slot can be reserved
//! for it. The same holds for a rate that may change before the slot comes, and
//! for the other limits of such a request: see `limiter/queue.rs`.
//!
//! | position | is called | by |
//! |---|---|---|
//! | first | when it becomes the first | joining, or the entry before it leaving |
//! | first | each time a unit of the key comes back | [`WaitQueues::call`] |
//! | first | when the policy is replaced | [`WaitQueues::call_all`] |
//! | first | soon, and then each second, where units may come back unnoticed | its own timer |
//! | any other | never | |
//!
//! Under an adaptive concurrency limit, a queue that has not been empty for 100 ms shows
//! overload. From then on the newest is first, and each waits for 10 ms at most (as by
//! CoDel and adaptive LIFO): what has waited long is of no use to its caller any more.
//!
//! A called request is decided again: it is admitted and leaves, or stays where
//! it is. One that is called and then dropped calls the next, so no call is
//! lost. A unit that comes back between a decision and joining is found too:
//! the first entry of a queue is called as it joins.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::time::Instant;

use super::{AtomicU64, AtomicUsize, Sharded, discard, remove, wake_all};
use crate::{descriptor::Priority, fingerprint::Fingerprint};

/// All queues of a limiter.
#[derive(Debug, Default)]
pub(in crate::limiter) struct WaitQueues {
    /// The entries of all queues: while there are none, a release does no more
    /// than this load.
    waiting: AtomicUsize,
    next: AtomicU64,
    queues: Sharded<Queue>,
}

/// The number that one has in a queue in which it has this priority. The highest priority has
/// the smallest numbers.
fn numbered(priority: Priority, number: u64) -> u64 {
    (Priority::Critical as u64 - priority as u64) << ARRIVAL_BITS | number & ((1 << ARRIVAL_BITS) - 1)
}

/// What of a number tells the order of arrival.
const ARRIVAL_BITS: u32 = 62;

/// Arrivals are counted up from here, and down where the newest is first.
const MIDDLE: u64 = 1 << (ARRIVAL_BITS - 1);

/// A queue that has not been empty for so long shows overload.
const OVERLOADED_AFTER: Duration = Duration::from_millis(100);

/// By number. Numbers are given by priority, and by arrival within one, whichever queue is
/// joined first.
type Queue = BTreeMap<u64, State>;

#[derive(Debug, Default)]
struct State {
    is_called: bool,
    waker: Option<Waker>,
    /// Since when the queue has not been empty, where that matters.
    since: Option<Instant>,
}

impl State {
    /// The waker is to be woken when no lock is held.
    fn call(&mut self) -> Option<Waker> {
        self.is_called = true;
        self.waker.take()
    }
}

/// A position in a queue, until this is dropped.
#[derive(Debug)]
pub(in crate::limiter) struct QueueEntry {
    queues: Arc<WaitQueues>,
    key: Fingerprint,
    number: u64,
    since: Option<Instant>,
}

impl WaitQueues {
    #[inline]
    pub(in crate::limiter) fn are_empty(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) == 0
    }

    /// Whether a request waits for the key that is ahead of one with this priority: ahead of
    /// its entry, or of a newcomer, which is behind all of its priority.
    pub(in crate::limiter) fn is_behind(&self, key: Fingerprint, priority: Priority, own: Option<&QueueEntry>) -> bool {
        self.has_before(key, numbered(priority, own.map_or(u64::MAX, |own| own.number)))
    }

    fn has_before(&self, key: Fingerprint, number: u64) -> bool {
        let queues = self.queues.of(key);
        let first = queues.get(&key.to_u128()).and_then(|queue| queue.keys().next());
        first.is_some_and(|first| *first < number)
    }

    /// A unit of the key came back.
    pub(in crate::limiter) fn call(&self, key: Fingerprint) {
        let waker = self.queues.of(key).get_mut(&key.to_u128()).and_then(first_of).and_then(State::call);
        wake_all(waker);
    }

    /// The policy was replaced: the first of each queue is decided by the new
    /// one, and calls the next if it is admitted.
    pub(in crate::limiter) fn call_all(&self) {
        for mut queues in self.queues.each() {
            let wakers: Vec<_> =
                queues.values_mut().filter_map(|queue| first_of(queue).and_then(State::call)).collect();
            drop(queues);
            wake_all(wakers);
        }
    }

    /// Joins the queue of `key` behind all of its priority. With the time `now`, the queue is
    /// that of an adaptive concurrency limit, and the request joins before them if it shows
    /// overload.
    pub(in crate::limiter) fn join(
        self: &Arc<Self>,
        key: Fingerprint,
        priority: Priority,
        now: Option<Instant>,
    ) -> QueueEntry {
        let arrival = self.next.fetch_add(1, Ordering::Relaxed);
        let first = || self.queues.of(key).get(&key.to_u128()).and_then(|queue| queue.values().next()?.since);
        let since = now.map(|now| first().unwrap_or(now));
        let is_overloaded =
            since.zip(now).is_some_and(|(since, now)| now.saturating_duration_since(since) >= OVERLOADED_AFTER);
        let number = if is_overloaded { MIDDLE - 1 - arrival } else { MIDDLE + arrival };
        self.enter(key, numbered(priority, number), since)
    }

    fn enter(self: &Arc<Self>, key: Fingerprint, number: u64, since: Option<Instant>) -> QueueEntry {
        // Before the request is decided again: see `are_empty`.
        self.waiting.fetch_add(1, Ordering::SeqCst);
        {
            let mut shard = self.queues.of(key);
            let queue = shard.entry(key.to_u128()).or_default();
            let is_called = queue.keys().next().is_none_or(|first| *first > number);
            queue.insert(number, State { is_called, waker: None, since });
        }
        QueueEntry { queues: Arc::clone(self), key, number, since }
    }
}

fn first_of(queue: &mut Queue) -> Option<&mut State> {
    queue.values_mut().next()
}

impl QueueEntry {
    /// Moves to another key's queue, where it has this priority: of one priority, a request
    /// that came earlier is ahead in whichever queue it waits.
    pub(in crate::limiter) fn move_to(&mut self, key: Fingerprint, priority: Priority) {
        if key != self.key {
            // Joins the new queue before it leaves the old one.
            *self = self.queues.enter(key, numbered(priority, self.number), None);
        }
    }

    pub(in crate::limiter) fn key(&self) -> Fingerprint {
        self.key
    }

    /// In how long the queue shows overload, if it is not empty meanwhile; zero if it does.
    /// `None` where that does not matter.
    pub(in crate::limiter) fn overloaded_in(&self) -> Option<Duration> {
        Some(OVERLOADED_AFTER.saturating_sub(self.since?.elapsed()))
    }

    pub(in crate::limiter) fn is_first(&self) -> bool {
        !self.queues.has_before(self.key, self.number)
    }

    /// Ready when the entry is called.
    pub(in crate::limiter) fn poll_called(&self, cx: &mut Context<'_>) -> Poll<()> {
        let waker = cx.waker().clone();
        let replaced = {
            let mut shard = self.queues.queues.of(self.key);
            let queue = shard.get_mut(&self.key.to_u128());
            let Some(state) = queue.and_then(|queue| queue.get_mut(&self.number)) else { return Poll::Ready(()) };
            if std::mem::take(&mut state.is_called) {
                return Poll::Ready(());
            }
            state.waker.replace(waker)
        };
        discard(replaced);
        Poll::Pending
    }
}

impl Drop for QueueEntry {
    fn drop(&mut self) {
        let (next, own) = {
            let mut shard = self.queues.queues.of(self.key);
            let Some(queue) = shard.get_mut(&self.key.to_u128()) else { return };
            let was_first = queue.keys().next() == Some(&self.number);
            let own = queue.remove(&self.number);
            let next = if was_first { first_of(queue).and_then(State::call) } else { None };
            if queue.is_empty() {
                remove(&mut shard, self.key);
            }
            (next, own)
        };
        self.queues.waiting.fetch_sub(1, Ordering::SeqCst);
        discard(own.and_then(|own| own.waker));
        wake_all(next);
    }
}

#[cfg(test)]
mod tests;
