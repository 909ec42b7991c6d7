//! The asynchronous driver: the only loop that awaits. It waits for a step's
//! event, brings the attempt up to date, and has it decided again.
//!
//! A request that waits is in one of these states:
//!
//! | step | waits for | event | next |
//! |---|---|---|---|
//! | `Ask` | the backend's reply | it replied | as for a new request, with its outcome |
//! | | | it replied, but a cooldown has started | refunds what was charged; starts again |
//! | | | no reply in time | failure modes; in a queue, stays there |
//! | `Queue` | a call of its queue | first, and called | starts again, and keeps its position until it leaves |
//! | | | may wait no longer | `Done`: rejected by its last outcome |
//! | `CoolDown` | a timer | the cooldown is over | starts again |
//! | `Sleep` | a timer, or a call of its queue | its slot was moved to another time | `Sleep` |
//! | | | a cooldown has started | refunds the slot; starts again |
//! | | | its slot has come | `Done`: admitted |
//! | `AskShadows` | replies for shadow rules | all are there | the step decided before |
//! | `Done` | the inner service, in the middleware | a cooldown has started | refunds what was charged; starts again |
//!
//! To start again is `admit` with `Event::Arrived`, under the policy in
//! force, at the current adaptive rates, with what is left of the wait. So a
//! new cooldown or policy needs no code of its own.
//!
//! Invariant: nothing is decided here; each event is passed to [`Admission`].

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    task::Poll,
};

use tokio::time::timeout;

use super::{
    admission::Admission,
    owned_attempt::QueueTimes,
    shadow::await_replies,
    step::Step,
    wait::timer::{longest_sleep, sleep_for_at_most, sleep_until},
};
use crate::decision::Decision;

/// A future that drives a request to its decision.
pub(crate) type Driving = Pin<Box<dyn Future<Output = (Decision, Box<Admission>)> + Send>>;

impl Admission {
    /// Waits until the request can be sent, or is rejected.
    pub(crate) fn drive(mut self: Box<Self>, mut decision: Decision) -> Driving {
        Box::pin(async move {
            while !self.is_done() {
                self.next(&mut decision).await;
            }
            (decision, self)
        })
    }

    /// Waits for the event of the current step, and takes the next one.
    ///
    /// Nothing is moved out of the box: it would be stored twice, and there may
    /// be a hundred thousand of these.
    pub(crate) async fn next(&mut self, decision: &mut Decision) {
        let Self { limiter, attempt, step, .. } = self;
        match step {
            Step::Done(_) => {}
            Step::Sleep(reservation) => {
                // Counted from the decision: a clock that was set back since
                // then must not make the timer sleep for longer.
                let at = reservation.at();
                let wait = at.saturating_since(decision.decided_at());
                let most = longest_sleep(wait).saturating_sub(attempt.since_asked());
                let is_called = {
                    let mut slept = pin!(sleep_for_at_most(at, most, || limiter.now()));
                    let called_or_slept = poll_fn(|cx| match reservation.poll_called(cx) {
                        Poll::Ready(()) => Poll::Ready(true),
                        Poll::Pending => slept.as_mut().poll(cx).map(|()| false),
                    });
                    called_or_slept.await
                };
                let now = if is_called { limiter.now() } else { at };
                self.on_slot(now, decision);
            }
            Step::CoolDown(until) => {
                let until = *until;
                sleep_until(until, || limiter.now()).await;
                self.on_cooldown_over(until, decision);
            }
            Step::Queue(queue) => {
                let QueueTimes { nap, left } = attempt.queue_times(limiter, queue.pause.take());
                match timeout(nap, attempt.called()).await.is_ok() || nap < left {
                    true => self.on_called(decision),
                    false => self.on_queue_timeout(decision),
                }
            }
            Step::Ask(ask) => {
                let result = match ask.reply_timeout {
                    None => Some(ask.reply.as_mut().await),
                    Some(time) => timeout(time, ask.reply.as_mut()).await.ok(),
                };
                self.on_reply(result, decision);
            }
            Step::AskShadows(shadows) => {
                await_replies(limiter, shadows).await;
                self.on_shadow_replies();
            }
        }
    }
}
