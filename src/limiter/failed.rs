//! What becomes of a request for which the backend gave no answer.

use std::time::Duration;

use super::{
    Backing, Lease, RateLimiter, Unfinished,
    conclude::{Answered, rules},
    current::PolicySnapshot,
    decide::{Charges, Terms},
    hold::Decider,
    later::{DONE, Decided},
    report,
    room::Seat,
};
use crate::{
    backend::{Charge, Local, Receipt},
    decision::{Decision, RateLimitedKind},
    error::BackendError,
    observe::Event,
    policy::FailureMode,
    time::Timestamp,
};

/// That the backend gave no answer.
pub(super) struct Unanswered {
    pub(super) now: Timestamp,
    /// Nanoseconds for which the request has waited in line.
    pub(super) waited: u64,
    pub(super) error: BackendError,
    pub(super) terms: Terms,
}

impl RateLimiter {
    /// The limiter that stands in for the backend, where rules want it.
    pub(super) fn fallback(&self) -> &Local {
        self.inner.fallback.get_or_init(Local::default)
    }

    /// Each rule's failure mode decides: one that fails closed rejects; else
    /// the ones that fail to a local limiter have their say; else it goes.
    #[cold]
    pub(super) fn without_backend(
        &self,
        snapshot: PolicySnapshot<'_>,
        charges: &[Charge<'_>],
        unanswered: Unanswered,
        decision: &mut Decision,
    ) -> Decided {
        let Unanswered { mut now, waited, error, terms } = unanswered;
        report::backend_failed(&self.inner.gauges, rules(charges), &error, now);
        let that_fail = |mode| rules(charges).filter(move |rule| rule.on_backend_failure == mode);
        if that_fail(FailureMode::Closed).next().is_some() {
            decision.reject(RateLimitedKind::BackendUnavailable, now, None);
            decision.set_error(error);
            snapshot.counters.count(Event::FailedClosed);
            report::decided(that_fail(FailureMode::Closed), Event::FailedClosed, decision, now);
            return DONE;
        }
        let local = locally(charges);
        if local.is_empty() {
            if waited > 0 {
                decision.admit(now, waited);
            }
            snapshot.counters.count(Event::FailedOpen);
            report::decided(rules(charges), Event::FailedOpen, decision, now);
            // Nothing is charged; but the provider may say something all the
            // same.
            let nothing = || Lease::new(self, Decider::Fallback, Receipt::counted(snapshot.policy, charges, now, []));
            return (terms.keeps() && !charges.is_empty()).then(|| Box::new(Unfinished::Held(nothing().goes())));
        }
        let fallback = self.fallback();
        // As for a backend in this process: the way of nearly all, and nothing
        // is held.
        if !terms.keeps()
            && !snapshot.policy.keeps_receipts
            && let ([charge], [tier]) = (&*local, local[0].tiers())
            && let Some(status_of) = fallback.charge_held(charge.applied.key, tier, now.as_nanos(), charge.cost)
        {
            decision.admit(now, waited);
            decision.add_tier(tier.status(status_of.remaining, status_of.reset, false));
            snapshot.counters.count(Event::FailedLocal);
            report::decided(rules(&local), Event::FailedLocal, decision, now);
            report::also(that_fail(FailureMode::Open), Event::FailedOpen);
            return DONE;
        }
        // Nothing waits on a limiter that stands in for another.
        let outcome = self.decide_locally(fallback, &local, &mut now, Duration::ZERO);
        let terms = Terms { max_wait: Duration::ZERO, ..terms };
        let (seat, decider) = (Seat::NotAsked, Decider::Fallback);
        let answered = Answered { now, waited, outcome: &outcome, terms, seat, decider };
        let mut decided = self.conclude(snapshot, &local, answered, decision);
        if decision.is_allowed() {
            report::also(that_fail(FailureMode::Open), Event::FailedOpen);
        }
        if terms.keeps()
            && let Some(Unfinished::Held(hold)) = decided.as_deref_mut()
        {
            // What the provider says concerns those as well that let it go.
            let open: Charges<'_> = charges.iter().filter(|charge| fails_open(charge)).copied().collect();
            hold.add_uncharged(Receipt::counted(snapshot.policy, &open, now, []));
        }
        decided
    }

    /// Counts what the backend has admitted with the limiter that is to stand
    /// in for it, so that nobody gets its limit anew when the backend fails.
    /// Of what will be `held`, says what was counted.
    #[cold]
    pub(super) fn keep_warm(
        &self,
        snapshot: PolicySnapshot<'_>,
        charges: &[Charge<'_>],
        now: Timestamp,
        held: bool,
    ) -> Option<Box<Receipt>> {
        // A limiter in this process does not fail.
        let Backing::Other(_) = self.inner.backend else { return None };
        let local = locally(charges);
        if local.is_empty() {
            return None;
        }
        let counted = self.fallback().count(&local, now);
        held.then(|| Box::new(Receipt::counted(snapshot.policy, &local, now, counted)))
    }
}

fn fails_open(charge: &Charge<'_>) -> bool {
    charge.applied.rule.on_backend_failure == FailureMode::Open
}

/// Those of rules that fail to a local limiter, by their share of the limits.
fn locally<'a>(charges: &[Charge<'a>]) -> Charges<'a> {
    let local = charges.iter().filter(|charge| charge.applied.rule.on_backend_failure == FailureMode::Local);
    local.map(|charge| Charge { applied: charge.applied.rule.locally(charge.applied), ..*charge }).collect()
}
