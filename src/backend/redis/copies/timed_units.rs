//! Units and when each were charged, in bounded memory: [`TimedUnits`].
//!
//! Invariant: no unit counts earlier than it was charged, nor later than the latest.

/// Times and units. A time is that of the request, on the limiter's clock; the store charges
/// it later by up to a message and its queue.
#[derive(Debug, Default)]
pub(super) struct TimedUnits(Vec<(u64, u64)>);

/// The most times that are kept apart.
const MAX_TIMES: usize = 64;

impl TimedUnits {
    /// Where there are too many times, units count later by at most a thirtieth of all that
    /// time. To count late delays requests, and admits none too early.
    pub(super) fn add(&mut self, units: u64, at: u64) {
        match self.0.last_mut() {
            Some((last, own)) if *last == at => *own = own.saturating_add(units),
            _ => self.0.push((at, units)),
        }
        if self.0.len() > MAX_TIMES {
            self.merge();
        }
    }

    /// The times and their units, in no order.
    pub(super) fn into_inner(self) -> Vec<(u64, u64)> {
        self.0
    }

    /// Has units within the same step of time count at the latest of them. Steps get longer
    /// by powers of two: a step consists of whole shorter ones, so that units which are
    /// merged again stay within it.
    #[cold]
    fn merge(&mut self) {
        self.0.sort_unstable_by_key(|(at, _)| *at);
        let [(first, _), .., (last, _)] = *self.0 else { return };
        let mut shift = ((last - first) / MAX_TIMES as u64).checked_ilog2().unwrap_or(0);
        while self.0.len() > MAX_TIMES {
            self.0.dedup_by(|(later, added), (at, units)| {
                let is_same_step = *later >> shift == *at >> shift;
                if is_same_step {
                    (*at, *units) = (*later, units.saturating_add(*added));
                }
                is_same_step
            });
            shift += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The n-th unit that was charged is the n-th that counts.
    #[test]
    fn of_any_number_of_units_none_counts_earlier_or_much_later() {
        for (count, gap) in [(1, 1), (64, 1_000), (65, 1), (200, 3_000_000), (10_000, 1), (10_000, 7_919)] {
            let mut times = TimedUnits::default();
            let start = 1_800_000_000_000_000_000;
            // Two threads may note their times in turn.
            let charged = (0..count).map(|number| start + (number ^ 1) * gap);
            charged.clone().for_each(|at| times.add(1, at));
            let mut all = times.into_inner();
            assert!(all.len() <= MAX_TIMES);
            all.sort_unstable();
            let counted: Vec<u64> = all.iter().flat_map(|&(at, units)| (0..units).map(move |_| at)).collect();
            let mut charged: Vec<u64> = charged.collect();
            charged.sort_unstable();
            assert_eq!(counted.len(), charged.len());
            let late = counted.iter().zip(&charged).map(|(counted, charged)| counted.checked_sub(*charged).unwrap());
            let latest = late.max().unwrap();
            assert!(latest <= count * gap / 30, "{latest} ns late of {} ns", count * gap);
        }
    }

    #[test]
    fn times_that_have_nothing_in_common_are_merged() {
        let mut times = TimedUnits::default();
        for number in 0..1_000 {
            times.add(u64::MAX, if number % 2 == 0 { number } else { u64::MAX - number });
        }
        assert!(times.into_inner().len() <= MAX_TIMES);
    }
}
