//! Who waits before a lane, and in which order they go.

use std::collections::{HashMap, VecDeque};

use foldhash::fast::RandomState;
use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::{Calls, LaneLimits, Reply};
use crate::error::BackendError;

/// So many who ask the same are one ask, at most.
const MOST_ALIKE: usize = 4096;

pub(super) struct State<C: Calls> {
    pub(super) under_way: usize,
    /// Counts the calls that have ended.
    pub(super) ended: u64,
    /// Counts the rescues: calls from before one are no longer waited for.
    pub(super) round: u64,
    /// So many batches have been taken out of the queue and are not sent yet.
    /// Nobody may overtake them.
    pub(super) sending: usize,
    pub(super) queue: VecDeque<Queued<C>>,
    /// The number of the first in the queue.
    first: u64,
    /// Who stand in the queue.
    pub(super) queued: usize,
    /// The numbers of those that others may join.
    alike: HashMap<u128, u64, RandomState>,
}

impl<C: Calls> Default for State<C> {
    fn default() -> Self {
        Self {
            under_way: 0,
            ended: 0,
            round: 0,
            sending: 0,
            queue: VecDeque::new(),
            first: 0,
            queued: 0,
            alike: HashMap::default(),
        }
    }
}

/// Where an ask has its place.
pub(super) enum Place<C: Calls> {
    /// In a call of its own, at once.
    Goes { round: u64, ask: C::Ask },
    /// In the queue.
    Waits(Queue<C>),
}

/// A place in the queue; so many calls had ended when it was taken.
pub(super) struct Queue<C: Calls> {
    pub(super) reply: oneshot::Receiver<Reply<C>>,
    pub(super) ended: u64,
}

pub(super) type Senders<C> = SmallVec<[oneshot::Sender<Reply<C>>; 1]>;

pub(super) struct Queued<C: Calls> {
    pub(super) ask: C::Ask,
    likeness: Option<u128>,
    /// Where the answers go. None where nobody wants one.
    pub(super) replies: Senders<C>,
    is_push: bool,
}

impl<C: Calls> Queued<C> {
    /// Whether all its askers are gone; of the others it says how many.
    fn is_void(&mut self) -> bool {
        self.replies.retain(|reply| !reply.is_closed());
        self.replies.is_empty() && !self.is_push
    }
}

impl<C: Calls> State<C> {
    pub(super) fn place(
        &mut self,
        ask: C::Ask,
        likeness: Option<u128>,
        limits: &LaneLimits,
    ) -> Result<Place<C>, BackendError> {
        if self.queue.is_empty() && self.sending == 0 && self.under_way < limits.most_under_way.max(1) {
            self.under_way += 1;
            return Ok(Place::Goes { round: self.round, ask });
        }
        if let Some(queue) = likeness.and_then(|likeness| self.join(likeness, limits)) {
            return Ok(Place::Waits(queue));
        }
        if !self.has_room(limits) {
            return Err(BackendError::unavailable("too many ask at once"));
        }
        let (reply, queue) = self.queue_place();
        let replies = SmallVec::from_buf([reply]);
        self.enqueue(Queued { ask, likeness, replies, is_push: false });
        Ok(Place::Waits(queue))
    }

    /// A place with one that stands in the queue already.
    pub(super) fn join(&mut self, likeness: u128, limits: &LaneLimits) -> Option<Queue<C>> {
        let number = *self.alike.get(&likeness)?;
        if !self.has_room(limits) {
            return None;
        }
        let (reply, queue) = self.queue_place();
        let at = usize::try_from(number.checked_sub(self.first)?).ok()?;
        let queued = self.queue.get_mut(at).filter(|queued| queued.replies.len() < MOST_ALIKE)?;
        queued.replies.push(reply);
        self.queued += 1;
        Some(queue)
    }

    /// What nobody waits for. Who comes after it does not join who came before.
    /// There is always room: what is given back was charged before, and what
    /// is let go of would be held on to for ever if this were lost.
    pub(super) fn push(&mut self, ask: C::Ask) {
        self.alike.clear();
        self.enqueue(Queued { ask, likeness: None, replies: SmallVec::new(), is_push: true });
    }

    fn queue_place(&self) -> (oneshot::Sender<Reply<C>>, Queue<C>) {
        let (reply, receiver) = oneshot::channel();
        (reply, Queue { reply: receiver, ended: self.ended })
    }

    fn has_room(&mut self, limits: &LaneLimits) -> bool {
        if self.queued >= limits.most_queued {
            let mut kept = VecDeque::new();
            self.alike.clear();
            self.queued = 0;
            while let Some(mut queued) = self.pop() {
                if !queued.is_void() {
                    kept.push_back(queued);
                }
            }
            self.queued = 0;
            kept.into_iter().for_each(|queued| self.enqueue(queued));
        }
        self.queued < limits.most_queued
    }

    fn enqueue(&mut self, queued: Queued<C>) {
        self.queued += queued.replies.len().max(1);
        if let Some(likeness) = queued.likeness {
            self.alike.insert(likeness, self.first + self.queue.len() as u64);
        }
        self.queue.push_back(queued);
    }

    fn pop(&mut self) -> Option<Queued<C>> {
        let queued = self.queue.pop_front()?;
        if let Some(likeness) = queued.likeness
            && self.alike.get(&likeness) == Some(&self.first)
        {
            self.alike.remove(&likeness);
        }
        self.first += 1;
        self.queued = self.queued.saturating_sub(queued.replies.len().max(1));
        Some(queued)
    }

    /// The first of the queue, without those whose asker is gone; none while a
    /// batch before them is not sent yet.
    pub(super) fn next_batch(&mut self, most: usize) -> Vec<Queued<C>> {
        let mut batch = Vec::new();
        if self.sending > 0 {
            return batch;
        }
        batch.reserve(self.queue.len().min(most));
        while batch.len() < most.max(1)
            && let Some(mut queued) = self.pop()
        {
            if !queued.is_void() {
                batch.push(queued);
            }
        }
        self.sending += usize::from(!batch.is_empty());
        if self.queue.is_empty() && self.queue.capacity() > IDLE_CAPACITY {
            self.queue = VecDeque::new();
        }
        batch
    }
}

/// What an empty queue may keep allocated.
const IDLE_CAPACITY: usize = 1024;
