//! The immediate allow: charges a request where all its counters exist and
//! admit it now. Rejects nothing, and never waits.
//!
//! Invariant: charges all targets, or none.

use super::{current::PolicySnapshot, observe};
use crate::{
    backend::InProcess,
    decision::Decision,
    observe::RequestResult,
    policy::{CompiledRule, Target},
    time::Timestamp,
};

/// How a request is admitted if all its counters exist and admit it now.
#[derive(Clone, Copy)]
pub(super) struct ImmediateAllow<'s> {
    pub(super) snapshot: PolicySnapshot<'s>,
    pub(super) now: Timestamp,
    /// Nanoseconds that the request has waited so far.
    pub(super) waited: u64,
    pub(super) result: RequestResult,
    /// Whether the decision is read.
    pub(super) writes_decision: bool,
}

impl ImmediateAllow<'_> {
    /// Charges all targets and admits the request; or changes nothing.
    #[inline]
    pub(super) fn attempt<'t>(
        self,
        engine: &InProcess,
        targets: impl ExactSizeIterator<Item = Target<'t>> + Clone,
        rules: impl IntoIterator<Item = &'t CompiledRule> + Clone,
        decision: &mut Decision,
    ) -> bool {
        let charged = engine.try_charge(targets, self.now.as_nanos(), |tier, status| {
            if self.writes_decision {
                decision.add_tier(tier.status(status.remaining, status.reset, false));
            }
        });
        if charged {
            if self.writes_decision {
                decision.admit(self.now, self.waited);
            }
            observe::record(self.snapshot.counters, rules, self.result, decision, self.now);
        }
        charged
    }
}
