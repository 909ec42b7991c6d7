//! Taking over what another counter of a key holds: the engine is then a copy of it.
//!
//! Invariant: what was charged here and is not in the other counter yet stays charged.

use super::{engine::Engine, machine_source::MachineSource, ops, ops::Entry};
use crate::{algorithm::CopiedState, fingerprint::Fingerprint, policy::Tier};

impl<M: MachineSource> Engine<M> {
    /// Replaces the state of a key's tier, with `units` charged on top of it. A key
    /// that gets no entry shares the overflow counter, which stays as it is.
    pub(crate) fn restore(&self, key: Fingerprint, tier: &Tier, copied: CopiedState, units: u64, now: u64) {
        self.source.with_one(tier, now, |machine| {
            let mut shard = self.store.lock(self.store.shard_of(key));
            let own = key.tier(tier.salt);
            let is_new = !ops::exists(&shard, machine, own);
            if is_new && ops::reserve(&self.store, &mut shard, machine, own, now) == Entry::Rejected {
                return;
            }
            let times = (now, self.store.horizon(now));
            let memory = &self.store.log_memory;
            self.store.release(ops::restore(memory, &mut shard, machine, own, (copied, units), times));
        });
    }

    /// Charges units on top of what a key has used, if it has a state.
    pub(crate) fn add(&self, key: Fingerprint, tier: &Tier, units: u64, now: u64) {
        self.source.with_one(tier, now, |machine| {
            let mut shard = self.store.lock(self.store.shard_of(key));
            let own = key.tier(tier.salt);
            if ops::exists(&shard, machine, own) {
                let mut claim = machine.claim(now, 0, now, 0);
                let horizon = self.store.horizon(now);
                let memory = &self.store.log_memory;
                self.store.release(ops::charge_debt(
                    memory,
                    &mut shard,
                    machine,
                    own,
                    (now, units),
                    &mut claim,
                    horizon,
                ));
            }
        });
    }
}
