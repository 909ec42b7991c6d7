//! Token bucket and leaky bucket in six words.
//!
//! They serve quotas whose state two words cannot hold: a fraction above 32
//! bits, or a burst that takes longer than a lifetime. And they serve rules
//! that settle afterwards, because six words also say how much was refunded
//! before later charges. The invariant is that of `gcra.rs`; the arithmetic is
//! exact too, but slower: 128 bits.

use super::{
    gcra::is_same_arrival,
    rate::gcd,
    share_tag::ShareTag,
    shared_bucket::Bucket,
    state_machine::{Claim, QuotaStatus, StateMachine, WideState},
};

/// Time is counted in parts of a nanosecond, `units` to one. The words are:
/// idle at, the arrival time's upper and lower half, the limit; the nanoseconds
/// that were refunded, and the latest time charged for.
#[derive(Clone, Debug)]
pub(crate) struct WideGcra {
    limit: u64,
    window: u64,
    capacity: u64,
    units: u64,
    period: u64,
    /// Leaky: nothing is allowed ahead of its time.
    is_spaced: bool,
}

/// The word that holds how many nanoseconds were refunded; wraps.
const REFUNDED: usize = 4;

/// More than is refunded while a request lasts: 208 days.
const FORFEITED: u64 = 1 << 54;

/// The word that holds the latest time charged for.
const LATEST: usize = 5;

impl WideGcra {
    pub(super) fn token_bucket(limit: u64, window: u64, burst: u64) -> Self {
        let divisor = gcd(limit, window);
        let (units, period) = if limit == 0 { (1, window) } else { (limit / divisor, window / divisor) };
        let capacity = if limit == 0 { 0 } else { burst };
        Self { limit, window, capacity, units, period, is_spaced: false }
    }

    pub(super) fn leaky_bucket(limit: u64, window: u64, burst: u64) -> Self {
        Self { is_spaced: true, ..Self::token_bucket(limit, window, burst) }
    }

    /// The longest wait, in nanoseconds, that may be reserved. A token bucket's
    /// queue has no bound.
    pub(super) fn longest_wait(&self) -> u64 {
        // Rounded up, as departure times are.
        if self.is_spaced { self.nanos(self.time_for(self.capacity)) } else { u64::MAX }
    }

    /// How many units ahead of its time `cost` is allowed.
    fn slack_for(&self, cost: u64) -> Option<u64> {
        let slack = self.capacity.checked_sub(cost)?;
        Some(if self.is_spaced { 0 } else { slack })
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

    /// The units that come back in this time, rounded up; saturates.
    fn units_in(&self, parts: u128) -> u64 {
        u64::try_from(parts.div_ceil(u128::from(self.period))).unwrap_or(u64::MAX)
    }

    fn arrival(&self, state: &WideState, now: u64) -> u128 {
        let Some((old, arrival)) = self.old(state) else { return stored(state) };
        let used = old.units_in(arrival.saturating_sub(old.parts(now)));
        self.parts(now).saturating_add(self.time_for(used))
    }

    /// The bucket that wrote the state, if that was under another limit, and
    /// the arrival time in its terms.
    fn old(&self, state: &WideState) -> Option<(Self, u128)> {
        let limit = state[3];
        let other = limit != self.limit && limit != 0;
        other.then(|| (Self::token_bucket(limit, self.window, self.capacity), stored(state)))
    }

    fn store(&self, state: &mut WideState, arrival: u128) {
        #[allow(clippy::cast_possible_truncation, reason = "two halves")]
        let (upper, lower) = ((arrival >> 64) as u64, arrival as u64);
        [state[0], state[1], state[2], state[3]] = [self.nanos(arrival), upper, lower, self.limit];
    }

    /// Ends all claims on the state: they are in the terms of another limit,
    /// share or clock, in which their units cannot be found any more.
    fn forfeit(state: &mut WideState) {
        state[REFUNDED] = state[REFUNDED].wrapping_add(FORFEITED);
    }

    fn charge_at(&self, state: &mut WideState, now: u64, at: u64, units: u64) {
        let arrival = self.arrival(state, now);
        if self.old(state).is_some() {
            Self::forfeit(state);
        }
        self.store(state, arrival.max(self.parts(at)).saturating_add(self.time_for(units)));
        state[LATEST] = state[LATEST].max(at);
    }

    /// Where the claimed units end by now: earlier units may have been refunded
    /// meanwhile, at most all that was. `None` if it cannot be known any more.
    fn end_of(&self, state: &WideState, claim: &Claim) -> Option<u64> {
        let refunded = state[REFUNDED].wrapping_sub(claim.detail);
        let is_known = self.old(state).is_none() && refunded < FORFEITED && state[0] < u64::MAX;
        is_known.then(|| claim.until.saturating_sub(refunded))
    }

    /// An end that was found by rounding may be later than it is known to be.
    /// It is moved earlier by enough that it cannot equal the arrival time.
    fn short_of(&self, end: u64) -> u64 {
        if self.units > 1 { end.saturating_sub(2) } else { end }
    }

    /// Whether nothing was charged after the claim.
    fn is_latest(&self, state: &WideState, claim: &Claim) -> bool {
        let is_last = |end| end > 0 && is_same_arrival(state[0], end, self.period / self.units);
        self.end_of(state, claim).is_some_and(is_last)
    }
}

/// The arrival time, in parts of the limit that it was written under.
fn stored(state: &WideState) -> u128 {
    u128::from(state[1]) << 64 | u128::from(state[2])
}

impl StateMachine for WideGcra {
    type State = WideState;

    fn earliest(&self, state: &WideState, now: u64, cost: u64) -> Option<u64> {
        let slack = self.slack_for(cost).filter(|_| self.capacity > 0)?;
        let arrival = self.arrival(state, now);
        arrival.max(self.parts(now)).checked_add(self.time_for(cost))?;
        let at = match self.old(state) {
            None => self.nanos(arrival.saturating_sub(self.time_for(slack))),
            // Until the next commit, units come back at the old limit's rate.
            Some((old, arrival)) => old.nanos(arrival.saturating_sub(old.time_for(slack))),
        };
        let at = at.max(now);
        (at < u64::MAX).then_some(at)
    }

    fn commit(&self, state: &mut WideState, now: u64, at: u64, cost: u64) {
        self.charge_at(state, now, at, cost);
    }

    fn version(&self, state: &WideState) -> u64 {
        state[REFUNDED]
    }

    fn charge_debt(&self, state: &mut WideState, now: u64, units: u64, claim: &mut Claim) {
        let (latest, end) = (self.is_latest(state, claim), self.end_of(state, claim));
        self.charge_at(state, now, now, units);
        // Other charges may lie in between. The claim then counts as if all its
        // units followed its first ones: never later than they do.
        let behind = end.filter(|&end| !latest && claim.units > 0 && end > now);
        claim.until = match behind {
            Some(end) => self.short_of(end.saturating_add(self.nanos_within(self.time_for(units)))),
            None => state[0],
        };
        claim.extend(latest || behind.is_some(), units);
        if !latest && behind.is_none() {
            claim.at = now;
        }
        claim.detail = state[REFUNDED];
    }

    fn is_last(&self, state: &WideState, _: u64, claim: &Claim) -> bool {
        self.is_latest(state, claim)
    }

    /// Charges are consecutive, and units come back to the first of them. A
    /// later charge, perhaps for a future time, relies on what has come back by
    /// then. So a claim keeps only what lies beyond that time, and never less
    /// than if units had come back to it alone since its own time. A refund
    /// moves later charges up; to be safe, all charges count as moved.
    fn refund(&self, state: &mut WideState, _now: u64, units: u64, claim: &mut Claim) {
        let Some(end) = self.end_of(state, claim) else { return };
        let all = self.time_for(units);
        let arrival = stored(state);
        if self.is_latest(state, claim) {
            // It ends no later than claimed, unless other charges have moved.
            let arrival = if state[REFUNDED] == claim.detail { arrival.min(self.parts(end)) } else { arrival };
            self.store(state, arrival.saturating_sub(all));
            (claim.until, claim.detail) = (state[0], state[REFUNDED]);
            return;
        }
        // What was rounded up may not be there.
        let end = if self.units > 1 { end.saturating_sub(1) } else { end };
        let alone = claim.at.saturating_add(self.nanos_within(self.time_for(claim.units)));
        let refunded = all.min(self.parts(end.max(alone).saturating_sub(state[LATEST])));
        self.store(state, arrival.saturating_sub(refunded));
        let refunded = self.nanos(refunded);
        claim.until = self.short_of(end.saturating_sub(refunded));
        state[REFUNDED] = state[REFUNDED].wrapping_add(refunded.min(FORFEITED));
        claim.detail = state[REFUNDED];
    }

    fn move_back(&self, state: &mut WideState, _now: u64, latest: u64) {
        if state[0] <= latest {
            return;
        }
        let by = state[0] - latest;
        let units = self.old(state).map_or(self.units, |(old, _)| old.units);
        let arrival = stored(state).saturating_sub(u128::from(by) * u128::from(units));
        #[allow(clippy::cast_possible_truncation, reason = "two halves")]
        let (upper, lower) = ((arrival >> 64) as u64, arrival as u64);
        [state[0], state[1], state[2]] = [latest, upper, lower];
        Self::forfeit(state);
        state[LATEST] = state[LATEST].saturating_sub(by);
    }

    fn span(&self) -> u64 {
        self.nanos(self.time_for(self.capacity))
    }

    fn status_of(&self, state: &WideState, now: u64) -> QuotaStatus {
        let backlog = self.arrival(state, now).saturating_sub(self.parts(now));
        let remaining = match self.is_spaced {
            true => u64::from(backlog == 0 && self.capacity > 0),
            false => self.capacity.saturating_sub(self.units_in(backlog)),
        };
        QuotaStatus { remaining, reset: self.nanos(backlog) }
    }
}

impl Bucket for WideGcra {
    fn for_share(&self, (units, period): (u64, u64), burst: u64, tag: ShareTag) -> Self {
        let capacity = if units == 0 { 0 } else { burst };
        let limit = tag.bits().into();
        Self { limit, window: period, capacity, units: units.max(1), period, is_spaced: self.is_spaced }
    }

    #[allow(clippy::cast_possible_truncation, reason = "written from 32 bits")]
    fn tag(state: &WideState) -> ShareTag {
        ShareTag::from_bits(state[3] as u32)
    }

    fn full_at(state: &WideState) -> u64 {
        state[0]
    }

    fn backlog(&self, state: &WideState, at: u64) -> u64 {
        self.units_in(stored(state).saturating_sub(self.parts(at)))
    }

    fn with_backlog(&self, state: &WideState, at: u64, units: u64) -> WideState {
        let mut converted = *state;
        Self::forfeit(&mut converted);
        self.store(&mut converted, self.parts(at).saturating_add(self.time_for(units)));
        converted
    }

    fn backlog_allowed_for(&self, cost: u64) -> Option<u64> {
        self.slack_for(cost)
    }

    fn tokens(&self) -> u64 {
        if self.is_spaced { self.capacity.min(1) } else { self.capacity }
    }
}
