//! The asynchronous driver: the only loop that awaits, and its timer. It waits for a
//! step's event, brings the attempt up to date, and has it decided again.
//!
//! The steps and their events are in the table of `admission.rs`.
//!
//! Invariants: nothing is decided here; for each event, [`Admission::admit`] has it decided. A
//! request never leaves before the limiter's clock shows its time, unless that was set back.
//!
//! Written by hand rather than with `async`: a hundred thousand requests may
//! wait, and all steps share one timer.

use std::{
    future::{Future, poll_fn},
    mem,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{runtime::Handle, time::Sleep};

use super::{
    admission::{Admission, Step},
    ask::counts_from_arrival,
    conclude::state_status,
    lease::Lease,
    observe::{self, RuleAndPriority},
    state::{Decider, Grant},
    wait::{fifo::QueueEntry, slots::SlotTime},
};
use crate::{
    backend::{Outcome, OutcomeKind, Receipt},
    decision::{Decision, RateLimitedKind},
    error::{BackendError, BackendErrorKind},
    observe::RequestResult,
    time::{Timestamp, nanos},
};

/// How far the limiter's clock and the timer's may differ, as timers fire at
/// whole milliseconds.
const TOLERANCE: Duration = Duration::from_millis(1);

/// A future that drives a request to its decision. Of no known type, since the
/// code that drops it would make decisions at once slower.
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

    /// Waits until the request can be sent, or is rejected.
    pub(crate) fn drive(self: Box<Self>, decision: Decision) -> Driving {
        Box::pin(Drive { admission: Some(self), decision, timer: Timer::default() })
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

impl Future for Drive {
    type Output = (Decision, Box<Admission>);

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            if let Some(mut admission) = this.admission.take_if(|admission| matches!(admission.step, Step::Done(_))) {
                let decision = mem::replace(this.decision, Decision::unlimited());
                admission.report_wait(&decision);
                return Poll::Ready((decision, admission));
            }
            let Some(admission) = this.admission else { return Poll::Pending };
            ready!(admission.poll_next(this.decision, this.timer.as_mut(), cx));
        }
    }
}

impl Admission {
    /// Ready once the event of the current step has come, and the next step is
    /// taken.
    fn poll_next(&mut self, decision: &mut Decision, mut timer: Pin<&mut Timer>, cx: &mut Context<'_>) -> Poll<()> {
        let since_asked = self.since_asked();
        let Self { limiter, options, step, .. } = self;
        match step {
            Step::Done(_) => {}
            Step::Sleep(_) | Step::PutOff(_) => {
                let Some(at) = step.departs() else { return Poll::Pending };
                // A clock that is set ahead admits no waiter sooner. A late reply
                // of a remote backend was decided before the wait began.
                let latest = match limiter.inner.engine.is_some() {
                    true => decision.decided_at().saturating_add(since_asked + TOLERANCE),
                    false => Timestamp::from_nanos(u64::MAX),
                };
                let now = || limiter.now().min(latest);
                let is_called = matches!(step, Step::Sleep(reservation) if reservation.poll_called(cx).is_ready());
                if !is_called {
                    // Counted from the decision: a clock that was set back since
                    // then must not make the timer sleep for longer.
                    let longest = longest_sleep(at.saturating_since(decision.decided_at()));
                    let longest = longest.saturating_sub(since_asked);
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
                let pause = queue.pause;
                let is_called = self.entry().is_none_or(|entry| entry.poll_called(cx).is_ready());
                if !is_called {
                    let (nap, _) = self.queue_times(pause);
                    ready!(timer.as_mut().poll_after(nap, cx));
                }
                if !is_called && self.queue_times(pause).1.is_zero() {
                    self.on_queue_timeout(decision);
                } else {
                    // It is first in its queue, and a unit may be free.
                    self.restart(decision);
                }
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
                ready!(shadows.poll(limiter, *options, decision, cx));
                self.on_shadow_replies(decision);
            }
        }
        timer.reset();
        Poll::Ready(())
    }
}

/// What ends a step.
impl Admission {
    /// It is `now`: the slot, or the time to which it was put off, has come or was moved.
    fn on_slot(&mut self, now: Timestamp, decision: &mut Decision) {
        let Some(before) = self.step.departs() else { return };
        let mut at = before;
        if let Step::Sleep(reservation) = &mut self.step {
            let time = reservation.look(now);
            at = reservation.at();
            match time {
                SlotTime::Later(_) => {}
                SlotTime::Now(_, lease) => self.step = Step::PutOff(lease),
                SlotTime::Lost => return self.on_slot_lost(before, decision),
            }
        }
        if self.restart_if_cooling_down(decision) {
            return;
        }
        if let Step::PutOff(lease) = &mut self.step {
            match lease.is_put_off(now) {
                true => at = lease.sent(),
                false => {
                    let step = Step::Done(Some(Arc::clone(lease)));
                    self.take_step(step, decision);
                }
            }
        }
        let wait = (decision.wait() + at.saturating_since(before)).saturating_sub(before.saturating_since(at));
        decision.admit(decision.decided_at(), nanos(wait));
    }

    /// Another tenant's waiter has its slot at `at`: too many of its own tenant's
    /// requests wait.
    fn on_slot_lost(&mut self, at: Timestamp, decision: &mut Decision) {
        let now = self.limiter.now();
        let retry_after = nanos(at.saturating_since(now));
        decision.reject(RateLimitedKind::QueueFull, now, Some(retry_after));
        self.limiter.inner.current.with(|snapshot| {
            state_status(snapshot.policy.rules.iter(), decision);
            observe::record(snapshot.counters, None::<RuleAndPriority<'_>>, RequestResult::Rejected, decision, now);
        });
        self.take_step(Step::Done(None), decision);
    }

    /// The timer has slept until the end of a cooldown.
    fn on_cooldown_over(&mut self, until: Timestamp, decision: &mut Decision) {
        if self.limiter.now() < until {
            self.limiter.inner.cooldowns.slept_out(self.charges(), until);
        }
        self.restart(decision);
    }

    fn on_queue_timeout(&mut self, decision: &mut Decision) {
        if let Step::Queue(queue) = mem::replace(&mut self.step, Step::Done(None)) {
            self.admit((self.limiter.now(), 0), decision, |attempt, decision| {
                attempt.conclude(attempt.enforced, &queue.outcome, Decider::Backend, decision)
            });
        }
    }

    /// The backend replied; `None`: not for as long as the request may wait.
    fn on_reply(&mut self, result: Option<Result<Outcome, BackendError>>, decision: &mut Decision) {
        let Step::Ask(ask) = &self.step else { return };
        let asked = ask.now;
        let queue = self.entry().map(QueueEntry::key);
        if queue.is_none() && !self.options.peeks() {
            self.limiter.inner.backend_metrics.replied(self.since_asked());
        }
        let result = match (result, queue) {
            (Some(result), _) => result,
            // The reply may have taken a unit, but must not block the queue.
            (None, Some(key)) => {
                Ok(Outcome { answer: OutcomeKind::Busy { key }, ..Outcome::admitted(Default::default()) })
            }
            (None, None) => {
                Err(BackendError::new(BackendErrorKind::Timeout, "no reply for as long as the request may wait"))
            }
        };
        if let Ok(outcome) = &result
            && self.gives_back_for_cooldown(outcome, asked)
        {
            return self.restart(decision);
        }
        let (now, waited) = match counts_from_arrival(&result) {
            true => (self.limiter.now(), if queue.is_some() { self.elapsed() } else { 0 }),
            false => (asked, 0),
        };
        self.admit((now, waited), decision, |attempt, decision| match result {
            Ok(mut outcome) => attempt.reply(&mut outcome, decision),
            // A backend that has just failed is not asked for shadow rules: that
            // might take as long again.
            Err(error) => attempt.fall_back(error, decision),
        });
    }

    /// A request was admitted to be sent at once, but a key began to cool down
    /// while the backend was asked: it takes nothing with it.
    fn gives_back_for_cooldown(&self, outcome: &Outcome, asked: Timestamp) -> bool {
        let (now, Some(first)) = (self.limiter.now(), self.kept().first()) else { return false };
        let OutcomeKind::Admitted { wait: 0 } = outcome.answer else { return false };
        if !self.limiter.inner.cooldowns.any(now) || self.options.peeks() {
            return false;
        }
        let charges = self.charges();
        let is_cooling_down = self.limiter.cooling_until(&charges, now).is_some();
        if is_cooling_down {
            let receipt = Receipt::new(first.policy(), &charges, asked, outcome);
            drop(Lease::new(&self.limiter, Grant::new(Decider::Backend, receipt)));
        }
        is_cooling_down
    }

    /// All shadow rules are charged.
    fn on_shadow_replies(&mut self, decision: &Decision) {
        if let Step::AskShadows(replies) = mem::replace(&mut self.step, Step::Done(None)) {
            self.shadows.extend(replies.leases);
            self.take_step(replies.then, decision);
        }
    }
}

/// The longest run of one timer; longer sleeps take several.
const LONGEST_SLEEP: Duration = Duration::from_secs(365 * 86_400);

/// Sleeps until it is `at` by `now`, nearly always with one timer. Timers fire
/// up to a millisecond late, never early; but the limiter's clock may run
/// slower than the timer's.
///
/// A clock that is set back does not delay a waiter by as much. It leaves at
/// most a quarter of its wait late, by the timer; all that waited on that clock
/// keep their order and their distances.
pub(crate) async fn sleep_until(at: Timestamp, now: impl Fn() -> Timestamp) {
    let longest = longest_sleep(at.saturating_since(now()));
    let mut timer = pin!(Timer::default());
    poll_fn(|cx| timer.as_mut().poll_until(at, longest, &now, cx)).await;
}

/// The longest sleep for a wait of this length: a quarter more.
fn longest_sleep(wait: Duration) -> Duration {
    wait.saturating_add(wait / 4)
}

pin_project_lite::pin_project! {
    /// A timer that is set at its first poll, and can be reset.
    #[derive(Debug, Default)]
    struct Timer {
        #[pin]
        sleep: Option<Sleep>,
        // How long it may still sleep after that; `None` until it is set.
        left: Option<Duration>,
    }
}

impl Timer {
    /// The next poll sets the timer again.
    fn reset(self: Pin<&mut Self>) {
        let mut this = self.project();
        this.sleep.set(None);
        *this.left = None;
    }

    /// Ready once it is `at` by `now`, or after `longest` by the timer.
    fn poll_until(
        self: Pin<&mut Self>,
        at: Timestamp,
        longest: Duration,
        now: impl Fn() -> Timestamp,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        let mut this = self.project();
        let left = this.left.get_or_insert(longest);
        loop {
            if let Some(sleep) = this.sleep.as_mut().as_pin_mut() {
                ready!(sleep.poll(cx));
                this.sleep.set(None);
            }
            let nap = at.saturating_since(now()).min(*left).min(LONGEST_SLEEP);
            if nap.is_zero() {
                return Poll::Ready(());
            }
            *left -= nap;
            #[allow(clippy::disallowed_methods, reason = "the only sleep of the crate: one timer per waiter")]
            this.sleep.set(Some(tokio::time::sleep(nap)));
        }
    }

    /// Ready after `time`.
    fn poll_after(self: Pin<&mut Self>, time: Duration, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_until(Timestamp::from_nanos(u64::MAX), time, || Timestamp::UNIX_EPOCH, cx)
    }
}
