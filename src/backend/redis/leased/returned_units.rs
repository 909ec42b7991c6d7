//! Units of a pool that are to be given back: [`ReturnedUnits`], and the changes that do it.
//! It sends nothing.
//!
//! Invariant: units are not refunded once all their windows are over.

use super::last_reply::LastReply;
use crate::backend::redis::plan::{AskGuard, Change};

/// Units to give back.
#[derive(Debug)]
pub(crate) struct ReturnedUnits {
    pub(super) reply: LastReply,
    pub(super) units: u64,
    pub(super) slots: Vec<u64>,
    /// Whether all their windows are over.
    pub(crate) is_void: bool,
    /// Dropped once the store is told.
    pub(super) returning: Option<Box<dyn AskGuard>>,
}

impl ReturnedUnits {
    pub(crate) fn units(&self) -> u64 {
        self.units
    }

    /// The index of the lane that leased them.
    pub(crate) fn lane(&self) -> usize {
        self.reply.template.lane
    }

    /// The interval of refills, in nanoseconds.
    pub(crate) fn interval(&self) -> u64 {
        self.reply.template.interval
    }

    /// The end of the window that they were charged in, on the store's clock.
    #[cfg(test)]
    pub(super) fn window_end(&self) -> u64 {
        self.reply.window_end()
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
        let mut changes = self.reply.releases(&self.slots, now);
        if !self.is_void {
            changes.extend(self.reply.refunds(self.units, now));
        }
        changes
    }
}
