//! A request between its first decision and being sent: its attempt, and the
//! step that it is at. Reacts to events, and awaits nothing.
//!
//! Invariant: an [`Admission`] that is dropped gives back all that it holds: its
//! slot, its position in a queue, and its count among the waiters.

use std::mem;

use super::{
    attempt::Attempt,
    charged::Charged,
    grant::{Decider, Grant},
    lease::Lease,
    observe,
    owned_attempt::OwnedAttempt,
    state::RateLimiter,
    step::{Event, Step, counts_from_arrival},
    wait::capacity::WaiterGrant,
};
use crate::{
    backend::{Outcome, OutcomeKind, Receipt},
    decision::{Decision, RateLimitedKind},
    error::{BackendError, BackendErrorKind},
    observe::RequestResult,
    policy::CompiledRule,
    time::{Timestamp, nanos},
};

/// A request that is decided, or waits to be. Boxed where it is made, so that
/// requests without one pay for a pointer only.
pub(crate) struct Admission {
    pub(super) limiter: RateLimiter,
    pub(super) attempt: OwnedAttempt,
    waiter: WaiterGrant,
    pub(super) step: Step,
    /// Whether its wait was reported.
    is_timed: bool,
}

/// What is left to do for a request after its first decision.
pub(super) enum Decided {
    /// Nothing, nearly always: the decision holds, and there is nothing to keep.
    Now,
    /// It was admitted, and its permit keeps this.
    Charged(Charged),
    Admission(Box<Admission>),
}

impl Decided {
    /// Of a request without a permit.
    pub(super) fn admission(self) -> Option<Box<Admission>> {
        match self {
            Self::Now | Self::Charged(_) => None,
            Self::Admission(admission) => Some(admission),
        }
    }
}

impl Admission {
    #[cold]
    pub(super) fn new(attempt: &Attempt<'_>, step: Step) -> Box<Self> {
        let owned = if step.is_decided() { OwnedAttempt::decided(attempt.options) } else { OwnedAttempt::new(attempt) };
        let waiter = if step.waits() { attempt.waiter.take() } else { WaiterGrant::NotRequested };
        let limiter = attempt.limiter.clone();
        let mut admission = Self { limiter, attempt: owned, waiter, step, is_timed: false };
        if let Step::Queue(queue) = &admission.step {
            admission.attempt.enter(&admission.limiter, queue.key);
        }
        if !admission.is_done() {
            admission.attempt.waits();
        }
        Box::new(admission)
    }

    /// Whether the request can be sent, or is rejected.
    pub(crate) fn is_done(&self) -> bool {
        matches!(self.step, Step::Done(_))
    }

    /// The request has waited. One that starts again afterwards, for a cooldown,
    /// is not reported twice.
    pub(super) fn report_wait(&mut self, decision: &Decision) {
        if decision.is_allowed() && !self.attempt.options.peeks() && !mem::replace(&mut self.is_timed, true) {
            observe::waited(decision.wait());
        }
    }

    /// Whether a rule allows the handler of the request, which can be sent now,
    /// to settle it.
    pub(crate) fn is_settled_by_handler(&self) -> bool {
        matches!(&self.step, Step::Done(Some(reservation)) if reservation.is_settled_by_handler())
    }

    /// The request is sent: what it keeps.
    #[allow(clippy::boxed_local, reason = "it comes in a box")]
    pub(crate) fn take_lease(self: Box<Self>) -> Option<Lease> {
        match self.step {
            Step::Done(reservation) => reservation?.take(),
            Step::Sleep(reservation) => reservation.take(),
            _ => None,
        }
    }

    /// If a key of the admitted request is cooling down by now: gives back its
    /// slot and starts again, behind the cooldown. It leaves first, so that it
    /// is in no other request's way.
    pub(crate) fn restart_if_cooling_down(&mut self, decision: &mut Decision) -> bool {
        let (Step::Sleep(reservation) | Step::Done(Some(reservation))) = &mut self.step else { return false };
        let is_cooling_down = reservation.is_cooling_down();
        if is_cooling_down {
            let (enforced, shadows) = reservation.give_back();
            self.attempt.restart(enforced, shadows);
            self.attempt.options.counted = true;
            self.waiter = WaiterGrant::NotRequested;
            self.restart(decision);
        }
        is_cooling_down
    }

    /// It is `now`: the slot has come, or was moved.
    pub(super) fn on_slot(&mut self, now: Timestamp, decision: &mut Decision) {
        let Step::Sleep(reservation) = &mut self.step else { return };
        let before = reservation.at();
        let Some((mut at, mut is_due)) = reservation.look(now) else { return self.on_slot_lost(before, decision) };
        if is_due && self.restart_if_cooling_down(decision) {
            return;
        }
        let Step::Sleep(reservation) = &mut self.step else { return };
        if is_due && reservation.is_put_off(now) {
            (at, is_due) = (reservation.at(), false);
        }
        let wait = (decision.wait() + at.saturating_since(before)).saturating_sub(before.saturating_since(at));
        decision.admit(decision.decided_at(), nanos(wait));
        if is_due && let Step::Sleep(reservation) = mem::replace(&mut self.step, Step::Done(None)) {
            self.waiter = WaiterGrant::NotRequested;
            self.step = Step::Done(Some(reservation));
        }
    }

    /// Another tenant's waiter has its slot at `at`: too many of its own tenant's
    /// requests wait.
    fn on_slot_lost(&mut self, at: Timestamp, decision: &mut Decision) {
        let now = self.limiter.now();
        let retry_after = nanos(at.saturating_since(now));
        decision.reject(RateLimitedKind::QueueFull, now, Some(retry_after));
        self.limiter.inner.current.with(|snapshot| {
            observe::record(snapshot.counters, None::<&CompiledRule>, RequestResult::Rejected, decision, now);
        });
        self.waiter = WaiterGrant::NotRequested;
        self.step = Step::Done(None);
    }

    /// The timer has slept until the end of a cooldown.
    pub(super) fn on_cooldown_over(&mut self, until: Timestamp, decision: &mut Decision) {
        if self.limiter.now() < until {
            self.limiter.inner.cooldowns.slept_out(self.attempt.charges(), until);
        }
        self.restart(decision);
    }

    /// It is first in its queue, and a unit may be free.
    pub(super) fn on_called(&mut self, decision: &mut Decision) {
        self.attempt.credit_queue_time();
        self.attempt.refresh(&self.limiter);
        self.admit(Event::Arrived, (self.limiter.now(), self.attempt.elapsed()), decision);
    }

    pub(super) fn on_queue_timeout(&mut self, decision: &mut Decision) {
        if let Step::Queue(queue) = mem::replace(&mut self.step, Step::Done(None)) {
            let event = Event::TimedOut(queue.outcome);
            self.admit(event, (self.limiter.now(), self.attempt.elapsed()), decision);
        }
    }

    /// The backend replied; `None`: not for as long as the request may wait.
    pub(super) fn on_reply(&mut self, result: Option<Result<Outcome, BackendError>>, decision: &mut Decision) {
        let Step::Ask(ask) = &self.step else { return };
        let (asked, waited) = (ask.now, ask.waited);
        let queue = self.attempt.queue();
        if queue.is_none() && !self.attempt.options.peeks() {
            self.limiter.inner.backend_metrics.replied(self.attempt.since_asked());
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
            true => (self.limiter.now(), if queue.is_some() { self.attempt.elapsed() } else { waited }),
            false => (asked, waited),
        };
        self.admit(Event::Replied(result), (now, waited), decision);
    }

    /// All shadow rules are charged.
    pub(super) fn on_shadow_replies(&mut self) {
        if let Step::AskShadows(replies) = mem::replace(&mut self.step, Step::Done(None)) {
            self.step = replies.then.keep(&self.limiter, replies.leases);
        }
        if self.is_done() {
            self.waiter = WaiterGrant::NotRequested;
        }
    }

    /// A request was admitted to be sent at once, but a key began to cool down
    /// while the backend was asked: it takes nothing with it.
    fn gives_back_for_cooldown(&self, outcome: &Outcome, asked: Timestamp) -> bool {
        let now = self.limiter.now();
        let OutcomeKind::Admitted { wait: 0 } = outcome.answer else { return false };
        if !self.limiter.inner.cooldowns.any(now) || self.attempt.options.peeks() {
            return false;
        }
        let give_back = |attempt: Attempt<'_>| {
            let is_cooling_down = self.limiter.cooling_until(attempt.enforced, now).is_some();
            if is_cooling_down {
                let receipt = Receipt::new(attempt.snapshot.policy, attempt.enforced, asked, outcome);
                Lease::new(&self.limiter, Grant::new(Decider::Backend, receipt)).refund();
            }
            is_cooling_down
        };
        self.attempt.with(&self.limiter, (asked, 0), WaiterGrant::NotRequested, give_back) == Some(true)
    }

    /// Starts again, with what is left of the wait.
    fn restart(&mut self, decision: &mut Decision) {
        self.attempt.spend(self.attempt.elapsed());
        self.attempt.refresh(&self.limiter);
        if let WaiterGrant::Full = self.waiter {
            self.waiter = WaiterGrant::NotRequested;
        }
        self.admit(Event::Arrived, (self.limiter.now(), 0), decision);
    }

    /// Has the attempt decided, `waited` nanoseconds after it began to wait.
    fn admit(&mut self, event: Event, (now, waited): (Timestamp, u64), decision: &mut Decision) {
        *decision = Decision::unlimited();
        let waiter = mem::take(&mut self.waiter);
        let decided = self.attempt.with(&self.limiter, (now, waited), waiter, |mut attempt| {
            let step = attempt.admit(event, decision);
            (step, attempt.waiter.take())
        });
        let (step, waiter) = decided.unwrap_or((Step::Done(None), WaiterGrant::NotRequested));
        self.step = match decision.is_allowed() && step.is_decided() {
            true => step.keep(&self.limiter, self.attempt.take_leases()),
            false => step,
        };
        self.waiter = if self.step.waits() { waiter } else { WaiterGrant::NotRequested };
        match &mut self.step {
            Step::Queue(queue) => self.attempt.enter(&self.limiter, queue.key),
            Step::Ask(ask) => ask.waited = waited,
            step => {
                // Only now the next of its queue is called.
                self.attempt.leave_queue();
                self.attempt.spend(waited);
                if step.is_decided() {
                    self.attempt = OwnedAttempt::decided(self.attempt.options);
                    self.attempt.waits();
                }
            }
        }
    }
}
