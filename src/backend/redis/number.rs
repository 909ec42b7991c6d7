//! Numbers as the scripts take them: integers below 2^53, times in whole
//! microseconds.

use crate::{algorithm::gcd, time::nanos};

/// 2^53 - 1: up to here every integer is a double.
const EXACT: u64 = (1 << 53) - 1;

/// The longest window, and the longest that a burst may take: 71 years.
pub(super) const LONGEST: u64 = 1 << 51;

/// Larger limits count as this one.
pub(super) const EXACT_LIMIT: u64 = 1 << 51;

/// Nanoseconds as microseconds, rounded up.
pub(super) fn micros_up(nanos: u64) -> u64 {
    nanos.div_ceil(1_000)
}

/// Nanoseconds as microseconds, cut to what is exact.
pub(super) fn micros(nanos: u64) -> u64 {
    (nanos / 1_000).min(EXACT)
}

/// A number that is cut to what is exact.
pub(super) fn exact(number: u64) -> u64 {
    number.min(EXACT)
}

/// Microseconds and parts of one, `units` to each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Span {
    pub(super) micros: u64,
    pub(super) parts: u64,
}

/// One unit takes `period / units` microseconds, in lowest terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rate {
    pub(super) units: u64,
    pub(super) period: u64,
    /// What tells this limit from another: units in each `window`.
    pub(super) limit: u64,
    pub(super) window: u64,
}

impl Rate {
    /// Exact where the fraction needs no more than 32 bits; else slower, by
    /// less than one part in 2^31, and as much for each unit per microsecond.
    /// Longer than 71 years for a unit counts as that.
    pub(super) fn new(limit: u64, window: std::time::Duration) -> Self {
        let window = nanos(window).max(1);
        let limit = limit.min(EXACT_LIMIT / 1_000);
        let (limit, window) = match window % 1_000 {
            0 => (limit, (window / 1_000).min(LONGEST)),
            // In thousandths of a unit, so that the window is a whole number.
            _ if window <= LONGEST => (limit * 1_000, window),
            _ => (limit, micros_up(window).min(LONGEST)),
        };
        // Nothing ever passes a limit of zero, whatever its rate.
        let divisor = gcd(limit.max(1), window);
        let (mut units, mut period) = (limit.max(1) / divisor, window / divisor);
        let excess = (u64::BITS - units.leading_zeros()).saturating_sub(32);
        if excess > 0 {
            (units, period) = (units >> excess, period.div_ceil(1 << excess).max(1));
        }
        Self { units, period, limit, window }
    }

    /// What `cost` units take; `None` where it is longer than 71 years.
    pub(super) fn time_for(&self, cost: u64) -> Option<Span> {
        let parts = u128::from(cost) * u128::from(self.period);
        let micros = u64::try_from(parts / u128::from(self.units)).ok().filter(|micros| *micros <= LONGEST)?;
        #[allow(clippy::cast_possible_truncation, reason = "a remainder of a u64")]
        Some(Span { micros, parts: (parts % u128::from(self.units)) as u64 })
    }

    /// The most units that take no longer than 71 years.
    pub(super) fn most(&self) -> u64 {
        u64::try_from(u128::from(LONGEST) * u128::from(self.units) / u128::from(self.period)).unwrap_or(u64::MAX)
    }

    fn parts(&self, span: Span) -> u128 {
        u128::from(span.micros) * u128::from(self.units) + u128::from(span.parts)
    }

    /// How many units take `span`, rounded up.
    pub(super) fn units_in(&self, span: Span) -> u64 {
        u64::try_from(self.parts(span).div_ceil(u128::from(self.period))).unwrap_or(u64::MAX)
    }

    /// Nanoseconds, rounded up.
    pub(super) fn nanos(&self, span: Span) -> u64 {
        let nanos = (self.parts(span) * 1_000).div_ceil(u128::from(self.units));
        u64::try_from(nanos).unwrap_or(u64::MAX)
    }

    /// `span` less what `cost` units take.
    pub(super) fn before(&self, span: Span, cost: u64) -> Span {
        let parts = self.parts(span).saturating_sub(u128::from(cost) * u128::from(self.period));
        let units = u128::from(self.units);
        #[allow(clippy::cast_possible_truncation, reason = "less than the span")]
        Span { micros: (parts / units) as u64, parts: (parts % units) as u64 }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn three_a_second_are_three() {
        let rate = Rate::new(3, SECOND);
        assert_eq!(rate.time_for(3), Some(Span { micros: 1_000_000, parts: 0 }));
        assert_eq!(rate.time_for(1), Some(Span { micros: 333_333, parts: 1 }));
        assert_eq!(rate.units_in(Span { micros: 333_333, parts: 1 }), 1);
        assert_eq!(rate.units_in(Span { micros: 333_333, parts: 2 }), 2);
        assert_eq!(rate.nanos(Span { micros: 333_333, parts: 1 }), 333_333_334);
        assert_eq!(rate.before(Span { micros: 666_666, parts: 2 }, 1), Span { micros: 333_333, parts: 1 });
    }

    #[test]
    fn windows_may_be_shorter_than_a_microsecond() {
        let rate = Rate::new(3, Duration::from_nanos(1_500));
        assert_eq!((rate.units, rate.period), (2, 1));
    }

    #[test]
    fn no_rate_is_too_much() {
        for limit in [1, 3, 4_294_967_311, u64::MAX] {
            for window in [Duration::from_nanos(1), SECOND, Duration::from_secs(31_536_000), Duration::MAX] {
                let rate = Rate::new(limit, window);
                assert!(rate.units >= 1 && rate.units < 1 << 32, "{limit} in {window:?}: {rate:?}");
                assert!(rate.period >= 1 && rate.period <= LONGEST, "{limit} in {window:?}: {rate:?}");
                assert!(rate.limit <= EXACT_LIMIT && rate.window <= LONGEST, "{limit} in {window:?}: {rate:?}");
                assert!(rate.time_for(rate.most()).is_some(), "{limit} in {window:?}: {rate:?}");
            }
        }
    }
}
