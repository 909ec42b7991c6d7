//! Exact rational time: a [`Rate`] and the [`Span`]s that its units take.
//!
//! It knows no limits and no states. The invariant: no fraction is ever
//! rounded. Rounding an interval to whole nanoseconds would turn 600 million a
//! second into a billion.

use std::ops::Rem;

/// The greatest common divisor of two numbers. Never zero, so it can divide: 1
/// if both are zero.
pub(crate) fn gcd<T>(mut a: T, mut b: T) -> T
where
    T: Copy + PartialEq + From<u8> + Rem<Output = T>,
{
    let zero = T::from(0);
    while b != zero {
        (a, b) = (b, a % b);
    }
    if a == zero { T::from(1) } else { a }
}

/// A length or point of time: nanoseconds, and a fraction counted in units of
/// its rate's denominator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Span {
    pub(super) nanos: u64,
    pub(super) fraction: u32,
}

impl Span {
    /// The last point of time.
    pub(super) const MAX: Self = Self::at(u64::MAX);

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

/// The time that one unit takes: `period / units` nanoseconds, in lowest terms.
/// 3 a second is 1,000,000,000 / 3, not 333,333,333.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    units: u32,
    period: u64,
    /// The time for one unit, computed once.
    one: Span,
}

impl Rate {
    /// `None` if the fraction does not fit into 32 bits.
    pub(super) fn new(limit: u64, window: u64) -> Option<Self> {
        let divisor = gcd(limit, window);
        let units = u32::try_from(limit / divisor).ok()?;
        let mut rate = Self { units, period: window / divisor, one: Span::at(0) };
        rate.one = rate.multiply(1);
        Some(rate)
    }

    /// The nanoseconds, rounded down, between two units.
    pub(super) fn shortest_interval(&self) -> u64 {
        self.period / u64::from(self.units)
    }

    /// Nanoseconds between two units of a [whole](Self::is_whole) rate.
    #[inline]
    pub(super) fn whole_interval(&self) -> u64 {
        self.period
    }

    /// Whether every unit takes whole nanoseconds.
    #[inline]
    pub(super) fn is_whole(&self) -> bool {
        self.units == 1
    }

    /// The nanoseconds for `cost` units of a [whole](Self::is_whole) rate; saturates.
    #[inline]
    pub(super) fn whole_time_for(&self, cost: u64) -> u64 {
        cost.saturating_mul(self.period)
    }

    /// The time for `cost` units; saturates.
    #[inline]
    pub(super) fn time_for(&self, cost: u64) -> Span {
        if cost == 1 { self.one } else { self.multiply(cost) }
    }

    fn multiply(&self, cost: u64) -> Span {
        if self.units == 1 {
            return Span::at(self.whole_time_for(cost));
        }
        let parts = u128::from(cost) * u128::from(self.period);
        let units = u128::from(self.units);
        match u64::try_from(parts / units) {
            #[allow(clippy::cast_possible_truncation, reason = "a remainder of a u32")]
            Ok(nanos) => Span { nanos, fraction: (parts % units) as u32 },
            Err(_) => Span::MAX,
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

    /// Zero if `length` is longer.
    #[inline]
    pub(super) fn subtract(&self, time: Span, length: Span) -> Span {
        if length >= time {
            return Span::at(0);
        }
        let nanos = time.nanos - length.nanos;
        match time.fraction.checked_sub(length.fraction) {
            Some(fraction) => Span { nanos, fraction },
            // `time` is longer, so there is a nanosecond to borrow from.
            None => Span { nanos: nanos - 1, fraction: self.units - (length.fraction - time.fraction) },
        }
    }

    /// The number of units that take `length`, rounded up; saturates.
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

#[cfg(test)]
mod tests {
    use super::*;

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
