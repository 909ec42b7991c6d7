//! Lets what is asked at the same time go out together.
//!
//! As long as few calls are under way, an ask goes out at once, in its caller's
//! own future: nobody waits for company, and no task is woken. Beyond that it
//! stands in a queue, and the next call that ends sends the whole queue as one.
//! So the batches are as large as the store is slow, and nobody tunes them.

mod queue;

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
};

use tokio::{runtime::Handle, sync::oneshot};

use self::queue::{Place, Queue, Queued, State};
use super::ticker::Ticker;
use crate::error::BackendError;

/// Who answers what is asked, many at once.
pub(super) trait Calls: Send + Sync + Sized + 'static {
    type Ask: Send + 'static;
    type Answer: Send + 'static;

    /// Answers all, in their order: each ask as often as it says. It must end,
    /// and within a bounded time: a lane goes on only then. Nothing that is
    /// asked later goes out before `sent` is dropped.
    fn call(&self, asks: Vec<(Self::Ask, usize)>, sent: Sending<Self>)
    -> impl Future<Output = Vec<Reply<Self>>> + Send;

    /// An answer came whose asker is gone.
    fn abandoned(&self, answer: Self::Answer);
}

/// The bounds of a lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaneLimits {
    /// So many calls are under way at once; at least 1.
    pub(super) most_under_way: usize,
    /// So many asks go out in one call; at least 1. Those that are alike count
    /// as one.
    pub(super) max_batch: usize,
    /// So many stand in the queue.
    pub(super) most_queued: usize,
}

impl LaneLimits {
    pub(super) fn new(max_batch: usize) -> Self {
        Self { most_under_way: 2, max_batch, most_queued: max_batch.saturating_mul(64) }
    }
}

pub(super) type Reply<C> = Result<<C as Calls>::Answer, BackendError>;

/// One queue before one connection. Idle, it is a few words.
pub(super) struct Lane<C: Calls> {
    calls: C,
    limits: LaneLimits,
    /// How long an ask takes at most, in the queue and under way.
    deadline: Arc<Ticker>,
    runtime: Handle,
    state: Mutex<State<C>>,
}

impl<C: Calls> Lane<C> {
    /// Spawns on `runtime` what outlives its caller.
    pub(super) fn new(calls: C, limits: LaneLimits, deadline: Arc<Ticker>, runtime: Handle) -> Self {
        Self { calls, limits, deadline, runtime, state: Mutex::new(State::default()) }
    }

    /// Asks, and waits for the answer until the deadline. Nothing is done
    /// before the future is first polled; once it is dropped, what is still in
    /// the queue is not sent, and what was sent is [`Calls::abandoned`]. Asks of
    /// one likeness may go out as one.
    pub(super) fn ask(
        self: &Arc<Self>,
        ask: C::Ask,
        likeness: Option<u128>,
    ) -> impl Future<Output = Reply<C>> + Send + use<C> {
        let lane = Arc::clone(self);
        lane.go(ask, likeness)
    }

    /// The same for one who need not say what it asks, since another one of
    /// this likeness has and stands in the queue. It has its place from here
    /// on.
    pub(super) fn join(self: &Arc<Self>, likeness: u128) -> Option<impl Future<Output = Reply<C>> + Send + use<C>> {
        let queue = self.state().join(likeness, &self.limits)?;
        let lane = Arc::clone(self);
        Some(lane.wait(queue))
    }

    async fn go(self: Arc<Self>, ask: C::Ask, likeness: Option<u128>) -> Reply<C> {
        let place = self.state().place(ask, likeness, &self.limits)?;
        match place {
            Place::Goes { round, ask } => {
                let call = Box::pin(call_one(UnderWay { lane: Arc::clone(&self), round }, ask));
                let deadline = Arc::clone(&self.deadline);
                let reply = deadline.within(Carried { call: Some(call), lane: self }).await;
                reply.unwrap_or_else(|| Err(too_late()))
            }
            Place::Waits(queue) => self.wait(queue).await,
        }
    }

    async fn wait(self: Arc<Self>, queue: Queue<C>) -> Reply<C> {
        let waiting = Waiting { reply: queue.reply, lane: Arc::clone(&self) };
        match self.deadline.within(waiting).await {
            Some(reply) => reply,
            None => {
                self.rescue(queue.ended);
                Err(too_late())
            }
        }
    }

    /// Asks, and waits for nothing. It goes before all that is asked after it.
    pub(super) fn push(self: &Arc<Self>, ask: C::Ask) {
        let mut state = self.state();
        state.push(ask);
        self.send_more(state);
    }

    /// Sends what is in the queue, if it may go by now.
    fn send_more(self: &Arc<Self>, mut state: MutexGuard<'_, State<C>>) {
        if state.under_way >= self.limits.most_under_way.max(1) {
            return;
        }
        let batch = state.next_batch(self.limits.max_batch);
        if !batch.is_empty() {
            state.under_way += 1;
            let round = state.round;
            drop(state);
            self.runtime.spawn(drain(UnderWay { lane: Arc::clone(self), round }, batch));
        }
    }

    /// A batch is sent.
    fn sent(self: &Arc<Self>, round: u64) {
        let mut state = self.state();
        if state.round == round {
            state.sending = state.sending.saturating_sub(1);
            self.send_more(state);
        }
    }

    /// No call ended while somebody waited for a whole deadline, which is more
    /// than a call takes: whoever carries them has stopped polling. Others must
    /// not wait for that.
    fn rescue(self: &Arc<Self>, ended: u64) {
        let (round, batch) = {
            let mut state = self.state();
            if state.ended != ended || state.under_way < self.limits.most_under_way {
                return;
            }
            state.round += 1;
            state.ended += 1;
            state.under_way = 1;
            state.sending = 0;
            (state.round, state.next_batch(self.limits.max_batch))
        };
        let under_way = UnderWay { lane: Arc::clone(self), round };
        if !batch.is_empty() {
            self.runtime.spawn(drain(under_way, batch));
        }
    }

    fn state(&self) -> MutexGuard<'_, State<C>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call has ended. The next one goes out, if somebody waits for it.
    fn ended(self: &Arc<Self>, round: u64) {
        let batch = {
            let mut state = self.state();
            if state.round != round {
                return;
            }
            state.ended += 1;
            let batch = state.next_batch(self.limits.max_batch);
            if batch.is_empty() {
                state.under_way -= 1;
            }
            batch
        };
        if !batch.is_empty() {
            self.runtime.spawn(drain(UnderWay { lane: Arc::clone(self), round }, batch));
        }
    }
}

/// One of the calls under way. However it ends, by an answer, a panic or the
/// end of its runtime, the next one follows.
struct UnderWay<C: Calls> {
    lane: Arc<Lane<C>>,
    round: u64,
}

impl<C: Calls> Drop for UnderWay<C> {
    fn drop(&mut self) {
        self.lane.ended(self.round);
    }
}

/// A batch that is not sent yet; none where nobody waits for that.
pub(super) struct Sending<C: Calls> {
    lane: Option<(Arc<Lane<C>>, u64)>,
}

impl<C: Calls> Drop for Sending<C> {
    fn drop(&mut self) {
        if let Some((lane, round)) = self.lane.take() {
            lane.sent(round);
        }
    }
}

impl<C: Calls> Sending<C> {
    /// Polls a future once, and then says that it is sent.
    pub(super) async fn with<F: Future>(self, future: F) -> F::Output {
        let mut future = pin!(future);
        let first = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await;
        drop(self);
        match first {
            Poll::Ready(output) => output,
            Poll::Pending => future.await,
        }
    }
}

async fn call_one<C: Calls>(under_way: UnderWay<C>, ask: C::Ask) -> Reply<C> {
    let mut replies = under_way.lane.calls.call(vec![(ask, 1)], Sending { lane: None }).await;
    replies.pop().unwrap_or_else(|| Err(no_answer()))
}

/// Sends the batch, and then those who came meanwhile, until there are none.
async fn drain<C: Calls>(under_way: UnderWay<C>, mut batch: Vec<Queued<C>>) {
    let lane = &under_way.lane;
    while !batch.is_empty() {
        let mut askers = Vec::with_capacity(batch.len());
        let ask = |queued: Queued<C>| {
            let count = queued.replies.len().max(1);
            askers.push(queued.replies);
            (queued.ask, count)
        };
        let asks = batch.into_iter().map(ask).collect();
        let sending = Sending { lane: Some((Arc::clone(lane), under_way.round)) };
        let replies = lane.calls.call(asks, sending).await;
        let mut replies = replies.into_iter();
        for askers in askers {
            let is_push = askers.is_empty();
            for asker in askers {
                let reply = replies.next().unwrap_or_else(|| Err(no_answer()));
                if let Err(Ok(answer)) = asker.send(reply) {
                    lane.calls.abandoned(answer);
                }
            }
            if is_push && let Some(Ok(answer)) = replies.next() {
                lane.calls.abandoned(answer);
            }
        }
        let mut state = lane.state();
        state.ended += 1;
        // One that was rescued from has no turn of its own any more.
        let own = state.round == under_way.round;
        batch = if own { state.next_batch(lane.limits.max_batch) } else { Vec::new() };
    }
}

fn too_late() -> BackendError {
    BackendError::timeout("no answer within the deadline")
}

fn no_answer() -> BackendError {
    BackendError::unavailable("the call ended without an answer")
}

/// An ask that goes out in its caller's own future. Its call ends even if the
/// caller does not wait for it.
struct Carried<C: Calls> {
    call: Option<Pin<Box<dyn Future<Output = Reply<C>> + Send>>>,
    lane: Arc<Lane<C>>,
}

impl<C: Calls> Future for Carried<C> {
    type Output = Reply<C>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Reply<C>> {
        let Some(mut call) = self.call.take() else { return Poll::Ready(Err(no_answer())) };
        // Out of reach while it is polled: one that panics is not polled again.
        match call.as_mut().poll(cx) {
            Poll::Ready(reply) => Poll::Ready(reply),
            Poll::Pending => {
                self.call = Some(call);
                Poll::Pending
            }
        }
    }
}

impl<C: Calls> Drop for Carried<C> {
    fn drop(&mut self) {
        let Some(call) = self.call.take() else { return };
        let lane = Arc::clone(&self.lane);
        self.lane.runtime.spawn(async move {
            if let Ok(answer) = call.await {
                lane.calls.abandoned(answer);
            }
        });
    }
}

/// An ask that stands in the queue, or is under way with others.
struct Waiting<C: Calls> {
    reply: oneshot::Receiver<Reply<C>>,
    lane: Arc<Lane<C>>,
}

impl<C: Calls> Future for Waiting<C> {
    type Output = Reply<C>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Reply<C>> {
        let reply = ready!(Pin::new(&mut self.reply).poll(cx));
        Poll::Ready(reply.unwrap_or_else(|_| Err(no_answer())))
    }
}

impl<C: Calls> Drop for Waiting<C> {
    fn drop(&mut self) {
        self.reply.close();
        // It may have come after the last look.
        if let Ok(Ok(answer)) = self.reply.try_recv() {
            self.lane.calls.abandoned(answer);
        }
    }
}

#[cfg(test)]
mod tests;
