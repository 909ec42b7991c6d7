//! Counting what another backend admitted, to stand in for it when it fails.
//!
//! Invariant: it never charges more than there is capacity for, so no key goes
//! into debt for what was not decided here.

use smallvec::SmallVec;

use super::{
    counter::{Entry, with_counter},
    engine::Engine,
    machine_source::MachineSource,
    transaction::tiers,
};
use crate::{
    algorithm::Claim,
    backend::receipt::{Receipt, TierClaim},
    policy::{Tier, charge::Charge},
    time::Timestamp,
};

impl<M: MachineSource> Engine<M> {
    /// Counts what another backend admitted, each tier as far as it has
    /// capacity. A key that gets no entry is not counted: all such keys together
    /// would fill the overflow counter. Returns what was counted.
    pub(crate) fn count(&self, charges: &[Charge<'_>], now: Timestamp) -> SmallVec<[TierClaim; 2]> {
        let claim = |(charge, tier)| TierClaim { claim: self.fill(charge, tier, now.as_nanos()), shared: false };
        tiers(charges).map(claim).collect()
    }

    fn fill(&self, charge: &Charge<'_>, tier: &Tier, now: u64) -> Claim {
        let (key, mut shard) = self.counter(charge, false);
        let (key, machine) = (key.tier(tier.salt), &tier.machine);
        let none = machine.claim(now, 0, now, 0);
        with_counter!((&self.store, &mut shard, machine, key), counter => {
            let most = tier.quota.capacity();
            if !counter.exists() {
                let has_capacity = counter.capacity(most, now, charge.cost).0 > 0;
                if !has_capacity || counter.reserve(now) == Entry::Rejected {
                    return none;
                }
            }
            let (units, at) = counter.capacity(most, now, charge.cost);
            let horizon = self.store.horizon(now);
            self.store.release(counter.commit(horizon, (now, at), units));
            let (status, version) = counter.status(usize::MAX, now);
            tier.machine.claim(at, units, now.saturating_add(status.reset), version)
        })
    }

    /// Counts what the backend charged after [`Self::count`], in units of the
    /// request's own cost, as far as there is capacity.
    pub(crate) fn count_more(&self, receipt: &Receipt, units: u64, now: Timestamp) {
        receipt.for_each(|charge, tier, claim| {
            if tier.is_in_flight() || claim.shared {
                return;
            }
            let units = units.saturating_mul(charge.rule.options.cost);
            let units = {
                let (key, mut shard) = self.counter(charge, false);
                let parts = (&self.store, &mut shard, &tier.machine, key.tier(tier.salt));
                with_counter!(parts, counter => counter.capacity(tier.quota.capacity(), now.as_nanos(), units)).0
            };
            self.charge_debt(charge, tier, claim, units, now);
        });
    }
}
