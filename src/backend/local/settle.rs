use super::{Local, state};
use crate::{
    algorithm::Machine,
    backend::{Charge, TierClaim},
    fingerprint::Fingerprint,
    policy::Tier,
    store::Guard,
    time::Timestamp,
};

impl Local {
    /// Counts `units` more, whatever the tier's limit says.
    pub(super) fn owe(&self, charge: &Charge<'_>, tier: &Tier, owned: &mut TierClaim, units: u64, now: Timestamp) {
        if units == 0 {
            return;
        }
        self.with_machine(tier, now, |machine| self.owe_by(machine, charge, tier, owned, units, now.as_nanos()));
    }

    fn owe_by(&self, machine: &Machine, charge: &Charge<'_>, tier: &Tier, owned: &mut TierClaim, units: u64, now: u64) {
        let claim = &mut owned.claim;
        if !owned.shared {
            let (key, mut shard) = self.counter(charge, false);
            let key = key.tier(tier.salt);
            if state::owe(&mut shard, machine, key, now, units, claim, None).is_some() {
                return;
            }
            // All that it had counted has come back, and it is gone.
            self.store.make_room(&mut shard, 1, now);
            if self.store.reserve() {
                let idle = state::owe(&mut shard, machine, key, now, units, claim, Some(self.store.horizon(now, 1)));
                self.store.release(idle.unwrap_or(1));
                return;
            }
        }
        let (key, mut shard) = self.counter(charge, true);
        if !std::mem::replace(&mut owned.shared, true) {
            claim.units = 0;
        }
        // One caller's debt is not to lock out all that share with it.
        let units = units.min(tier.quota.capacity());
        state::owe(&mut shard, machine, key.tier(tier.salt), now, units, claim, Some(now));
    }

    /// Gives back up to `units` of what one tier has charged.
    pub(super) fn give_back(
        &self,
        charge: &Charge<'_>,
        tier: &Tier,
        owned: &mut TierClaim,
        units: u64,
        now: Timestamp,
    ) {
        let units = units.min(owned.claim.units);
        if units == 0 {
            return;
        }
        self.with_machine(tier, now, |machine| {
            let (key, mut shard) = self.counter(charge, owned.shared);
            state::refund(&mut shard, machine, key.tier(tier.salt), now.as_nanos(), units, &mut owned.claim);
        });
        owned.claim.units -= units;
    }

    /// Where the charge was counted: by itself, or with all those of its rule
    /// for whom there was no place.
    pub(super) fn counter(&self, charge: &Charge<'_>, shared: bool) -> (Fingerprint, Guard<'_>) {
        match shared {
            true => (charge.rule.overflow, self.store.lock_shared()),
            false => (charge.key, self.store.lock(self.store.shard_of(charge.key))),
        }
    }
}
