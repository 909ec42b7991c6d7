//! What units of a lease are called, and when they expire. It keeps none.
//!
//! Invariant: units never outlive their window, by whichever clock.

use crate::{
    backend::redis::{
        plan::{ChargeSet, CounterCharge, LeaseAsk},
        wire::decode::ChargeReply,
    },
    time::nanos,
};

/// When units expire that were asked for at `asked`, and whether all end with a
/// window. The store has decided after that, so a window ends later than it.
pub(super) fn expiry(set: &ChargeSet, reply: &ChargeReply, ask: &LeaseAsk, asked: u64) -> (u64, bool) {
    let statuses = reply.statuses(set, 0, 0);
    let mut ends_with_window = true;
    let lasts = set.tiers.iter().zip(&statuses).map(|(tier, status)| match tier.definition.ends_with_window() {
        true => status.reset,
        false => {
            ends_with_window = false;
            ask.lasts.min(tier.definition.longest_lease())
        }
    });
    let lasts = lasts.min().unwrap_or(0);
    (asked.saturating_add(lasts), ends_with_window)
}

pub(super) fn slots(set: &ChargeSet, first: u64, units: u64) -> Vec<u64> {
    let holds = CounterCharge::leases(set).next().is_some();
    if holds { (first..first.saturating_add(units)).rev().collect() } else { Vec::new() }
}

impl LeaseAsk {
    /// When the store was asked at the earliest, on the limiter's clock.
    pub(crate) fn sent_at(&self, uses_limiter_time: bool) -> u64 {
        let waited = if uses_limiter_time { 0 } else { nanos(self.asked.1.elapsed()) };
        self.asked.0.saturating_add(waited)
    }
}
