//! Concurrency limits: at most L units in flight at once.
//!
//! It knows no time: no reservation is possible, because the time at which a
//! unit is released cannot be known. The invariant: the store never drops a
//! state while units are in flight.

use super::{Claim, CompactState, QuotaStatus, StateMachine};

/// The answer of a full [`InFlight`]: the time at which a unit is released
/// cannot be known. No other state machine answers with the end of time.
pub(crate) const UNKNOWN_TIME: u64 = u64::MAX;

/// The words are: the end of time while units are in flight, else when the last
/// one was released; the units in flight.
#[derive(Clone, Debug)]
pub(crate) struct InFlight {
    pub(super) limit: u64,
}

impl StateMachine for InFlight {
    type State = CompactState;

    fn earliest(&self, state: &CompactState, now: u64, cost: u64) -> Option<u64> {
        let [_, units] = *state;
        if cost > self.limit || self.limit == 0 || now == UNKNOWN_TIME {
            return None;
        }
        // A cost of 0 passes even if a lower limit finds too many in flight.
        let fits = cost == 0 || units.checked_add(cost).is_some_and(|sum| sum <= self.limit);
        Some(if fits { now } else { UNKNOWN_TIME })
    }

    fn commit(&self, state: &mut CompactState, now: u64, _at: u64, cost: u64) {
        store(state, now, state[1].saturating_add(cost));
    }

    /// Nothing: the cost of a request does not change its units in flight.
    fn charge_debt(&self, _: &mut CompactState, _: u64, _: u64, _: &mut Claim) {}

    fn is_last(&self, _: &CompactState, _: u64, _: &Claim) -> bool {
        true
    }

    fn refund(&self, state: &mut CompactState, now: u64, units: u64, _: &mut Claim) {
        store(state, now, state[1].saturating_sub(units));
    }

    fn move_back(&self, _: &mut CompactState, _: u64) {}

    fn span(&self) -> u64 {
        0
    }

    fn status_of(&self, state: &CompactState, _now: u64) -> QuotaStatus {
        QuotaStatus { remaining: self.limit.saturating_sub(state[1]), reset: 0 }
    }
}

fn store(state: &mut CompactState, now: u64, units: u64) {
    *state = [if units > 0 { u64::MAX } else { now }, units];
}
