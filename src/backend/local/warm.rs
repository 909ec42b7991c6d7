//! Counting what another backend has admitted, so as to be ready to stand in
//! for it.

use smallvec::SmallVec;

use super::{Local, state};
use crate::{
    algorithm::Claim,
    backend::{Charge, Receipt, TierClaim},
    policy::Tier,
    time::Timestamp,
};

impl Local {
    /// Counts what another backend has admitted, each tier by itself and as
    /// far as it has room: nobody goes into debt for what was not decided
    /// here. A key for which there is no place is not counted, as all such
    /// would fill the counter that they share. Says what was counted.
    pub(crate) fn count(&self, charges: &[Charge<'_>], now: Timestamp) -> SmallVec<[TierClaim; 2]> {
        let tiers = charges.iter().flat_map(|charge| charge.tiers().iter().map(move |tier| (charge, tier)));
        let claims = tiers.map(|(charge, tier)| TierClaim { claim: self.fill(charge, tier, now), shared: false });
        claims.collect()
    }

    fn fill(&self, charge: &Charge<'_>, tier: &Tier, now: Timestamp) -> Claim {
        let now = now.as_nanos();
        let (key, mut shard) = self.counter(charge, false);
        let key = key.tier(tier.salt);
        if let Some((claim, _)) = state::fill(&mut shard, tier, key, now, charge.cost, None) {
            return claim;
        }
        self.store.make_room(&mut shard, 1, now);
        if !self.store.reserve() {
            return tier.machine.claim(now, 0, now, 0);
        }
        let filled = state::fill(&mut shard, tier, key, now, charge.cost, Some(self.store.horizon(now, 1)));
        let (claim, freed) = filled.unwrap_or_else(|| (tier.machine.claim(now, 0, now, 0), 1));
        self.store.release(freed);
        claim
    }

    /// Counts what turned out to be charged beyond what [`Self::count`] knew,
    /// in units of the request's own cost; as far as there is room.
    pub(crate) fn count_more(&self, receipt: &Receipt, units: u64, now: Timestamp) {
        receipt.for_each(|charge, tier, claim| {
            if tier.is_in_flight() || claim.shared {
                return;
            }
            let units = units.saturating_mul(charge.rule.cost);
            let room = {
                let (key, shard) = self.counter(charge, false);
                state::room(&shard, tier, key.tier(tier.salt), now.as_nanos(), units)
            };
            self.owe(charge, tier, claim, room, now);
        });
    }
}
