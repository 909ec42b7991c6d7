//! [`Engine`] as a [`Backend`]: decisions, and the changes that follow them.
//! The decisions themselves are in `engine.rs`.
//!
//! Invariant: refunds never exceed what the claim says is left. A change of one
//! tier takes one shard's lock at a time.

use futures_util::future::{BoxFuture, ready};
use smallvec::SmallVec;

use super::{
    MachineSource,
    counter::{Entry, with_counter},
    engine::Engine,
    transaction::counted_key,
};
use crate::{
    algorithm::{Claim, Machine},
    backend::{
        contract::{Backend, Usage},
        receipt::{Receipt, Settlement, TierClaim},
        request::{Decide, Request, tiers},
    },
    error::BackendError,
    fingerprint::Fingerprint,
    policy::{Tier, charge::Charge},
    store::Guard,
    time::Timestamp,
};

impl<M: MachineSource> Backend for Engine<M> {
    fn decide(&self, request: &Request<'_>) -> Decide {
        Decide::Now(Ok(self.charge(request)))
    }

    fn refund(&self, receipt: &Receipt, now: Timestamp) {
        receipt.for_each(|charge, tier, claim| self.give_back(charge, tier, claim, u64::MAX, now));
    }

    fn release(&self, receipt: &Receipt, now: Timestamp) {
        receipt.for_each(|charge, tier, claim| {
            if tier.is_in_flight() {
                self.give_back(charge, tier, claim, u64::MAX, now);
            }
        });
    }

    fn settle(&self, receipt: &Receipt, settlement: Settlement, now: Timestamp) {
        receipt.for_each(|charge, tier, claim| {
            let units = |units: u64| units.saturating_mul(charge.rule.options.cost);
            match settlement {
                _ if tier.is_in_flight() => {}
                Settlement::Add(more) => self.charge_debt(charge, tier, claim, units(more), now),
                Settlement::GiveBack(less) => self.give_back(charge, tier, claim, units(less), now),
            }
        });
    }

    fn peek(&self, request: &Request<'_>) -> Decide {
        Decide::Now(Ok(self.look(request)))
    }

    fn reset(&self, charges: &[Charge<'_>], now: Timestamp) -> BoxFuture<'static, Result<u64, BackendError>> {
        let (now, mut forgotten) = (now.as_nanos(), 0);
        for (charge, tier) in tiers(charges) {
            if !tier.is_in_flight() {
                let key = charge.key.tier(tier.salt);
                let (freed, is_known) = self.source.with_one(charge.key, tier, now, |machine| {
                    let mut shard = self.store.lock(charge.key);
                    with_counter!((&self.store, &mut shard, machine, key), counter => counter.forget())
                });
                self.store.release(freed);
                forgotten += u64::from(is_known);
            }
        }
        Box::pin(ready(Ok(forgotten)))
    }

    #[cfg(feature = "gossip")]
    fn drain(&self, _: Timestamp) -> BoxFuture<'static, ()> {
        self.source.leave()
    }

    fn usage(&self) -> Usage {
        Usage { keys: self.store.len(), overflowed: self.store.overflowed(), displaced: self.store.displaced() }
    }
}

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
        let now = now.as_nanos();
        self.source.with_one(counted_key(charge, owned.shared), tier, now, |machine| {
            let claim = &mut owned.claim;
            if !owned.shared && self.charge_own_debt(machine, charge.key.tier(tier.salt), (now, units), claim) {
                return;
            }
            if !std::mem::replace(&mut owned.shared, true) {
                claim.units = 0;
            }
            let (key, mut shard) = self.counter(charge, true);
            // One tenant's debt must not lock out all that share the counter.
            let units = units.min(tier.quota.capacity());
            let parts = (&self.store, &mut shard, machine, key.tier(tier.salt));
            with_counter!(parts, counter => counter.charge_debt(now, now, units, claim));
        });
    }

    /// Charges a debt to the key's own counter; returns whether it has one.
    fn charge_own_debt(
        &self,
        machine: &Machine,
        own: Fingerprint,
        (now, units): (u64, u64),
        claim: &mut Claim,
    ) -> bool {
        let mut shard = self.store.lock(own);
        with_counter!((&self.store, &mut shard, machine, own), counter => {
            if !counter.exists() {
                match counter.reserve(now) {
                    Entry::Rejected => return false,
                    Entry::Restored => {}
                    // The state was dropped: what was charged has come back, or cannot
                    // be told from other charges.
                    Entry::Reserved => claim.units = 0,
                }
            }
            let horizon = self.store.horizon(now);
            self.store.release(counter.charge_debt(horizon, now, units, claim));
        });
        true
    }

    /// Refunds up to `units` of what one tier has charged.
    fn give_back(&self, charge: &Charge<'_>, tier: &Tier, owned: &mut TierClaim, units: u64, now: Timestamp) {
        let units = units.min(owned.claim.units);
        if units == 0 {
            return;
        }
        self.source.with_one(counted_key(charge, owned.shared), tier, now.as_nanos(), |machine| {
            let (key, mut shard) = self.counter(charge, owned.shared);
            let parts = (&self.store, &mut shard, machine, key.tier(tier.salt));
            with_counter!(parts, counter => counter.refund(now.as_nanos(), units, &mut owned.claim));
        });
        owned.claim.units -= units;
    }

    /// The counter of a charge: its own, or the rule's overflow counter.
    pub(super) fn counter(&self, charge: &Charge<'_>, shared: bool) -> (Fingerprint, Guard<'_>) {
        let key = counted_key(charge, shared);
        (key, if shared { self.store.lock_shared() } else { self.store.lock(key) })
    }
}

/// What another backend admitted, to stand in for it when it fails. It never charges more than
/// there is capacity for, so no key goes into debt for what was not decided here.
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
            let (status, version) = counter.status(now);
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
