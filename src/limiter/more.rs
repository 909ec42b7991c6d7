//! More units for a request that is under way: charged atomically, or not at
//! all. A settlement, in contrast, charges units that are spent already.
//!
//! The invariant: units that were added are given back before those of the
//! request itself, the latest first, and each at most once.

use std::time::Duration;

use super::{
    admission::Admission,
    attempt::{Attempt, AttemptOptions, Charges, Purpose},
    current::PolicySnapshot,
    lease::{Added, Lease},
};
use crate::{
    backend::{Charge, OwnedCharge},
    decision::{Decision, RateLimited},
    policy::{CompiledRule, Tier},
};

impl Lease {
    /// Charges more for the rules that the handler settles, if all of them admit
    /// it now.
    pub(crate) async fn try_add(&self, units: u64) -> Result<(), RateLimited> {
        let (decision, admission) = self.charge_more(units);
        let (decision, admission) = match admission {
            Some(admission) if !admission.is_done() => {
                let (decision, admission) = admission.drive(decision).await;
                (decision, Some(admission))
            }
            admission => (decision, admission),
        };
        decision.into_result()?;
        if let Some(lease) = admission.and_then(Admission::take_lease) {
            // It is no permit of its own.
            lease.release();
            self.added().push(Added { lease, units });
        }
        Ok(())
    }

    fn charge_more(&self, units: u64) -> (Decision, Option<Box<Admission>>) {
        let limiter = &self.limiter;
        let mut decision = Decision::unlimited();
        let settles = |rule: &CompiledRule| rule.options.settle;
        let admission = limiter.inner.current.with(|in_force| {
            let (policy, kept) = self.charged_under(in_force.policy, settles);
            let snapshot = PolicySnapshot { policy, ..in_force };
            let now = limiter.now();
            let (mut enforced, mut shadows) = (Charges::new(), Charges::new());
            for kept in kept.iter().filter(|kept| settles(kept.charge().rule)) {
                let charge = limiter.at_current_rate(kept.charge(), now);
                let cost = units.saturating_mul(charge.rule.options.cost);
                let charges = if charge.rule.options.shadow { &mut shadows } else { &mut enforced };
                charges.extend(rates_of(Charge { cost, max_wait: 0, ..charge }));
            }
            if units == 0 || enforced.is_empty() && shadows.is_empty() {
                return None;
            }
            let options = AttemptOptions::new(Purpose::Send, Duration::ZERO);
            let mut attempt = Attempt::new(limiter, snapshot, &enforced, now, options);
            attempt.shadow = &shadows;
            attempt.start(&mut decision)
        });
        (decision, admission)
    }

    /// The charges of the request, those of shadow rules too.
    pub(super) fn all_kept(&self) -> impl Iterator<Item = &OwnedCharge> {
        self.receipt().kept().chain(self.shadows.iter().flat_map(|shadow| shadow.receipt().kept()))
    }
}

/// The charge without its concurrency limits, which count requests, not costs.
fn rates_of(charge: Charge<'_>) -> impl Iterator<Item = Charge<'_>> {
    let rates = charge.tiers.split(Tier::is_in_flight).filter(|tiers| !tiers.is_empty());
    rates.map(move |tiers| Charge { tiers, ..charge })
}
