//! The arithmetic that the bucket algorithms share: exact rational time.

use super::{Claim, QuotaStatus};

/// A length or point of time: nanoseconds and a fraction, counted in parts of
/// the rate's numerator, so that no rate is rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Span {
    pub(super) nanos: u64,
    pub(super) fraction: u32,
}

impl Span {
    #[inline]
    pub(super) const fn at(nanos: u64) -> Self {
        Self { nanos, fraction: 0 }
    }

    /// Whole nanoseconds, rounded up.
    #[inline]
    pub(super) fn ceil(self) -> u64 {
        self.nanos.saturating_add(u64::from(self.fraction > 0))
    }
}

/// How long one unit takes to come back: `period / units` nanoseconds, in
/// lowest terms. 3 a second is 1,000,000,000 / 3, not 333,333,333.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    units: u32,
    period: u64,
    /// What one unit takes.
    one: Span,
}

impl Rate {
    /// `None` where the fraction does not fit.
    pub(super) fn new(limit: u64, window: u64) -> Option<Self> {
        let divisor = gcd(limit, window);
        let units = u32::try_from(limit / divisor).ok()?;
        let mut rate = Self { units, period: window / divisor, one: Span::at(0) };
        rate.one = rate.multiply(1);
        Some(rate)
    }

    /// Whether every unit takes whole nanoseconds.
    #[inline]
    pub(super) fn is_whole(&self) -> bool {
        self.units == 1
    }

    /// What `cost` units take; saturates.
    #[inline]
    pub(super) fn time_for(&self, cost: u64) -> Span {
        if cost == 1 { self.one } else { self.multiply(cost) }
    }

    fn multiply(&self, cost: u64) -> Span {
        if self.units == 1 {
            return Span::at(cost.saturating_mul(self.period));
        }
        let parts = u128::from(cost) * u128::from(self.period);
        let units = u128::from(self.units);
        match u64::try_from(parts / units) {
            #[allow(clippy::cast_possible_truncation, reason = "a remainder of a u32")]
            Ok(nanos) => Span { nanos, fraction: (parts % units) as u32 },
            Err(_) => Span::at(u64::MAX),
        }
    }

    /// `None` past the end of time.
    #[inline]
    pub(super) fn add(&self, time: Span, length: Span) -> Option<Span> {
        let fraction = u64::from(time.fraction) + u64::from(length.fraction);
        let carry = fraction >= u64::from(self.units);
        let fraction = if carry { fraction - u64::from(self.units) } else { fraction };
        let nanos = time.nanos.checked_add(length.nanos)?.checked_add(u64::from(carry))?;
        #[allow(clippy::cast_possible_truncation, reason = "less than `units`, a u32")]
        Some(Span { nanos, fraction: fraction as u32 })
    }

    /// Zero where `length` is longer.
    #[inline]
    pub(super) fn subtract(&self, time: Span, length: Span) -> Span {
        if length >= time {
            return Span::at(0);
        }
        let nanos = time.nanos - length.nanos;
        match time.fraction.checked_sub(length.fraction) {
            Some(fraction) => Span { nanos, fraction },
            // `time` is longer, so a nanosecond is there to borrow from.
            None => Span { nanos: nanos - 1, fraction: self.units - (length.fraction - time.fraction) },
        }
    }

    /// How many units take `length`, rounded up; saturates.
    #[inline]
    pub(super) fn units_in(&self, length: Span) -> u64 {
        if self.units == 1 {
            return length.nanos.div_ceil(self.period);
        }
        let parts = u128::from(length.nanos) * u128::from(self.units) + u128::from(length.fraction);
        match u64::try_from(parts) {
            Ok(parts) => parts.div_ceil(self.period),
            Err(_) => u64::try_from(parts.div_ceil(u128::from(self.period))).unwrap_or(u64::MAX),
        }
    }
}

/// The longest backlog that two words hold beside the time itself, until the
/// year 2116: some 438 years.
pub(super) const LONGEST_BACKLOG: u64 = u64::MAX - (1 << 62);

/// A theoretical arrival time, in two words.
///
/// The first word is the time, rounded down, at which all units are back. The
/// second holds the fraction and the limit under which it was written, so that
/// a key keeps what it has used when its limit changes.
#[derive(Clone, Debug)]
pub(super) struct Gcra {
    pub(super) rate: Rate,
    limit: Float32,
    window: u64,
    pub(super) capacity: u64,
}

impl Gcra {
    /// `None` where two words cannot hold the state exactly.
    pub(super) fn new(limit: u64, window: u64, capacity: u64) -> Option<Self> {
        let (rate, capacity) =
            if limit == 0 { (Rate::new(1, window), 0) } else { (Rate::new(limit, window), capacity) };
        let rate = rate?;
        let fits = rate.time_for(capacity).nanos <= LONGEST_BACKLOG;
        fits.then(|| Self { rate, limit: Float32::ceil(limit), window, capacity })
    }

    /// The same for a share: `units` in `period`, and a tag for its states,
    /// which are the only ones that such a machine is shown. What does not fit
    /// is rounded down: a rate by less than one part in two thousand million.
    pub(super) fn of_share((mut units, mut period): (u64, u64), capacity: u64, tag: u32) -> Self {
        let mut capacity = if units == 0 { 0 } else { capacity };
        let rate = loop {
            match Rate::new(units.max(1), period) {
                Some(rate) => break rate,
                None => (units, period) = (units / 2, period.div_ceil(2)),
            }
        };
        while capacity > 1 && rate.time_for(capacity).nanos > LONGEST_BACKLOG {
            capacity /= 2;
        }
        Self { rate, limit: Float32(tag), window: period, capacity }
    }

    /// Units owed at `at`, of a state that this wrote.
    pub(super) fn owed(&self, state: &super::CompactState, at: u64) -> u64 {
        self.rate.units_in(self.rate.subtract(self.arrival(state, at), Span::at(at)))
    }

    /// The state that owes so many at `at`.
    pub(super) fn owing(&self, at: u64, units: u64) -> super::CompactState {
        let mut state = super::CompactState::default();
        let arrival = self.rate.add(Span::at(at), self.rate.time_for(units));
        self.store(&mut state, arrival.unwrap_or(Span::at(u64::MAX)));
        state
    }

    /// Whether any amount of waiting can let `cost` pass.
    #[inline]
    pub(super) fn can_hold(&self, cost: u64) -> bool {
        cost <= self.capacity && self.capacity > 0
    }

    /// The theoretical arrival time that the state holds, under this rate.
    #[inline]
    pub(super) fn arrival(&self, state: &super::CompactState, now: u64) -> Span {
        let [nanos, low] = *state;
        #[allow(clippy::cast_possible_truncation, reason = "two halves of a word")]
        let (limit, fraction) = (Float32((low >> 32) as u32), low as u32);
        if limit == self.limit || nanos < now {
            return Span { nanos, fraction: if limit == self.limit { fraction } else { 0 } };
        }
        // Written under another limit: the units used then are owed now.
        let (arrival, rate, period) = self.under_old_limit(limit, nanos, fraction);
        let used = arrival.saturating_sub(u128::from(now) * rate).div_ceil(period);
        let length = self.rate.time_for(u64::try_from(used).unwrap_or(u64::MAX));
        self.rate.add(Span::at(now), length).unwrap_or(Span::at(u64::MAX))
    }

    /// When no more than `units` are left of what was used under another
    /// limit. Until the next commit they come back as fast as that limit had
    /// it, as [`Gcra::arrival`] counts them.
    #[cold]
    pub(super) fn old_units_left(&self, state: &super::CompactState, units: u64) -> u64 {
        let [nanos, low] = *state;
        #[allow(clippy::cast_possible_truncation, reason = "two halves of a word")]
        let (limit, fraction) = (Float32((low >> 32) as u32), low as u32);
        let (arrival, rate, period) = self.under_old_limit(limit, nanos, fraction);
        if rate == 0 {
            return 0;
        }
        let at = arrival.saturating_sub(u128::from(units) * period).div_ceil(rate);
        u64::try_from(at).unwrap_or(u64::MAX)
    }

    /// The arrival time that was written under `limit`, in parts of a
    /// nanosecond; how many there are to one, and how many a unit takes.
    #[cold]
    fn under_old_limit(&self, limit: Float32, nanos: u64, fraction: u32) -> (u128, u128, u128) {
        let divisor = gcd(limit.value(), self.window);
        let (rate, period) = (u128::from(limit.value() / divisor), u128::from(self.window / divisor));
        // Of a limit that was rounded nobody knows what the fraction was of.
        let fraction = if limit.is_exact() { u128::from(fraction) } else { rate };
        (u128::from(nanos) * rate + fraction, rate, period)
    }

    /// Whether the state was written under this limit, and so is in this
    /// rate's terms.
    #[inline]
    pub(super) fn wrote(&self, state: &super::CompactState) -> bool {
        state[1] >> 32 == u64::from(self.limit.0)
    }

    #[inline]
    pub(super) fn store(&self, state: &mut super::CompactState, arrival: Span) {
        *state = [arrival.nanos, u64::from(self.limit.0) << 32 | u64::from(arrival.fraction)];
    }

    #[inline]
    pub(super) fn commit(&self, state: &mut super::CompactState, now: u64, at: u64, cost: u64) {
        let start = self.arrival(state, now).max(Span::at(at));
        let arrival = self.rate.add(start, self.rate.time_for(cost));
        self.store(state, arrival.unwrap_or(Span::at(u64::MAX)));
    }

    pub(super) fn charge_debt(&self, state: &mut super::CompactState, now: u64, units: u64, claim: &mut Claim) {
        let together = self.is_latest(state, claim);
        let start = self.arrival(state, now).max(Span::at(now));
        let arrival = self.rate.add(start, self.rate.time_for(units)).unwrap_or(Span::at(u64::MAX));
        self.store(state, arrival);
        claim.extend(together, units);
        claim.until = arrival.ceil();
    }

    /// The latest charge goes as if it had never come. What others have built
    /// upon is forfeited: two words do not tell how much of it has come back,
    /// nor whether one of those others holds a reservation.
    pub(super) fn refund(&self, state: &mut super::CompactState, now: u64, units: u64, claim: &mut Claim) {
        if !self.is_latest(state, claim) {
            return;
        }
        let arrival = self.arrival(state, now).min(Span::at(claim.until));
        let arrival = self.rate.subtract(arrival, self.rate.time_for(units));
        self.store(state, arrival);
        claim.until = arrival.ceil();
    }

    /// Whether nothing was charged since. The end of time stands for all that
    /// is beyond it.
    fn is_latest(&self, state: &super::CompactState, claim: &Claim) -> bool {
        #[allow(clippy::cast_possible_truncation, reason = "the lower half of a word")]
        let arrival = Span { nanos: state[0], fraction: state[1] as u32 };
        arrival.nanos < u64::MAX && stands_at(arrival.ceil(), claim.until, self.rate.period, self.rate.units.into())
    }

    #[inline]
    pub(super) fn status_of(&self, state: &super::CompactState, now: u64) -> QuotaStatus {
        let backlog = self.rate.subtract(self.arrival(state, now), Span::at(now));
        let remaining = self.capacity.saturating_sub(self.rate.units_in(backlog));
        QuotaStatus { remaining, reset: backlog.ceil() }
    }
}

/// When all is back, rounded up, whoever wrote it.
pub(super) fn ends_at(state: &super::CompactState) -> u64 {
    #[allow(clippy::cast_possible_truncation, reason = "the lower half of a word")]
    let fraction = state[1] as u32;
    Span { nanos: state[0], fraction }.ceil()
}

/// Whether an arrival time is the one that a claim knows, both rounded up. A
/// reservation is for a whole nanosecond, so that what was before it is left
/// up to one later when it goes. No charge may hide in that.
pub(super) fn stands_at(arrival: u64, claimed: u64, period: u64, units: u64) -> bool {
    let shortest = period / units;
    shortest > 0 && arrival.checked_sub(claimed).is_some_and(|later| later <= u64::from(shortest > 1))
}

/// A u64 in 32 bits, rounded up: exact below 67 million, and never off by
/// more than one part in 33 million.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Float32(u32);

impl Float32 {
    const MANTISSA: u32 = 26;

    fn ceil(value: u64) -> Self {
        let mut exponent = (u64::BITS - value.leading_zeros()).saturating_sub(Self::MANTISSA);
        let mut mantissa = u128::from(value).div_ceil(1 << exponent);
        if mantissa >> Self::MANTISSA != 0 {
            exponent += 1;
            mantissa = u128::from(value).div_ceil(1 << exponent);
        }
        #[allow(clippy::cast_possible_truncation, reason = "26 bits")]
        Self(exponent << Self::MANTISSA | mantissa as u32)
    }

    /// Whether nothing can have been rounded.
    fn is_exact(self) -> bool {
        self.0 >> Self::MANTISSA == 0
    }

    fn value(self) -> u64 {
        let mantissa = u128::from(self.0 & ((1 << Self::MANTISSA) - 1));
        u64::try_from(mantissa << (self.0 >> Self::MANTISSA)).unwrap_or(u64::MAX)
    }
}

pub(crate) fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_float_is_never_less_than_its_value() {
        for value in [0, 1, 3, 67_108_863, 67_108_864, 67_108_865, 1 << 40, (1 << 40) + 1, u64::MAX] {
            let float = Float32::ceil(value);
            assert!(float.value() >= value, "{value}");
            assert!(float.value() - value <= value >> 25, "{value}");
        }
    }

    #[test]
    fn three_a_second_is_three() {
        let rate = Rate::new(3, 1_000_000_000).unwrap();
        assert_eq!(rate.time_for(3), Span::at(1_000_000_000));
        let third = rate.time_for(1);
        let two = rate.add(third, third).unwrap();
        assert_eq!(rate.add(two, third), Some(Span::at(1_000_000_000)));
        assert_eq!(rate.subtract(Span::at(1_000_000_000), two), third);
        assert_eq!(rate.units_in(third), 1);
        assert_eq!(rate.units_in(Span { fraction: third.fraction + 1, ..third }), 2);
    }
}
