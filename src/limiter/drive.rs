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
//! | | | another tenant's waiter has its slot (fairness) | `Done`: rejected |
//! | | | its slot has come | `Done`: admitted |
//! | `AskShadows` | replies for shadow rules | all are there | the step decided before |
//! | `Done` | the inner service, in the middleware | a cooldown has started | refunds what was charged; starts again |
//!
//! To start again is `admit` with `Event::Arrived`, under the policy in
//! force, at the current adaptive rates, with what is left of the wait. So a
//! new cooldown or policy needs no code of its own.
//!
//! Invariant: nothing is decided here; each event is passed to [`Admission`].
//!
//! Written by hand rather than with `async`: a hundred thousand requests may
//! wait, and all steps share one timer.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::runtime::Handle;

use super::{
    admission::Admission,
    shadow::poll_replies,
    step::{QueueTimes, Step},
    wait::timer::{Timer, longest_sleep},
};
use crate::{
    decision::{Decision, RateLimitedKind},
    time::Timestamp,
};

/// How far the limiter's clock and the timer's may differ, as timers fire at
/// whole milliseconds.
const TOLERANCE: Duration = Duration::from_millis(1);

/// A future that drives a request to its decision. Of no known type, since the
/// code that drops it would make the immediate allow slower.
pub(crate) type Driving = Pin<Box<dyn Future<Output = (Decision, Box<Admission>)> + Send>>;

impl Admission {
    /// Drives a request that waits, by the Tokio runtime of the caller. Without
    /// one it is rejected: there is no timer, and creating one would panic. What it
    /// has reserved is given back.
    pub(crate) fn drive_here(self: Box<Self>, mut decision: Decision) -> Result<Driving, Decision> {
        if Handle::try_current().is_ok() {
            return Ok(self.drive(decision));
        }
        decision.reject(RateLimitedKind::NoRuntime, self.limiter.now(), None);
        Err(decision)
    }
}

pin_project_lite::pin_project! {
    struct Drive {
        // `None` once the request is decided.
        admission: Option<Box<Admission>>,
        decision: Decision,
        #[pin]
        timer: Timer,
    }
}

impl Admission {
    /// Waits until the request can be sent, or is rejected.
    pub(crate) fn drive(self: Box<Self>, decision: Decision) -> Driving {
        Box::pin(Drive { admission: Some(self), decision, timer: Timer::default() })
    }

    /// Ready once the event of the current step has come, and the next step is
    /// taken.
    fn poll_next(&mut self, decision: &mut Decision, mut timer: Pin<&mut Timer>, cx: &mut Context<'_>) -> Poll<()> {
        let Self { limiter, attempt, step, .. } = self;
        match step {
            Step::Done(_) => {}
            Step::Sleep(reservation) => {
                let at = reservation.at();
                // A clock that is set ahead admits no waiter sooner. A late reply
                // of a remote backend was decided before the wait began.
                let latest = match limiter.inner.engine.is_some() {
                    true => decision.decided_at().saturating_add(attempt.since_asked() + TOLERANCE),
                    false => Timestamp::from_nanos(u64::MAX),
                };
                let now = || limiter.now().min(latest);
                let is_called = reservation.poll_called(cx).is_ready();
                if !is_called {
                    // Counted from the decision: a clock that was set back since
                    // then must not make the timer sleep for longer.
                    let longest = longest_sleep(at.saturating_since(decision.decided_at()));
                    let longest = longest.saturating_sub(attempt.since_asked());
                    ready!(timer.as_mut().poll_until(at, longest, now, cx));
                }
                let now = if is_called { now() } else { at };
                self.on_slot(now, decision);
            }
            Step::CoolDown(until) => {
                let until = *until;
                let longest = longest_sleep(until.saturating_since(limiter.now()));
                ready!(timer.as_mut().poll_until(until, longest, || limiter.now(), cx));
                self.on_cooldown_over(until, decision);
            }
            Step::Queue(queue) => {
                let QueueTimes { nap, left } =
                    *queue.times.get_or_insert_with(|| attempt.queue_times(limiter, queue.pause));
                if attempt.poll_called(cx).is_pending() {
                    ready!(timer.as_mut().poll_after(nap, cx));
                    if nap >= left {
                        timer.reset();
                        self.on_queue_timeout(decision);
                        return Poll::Ready(());
                    }
                }
                self.on_called(decision);
            }
            Step::Ask(ask) => {
                let result = match (ask.reply.as_mut().poll(cx), ask.reply_timeout) {
                    (Poll::Ready(result), _) => Some(result),
                    (Poll::Pending, None) => return Poll::Pending,
                    (Poll::Pending, Some(time)) => {
                        ready!(timer.as_mut().poll_after(time, cx));
                        None
                    }
                };
                self.on_reply(result, decision);
            }
            Step::AskShadows(shadows) => {
                ready!(poll_replies(limiter, shadows, cx));
                self.on_shadow_replies();
            }
        }
        timer.reset();
        Poll::Ready(())
    }
}

impl Future for Drive {
    type Output = (Decision, Box<Admission>);

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.admission.take_if(|admission| admission.is_done()) {
                Some(mut admission) => {
                    let decision = std::mem::replace(this.decision, Decision::unlimited());
                    admission.report_wait(&decision);
                    return Poll::Ready((decision, admission));
                }
                None => match this.admission {
                    Some(admission) => ready!(admission.poll_next(this.decision, this.timer.as_mut(), cx)),
                    None => return Poll::Pending,
                },
            }
        }
    }
}
