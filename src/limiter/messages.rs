//! Messages of a stream, each charged like a request of its own.

use std::{sync::Arc, time::Duration};

use super::{
    admission::Admission,
    attempt::{Attempt, AttemptOptions, Charges, Purpose},
    current::PolicySnapshot,
    lease::{Decider, Lease},
};
use crate::{
    backend::OwnedCharge,
    decision::Decision,
    policy::{CompiledPolicy, CompiledRule, Messages},
};

impl Lease {
    /// Whether messages in this direction are charged one by one. Those of a
    /// request that the fallback limiter admitted are not.
    pub(crate) fn counts(&self, messages: Messages) -> bool {
        self.grant.decider == Decider::Backend && self.receipt().charges().any(|charge| charge.rule.counts(messages))
    }

    /// Decides another message. It is charged as the request was, for the rules
    /// that count such messages, under the policy in force: a stream may last
    /// for days.
    pub(crate) fn charge_message(&self, messages: Messages, max_wait: Duration) -> (Decision, Option<Box<Admission>>) {
        let limiter = &self.limiter;
        let mut decision = Decision::unlimited();
        let admission = limiter.inner.current.with(|in_force| {
            let (policy, kept) = self.charged_under(in_force.policy, |rule| rule.counts(messages));
            let snapshot = PolicySnapshot { policy, ..in_force };
            let now = limiter.now();
            let charges: Charges<'_> =
                kept.iter().map(|kept| limiter.at_current_rate(kept.charge().restarted(), now)).collect();
            if charges.is_empty() {
                return None;
            }
            let options = AttemptOptions::new(Purpose::Send, max_wait);
            Attempt::new(limiter, snapshot, &charges, now, options).start(&mut decision)
        });
        (decision, admission)
    }

    /// The charges of a message, or of more units, and their policy. It is the
    /// policy in force, or the request's if the former still `counts` such charges
    /// but no longer has the request's counters. So the stream stays limited.
    pub(super) fn charged_under<'p>(
        &'p self,
        in_force: &'p Arc<CompiledPolicy>,
        counts: impl Fn(&CompiledRule) -> bool,
    ) -> (&'p Arc<CompiledPolicy>, Vec<OwnedCharge>) {
        let still = |kept: &&OwnedCharge| {
            let id = kept.charge().rule();
            in_force.rules.iter().any(|rule| *rule.id == id && counts(rule))
        };
        let kept = || self.all_kept().filter(still);
        let moved: Option<Vec<_>> = kept().map(|kept| kept.under(in_force)).collect();
        match (moved, kept().next()) {
            (Some(moved), _) => (in_force, moved),
            (None, Some(first)) => {
                (first.policy(), kept().filter(|kept| counts(kept.charge().rule)).cloned().collect())
            }
            (None, None) => (in_force, Vec::new()),
        }
    }
}
