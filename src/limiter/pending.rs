use std::{future::poll_fn, sync::Arc, task::Poll, time::Duration};

use tokio::time::{Instant, timeout};

use super::{
    Lease, RateLimiter, Unfinished,
    conclude::Answered,
    current::PolicySnapshot,
    decide::{Charges, Terms},
    failed::Unanswered,
    hold::{Decider, Shadow},
    later::{Decided, pending},
    report,
    room::Seat,
};
use crate::{
    backend::{Acquire, AcquireRequest, Answer, Answering, Charge, Outcome, OwnedCharge, Receipt},
    decision::Decision,
    error::{BackendError, BackendErrorKind},
    observe::Event,
    policy::CompiledPolicy,
    time::Timestamp,
};

impl RateLimiter {
    /// Charges the shadow rules of a request that goes, each by itself.
    #[cold]
    pub(super) fn decide_shadows(
        &self,
        snapshot: PolicySnapshot<'_>,
        shadows: &[Charge<'_>],
        now: Timestamp,
        decided: Decided,
        decision: &mut Decision,
    ) -> Decided {
        if !decision.is_allowed() {
            return decided;
        }
        let (mut answers, mut held) = (Vec::new(), Vec::new());
        for charge in shadows {
            let request = AcquireRequest::new(std::slice::from_ref(charge), now, Duration::ZERO);
            match self.inner.backend.get().acquire(&request) {
                Acquire::Ready(result) => held.extend(self.conclude_shadow(snapshot, charge, now, &result)),
                Acquire::Pending(answer) => answers.push((charge.keep(snapshot.policy), answer)),
            }
        }
        if answers.is_empty() {
            return self.with_shadows(held, now, decided);
        }
        let (limiter, decision, policy) = (self.clone(), decision.clone(), Arc::clone(snapshot.policy));
        pending(Box::pin(async move {
            // All at once: several take no longer than one. What has come is
            // held at once as well, whatever becomes of the others.
            poll_fn(|cx| {
                answers.retain_mut(|(charge, answer)| {
                    let Poll::Ready(result) = answer.as_mut().poll(cx) else { return true };
                    let now = if counts_from_arrival(&result) { limiter.now() } else { now };
                    held.extend(
                        limiter.under(&policy, |snapshot| {
                            limiter.conclude_shadow(snapshot, &charge.charge(), now, &result)
                        }),
                    );
                    false
                });
                if answers.is_empty() { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            (decision, limiter.with_shadows(held, now, decided))
        }))
    }

    /// By a policy that another may have replaced by now.
    pub(super) fn under<R>(&self, policy: &Arc<CompiledPolicy>, act: impl FnOnce(PolicySnapshot<'_>) -> R) -> R {
        self.inner.current.with(|view| act(PolicySnapshot { policy, counters: &view.counters }))
    }

    /// Counts what a shadow rule says, and keeps what it holds. What a backend
    /// that fails says of it is nobody's concern.
    fn conclude_shadow(
        &self,
        snapshot: PolicySnapshot<'_>,
        charge: &Charge<'_>,
        now: Timestamp,
        result: &Result<Outcome, BackendError>,
    ) -> Option<Shadow> {
        let outcome = result.as_ref().ok()?;
        if let Answer::Rejected { .. } | Answer::Busy { .. } = outcome.answer {
            snapshot.counters.count(Event::ShadowRejected);
            report::shadow_rejected(charge.applied.rule, now);
        }
        if snapshot.policy.keeps_receipts { Shadow::new(self, snapshot.policy, charge, now, outcome) } else { None }
    }

    /// What rules on trial count as in flight is held for as long as the
    /// request is under way; what they settle late, until that is done.
    fn with_shadows(&self, held: Vec<Shadow>, now: Timestamp, decided: Decided) -> Decided {
        if held.is_empty() {
            return decided;
        }
        Some(Box::new(match decided.map(|unfinished| *unfinished) {
            Some(Unfinished::Held(hold)) => Unfinished::Held(hold.with(held)),
            Some(Unfinished::Reserved(reservation)) => Unfinished::Reserved(reservation.with(held)),
            Some(Unfinished::Pending(deciding)) => {
                let limiter = self.clone();
                Unfinished::Pending(Box::pin(async move { limiter.still_with(held, deciding.await) }))
            }
            None => Unfinished::Held(Lease::new(self, Decider::Backend, Receipt::nothing(now)).goes().with(held)),
        }))
    }

    /// What rules on trial count stays so where a request takes another turn,
    /// unless it is rejected.
    pub(super) fn still_with(
        &self,
        held: Vec<Shadow>,
        (decision, decided): (Decision, Decided),
    ) -> (Decision, Decided) {
        let goes = decided.is_some() || decision.is_allowed();
        let decided = if goes { self.with_shadows(held, self.now(), decided) } else { decided };
        (decision, decided)
    }

    /// The same, for a backend that has to be waited for.
    #[cold]
    pub(super) fn decide_later(
        &self,
        snapshot: PolicySnapshot<'_>,
        enforced: &[Charge<'_>],
        shadows: &[Charge<'_>],
        (now, terms, mut seat): (Timestamp, Terms, Seat),
        answer: Answering,
    ) -> Decided {
        let keep = |charges| OwnedCharge::all(charges, snapshot.policy);
        let (limiter, policy) = (self.clone(), Arc::clone(snapshot.policy));
        let patience = patience(enforced, terms.max_wait);
        let (enforced, shadows) = (keep(enforced), keep(shadows));
        let (came, asked) = (Instant::now(), now);
        pending(Box::pin(async move {
            let result = within(patience, answer).await;
            report::backend_took(&limiter.inner.gauges, came.elapsed());
            if limiter.inner.cooldowns.any(limiter.now())
                && let Ok(outcome) = &result
                && limiter.give_back_if_held(&policy, &enforced, asked, outcome)
            {
                drop(seat);
                return limiter.ask_anew((&enforced, &shadows), came, terms);
            }
            let now = if counts_from_arrival(&result) { limiter.now() } else { now };
            let mut decision = Decision::unlimited();
            // The policy that the charges were made under.
            let decided = limiter.under(&policy, |snapshot| {
                let enforced: Charges<'_> = enforced.iter().map(OwnedCharge::charge).collect();
                let shadows: Charges<'_> = shadows.iter().map(OwnedCharge::charge).collect();
                let mut outcome = match result {
                    Ok(outcome) => outcome,
                    // A store that has just failed is not asked once more for
                    // what is on trial: that might take as long again.
                    Err(error) => {
                        let unanswered = Unanswered { now, waited: terms.waited, error, terms };
                        return limiter.without_backend(snapshot, &enforced, unanswered, &mut decision);
                    }
                };
                if snapshot.policy.adapts {
                    limiter.line_up_by_rate(&enforced, now, terms.max_wait, &mut outcome);
                }
                let charges = (&*enforced, &*shadows);
                if let Some(waits) = limiter.line_up(snapshot, charges, terms, &mut seat, &outcome, came) {
                    return pending(waits);
                }
                let decider = Decider::Backend;
                let answered = Answered { now, waited: terms.waited, outcome: &outcome, terms, seat, decider };
                let decided = limiter.conclude(snapshot, &enforced, answered, &mut decision);
                limiter.decide_shadows(snapshot, &shadows, now, decided, &mut decision)
            });
            (decision, decided)
        }))
    }
}

impl RateLimiter {
    /// A request was to go at once, but while the backend was asked its key
    /// was held back: then it does not go, and takes nothing with it.
    #[cold]
    fn give_back_if_held(
        &self,
        policy: &Arc<CompiledPolicy>,
        enforced: &[OwnedCharge],
        asked: Timestamp,
        outcome: &Outcome,
    ) -> bool {
        let charges: Charges<'_> = enforced.iter().map(OwnedCharge::charge).collect();
        let goes = matches!(outcome.answer, Answer::Admitted { wait: 0 });
        let held = goes && self.held_off(&charges, self.now()).is_some();
        if held {
            let receipt = Receipt::new(policy, &charges, asked, outcome);
            Lease::new(self, Decider::Backend, receipt).refund();
        }
        held
    }
}

/// Whether a request's wait counts from when the answer came, rather than from
/// when it was asked for: a backend with a clock of its own says how long from
/// its decision on, and that was at some time in between; and a limiter that
/// stands in decides only now.
pub(super) fn counts_from_arrival(result: &Result<Outcome, BackendError>) -> bool {
    result.as_ref().map_or(true, |outcome| outcome.decided_at.is_some())
}

/// A store that has not answered by then does not work. Who may wait for less
/// is not let go, or rejected, before: a short deadline, which may be the
/// caller's own, must not decide how a rule fails.
pub(super) const ANSWERS_WITHIN: Duration = Duration::from_secs(1);

/// For how long a backend is asked: as long as the request may
/// wait. `None` where it may not: how long an answer takes is then a matter of
/// the backend alone.
fn patience(charges: &[Charge<'_>], max_wait: Duration) -> Option<Duration> {
    let longest = charges.iter().map(Charge::max_wait).max().unwrap_or_default().min(max_wait);
    (!longest.is_zero()).then(|| longest.max(ANSWERS_WITHIN))
}

async fn within(patience: Option<Duration>, answer: Answering) -> Result<Outcome, BackendError> {
    let Some(patience) = patience else { return answer.await };
    let late = |_| Err(BackendError::new(BackendErrorKind::Timeout, "no answer for as long as the request may wait"));
    timeout(patience, answer).await.unwrap_or_else(late)
}
