//! Tells the [`TopTenants`] which tenants were charged and which rejected, where a limiter
//! has them.
//!
//! It decides nothing. Invariant: without them, a request costs a branch.

use super::{state::RateLimiter, stats::Counters};
use crate::{
    backend::Charge,
    decision::{Decision, TierStatus},
    observe::{Measure, TopTenants, minute},
    time::Timestamp,
};

impl RateLimiter {
    /// These charges were admitted by a decision that has their tiers.
    #[inline]
    pub(super) fn count_units(&self, counters: &Counters, charges: &[Charge<'_>], decision: &Decision, now: Timestamp) {
        if let Some(top) = &self.inner.top
            && counters.sampler.is_due(size(charges))
        {
            count_sampled(top, counters, charges, decision, now);
        }
    }

    /// A request with these charges was rejected: by the rules whose tiers are violated, or
    /// by all of them together.
    #[inline]
    pub(super) fn count_rejection(&self, charges: &[Charge<'_>], decision: &Decision, now: Timestamp) {
        let Some(top) = &self.inner.top else { return };
        let is_by_all = decision.tiers().iter().all(|tier| !tier.violated);
        for (charge, tiers) in with_tiers(charges, decision) {
            if is_by_all || tiers.iter().any(|tier| tier.violated) {
                count(top, charge, (Measure::Rejections, 1), tiers, now);
            }
        }
    }
}

#[cold]
#[inline(never)]
fn count_sampled(top: &TopTenants, counters: &Counters, charges: &[Charge<'_>], decision: &Decision, now: Timestamp) {
    let size = size(charges);
    let charged = counters.sampler.take(size, counters.decisions(), minute(now));
    for (charge, tiers) in with_tiers(charges, decision) {
        let own = u128::from(charged) * u128::from(charge.cost) / u128::from(size);
        let own = u64::try_from(own).unwrap_or(u64::MAX);
        count(top, charge, (Measure::Units, own), tiers, now);
    }
}

/// By how much a request counts when samples are drawn: the cost under its first rule. A sum over
/// all rules would take longer, and each is estimated without bias by any such size.
#[inline]
fn size(charges: &[Charge<'_>]) -> u64 {
    charges.first().map_or(1, |charge| charge.cost.max(1))
}

/// Each charge with the status of its tiers, where they are known.
fn with_tiers<'c>(
    charges: &'c [Charge<'c>],
    decision: &'c Decision,
) -> impl Iterator<Item = (&'c Charge<'c>, &'c [TierStatus])> {
    let mut tiers = decision.tiers();
    charges.iter().map(move |charge| {
        let (own, others) = tiers.split_at(charge.tiers().len().min(tiers.len()));
        tiers = others;
        (charge, own)
    })
}

/// Of a rule whose counter all callers share, there are no tenants to tell apart.
fn count(top: &TopTenants, charge: &Charge<'_>, amount: (Measure, u64), tiers: &[TierStatus], now: Timestamp) {
    if amount.1 == 0 || !charge.rule.is_per_tenant() && !charge.rule.options.fair {
        return;
    }
    #[allow(clippy::cast_precision_loss, reason = "a part")]
    let parts = tiers.iter().map(|tier| {
        let capacity = tier.quota.capacity().max(1);
        tier.remaining.min(capacity) as f64 / capacity as f64
    });
    top.count((charge.rule.id, charge.tenant), amount, parts.fold(1.0, f64::min), now);
}
