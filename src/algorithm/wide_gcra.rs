use super::{
    Claim, QuotaStatus, StateMachine, WideState,
    gcra::{gcd, stands_at},
};

/// Token and leaky bucket for quotas whose state two words cannot hold: a
/// fraction above 32 bits, or a burst that takes longer than a lifetime. And
/// for those that are settled late, since here is room for what makes it
/// possible to give back what others have built upon.
///
/// Time is counted in parts of a nanosecond, `units` to one, in 128 bits. The
/// words are: idle at, the arrival time's upper and lower half, the limit; the
/// nanoseconds that were given back, and the latest time charged for.
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

/// The word that holds how many nanoseconds were given back.
const RETURNED: usize = 4;

/// The word that holds the latest time that was charged for.
const LATEST: usize = 5;

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

    /// The same for a share: `units` in `period`, and a tag for its states.
    pub(super) fn of_share((units, period): (u64, u64), burst: u64, tag: u32, spaced: bool) -> Self {
        let capacity = if units == 0 { 0 } else { burst };
        Self { limit: tag.into(), window: period, capacity, units: units.max(1), period, spaced }
    }

    /// Units owed at `at`, of a state that this wrote.
    pub(super) fn owed_at(&self, state: &WideState, at: u64) -> u64 {
        let backlog = stored(state).saturating_sub(self.parts(at));
        u64::try_from(backlog.div_ceil(u128::from(self.period))).unwrap_or(u64::MAX)
    }

    /// The state that owes so many at `at`. Places in the line were in the
    /// terms of another: nobody can claim his by them any more.
    pub(super) fn owing_at(&self, state: &WideState, at: u64, units: u64) -> WideState {
        let mut adopted = *state;
        adopted[RETURNED] = state[RETURNED].saturating_add(state[0].saturating_sub(at));
        self.store(&mut adopted, self.parts(at).saturating_add(self.time_for(units)));
        adopted
    }

    /// How many units may be owed for `cost` to pass.
    pub(super) fn slack_for(&self, cost: u64) -> Option<u64> {
        let slack = self.capacity.checked_sub(cost)?;
        Some(if self.spaced { 0 } else { slack })
    }

    /// How many may come at once.
    pub(super) fn tokens(&self) -> u64 {
        if self.spaced { self.capacity.min(1) } else { self.capacity }
    }

    /// A token bucket's queue has no bound.
    pub(super) fn longest_wait(&self) -> u64 {
        // Rounded up, as a turn is.
        if self.spaced { self.nanos(self.time_for(self.capacity)) } else { u64::MAX }
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

    /// Whole nanoseconds, rounded down; saturates.
    fn nanos_within(&self, parts: u128) -> u64 {
        u64::try_from(parts / u128::from(self.units)).unwrap_or(u64::MAX)
    }

    fn arrival(&self, state: &WideState, now: u64) -> u128 {
        let Some((old, arrival)) = self.old(state) else { return stored(state) };
        let used = arrival.saturating_sub(old.parts(now)).div_ceil(u128::from(old.period));
        let used = u64::try_from(used).unwrap_or(u64::MAX);
        self.parts(now).saturating_add(self.time_for(used))
    }

    /// What the state was written by, where that was under another limit.
    fn old(&self, state: &WideState) -> Option<(Self, u128)> {
        let limit = state[3];
        let other = limit != self.limit && limit != 0;
        other.then(|| (Self::bucket(limit, self.window, self.capacity), stored(state)))
    }

    fn store(&self, state: &mut WideState, arrival: u128) {
        #[allow(clippy::cast_possible_truncation, reason = "two halves")]
        let (upper, lower) = ((arrival >> 64) as u64, arrival as u64);
        [state[0], state[1], state[2], state[3]] = [self.nanos(arrival), upper, lower, self.limit];
    }

    fn charge_for(&self, state: &mut WideState, now: u64, at: u64, units: u64) {
        let arrival = self.arrival(state, now);
        if let Some((old, arrival)) = self.old(state) {
            // Places in the line were in the terms of the old limit: nobody
            // can claim his by them any more.
            let backlog = old.nanos(arrival.saturating_sub(old.parts(now)));
            state[RETURNED] = state[RETURNED].saturating_add(backlog);
        }
        self.store(state, arrival.max(self.parts(at)).saturating_add(self.time_for(units)));
        state[LATEST] = state[LATEST].max(at);
    }

    /// Where the claimed units end by now: those who were before them have
    /// been given back meanwhile, at most all that was. `None` where nobody
    /// knows any more.
    fn end_of(&self, state: &WideState, claim: &Claim) -> Option<u64> {
        let known = self.old(state).is_none() && state[RETURNED] < u64::MAX && state[0] < u64::MAX;
        let returned = state[RETURNED].saturating_sub(claim.detail);
        known.then(|| claim.until.saturating_sub(returned))
    }

    /// A place in the line that was found by rounding, and may be later than
    /// is known, is taken for so much earlier that it cannot be mistaken for
    /// the end of the line.
    fn short_of(&self, end: u64) -> u64 {
        if self.units > 1 { end.saturating_sub(2) } else { end }
    }

    /// Whether nothing was charged since.
    fn is_latest(&self, state: &WideState, claim: &Claim) -> bool {
        let stands = |end| end > 0 && stands_at(state[0], end, self.period, self.units);
        self.end_of(state, claim).is_some_and(stands)
    }
}

/// The arrival time, in the parts of the limit that it was written under.
fn stored(state: &WideState) -> u128 {
    u128::from(state[1]) << 64 | u128::from(state[2])
}

impl StateMachine for WideGcra {
    type State = WideState;

    fn earliest(&self, state: &WideState, now: u64, cost: u64) -> Option<u64> {
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

    fn commit(&self, state: &mut WideState, now: u64, at: u64, cost: u64) {
        self.charge_for(state, now, at, cost);
    }

    fn version(&self, state: &WideState) -> u64 {
        state[RETURNED]
    }

    fn charge_debt(&self, state: &mut WideState, now: u64, units: u64, claim: &mut Claim) {
        let (latest, end) = (self.is_latest(state, claim), self.end_of(state, claim));
        self.charge_for(state, now, now, units);
        // Others may have come between. What is claimed then counts as if it
        // all stood where its first part does: never later than it does.
        let behind = end.filter(|&end| !latest && claim.units > 0 && end > now);
        claim.until = match behind {
            Some(end) => self.short_of(end.saturating_add(self.nanos_within(self.time_for(units)))),
            None => state[0],
        };
        claim.extend(latest || behind.is_some(), units);
        if !latest && behind.is_none() {
            claim.at = now;
        }
        claim.detail = state[RETURNED];
    }

    /// Charges stand in line, and units come back to the first. Whoever was
    /// charged last, perhaps for a time to come, counted on what had come back
    /// by then; so of a claim there is left what lies beyond that time, and
    /// never less than if units had come back to it alone from its own time
    /// on. What goes, those behind move up by; to be sure, so does everybody.
    fn refund(&self, state: &mut WideState, _now: u64, units: u64, claim: &mut Claim) {
        let Some(end) = self.end_of(state, claim) else { return };
        let all = self.time_for(units);
        let arrival = stored(state);
        if self.is_latest(state, claim) {
            // It ends no later than was said of it, unless others have moved.
            let arrival = if state[RETURNED] == claim.detail { arrival.min(self.parts(end)) } else { arrival };
            self.store(state, arrival.saturating_sub(all));
            (claim.until, claim.detail) = (state[0], state[RETURNED]);
            return;
        }
        // What was rounded up may not be there.
        let end = if self.units > 1 { end.saturating_sub(1) } else { end };
        let alone = claim.at.saturating_add(self.nanos_within(self.time_for(claim.units)));
        let returned = all.min(self.parts(end.max(alone).saturating_sub(state[LATEST])));
        self.store(state, arrival.saturating_sub(returned));
        let returned = self.nanos(returned);
        claim.until = self.short_of(end.saturating_sub(returned));
        state[RETURNED] = state[RETURNED].saturating_add(returned);
        claim.detail = state[RETURNED];
    }

    fn status_of(&self, state: &WideState, now: u64) -> QuotaStatus {
        let backlog = self.arrival(state, now).saturating_sub(self.parts(now));
        let used = u64::try_from(backlog.div_ceil(u128::from(self.period))).unwrap_or(u64::MAX);
        let remaining = match self.spaced {
            true => u64::from(backlog == 0 && self.capacity > 0),
            false => self.capacity.saturating_sub(used),
        };
        QuotaStatus { remaining, reset: self.nanos(backlog) }
    }
}
