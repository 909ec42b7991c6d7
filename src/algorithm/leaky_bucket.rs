use super::{
    Claim, CompactState, QuotaStatus, StateMachine,
    gcra::{Gcra, Span},
};

/// Departures at least W/L apart for each unit; up to B units may queue.
///
/// A request that comes before its turn is rejected unless it may wait; a wait
/// longer than B units take is never reserved.
#[derive(Clone, Debug)]
pub(crate) struct LeakyBucket(Gcra);

impl LeakyBucket {
    /// `None` where two words cannot hold the state exactly.
    pub(super) fn new(limit: u64, window: u64, burst: u64) -> Option<Self> {
        Gcra::new(limit, window, burst).map(Self)
    }

    pub(super) fn with(gcra: Gcra) -> Self {
        Self(gcra)
    }

    pub(super) fn gcra(&self) -> &Gcra {
        &self.0
    }

    pub(super) fn longest_wait(&self) -> u64 {
        // Rounded up, as a turn is.
        self.0.rate.time_for(self.0.capacity).ceil()
    }
}

impl StateMachine for LeakyBucket {
    type State = CompactState;

    fn earliest(&self, state: &CompactState, now: u64, cost: u64) -> Option<u64> {
        let arrival = self.0.arrival(state, now);
        let end = self.0.rate.add(arrival.max(Span::at(now)), self.0.rate.time_for(cost))?;
        let at = if self.0.wrote(state) { arrival.ceil() } else { self.0.old_units_left(state, 0) };
        (self.0.can_hold(cost) && end.nanos < u64::MAX).then(|| at.max(now))
    }

    fn commit(&self, state: &mut CompactState, now: u64, at: u64, cost: u64) {
        self.0.commit(state, now, at, cost);
    }

    fn charge_debt(&self, state: &mut CompactState, now: u64, units: u64, claim: &mut Claim) {
        self.0.charge_debt(state, now, units, claim);
    }

    fn refund(&self, state: &mut CompactState, now: u64, units: u64, claim: &mut Claim) {
        self.0.refund(state, now, units, claim);
    }

    /// One unit passes at once when nothing is on its way, none otherwise.
    fn status_of(&self, state: &CompactState, now: u64) -> QuotaStatus {
        let reset = self.0.status_of(state, now).reset;
        QuotaStatus { remaining: u64::from(reset == 0 && self.0.capacity > 0), reset }
    }
}
