//! The queue before a lane's calls: which items are sent, in which order, and
//! which are coalesced. It does no I/O and wakes no task.
//!
//! Invariant: items are sent in their order, and a request is coalesced only
//! with a queued item that nothing has been pushed after.

use std::collections::{HashMap, VecDeque};

use foldhash::fast::RandomState;
use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::executor::{Executor, ExecutorResult};
use crate::error::BackendError;

/// The most requests that are coalesced into one item.
const MAX_COALESCED: usize = 4096;

/// The capacity that an empty queue keeps allocated.
const IDLE_CAPACITY: usize = 1024;

/// The bounds of a lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaneLimits {
    /// The most calls at the same time; at least 1.
    pub(crate) max_calls: usize,
    /// The most items in one call; at least 1.
    pub(crate) max_batch: usize,
    /// The most requests in the queue.
    pub(crate) max_queued: usize,
}

impl LaneLimits {
    /// Two calls at the same time: the server has the next one when it has
    /// finished one.
    pub(crate) fn new(max_batch: usize) -> Self {
        Self { max_calls: 2, max_batch, max_queued: max_batch.saturating_mul(64) }
    }
}

pub(super) struct LaneQueue<E: Executor> {
    limits: LaneLimits,
    pub(super) calls: usize,
    /// Counts the calls that have ended.
    ended: u64,
    /// Counts recoveries: calls of an earlier generation no longer count.
    generation: u64,
    /// The moves of the home that this has followed.
    moves: u64,
    /// Batches that are to be taken from the queue, or were taken and are not sent
    /// yet. No later item may overtake them.
    unsent: usize,
    pub(super) items: VecDeque<QueuedItem<E>>,
    /// The sequence number of the first item.
    first: u64,
    /// The requests in the queue.
    pub(super) requests: usize,
    /// The sequence numbers of items that requests can be coalesced with.
    coalescable: HashMap<u128, u64, RandomState>,
}

/// What happens to a new item.
pub(super) enum Placement<E: Executor> {
    /// Its caller sends it at once.
    SendNow {
        generation: u64,
        item: E::Item,
    },
    Queued(QueueEntry<E>),
}

/// A request in the queue.
pub(super) struct QueueEntry<E: Executor> {
    pub(super) result: oneshot::Receiver<ExecutorResult<E>>,
    /// How many calls had ended when it was queued.
    pub(super) ended: u64,
}

pub(super) struct QueuedItem<E: Executor> {
    pub(super) item: E::Item,
    coalesce_key: Option<u128>,
    /// The requests that it is for; none if it was pushed.
    pub(super) callers: SmallVec<[oneshot::Sender<ExecutorResult<E>>; 1]>,
    is_pushed: bool,
}

impl<E: Executor> QueuedItem<E> {
    /// Drops the callers that are gone. Whether none is left.
    fn is_abandoned(&mut self) -> bool {
        self.callers.retain(|caller| !caller.is_closed());
        self.callers.is_empty() && !self.is_pushed
    }
}

/// The items of one call.
pub(super) type Batch<E> = Vec<QueuedItem<E>>;

impl<E: Executor> LaneQueue<E> {
    pub(super) fn new(limits: LaneLimits) -> Self {
        Self {
            limits,
            calls: 0,
            ended: 0,
            generation: 0,
            moves: 0,
            unsent: 0,
            items: VecDeque::new(),
            first: 0,
            requests: 0,
            coalescable: HashMap::default(),
        }
    }

    pub(super) fn place(&mut self, item: E::Item, coalesce_key: Option<u128>) -> Result<Placement<E>, BackendError> {
        if self.items.is_empty() && self.unsent == 0 && self.has_free_call() {
            self.calls += 1;
            return Ok(Placement::SendNow { generation: self.generation, item });
        }
        if let Some(entry) = coalesce_key.and_then(|key| self.coalesce(key)) {
            return Ok(Placement::Queued(entry));
        }
        if self.is_full() {
            return Err(BackendError::unavailable("too many requests are queued for the store"));
        }
        let (caller, entry) = self.entry();
        self.enqueue(QueuedItem { item, coalesce_key, callers: SmallVec::from_buf([caller]), is_pushed: false });
        Ok(Placement::Queued(entry))
    }

    /// Adds a request to a queued item of this key.
    pub(super) fn coalesce(&mut self, key: u128) -> Option<QueueEntry<E>> {
        let number = *self.coalescable.get(&key)?;
        if self.is_full() {
            return None;
        }
        let (caller, entry) = self.entry();
        let at = usize::try_from(number.checked_sub(self.first)?).ok()?;
        let queued = self.items.get_mut(at).filter(|queued| queued.callers.len() < MAX_COALESCED)?;
        queued.callers.push(caller);
        self.requests += 1;
        Some(entry)
    }

    /// Queues an item that no caller waits for. Later requests are not
    /// coalesced with earlier ones: they would be decided before it. It is
    /// never rejected: a lost release would hold its units until the lease
    /// ends.
    pub(super) fn push(&mut self, item: E::Item) {
        self.coalescable.clear();
        self.enqueue(QueuedItem { item, coalesce_key: None, callers: SmallVec::new(), is_pushed: true });
    }

    /// Starts another call, if one may start, and there is something to send.
    /// Returns its generation. Its batch is taken only when its task runs: a
    /// runtime that is not driven keeps nothing.
    pub(super) fn start_call(&mut self) -> Option<u64> {
        if !self.has_free_call() || !self.has_next_batch() {
            return None;
        }
        self.calls += 1;
        self.unsent += 1;
        Some(self.generation)
    }

    /// The batch of a call that was started; none if all of it was abandoned, or
    /// taken by a later generation.
    pub(super) fn take_batch(&mut self, generation: u64) -> Option<Batch<E>> {
        if self.generation != generation {
            return None;
        }
        self.unsent = self.unsent.saturating_sub(1);
        self.next_batch()
    }

    /// A batch has been sent.
    pub(super) fn on_sent(&mut self, generation: u64) -> Option<u64> {
        if self.generation != generation {
            return None;
        }
        self.unsent = self.unsent.saturating_sub(1);
        self.start_call()
    }

    /// A call has ended: the next batch for it. One of an earlier generation
    /// gets none.
    pub(super) fn on_ended(&mut self, generation: u64) -> Option<Batch<E>> {
        self.ended += 1;
        if self.generation == generation { self.next_batch() } else { None }
    }

    /// A call will send no further batch; another one may start.
    pub(super) fn end_call(&mut self, generation: u64) -> Option<u64> {
        if self.generation != generation {
            return None;
        }
        self.ended += 1;
        self.calls = self.calls.saturating_sub(1);
        self.start_call()
    }

    /// The runtime of a call has ended before it could take its batch. Returns
    /// the requests that fail, which are all, since no call is left to send the
    /// queued ones. What was pushed is kept for the next call.
    pub(super) fn on_lost(&mut self, generation: u64) -> Batch<E> {
        self.ended += 1;
        if self.generation != generation {
            return Vec::new();
        }
        (self.calls, self.unsent) = (self.calls.saturating_sub(1), self.unsent.saturating_sub(1));
        let lost = std::iter::from_fn(|| self.pop());
        let (pushed, failed): (Batch<E>, Batch<E>) = lost.partition(|queued| queued.is_pushed);
        pushed.into_iter().for_each(|queued| self.push(queued.item));
        failed
    }

    /// A request has waited for a whole deadline and no call has ended, though
    /// a call takes less: the callers that drive them are no longer polled.
    /// Others need not wait for them.
    pub(super) fn recover(&mut self, ended: u64) -> Option<u64> {
        if self.ended != ended || self.calls < self.limits.max_calls {
            return None;
        }
        self.restart();
        self.start_call()
    }

    /// Follows the moves of the home: nothing drives the calls on the one before.
    #[inline]
    pub(super) fn follow(&mut self, moves: u64) {
        if self.moves != moves {
            self.moves = moves;
            self.restart();
        }
    }

    /// Starts a new generation.
    fn restart(&mut self) {
        (self.generation, self.ended) = (self.generation + 1, self.ended + 1);
        (self.calls, self.unsent) = (0, 0);
    }

    /// The first items of the queue, without those whose callers are gone; none
    /// while an earlier batch is not sent.
    pub(super) fn next_batch(&mut self) -> Option<Batch<E>> {
        if self.unsent > 0 {
            return None;
        }
        let mut batch = Vec::with_capacity(self.items.len().min(self.limits.max_batch));
        while batch.len() < self.limits.max_batch.max(1)
            && let Some(mut queued) = self.pop()
        {
            if !queued.is_abandoned() {
                batch.push(queued);
            }
        }
        if self.items.is_empty() && self.items.capacity() > IDLE_CAPACITY {
            self.items = VecDeque::new();
        }
        self.unsent += usize::from(!batch.is_empty());
        (!batch.is_empty()).then_some(batch)
    }

    fn has_next_batch(&self) -> bool {
        self.unsent == 0 && !self.items.is_empty()
    }

    fn has_free_call(&self) -> bool {
        self.calls < self.limits.max_calls.max(1)
    }

    fn entry(&self) -> (oneshot::Sender<ExecutorResult<E>>, QueueEntry<E>) {
        let (caller, result) = oneshot::channel();
        (caller, QueueEntry { result, ended: self.ended })
    }

    /// Whether no more requests fit, once the abandoned ones are removed.
    fn is_full(&mut self) -> bool {
        if self.requests >= self.limits.max_queued {
            let mut kept = VecDeque::new();
            while let Some(mut queued) = self.pop() {
                if !queued.is_abandoned() {
                    kept.push_back(queued);
                }
            }
            self.coalescable.clear();
            self.requests = 0;
            kept.into_iter().for_each(|queued| self.enqueue(queued));
        }
        self.requests >= self.limits.max_queued
    }

    fn enqueue(&mut self, queued: QueuedItem<E>) {
        self.requests += queued.callers.len().max(1);
        if let Some(key) = queued.coalesce_key {
            self.coalescable.insert(key, self.first + self.items.len() as u64);
        }
        self.items.push_back(queued);
    }

    fn pop(&mut self) -> Option<QueuedItem<E>> {
        let queued = self.items.pop_front()?;
        if let Some(key) = queued.coalesce_key
            && self.coalescable.get(&key) == Some(&self.first)
        {
            self.coalescable.remove(&key);
        }
        self.first += 1;
        self.requests = self.requests.saturating_sub(queued.callers.len().max(1));
        Some(queued)
    }
}
