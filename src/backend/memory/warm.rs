//! Counting what another backend admitted, to stand in for it when it fails.
//!
//! Invariant: it never charges more than there is capacity for, so no key goes
//! into debt for what was not decided here.

use smallvec::SmallVec;

use super::{engine::Engine, machine_source::MachineSource, ops};
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
        let tiers = charges.iter().flat_map(|charge| charge.tiers().iter().map(move |tier| (charge, tier)));
        let claims = tiers.map(|(charge, tier)| TierClaim { claim: self.fill(charge, tier, now), shared: false });
        claims.collect()
    }

    fn fill(&self, charge: &Charge<'_>, tier: &Tier, now: Timestamp) -> Claim {
        let now = now.as_nanos();
        let (key, mut shard) = self.counter(charge, false);
        let key = key.tier(tier.salt);
        if let Some((claim, _)) = ops::fill(&mut shard, tier, key, now, charge.cost, None) {
            return claim;
        }
        self.store.make_room(&mut shard, 1, now);
        if !self.store.reserve() {
            return tier.machine.claim(now, 0, now, 0);
        }
        let filled = ops::fill(&mut shard, tier, key, now, charge.cost, Some(self.store.horizon(now, 1)));
        let (claim, freed) = filled.unwrap_or_else(|| (tier.machine.claim(now, 0, now, 0), 1));
        self.store.release(freed);
        claim
    }

    /// Counts what the backend charged after [`Self::count`], in units of the
    /// request's own cost, as far as there is capacity.
    pub(crate) fn count_more(&self, receipt: &Receipt, units: u64, now: Timestamp) {
        receipt.for_each(|charge, tier, claim| {
            if tier.is_in_flight() || claim.shared {
                return;
            }
            let units = units.saturating_mul(charge.rule.cost);
            let units = {
                let (key, shard) = self.counter(charge, false);
                ops::capacity(&shard, tier, key.tier(tier.salt), now.as_nanos(), units)
            };
            self.charge_debt(charge, tier, claim, units, now);
        });
    }
}
