//! Units of a pool that are to be given back: [`Surplus`], and the changes that do it.
//! It sends nothing.
//!
//! Invariant: units of a window that is over are not refunded.

use crate::backend::{
    Outcome, OutcomeKind,
    redis::{
        plan::{AskGuard, Change, ChangeOp, ChargeSet, CounterCharge},
        wire::decode::ChargeReply,
    },
};

/// Units to give back.
#[derive(Debug)]
pub(crate) struct Surplus {
    pub(super) set: ChargeSet,
    pub(super) reply: ChargeReply,
    pub(super) units: u64,
    pub(super) slots: Vec<u64>,
    pub(crate) lane: usize,
    /// The interval of refills, in nanoseconds.
    pub(crate) interval: u64,
    /// Whether their window is over.
    pub(crate) is_void: bool,
    /// Dropped once the store is told.
    pub(super) returning: Option<Box<dyn AskGuard>>,
}

impl Surplus {
    pub(crate) fn units(&self) -> u64 {
        self.units
    }

    /// The end of the window that they were charged in, on the store's clock.
    #[cfg(test)]
    pub(super) fn window_end(&self) -> u64 {
        (self.reply.now + self.reply.tiers[0][0]) * 1_000
    }

    /// Together with what expired before.
    pub(super) fn with(mut self, earlier: Option<Self>) -> Self {
        if let Some(earlier) = earlier {
            self.slots.extend(earlier.slots);
            // What is void cannot be given back with the others.
            self.units += if earlier.is_void == self.is_void { earlier.units } else { 0 };
        }
        self
    }

    pub(crate) fn holds_in_flight(&self) -> bool {
        !self.slots.is_empty()
    }

    /// The changes that give them back.
    pub(crate) fn changes(&self, now: Option<u64>) -> Vec<Change> {
        let set = &self.set;
        let slots = self.slots.iter().flat_map(|slot| CounterCharge::leases(set).map(|held| (*slot, held)));
        let mut changes: Vec<_> = slots
            .map(|(slot, held)| CounterCharge { request_id: slot, ..held }.change(ChangeOp::Release, now))
            .collect();
        if self.is_void {
            return changes;
        }
        let mut whole = ChargeSet { lease: None, now, ..set.clone() };
        whole.tiers.iter_mut().for_each(|tier| tier.definition = tier.definition.repeated(self.units));
        let outcome = Outcome {
            answer: OutcomeKind::Admitted { wait: 0 },
            tiers: self.reply.statuses(set, 0, 0),
            decided_at: Some(self.reply.now.saturating_mul(1_000)),
        };
        changes.extend(Change::undo(&whole, &outcome, 0).into_iter().filter(Change::is_refund));
        changes
    }
}
