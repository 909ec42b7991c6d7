//! Exact rational time: a [`Rate`], which counts time in parts of a nanosecond.
//!
//! It knows no limits and no states. The invariant: no interval is ever
//! rounded. Rounding one to whole nanoseconds would turn 600 million a second
//! into a billion.

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

/// So many units in so many nanoseconds, in lowest terms. 3 a second is
/// 1,000,000,000 / 3, not 333,333,333.
///
/// A nanosecond has `units` parts, so every unit takes whole parts: `period`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rate {
    pub(super) units: u64,
    pub(super) period: u64,
}

impl Rate {
    /// A rate of no units counts as one in `period`: its bucket holds nothing.
    pub(super) fn new((units, period): (u64, u64)) -> Self {
        Self { units: units.max(1), period: period.max(1) }
    }

    /// Whether units take longer than at the other rate.
    pub(super) fn is_slower_than(self, other: Self) -> bool {
        u128::from(self.period) * u128::from(other.units) > u128::from(other.period) * u128::from(self.units)
    }

    /// The parts that so many units take. Less than 2^128: two factors of 64 bits.
    pub(super) fn time_for(self, units: u64) -> u128 {
        u128::from(units) * u128::from(self.period)
    }

    pub(super) fn parts(self, nanos: u64) -> u128 {
        u128::from(nanos) * u128::from(self.units)
    }

    /// Whole nanoseconds, rounded up; saturates.
    pub(super) fn nanos(self, parts: u128) -> u64 {
        let (nanos, rest) = self.split(parts);
        nanos.saturating_add(u64::from(rest > 0))
    }

    /// Whole nanoseconds, rounded down, and the parts beyond them; saturates.
    pub(super) fn split(self, parts: u128) -> (u64, u128) {
        match u64::try_from(parts) {
            // The parts of most rates are nanoseconds. A division takes as long as
            // all the rest of a decision.
            Ok(nanos) if self.units == 1 => (nanos, 0),
            Ok(parts) => (parts / self.units, u128::from(parts % self.units)),
            Err(_) => {
                let nanos = u64::try_from(parts / u128::from(self.units)).unwrap_or(u64::MAX);
                (nanos, parts - self.parts(nanos))
            }
        }
    }

    /// The units that come back in this time, rounded up; saturates.
    pub(super) fn units_in(self, parts: u128) -> u64 {
        u64::try_from(parts.div_ceil(u128::from(self.period))).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests;
