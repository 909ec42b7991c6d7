//! Token bucket and leaky bucket: the generic cell rate algorithm (ITU-T
//! I.371) in its virtual scheduling form.
//!
//! Two words hold a theoretical arrival time: the time at which all units have
//! come back. Rates and bursts that need more words are in `wide_gcra.rs`. The
//! invariant: a state records under which limit it was written, so a key keeps
//! what it has used when its limit changes.

use super::{
    rate::{Rate, Span, gcd},
    share_tag::ShareTag,
    shared_bucket::Bucket,
    state_machine::{Claim, CompactState, LazyStatus, QuotaStatus, StateMachine},
};

/// At most B + L·t/W units in any time t.
///
/// A request conforms if, after it, at most B units are missing. They come back
/// at the rate L/W.
pub(crate) type TokenBucket = Gcra<false>;

/// Departures at least W/L apart for each unit; at most B units are queued.
///
/// A request that comes before its departure time is rejected unless it may
/// wait. A wait longer than the time for B units is never reserved.
pub(crate) type LeakyBucket = Gcra<true>;

/// The longest backlog that two words hold, added to the current time, until the
/// year 2116: some 438 years.
const LONGEST_BACKLOG: u64 = u64::MAX - (1 << 62);

/// A bucket in two words: the arrival time in whole nanoseconds, rounded down;
/// the tag of the limit that it was written under, and the arrival time's
/// fraction.
///
/// `SPACED` tells a leaky bucket, which allows nothing ahead of its time, from
/// a token bucket. It is a constant to keep the token bucket's path short.
#[derive(Clone, Debug)]
pub(crate) struct Gcra<const SPACED: bool> {
    rate: Rate,
    tag: LimitTag,
    window: u64,
    capacity: u64,
    /// The time for the whole burst.
    full: Span,
    /// How far ahead of its time a cost of one is allowed.
    slack_of_one: Span,
}

impl<const SPACED: bool> Gcra<SPACED> {
    /// `None` if two words cannot hold the state exactly.
    pub(super) fn new(limit: u64, window: u64, burst: u64) -> Option<Self> {
        let (rate, capacity) = if limit == 0 { (Rate::new(1, window), 0) } else { (Rate::new(limit, window), burst) };
        let rate = rate?;
        let fits = rate.time_for(capacity).nanos <= LONGEST_BACKLOG;
        fits.then(|| Self::with(rate, LimitTag::ceil(limit), window, capacity))
    }

    fn with(rate: Rate, tag: LimitTag, window: u64, capacity: u64) -> Self {
        let full = rate.time_for(capacity);
        let slack_of_one = rate.time_for(if SPACED { 0 } else { capacity.saturating_sub(1) });
        Self { rate, tag, window, capacity, full, slack_of_one }
    }

    /// The longest wait, in nanoseconds, that may be reserved. A token bucket's
    /// queue has no bound.
    pub(super) fn longest_wait(&self) -> u64 {
        // Rounded up, as departure times are.
        if SPACED { self.full.ceil() } else { u64::MAX }
    }

    /// Whether any amount of waiting lets `cost` pass.
    #[inline]
    fn can_hold(&self, cost: u64) -> bool {
        cost <= self.capacity && self.capacity > 0
    }

    /// How far ahead of its time `cost` is allowed.
    #[inline]
    fn slack_for(&self, cost: u64) -> Span {
        match cost {
            1 => self.slack_of_one,
            _ if SPACED => Span::at(0),
            _ => self.rate.time_for(self.capacity - cost),
        }
    }

    /// The theoretical arrival time that the state holds, under this rate.
    #[inline]
    fn arrival(&self, state: &CompactState, now: u64) -> Span {
        let (tag, arrival) = read(state);
        if tag == self.tag || arrival.nanos < now {
            return arrival;
        }
        // Written under another limit: the units used then are still missing.
        let (arrival, rate, period) = self.under_old_limit(state);
        let used = arrival.saturating_sub(u128::from(now) * rate).div_ceil(period);
        self.after(Span::at(now), u64::try_from(used).unwrap_or(u64::MAX))
    }

    /// The time at which at most `units` are left of what was used under
    /// another limit. Until the next commit they come back at that limit's
    /// rate, as [`Gcra::arrival`] counts them.
    #[cold]
    fn when_old_units_are(&self, state: &CompactState, units: u64) -> u64 {
        let (arrival, rate, period) = self.under_old_limit(state);
        if rate == 0 {
            return 0;
        }
        let at = arrival.saturating_sub(u128::from(units) * period).div_ceil(rate);
        u64::try_from(at).unwrap_or(u64::MAX)
    }

    /// The arrival time of a state of another limit, in parts of a nanosecond;
    /// how many parts a nanosecond has, and how many a unit takes.
    #[cold]
    fn under_old_limit(&self, state: &CompactState) -> (u128, u128, u128) {
        let (tag, arrival) = read(state);
        let divisor = gcd(tag.limit(), self.window);
        let (rate, period) = (u128::from(tag.limit() / divisor), u128::from(self.window / divisor));
        // The denominator of the fraction is lost if the limit was rounded.
        let fraction = if tag.is_exact() { u128::from(arrival.fraction) } else { rate };
        (u128::from(arrival.nanos) * rate + fraction, rate, period)
    }

    /// Whether the state was written under this limit, and so in this rate's
    /// terms.
    #[inline]
    fn wrote(&self, state: &CompactState) -> bool {
        state[1] >> 32 == u64::from(self.tag.0)
    }

    #[inline]
    fn store(&self, state: &mut CompactState, arrival: Span) {
        *state = [arrival.nanos, u64::from(self.tag.0) << 32 | u64::from(arrival.fraction)];
    }

    /// The arrival time after `units` more; saturates.
    #[inline]
    fn after(&self, start: Span, units: u64) -> Span {
        self.rate.add(start, self.rate.time_for(units)).unwrap_or(Span::MAX)
    }

    /// Charges a cost that it [can hold](Self::can_hold), at any rate and whatever limit
    /// the state was written under. Out of line: inlined, it makes whole rates slower.
    #[inline(never)]
    fn charge_exactly(&self, state: &mut CompactState, now: u64, cost: u64) -> Option<QuotaStatus> {
        let start = self.arrival(state, now).max(Span::at(now));
        let end = self.rate.add(start, self.rate.time_for(cost))?;
        let backlog = Span { nanos: end.nanos - now, ..end };
        if backlog > self.full || SPACED && start > Span::at(now) {
            return None;
        }
        self.store(state, end);
        Some(self.status(backlog))
    }

    /// [`StateMachine::charge`] with the status left uncomputed: it takes a division.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "nearly all requests come through here")]
    pub(crate) fn charge_lazily(&self, state: &mut CompactState, now: u64, cost: u64) -> Option<LazyStatus> {
        if !self.can_hold(cost) {
            return None;
        }
        if self.rate.is_whole() && self.wrote(state) {
            let start = state[0].max(now);
            let end = start.checked_add(self.rate.whole_time_for(cost))?;
            let backlog = end - now;
            if backlog > self.full.nanos || SPACED && start > now {
                return None;
            }
            state[0] = end;
            return Some(match SPACED {
                true => LazyStatus::Known(self.status(Span::at(backlog))),
                false => LazyStatus::After { backlog, period: self.rate.whole_interval(), capacity: self.capacity },
            });
        }
        self.charge_exactly(state, now, cost).map(LazyStatus::Known)
    }

    /// Whether nothing was charged after the claim. Under another limit, equal
    /// arrival times say nothing. The end of time stands for all that is beyond
    /// it.
    fn is_latest(&self, state: &CompactState, claim: &Claim) -> bool {
        let (_, arrival) = read(state);
        self.wrote(state)
            && arrival.nanos < u64::MAX
            && is_same_arrival(arrival.ceil(), claim.until, self.rate.shortest_interval())
    }

    #[inline(always)]
    #[allow(
        clippy::inline_always,
        reason = "388 instead of 412 instructions for an immediate allow (scripts/instructions)"
    )]
    fn status(&self, backlog: Span) -> QuotaStatus {
        let remaining = match SPACED {
            // One unit passes at once if none is queued.
            true => u64::from(backlog == Span::at(0) && self.capacity > 0),
            false => self.capacity.saturating_sub(self.rate.units_in(backlog)),
        };
        QuotaStatus { remaining, reset: backlog.ceil() }
    }
}

impl<const SPACED: bool> StateMachine for Gcra<SPACED> {
    type State = CompactState;

    #[inline]
    fn earliest(&self, state: &CompactState, now: u64, cost: u64) -> Option<u64> {
        if !self.can_hold(cost) {
            return None;
        }
        // A reservation past the end of time would equal any other.
        let ends = |start| self.rate.add(start, self.rate.time_for(cost)).is_some_and(|end| end.nanos < u64::MAX);
        if state[0] < now {
            return ends(Span::at(now)).then_some(now);
        }
        let arrival = self.arrival(state, now);
        let at = match self.wrote(state) {
            true => self.rate.subtract(arrival, self.slack_for(cost)).ceil(),
            false => self.when_old_units_are(state, if SPACED { 0 } else { self.capacity - cost }),
        };
        ends(arrival).then_some(at.max(now))
    }

    #[inline]
    fn commit(&self, state: &mut CompactState, now: u64, at: u64, cost: u64) {
        let start = self.arrival(state, now).max(Span::at(at));
        self.store(state, self.after(start, cost));
    }

    #[inline(always)]
    #[allow(clippy::inline_always, reason = "nearly all requests come through here")]
    fn charge(&self, state: &mut CompactState, now: u64, cost: u64) -> Option<QuotaStatus> {
        self.charge_lazily(state, now, cost).map(LazyStatus::status)
    }

    fn charge_debt(&self, state: &mut CompactState, now: u64, units: u64, claim: &mut Claim) {
        let contiguous = self.is_latest(state, claim);
        let arrival = self.after(self.arrival(state, now).max(Span::at(now)), units);
        self.store(state, arrival);
        claim.extend(contiguous, units);
        claim.until = arrival.ceil();
    }

    fn is_last(&self, state: &CompactState, _: u64, claim: &Claim) -> bool {
        self.is_latest(state, claim)
    }

    /// Undoes the latest charge. Earlier ones are forfeited: two words do not
    /// say how much of them has come back, or whether a later charge is a
    /// reservation.
    fn refund(&self, state: &mut CompactState, now: u64, units: u64, claim: &mut Claim) {
        if !self.is_latest(state, claim) {
            return;
        }
        let arrival = self.arrival(state, now).min(Span::at(claim.until));
        let arrival = self.rate.subtract(arrival, self.rate.time_for(units));
        self.store(state, arrival);
        claim.until = arrival.ceil();
    }

    fn move_back(&self, state: &mut CompactState, _now: u64, latest: u64) {
        state[0] = state[0].min(latest);
    }

    fn span(&self) -> u64 {
        self.full.ceil()
    }

    #[inline]
    fn status_of(&self, state: &CompactState, now: u64) -> QuotaStatus {
        self.status(self.rate.subtract(self.arrival(state, now), Span::at(now)))
    }
}

impl<const SPACED: bool> Bucket for Gcra<SPACED> {
    /// What does not fit is rounded down: a rate by less than one part in two
    /// billion.
    fn for_share(&self, (mut units, mut period): (u64, u64), burst: u64, tag: ShareTag) -> Self {
        let capacity = if units == 0 { 0 } else { burst };
        let rate = loop {
            match Rate::new(units.max(1), period) {
                Some(rate) => break rate,
                None => (units, period) = (units / 2, period.div_ceil(2)),
            }
        };
        Self::with(rate, LimitTag(tag.bits()), period, capacity)
    }

    #[inline]
    fn tag(state: &CompactState) -> ShareTag {
        ShareTag::from_bits(read(state).0.0)
    }

    fn full_at(state: &CompactState) -> u64 {
        read(state).1.ceil()
    }

    fn backlog(&self, state: &CompactState, at: u64) -> u64 {
        self.rate.units_in(self.rate.subtract(self.arrival(state, at), Span::at(at)))
    }

    fn with_backlog(&self, _: &CompactState, at: u64, units: u64) -> CompactState {
        let mut state = CompactState::default();
        self.store(&mut state, self.after(Span::at(at), units));
        state
    }

    fn backlog_allowed_for(&self, cost: u64) -> Option<u64> {
        let slack = self.capacity.checked_sub(cost)?;
        Some(if SPACED { 0 } else { slack })
    }

    /// A leaky bucket stores none, but an instance without a share starts with
    /// a departure that is yet to come.
    fn tokens(&self) -> u64 {
        if SPACED { self.capacity.min(1) } else { self.capacity }
    }
}

/// The tag of the limit that the state was written under, and its arrival time.
#[inline]
fn read(&[nanos, low]: &CompactState) -> (LimitTag, Span) {
    #[allow(clippy::cast_possible_truncation, reason = "two halves of a word")]
    let (tag, fraction) = ((low >> 32) as u32, low as u32);
    (LimitTag(tag), Span { nanos, fraction })
}

/// Whether an arrival time equals the one of a claim, both rounded up.
///
/// A reservation is for a whole nanosecond, so a refund of it leaves an
/// arrival time that is up to one nanosecond later. No charge may hide in that
/// nanosecond.
pub(super) fn is_same_arrival(arrival: u64, claimed: u64, shortest_interval: u64) -> bool {
    shortest_interval > 0 && arrival.checked_sub(claimed).is_some_and(|later| later <= u64::from(shortest_interval > 1))
}

/// A limit in 32 bits, rounded up: exact below 67 million, and never off by
/// more than one part in 33 million.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LimitTag(u32);

impl LimitTag {
    const MANTISSA: u32 = 26;

    fn ceil(limit: u64) -> Self {
        let mut exponent = (u64::BITS - limit.leading_zeros()).saturating_sub(Self::MANTISSA);
        let mut mantissa = u128::from(limit).div_ceil(1 << exponent);
        if mantissa >> Self::MANTISSA != 0 {
            exponent += 1;
            mantissa = u128::from(limit).div_ceil(1 << exponent);
        }
        #[allow(clippy::cast_possible_truncation, reason = "26 bits")]
        Self(exponent << Self::MANTISSA | mantissa as u32)
    }

    /// Whether the limit cannot have been rounded.
    fn is_exact(self) -> bool {
        self.0 >> Self::MANTISSA == 0
    }

    fn limit(self) -> u64 {
        let mantissa = u128::from(self.0 & ((1 << Self::MANTISSA) - 1));
        u64::try_from(mantissa << (self.0 >> Self::MANTISSA)).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tagged_limit_is_never_less_than_the_limit() {
        for limit in [0, 1, 3, 67_108_863, 67_108_864, 67_108_865, 1 << 40, (1 << 40) + 1, u64::MAX] {
            let tag = LimitTag::ceil(limit);
            assert!(tag.limit() >= limit, "{limit}");
            assert!(tag.limit() - limit <= limit >> 25, "{limit}");
        }
    }
}
