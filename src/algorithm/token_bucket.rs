use super::{
    Claim, CompactState, QuotaStatus, StateMachine,
    gcra::{Gcra, Span},
};

/// At most B + L·t/W units in any time t: the generic cell rate algorithm
/// (ITU-T I.371) in its virtual scheduling form.
///
/// A request conforms while the units it would owe, at the rate L/W, come back
/// within the time that B units take.
#[derive(Clone, Debug)]
pub(crate) struct TokenBucket {
    gcra: Gcra,
    /// What the whole burst takes.
    full: Span,
    /// How far ahead of its time a cost of one may come.
    slack_of_one: Span,
}

impl TokenBucket {
    /// `None` where two words cannot hold the state exactly.
    pub(super) fn new(limit: u64, window: u64, burst: u64) -> Option<Self> {
        Gcra::new(limit, window, burst).map(Self::with)
    }

    pub(super) fn with(gcra: Gcra) -> Self {
        let full = gcra.rate.time_for(gcra.capacity);
        let slack_of_one = gcra.rate.time_for(gcra.capacity.saturating_sub(1));
        Self { gcra, full, slack_of_one }
    }

    pub(super) fn gcra(&self) -> &Gcra {
        &self.gcra
    }
}

impl StateMachine for TokenBucket {
    type State = CompactState;

    #[inline]
    fn earliest(&self, state: &CompactState, now: u64, cost: u64) -> Option<u64> {
        if !self.gcra.can_hold(cost) {
            return None;
        }
        // A reservation past the end of time could not be told from another.
        let ends =
            |start| self.gcra.rate.add(start, self.gcra.rate.time_for(cost)).is_some_and(|end| end.nanos < u64::MAX);
        if state[0] < now {
            return ends(Span::at(now)).then_some(now);
        }
        let slack = if cost == 1 { self.slack_of_one } else { self.gcra.rate.time_for(self.gcra.capacity - cost) };
        let arrival = self.gcra.arrival(state, now);
        let at = match self.gcra.wrote(state) {
            true => self.gcra.rate.subtract(arrival, slack).ceil(),
            false => self.gcra.old_units_left(state, self.gcra.capacity - cost),
        };
        ends(arrival).then_some(at.max(now))
    }

    #[inline]
    fn commit(&self, state: &mut CompactState, now: u64, at: u64, cost: u64) {
        self.gcra.commit(state, now, at, cost);
    }

    #[inline(always)]
    #[allow(clippy::inline_always, reason = "the way of nearly all requests")]
    fn charge(&self, state: &mut CompactState, now: u64, cost: u64) -> Option<QuotaStatus> {
        let Gcra { rate, capacity, .. } = &self.gcra;
        if !self.gcra.can_hold(cost) {
            return None;
        }
        if rate.is_whole() && self.gcra.wrote(state) {
            let end = state[0].max(now).checked_add(rate.time_for(cost).nanos)?;
            let backlog = end - now;
            if backlog > self.full.nanos {
                return None;
            }
            state[0] = end;
            return Some(QuotaStatus { remaining: capacity - rate.units_in(Span::at(backlog)), reset: backlog });
        }
        let start = self.gcra.arrival(state, now).max(Span::at(now));
        let end = rate.add(start, rate.time_for(cost))?;
        let backlog = Span { nanos: end.nanos - now, ..end };
        if backlog > self.full {
            return None;
        }
        self.gcra.store(state, end);
        Some(QuotaStatus { remaining: capacity - rate.units_in(backlog), reset: backlog.ceil() })
    }

    fn charge_debt(&self, state: &mut CompactState, now: u64, units: u64, claim: &mut Claim) {
        self.gcra.charge_debt(state, now, units, claim);
    }

    fn refund(&self, state: &mut CompactState, now: u64, units: u64, claim: &mut Claim) {
        self.gcra.refund(state, now, units, claim);
    }

    #[inline]
    fn status_of(&self, state: &CompactState, now: u64) -> QuotaStatus {
        self.gcra.status_of(state, now)
    }
}
