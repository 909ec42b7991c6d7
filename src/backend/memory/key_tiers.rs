//! Charges the tiers of a key that admit a request now: [`KeyTiers`].
//!
//! It creates no state and finds no later time: the engine decides again what is not
//! charged here. Invariant: all tiers are charged, or none.

use super::{counter::with_counter, machine_source::Machines};
use crate::{
    backend::outcome::{ImmediateStates, TierState},
    policy::{Tier, charge::Charge},
    store::{Shard, Store},
};

/// The tiers of a charge, whose states are all in one shard.
pub(super) struct KeyTiers<'c, M> {
    pub(super) store: &'c Store,
    pub(super) machines: M,
    pub(super) charge: &'c Charge<'c>,
    pub(super) now: u64,
}

impl<M: Machines> KeyTiers<'_, M> {
    /// Charges all tiers, if each has a state that admits the cost now, or needs none; else charges nothing.
    /// The charge of the first is its own check. Adds the status of each to `states`.
    #[inline]
    pub(super) fn charge(&self, shard: &mut Shard, states: &mut ImmediateStates) -> bool {
        let Charge { key, tiers, cost, .. } = *self.charge;
        let [first, others @ ..] = tiers else { return true };
        if !self.admit(others, shard) {
            return false;
        }
        let parts = (self.store, &mut *shard, self.machines.of(key, first), key.tier(first.salt));
        let Some(status) = with_counter!(parts, counter => counter.try_charge(self.now, cost)) else { return false };
        states.0.push(TierState::new(status, false));
        self.commit(others, shard, states);
        true
    }

    /// Whether each of these tiers has a state that admits the cost now, or needs none.
    #[inline]
    pub(super) fn admit(&self, tiers: &[Tier], shard: &mut Shard) -> bool {
        let Charge { key, cost, .. } = *self.charge;
        tiers.iter().all(|tier| {
            let parts = (self.store, &mut *shard, self.machines.of(key, tier), key.tier(tier.salt));
            with_counter!(parts, counter => counter.admits(self.now, cost))
        })
    }

    /// Charges these tiers, which admit the cost now. Does not check again: another thread may
    /// have taken the memory of a log meanwhile.
    #[inline]
    pub(super) fn commit(&self, tiers: &[Tier], shard: &mut Shard, states: &mut ImmediateStates) {
        let Charge { key, cost, .. } = *self.charge;
        for tier in tiers {
            let parts = (self.store, &mut *shard, self.machines.of(key, tier), key.tier(tier.salt));
            if let Some(status) = with_counter!(parts, counter => counter.commit_now(self.now, cost)) {
                states.0.push(TierState::new(status, false));
            }
        }
    }
}
