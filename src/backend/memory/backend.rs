//! [`Engine`] as a [`Backend`]: the operations on what was charged.

use super::{engine::Engine, machine_source::MachineSource};
use crate::{
    backend::{
        contract::Backend,
        receipt::{Receipt, Settlement},
        request::{Acquire, AcquireRequest, Usage},
    },
    time::Timestamp,
};

impl<M: MachineSource> Backend for Engine<M> {
    fn acquire(&self, request: &AcquireRequest<'_>) -> Acquire {
        Acquire::Ready(Ok(self.decide(request)))
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
            let units = |units: u64| units.saturating_mul(charge.rule.cost);
            match settlement {
                _ if tier.is_in_flight() => {}
                Settlement::Add(more) => self.charge_debt(charge, tier, claim, units(more), now),
                Settlement::GiveBack(less) => self.give_back(charge, tier, claim, units(less), now),
            }
        });
    }

    fn usage(&self) -> Usage {
        Usage { keys: self.store.len(), overflowed: self.store.overflowed() }
    }
}
