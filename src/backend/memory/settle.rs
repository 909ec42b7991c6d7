//! Charging more, or giving back, after the decision.
//!
//! Invariant: units that are given back never exceed what the claim says is
//! left.

use super::{engine::Engine, machine_source::MachineSource, ops};
use crate::{
    algorithm::Machine,
    backend::receipt::TierClaim,
    fingerprint::Fingerprint,
    policy::{Tier, charge::Charge},
    store::Guard,
    time::Timestamp,
};

impl<M: MachineSource> Engine<M> {
    /// Charges `units` more, whatever the limit says.
    pub(super) fn charge_debt(
        &self,
        charge: &Charge<'_>,
        tier: &Tier,
        owned: &mut TierClaim,
        units: u64,
        now: Timestamp,
    ) {
        if units == 0 {
            return;
        }
        self.source.with_one(tier, now.as_nanos(), |machine| {
            self.charge_debt_by(machine, charge, tier, owned, units, now.as_nanos())
        });
    }

    fn charge_debt_by(
        &self,
        machine: &Machine,
        charge: &Charge<'_>,
        tier: &Tier,
        owned: &mut TierClaim,
        units: u64,
        now: u64,
    ) {
        let claim = &mut owned.claim;
        if !owned.shared {
            let (key, mut shard) = self.counter(charge, false);
            let key = key.tier(tier.salt);
            if ops::charge_debt(&mut shard, machine, key, now, units, claim, None).is_some() {
                return;
            }
            // The state was idle, and was dropped.
            self.store.make_room(&mut shard, 1, now);
            if self.store.reserve() {
                let idle =
                    ops::charge_debt(&mut shard, machine, key, now, units, claim, Some(self.store.horizon(now, 1)));
                self.store.release(idle.unwrap_or(1));
                return;
            }
        }
        let (key, mut shard) = self.counter(charge, true);
        if !std::mem::replace(&mut owned.shared, true) {
            claim.units = 0;
        }
        // One tenant's debt must not lock out all that share the counter.
        let units = units.min(tier.quota.capacity());
        ops::charge_debt(&mut shard, machine, key.tier(tier.salt), now, units, claim, Some(now));
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
        self.source.with_one(tier, now.as_nanos(), |machine| {
            let (key, mut shard) = self.counter(charge, owned.shared);
            ops::refund(&mut shard, machine, key.tier(tier.salt), now.as_nanos(), units, &mut owned.claim);
        });
        owned.claim.units -= units;
    }

    /// The counter of a charge: its own, or the rule's overflow counter.
    pub(super) fn counter(&self, charge: &Charge<'_>, shared: bool) -> (Fingerprint, Guard<'_>) {
        match shared {
            true => (charge.rule.overflow, self.store.lock_shared()),
            false => (charge.key, self.store.lock(self.store.shard_of(charge.key))),
        }
    }
}
