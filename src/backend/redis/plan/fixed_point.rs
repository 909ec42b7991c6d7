//! Fixed-point time and rates, as the scripts count: whole microseconds, and
//! fractions of one. It knows nothing of tiers or charges.
//!
//! Invariant: all results are integers below 2^53. Lua 5.1 has only doubles,
//! which hold those exactly.

use crate::{algorithm::gcd, time::nanos};

/// 2^53 - 1: every integer up to this is exact as a double.
const MAX_EXACT: u64 = (1 << 53) - 1;

/// The longest window, and the longest time that a burst may take: 71 years.
pub(crate) const MAX_MICROS: u64 = 1 << 51;

/// Larger limits count as this one.
pub(crate) const MAX_LIMIT: u64 = 1 << 51;

/// Nanoseconds as microseconds, rounded up.
pub(crate) fn micros_up(nanos: u64) -> u64 {
    nanos.div_ceil(1_000)
}

/// Nanoseconds as microseconds, rounded down and capped to what is exact.
pub(crate) fn micros(nanos: u64) -> u64 {
    exact(nanos / 1_000)
}

/// A number, capped to what is exact.
pub(crate) fn exact(number: u64) -> u64 {
    number.min(MAX_EXACT)
}

/// Microseconds, and fractions of one: its [`Rate`] says how many make a
/// microsecond.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Span {
    pub(crate) micros: u64,
    pub(crate) parts: u64,
}

impl Span {
    /// Longer than any window.
    pub(crate) const MAX: Self = Self { micros: MAX_MICROS, parts: 0 };
}

/// One unit takes `period / units` microseconds, in lowest terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Rate {
    pub(crate) units: u64,
    pub(crate) period: u64,
    /// `limit` units in each `window` identify the limit that a counter was
    /// written under.
    pub(crate) limit: u64,
    pub(crate) window: u64,
}

impl Rate {
    /// Exact where the fraction needs at most 32 bits; else slower, by less
    /// than one part in 2^31 and as much again for each unit per microsecond.
    /// A unit that takes more than 71 years counts as that.
    pub(crate) fn new(limit: u64, window: std::time::Duration) -> Self {
        let window = nanos(window).max(1);
        let limit = limit.min(MAX_LIMIT / 1_000);
        let (limit, window) = match window % 1_000 {
            0 => (limit, (window / 1_000).min(MAX_MICROS)),
            // In thousandths of a unit, so that the window is a whole number.
            _ if window <= MAX_MICROS => (limit * 1_000, window),
            _ => (limit, micros_up(window).min(MAX_MICROS)),
        };
        // A limit of zero admits nothing, whatever its rate.
        let divisor = gcd(limit.max(1), window);
        let (mut units, mut period) = (limit.max(1) / divisor, window / divisor);
        let excess = (u64::BITS - units.leading_zeros()).saturating_sub(32);
        if excess > 0 {
            (units, period) = (units >> excess, period.div_ceil(1 << excess).max(1));
        }
        Self { units, period, limit, window }
    }

    /// How long `cost` units take; `None` where that is more than 71 years.
    pub(crate) fn time_for(&self, cost: u64) -> Option<Span> {
        let span = self.span(u128::from(cost) * u128::from(self.period))?;
        (span.micros <= MAX_MICROS).then_some(span)
    }

    /// The most units that take at most 71 years.
    pub(crate) fn max_units(&self) -> u64 {
        u64::try_from(u128::from(MAX_MICROS) * u128::from(self.units) / u128::from(self.period)).unwrap_or(u64::MAX)
    }

    /// How many units take `span`, rounded up.
    pub(crate) fn units_in(&self, span: Span) -> u64 {
        div_ceil(self.parts(span), self.period)
    }

    /// Nanoseconds, rounded up.
    pub(crate) fn nanos(&self, span: Span) -> u64 {
        div_ceil(self.parts(span) * 1_000, self.units)
    }

    /// `span` less the time that `cost` units take.
    pub(crate) fn minus(&self, span: Span, cost: u64) -> Span {
        let parts = self.parts(span).saturating_sub(u128::from(cost) * u128::from(self.period));
        self.span(parts).unwrap_or_default()
    }

    fn parts(&self, span: Span) -> u128 {
        u128::from(span.micros) * u128::from(self.units) + u128::from(span.parts)
    }

    fn span(&self, parts: u128) -> Option<Span> {
        let (micros, parts) = divide(parts, self.units);
        Some(Span { micros: u64::try_from(micros).ok()?, parts })
    }
}

/// Rounded up, and capped.
fn div_ceil(number: u128, divisor: u64) -> u64 {
    let (whole, rest) = divide(number, divisor);
    u64::try_from(whole + u128::from(rest > 0)).unwrap_or(u64::MAX)
}

/// Quotient and remainder. Nearly all numbers fit into one word, which needs no call of a
/// library to be divided.
#[allow(clippy::cast_possible_truncation, reason = "a remainder of a u64")]
fn divide(number: u128, divisor: u64) -> (u128, u64) {
    match u64::try_from(number) {
        Ok(number) => (u128::from(number / divisor), number % divisor),
        Err(_) => (number / u128::from(divisor), (number % u128::from(divisor)) as u64),
    }
}

#[cfg(test)]
mod tests;
