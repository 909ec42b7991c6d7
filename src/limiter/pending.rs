use std::{sync::Arc, time::Duration};

use super::{
    Hold, RateLimiter, Unfinished,
    conclude::Answered,
    current::Scene,
    decide::{Charges, Terms},
    hold::{Decider, Shadow},
    later::{Decided, pending},
    report,
    room::Seat,
};
use crate::{
    backend::{Acquire, AcquireRequest, Answer, Answering, Charge, KeptCharge, Outcome, Receipt},
    decision::Decision,
    observe::Event,
    time::Timestamp,
};

impl RateLimiter {
    /// Charges the shadow rules of a request that goes, each by itself.
    #[cold]
    pub(super) fn decide_shadows(
        &self,
        scene: Scene<'_>,
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
                Acquire::Ready(result) => {
                    let outcome = result.ok();
                    count_shadow(scene, charge, now, outcome.as_ref());
                    if scene.policy.keeps_receipts {
                        held.extend(Shadow::new(self, scene.policy, charge, now, outcome.as_ref()));
                    }
                }
                Acquire::Pending(answer) => answers.push((charge.keep(scene.policy), answer)),
            }
        }
        if answers.is_empty() {
            return self.with_shadows(scene, held, now, decided);
        }
        let (limiter, decision, policy) = (self.clone(), decision.clone(), Arc::clone(scene.policy));
        pending(Box::pin(async move {
            let mut held = held;
            for (charge, answer) in answers {
                let outcome = answer.await.ok();
                let charge = charge.charge();
                limiter.inner.current.with(|view| count_shadow(view.scene(), &charge, now, outcome.as_ref()));
                held.extend(Shadow::new(&limiter, &policy, &charge, now, outcome.as_ref()));
            }
            let decided = limiter.inner.current.with(|view| {
                let scene = Scene { policy: &policy, counters: &view.counters };
                limiter.with_shadows(scene, held, now, decided)
            });
            (decision, decided)
        }))
    }

    /// What rules on trial count as in flight is held for as long as the
    /// request is under way; what they settle late, until that is done.
    fn with_shadows(&self, scene: Scene<'_>, held: Vec<Shadow>, now: Timestamp, decided: Decided) -> Decided {
        if held.is_empty() {
            return decided;
        }
        Some(Box::new(match decided.map(|unfinished| *unfinished) {
            Some(Unfinished::Held(hold)) => Unfinished::Held(hold.with(held)),
            Some(Unfinished::Reserved(reservation)) => Unfinished::Reserved(reservation.with(held)),
            Some(pending @ Unfinished::Pending(_)) => pending,
            None => {
                let nothing = Receipt::new(scene.policy, &[], now, &Outcome::admitted(Duration::ZERO));
                Unfinished::Held(Hold::new(self, Decider::Backend, nothing).goes().with(held))
            }
        }))
    }

    /// The same, for a backend that has to be waited for.
    #[cold]
    pub(super) fn decide_later(
        &self,
        scene: Scene<'_>,
        enforced: &[Charge<'_>],
        shadows: &[Charge<'_>],
        (now, terms, mut seat): (Timestamp, Terms, Seat),
        answer: Answering,
    ) -> Decided {
        let keep = |charges| KeptCharge::all(charges, scene.policy);
        let (limiter, policy) = (self.clone(), Arc::clone(scene.policy));
        let (enforced, shadows) = (keep(enforced), keep(shadows));
        pending(Box::pin(async move {
            let result = answer.await;
            let mut decision = Decision::unlimited();
            let decided = limiter.inner.current.with(|view| {
                // The policy that the charges were made under; another may be
                // in force by now.
                let scene = Scene { policy: &policy, counters: &view.counters };
                let enforced: Charges<'_> = enforced.iter().map(KeptCharge::charge).collect();
                let shadows: Charges<'_> = shadows.iter().map(KeptCharge::charge).collect();
                let decided = match result {
                    Ok(outcome) => {
                        if let Some(waits) = limiter.line_up(scene, (&enforced, &shadows), terms, &mut seat, &outcome) {
                            return pending(waits);
                        }
                        let decider = Decider::Backend;
                        let answered = Answered { now, waited: 0, outcome: &outcome, terms, seat, decider };
                        limiter.conclude(scene, &enforced, answered, &mut decision)
                    }
                    Err(error) => limiter.without_backend(scene, &enforced, now, error, terms, &mut decision),
                };
                limiter.decide_shadows(scene, &shadows, now, decided, &mut decision)
            });
            (decision, decided)
        }))
    }
}

/// What a backend that fails says of a shadow rule is nobody's concern.
fn count_shadow(scene: Scene<'_>, charge: &Charge<'_>, now: Timestamp, outcome: Option<&Outcome>) {
    if let Some(Outcome { answer: Answer::Refused { .. } | Answer::Busy { .. }, .. }) = outcome {
        scene.counters.count(Event::ShadowRejected);
        report::shadow_rejected(charge.applied.rule, now);
    }
}
