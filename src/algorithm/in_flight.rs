use super::{Claim, CompactState, QuotaStatus, StateMachine};

/// What [`InFlight`] answers where it is full: nobody knows when a unit comes
/// back. No other state machine ever answers the end of time.
pub(crate) const UNKNOWN_TIME: u64 = u64::MAX;

/// At most L units held at once.
///
/// The words are: the end of time while anything is held, else when the last
/// unit came back; the units held. So the store never drops what is held.
#[derive(Clone, Debug)]
pub(crate) struct InFlight {
    limit: u64,
}

impl InFlight {
    pub(super) fn new(limit: u64) -> Self {
        Self { limit }
    }
}

impl StateMachine for InFlight {
    type State = CompactState;

    fn earliest(&self, state: &CompactState, now: u64, cost: u64) -> Option<u64> {
        let [_, held] = *state;
        if cost > self.limit || self.limit == 0 || now == UNKNOWN_TIME {
            return None;
        }
        // What holds nothing passes, even where a lower limit finds too much held.
        let fits = cost == 0 || held.checked_add(cost).is_some_and(|sum| sum <= self.limit);
        Some(if fits { now } else { UNKNOWN_TIME })
    }

    fn commit(&self, state: &mut CompactState, now: u64, _at: u64, cost: u64) {
        hold(state, now, state[1].saturating_add(cost));
    }

    /// Never: who is admitted has to be given what releases the units.
    fn charge(&self, _: &mut CompactState, _: u64, _: u64) -> Option<QuotaStatus> {
        None
    }

    /// Nothing: what is in flight is not a matter of cost.
    fn charge_debt(&self, _: &mut CompactState, _: u64, _: u64, _: &mut Claim) {}

    fn refund(&self, state: &mut CompactState, now: u64, units: u64, _: &mut Claim) {
        hold(state, now, state[1].saturating_sub(units));
    }

    fn status_of(&self, state: &CompactState, _now: u64) -> QuotaStatus {
        QuotaStatus { remaining: self.limit.saturating_sub(state[1]), reset: 0 }
    }
}

fn hold(state: &mut CompactState, now: u64, held: u64) {
    *state = [if held > 0 { u64::MAX } else { now }, held];
}
