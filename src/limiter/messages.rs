use std::{sync::Arc, time::Duration};

use super::{
    Lease, RateLimiter,
    current::PolicySnapshot,
    decide::{Charges, Terms},
    hold::Decider,
    later::{DONE, Decided},
};
use crate::{
    backend::OwnedCharge,
    decision::Decision,
    policy::{CompiledPolicy, CompiledRule, Messages},
};

impl Lease {
    /// Whether messages that go this way are charged one by one. Those of a
    /// request that a local limiter let go, standing in for its backend, are
    /// not.
    pub(crate) fn counts(&self, messages: Messages) -> bool {
        self.decider() == Decider::Backend
            && self.receipt().charges().any(|charge| charge.applied.rule.counts(messages))
    }

    /// Decides on another message: what the request was charged by rules that
    /// count such ones, once more. By the policy in force: who streams for days
    /// is not to keep the limits of the first.
    pub(crate) fn charge_message(&self, messages: Messages, max_wait: Duration) -> (Decision, Decided) {
        let limiter: &RateLimiter = self.limiter();
        let mut decision = Decision::unlimited();
        let decided = limiter.inner.current.with(|view| {
            let in_force = view.snapshot();
            let (policy, kept) = self.charged_under(in_force.policy, messages);
            let snapshot = PolicySnapshot { policy, ..in_force };
            let now = limiter.now();
            let charges: Charges<'_> =
                kept.iter().map(|kept| limiter.at_todays_rate(kept.charge().anew(), now)).collect();
            let terms = Terms { max_wait, claims: false, heeds: false, waited: 0, counted: false };
            match charges.is_empty() {
                true => DONE,
                false => limiter.enforce(snapshot, &charges, &[], now, terms, &mut decision),
            }
        });
        (decision, decided)
    }

    /// What a message is charged, and by which policy. By that of the request
    /// where a rule that still counts such messages counts other things apart
    /// by now: that is no reason to let the stream go.
    fn charged_under<'p>(
        &'p self,
        in_force: &'p Arc<CompiledPolicy>,
        messages: Messages,
    ) -> (&'p Arc<CompiledPolicy>, Vec<OwnedCharge>) {
        let counts = |rule: &CompiledRule| rule.counts(messages);
        let still = |kept: &&OwnedCharge| {
            let id = kept.charge().rule();
            in_force.rules.iter().any(|rule| *rule.id == id && counts(rule))
        };
        let kept = || self.receipt().kept().filter(still);
        let moved: Option<Vec<_>> = kept().map(|kept| kept.under(in_force)).collect();
        match (moved, kept().next()) {
            (Some(moved), _) => (in_force, moved),
            (None, Some(first)) => {
                (first.policy(), kept().filter(|kept| counts(kept.charge().applied.rule)).cloned().collect())
            }
            (None, None) => (in_force, Vec::new()),
        }
    }
}
