use super::{
    Committed, Standing, StateMachine, Wide,
    gcra::{gcd, refundable},
};

/// Token and leaky bucket for quotas whose state two words cannot hold: a
/// fraction above 32 bits, or a burst that takes longer than a lifetime.
///
/// Time is counted in parts of a nanosecond, `units` to one, in 128 bits. The
/// words are: idle at, the arrival time's upper and lower half, the limit.
#[derive(Clone, Debug)]
pub(crate) struct WideGcra {
    limit: u64,
    window: u64,
    capacity: u64,
    units: u64,
    period: u64,
    /// Leaky: nothing may come ahead of its time.
    spaced: bool,
}

impl WideGcra {
    pub(super) fn bucket(limit: u64, window: u64, burst: u64) -> Self {
        let divisor = gcd(limit, window);
        let (units, period) = if limit == 0 { (1, window) } else { (limit / divisor, window / divisor) };
        let capacity = if limit == 0 { 0 } else { burst };
        Self { limit, window, capacity, units, period, spaced: false }
    }

    pub(super) fn spaced(limit: u64, window: u64, burst: u64) -> Self {
        Self { spaced: true, ..Self::bucket(limit, window, burst) }
    }

    pub(super) fn longest_wait(&self) -> u64 {
        let wait = self.time_for(self.capacity) / u128::from(self.units);
        if self.spaced { u64::try_from(wait).unwrap_or(u64::MAX) } else { u64::MAX }
    }

    /// Less than 2^128: two factors of 64 bits.
    fn time_for(&self, cost: u64) -> u128 {
        u128::from(cost) * u128::from(self.period)
    }

    fn parts(&self, nanos: u64) -> u128 {
        u128::from(nanos) * u128::from(self.units)
    }

    /// Whole nanoseconds, rounded up; saturates.
    fn nanos(&self, parts: u128) -> u64 {
        u64::try_from(parts.div_ceil(u128::from(self.units))).unwrap_or(u64::MAX)
    }

    fn arrival(&self, state: &Wide, now: u64) -> u128 {
        let Some((old, arrival)) = self.old(state) else { return stored(state) };
        let used = arrival.saturating_sub(old.parts(now)).div_ceil(u128::from(old.period));
        let used = u64::try_from(used).unwrap_or(u64::MAX);
        self.parts(now).saturating_add(self.time_for(used))
    }

    /// What the state was written by, where that was under another limit.
    fn old(&self, state: &Wide) -> Option<(Self, u128)> {
        let limit = state[3];
        let other = limit != self.limit && limit != 0;
        other.then(|| (Self::bucket(limit, self.window, self.capacity), stored(state)))
    }

    fn store(&self, state: &mut Wide, arrival: u128) {
        #[allow(clippy::cast_possible_truncation, reason = "two halves")]
        let (upper, lower) = ((arrival >> 64) as u64, arrival as u64);
        *state = [self.nanos(arrival), upper, lower, self.limit];
    }
}

/// The arrival time, in the parts of the limit that it was written under.
fn stored(state: &Wide) -> u128 {
    u128::from(state[1]) << 64 | u128::from(state[2])
}

impl StateMachine for WideGcra {
    type State = Wide;

    fn earliest(&self, state: &Wide, now: u64, cost: u64) -> Option<u64> {
        if cost > self.capacity || self.capacity == 0 {
            return None;
        }
        let arrival = self.arrival(state, now);
        arrival.max(self.parts(now)).checked_add(self.time_for(cost))?;
        let slack = if self.spaced { 0 } else { self.capacity - cost };
        let at = match self.old(state) {
            None => self.nanos(arrival.saturating_sub(self.time_for(slack))),
            // Until the next commit what was used comes back as it did then.
            Some((old, arrival)) => old.nanos(arrival.saturating_sub(old.time_for(slack))),
        };
        let at = at.max(now);
        (at < u64::MAX).then_some(at)
    }

    fn commit(&self, state: &mut Wide, now: u64, at: u64, cost: u64) {
        let start = self.arrival(state, now).max(self.parts(at));
        self.store(state, start.saturating_add(self.time_for(cost)));
    }

    fn refund(&self, state: &mut Wide, now: u64, committed: Committed) {
        let returned = self.time_for(committed.cost).min(self.parts(refundable(state[0], now, committed)));
        let arrival = self.arrival(state, now);
        self.store(state, arrival.saturating_sub(returned));
    }

    fn standing(&self, state: &Wide, now: u64) -> Standing {
        let backlog = self.arrival(state, now).saturating_sub(self.parts(now));
        let used = u64::try_from(backlog.div_ceil(u128::from(self.period))).unwrap_or(u64::MAX);
        let remaining = match self.spaced {
            true => u64::from(backlog == 0 && self.capacity > 0),
            false => self.capacity.saturating_sub(used),
        };
        Standing { remaining, reset: self.nanos(backlog) }
    }
}
