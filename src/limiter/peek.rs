//! [`RateLimiter::peek`] and [`RateLimiter::reset`]: questions about a key, and
//! the end of what it has used. Neither is a decision.
//!
//! The invariant: a peek charges, counts, logs and keeps nothing.

use std::{future::Future, slice, time::Duration};

use super::{
    attempt::{Attempt, AttemptOptions, Charges},
    conclude::{BUSY_RETRY, at_local_share},
    current::PolicySnapshot,
    state::{Backing, RateLimiter},
};
use crate::{
    backend::{Acquire, AcquireRequest, Charge, Outcome, OutcomeKind, OwnedCharge, Reset},
    decision::{Decision, RateLimitedKind},
    descriptor::Descriptor,
    error::BackendError,
    policy::{CompiledRule, FailureMode, Resolved},
    time::Timestamp,
};

/// A question that the backend has not answered yet.
pub(super) struct Asked {
    reply: crate::backend::Answering,
    /// For the answer, which may be the fallback limiter's.
    kept: Vec<OwnedCharge>,
    now: Timestamp,
}

impl RateLimiter {
    /// Asks; the decision, or a question that is still open.
    pub(super) fn ask_peek(&self, descriptor: &Descriptor<'_>) -> Result<Decision, Asked> {
        let now = self.now();
        self.inner.current.with(|snapshot| {
            let mut decision = Decision::unlimited();
            self.resolved(snapshot, descriptor, now, |enforced, _, unidentified| {
                if let Some(kind) = unidentified {
                    decision.reject(kind, now, None);
                } else if !enforced.is_empty() {
                    let Some(result) = self.look(snapshot, enforced, now) else {
                        return match self.inner.backend.get().peek(&AcquireRequest::new(enforced, now, Duration::ZERO))
                        {
                            Acquire::Ready(result) => {
                                self.answer(enforced, result, now, &mut decision);
                                Ok(())
                            }
                            Acquire::Pending(reply) => {
                                let keep = |charge: &Charge<'_>| OwnedCharge::new(charge, snapshot.policy);
                                Err(Asked { reply, kept: enforced.iter().map(keep).collect(), now })
                            }
                        };
                    };
                    self.answer(enforced, Ok(result), now, &mut decision);
                }
                Ok(())
            })?;
            Ok(decision)
        })
    }

    /// The answer to an open question.
    pub(super) async fn await_peek(&self, asked: Asked) -> Decision {
        let Asked { reply, kept, now } = asked;
        let result = reply.await;
        let mut decision = Decision::unlimited();
        let charges: Charges<'_> = kept.iter().map(OwnedCharge::charge).collect();
        self.answer(&charges, result, now, &mut decision);
        decision
    }

    /// What cannot be asked of the backend: a key is cooling down, or another
    /// request is ahead in its queue.
    fn look(&self, snapshot: PolicySnapshot<'_>, charges: &[Charge<'_>], now: Timestamp) -> Option<Outcome> {
        let paced = || self.inner.cooldowns.paced_until(charges, now);
        if let Some(until) = self.inner.cooldowns.until(charges, now).or_else(paced) {
            return Some(Outcome::rejected(Some(until.saturating_since(now))));
        }
        let attempt = Attempt::new(snapshot, (charges, &[]), now, AttemptOptions::default());
        self.blocked(&attempt).map(|key| self.behind(&attempt, key))
    }

    /// Makes a decision of the answer; of a failure, what the rules do then.
    fn answer(
        &self,
        charges: &[Charge<'_>],
        result: Result<Outcome, BackendError>,
        now: Timestamp,
        decision: &mut Decision,
    ) {
        let error = match result {
            Ok(outcome) => return fill(decision, charges, &outcome, now),
            Err(error) => error,
        };
        let fails = |rule: &CompiledRule, mode| rule.failure_mode(error.kind()) == mode;
        if charges.iter().any(|charge| fails(charge.rule, FailureMode::Closed)) {
            decision.reject(RateLimitedKind::BackendUnavailable, now, None);
            decision.set_error(error);
            return;
        }
        let local = at_local_share(charges, |rule| fails(rule, FailureMode::Local));
        if !local.is_empty() {
            let outcome = self.fallback().look(&AcquireRequest::new(&local, now, Duration::ZERO));
            fill(decision, &local, &outcome, now);
        }
    }

    /// Whether a request is decided without I/O.
    pub(super) fn decides_at_once(&self, descriptor: &Descriptor<'_>) -> bool {
        let Backing::Other(backend) = &self.inner.backend else { return true };
        let now = self.now();
        self.inner.current.with(|snapshot| {
            self.resolved(snapshot, descriptor, now, |enforced, shadows, _| {
                backend.decides_at_once(enforced)
                    && shadows.iter().all(|charge| backend.decides_at_once(slice::from_ref(charge)))
            })
        })
    }

    /// Forgets what was used under every rule that applies, now or later.
    pub(super) fn start_reset(
        &self,
        descriptor: &Descriptor<'_>,
    ) -> impl Future<Output = Result<(), BackendError>> + Send + use<> {
        let now = self.now();
        let limiter = self.clone();
        let reset = self.inner.current.with(|snapshot| {
            self.resolved(snapshot, descriptor, now, |enforced, shadows, _| {
                let mut charges = Charges::from_slice(enforced);
                charges.extend_from_slice(shadows);
                if let Some(fallback) = self.inner.fallback.get() {
                    let local = at_local_share(&charges, |_| true);
                    drop(fallback.as_backend().reset(&local, now));
                }
                match charges.is_empty() {
                    true => Reset::Ready(Ok(())),
                    false => self.inner.backend.get().reset(&charges, now),
                }
            })
        });
        async move {
            match reset {
                Reset::Ready(result) => result,
                Reset::Pending(reply) => reply.await,
            }?;
            // Requests that wait for an adaptive rate may pass now.
            limiter.inner.queues.call_all();
            Ok(())
        }
    }

    /// Calls `with` with what the request would be charged, by enforced rules and
    /// by shadow rules, and why it is rejected whatever was used.
    fn resolved<R>(
        &self,
        snapshot: PolicySnapshot<'_>,
        descriptor: &Descriptor<'_>,
        now: Timestamp,
        with: impl FnOnce(&[Charge<'_>], &[Charge<'_>], Option<RateLimitedKind>) -> R,
    ) -> R {
        let policy = &**snapshot.policy;
        let prepared = policy.prepare(descriptor);
        let mut resolved = Resolved::default();
        if !descriptor.exempt {
            policy.resolve(descriptor, &prepared, &mut resolved);
        }
        let Resolved { enforced, shadows, unidentified } = &mut resolved;
        if policy.adapts {
            enforced.iter_mut().chain(&mut *shadows).for_each(|charge| *charge = self.at_current_rate(*charge, now));
        }
        with(enforced, shadows, unidentified.map(|(_, kind)| kind))
    }
}

fn fill(decision: &mut Decision, charges: &[Charge<'_>], outcome: &Outcome, now: Timestamp) {
    let mut states = outcome.tiers.iter();
    for charge in charges {
        for (tier, state) in charge.tiers().iter().zip(&mut states) {
            decision.add_tier(tier.status(state.remaining, state.reset, state.violated));
        }
    }
    let retry_after = match outcome.answer {
        OutcomeKind::Admitted { wait: 0 } => return decision.admit(now, 0),
        OutcomeKind::Admitted { wait } => Some(wait),
        OutcomeKind::Rejected { retry_after } => retry_after,
        OutcomeKind::Busy { .. } => Some(BUSY_RETRY),
    };
    let kind = if retry_after.is_some() { RateLimitedKind::QuotaExceeded } else { RateLimitedKind::NeverFits };
    decision.reject(kind, now, retry_after);
}
