//! The queue before a lane's calls: which items are sent, in which order, and
//! which are coalesced. It does no I/O and wakes no task.
//!
//! Invariant: items are sent in their order, and a request is coalesced only
//! with a queued item that nothing has been pushed after.

use std::collections::{HashMap, VecDeque};

use foldhash::fast::RandomState;
use smallvec::SmallVec;
use tokio::{sync::oneshot, time::Instant};

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

pub(super) struct LaneQueue<I, O> {
    limits: LaneLimits,
    pub(super) calls: usize,
    /// Whether a call has not sent its batch yet. No later item may overtake it.
    is_sending: bool,
    pub(super) items: VecDeque<QueuedItem<I, O>>,
    /// The sequence number of the first item.
    first: u64,
    /// The requests in the queue.
    pub(super) requests: usize,
    /// The sequence numbers of items that requests can be coalesced with.
    coalescable: HashMap<u128, u64, RandomState>,
}

/// The result of a request, which is closed at its deadline if there is none.
pub(super) type ResultReceiver<O> = oneshot::Receiver<Result<O, BackendError>>;

/// Whom a result is for, and until when.
pub(super) struct Caller<O> {
    pub(super) result: oneshot::Sender<Result<O, BackendError>>,
    pub(super) end: Instant,
}

pub(super) struct QueuedItem<I, O> {
    pub(super) item: I,
    coalesce_key: Option<u128>,
    /// The requests that it is for; none if it was pushed.
    pub(super) callers: SmallVec<[Caller<O>; 1]>,
    is_pushed: bool,
}

impl<I, O> QueuedItem<I, O> {
    /// Drops the callers that are gone, or whose deadline has passed. Whether none is left.
    fn is_abandoned(&mut self, now: Instant) -> bool {
        self.callers.retain(|caller| !caller.result.is_closed() && now < caller.end);
        self.callers.is_empty() && !self.is_pushed
    }
}

impl<I, O> LaneQueue<I, O> {
    pub(super) fn new(limits: LaneLimits) -> Self {
        Self {
            limits,
            calls: 0,
            is_sending: false,
            items: VecDeque::new(),
            first: 0,
            requests: 0,
            coalescable: HashMap::default(),
        }
    }

    /// Queues a request, or adds it to a queued item of its key.
    pub(super) fn submit(
        &mut self,
        item: I,
        coalesce_key: Option<u128>,
        end: Instant,
    ) -> Result<ResultReceiver<O>, BackendError> {
        if let Some(result) = coalesce_key.and_then(|key| self.coalesce(key, end)) {
            return Ok(result);
        }
        if self.is_full() {
            return Err(BackendError::unavailable("too many requests are queued for the store"));
        }
        let (result, receiver) = oneshot::channel();
        let callers = SmallVec::from_buf([Caller { result, end }]);
        self.enqueue(QueuedItem { item, coalesce_key, callers, is_pushed: false });
        Ok(receiver)
    }

    /// Adds a request to a queued item of this key.
    pub(super) fn coalesce(&mut self, key: u128, end: Instant) -> Option<ResultReceiver<O>> {
        let number = *self.coalescable.get(&key)?;
        if self.is_full() {
            return None;
        }
        let at = usize::try_from(number.checked_sub(self.first)?).ok()?;
        let queued = self.items.get_mut(at).filter(|queued| queued.callers.len() < MAX_COALESCED)?;
        let (result, receiver) = oneshot::channel();
        queued.callers.push(Caller { result, end });
        self.requests += 1;
        Some(receiver)
    }

    /// Queues an item that no caller waits for. Later requests are not
    /// coalesced with earlier ones: they would be decided before it. It is
    /// never rejected: a lost release would hold its units until the lease
    /// ends.
    pub(super) fn push(&mut self, item: I) {
        self.enqueue(QueuedItem { item, coalesce_key: None, callers: SmallVec::new(), is_pushed: true });
    }

    /// Whether another call is to start: there is something to send, and nothing to wait
    /// for. It counts from now on, and takes its batch when it runs.
    pub(super) fn starts_call(&mut self) -> bool {
        let starts = self.calls < self.limits.max_calls.max(1) && !self.is_sending && !self.items.is_empty();
        if starts {
            self.calls += 1;
            self.is_sending = true;
        }
        starts
    }

    /// A batch has been sent.
    pub(super) fn on_sent(&mut self) {
        self.is_sending = false;
    }

    /// A call has ended.
    pub(super) fn end_call(&mut self) {
        self.calls -= 1;
    }

    /// The first items of the queue, without those whose callers are gone.
    pub(super) fn next_batch(&mut self) -> Vec<QueuedItem<I, O>> {
        let (now, mut batch) = (Instant::now(), Vec::with_capacity(self.items.len().min(self.limits.max_batch)));
        while batch.len() < self.limits.max_batch.max(1)
            && let Some(mut queued) = self.pop()
        {
            if !queued.is_abandoned(now) {
                batch.push(queued);
            }
        }
        if self.items.is_empty() && self.items.capacity() > IDLE_CAPACITY {
            self.items = VecDeque::new();
        }
        batch
    }

    /// Whether no more requests fit, once the abandoned ones are removed.
    fn is_full(&mut self) -> bool {
        if self.requests >= self.limits.max_queued {
            self.remove_abandoned(Instant::now());
        }
        self.requests >= self.limits.max_queued
    }

    /// Removes requests whose callers are gone, or whose deadline has passed.
    pub(super) fn remove_abandoned(&mut self, now: Instant) {
        let mut items = std::mem::take(&mut self.items);
        self.coalescable.clear();
        self.requests = 0;
        items.retain_mut(|queued| !queued.is_abandoned(now));
        items.into_iter().for_each(|queued| self.enqueue(queued));
    }

    /// The first deadline of the requests in the queue: those of an item, and items, are in
    /// the order in which they came.
    pub(super) fn first_end(&self) -> Option<Instant> {
        self.items.iter().find_map(|queued| Some(queued.callers.first()?.end))
    }

    fn enqueue(&mut self, queued: QueuedItem<I, O>) {
        self.requests += queued.callers.len().max(1);
        if queued.is_pushed {
            self.coalescable.clear();
        }
        if let Some(key) = queued.coalesce_key {
            self.coalescable.insert(key, self.first + self.items.len() as u64);
        }
        self.items.push_back(queued);
    }

    fn pop(&mut self) -> Option<QueuedItem<I, O>> {
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
