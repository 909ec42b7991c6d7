//! How much of a key an instance uses in an interval, by what it has used: rises at
//! once, and decays slowly. It reserves nothing.

/// The demand for one key.
#[derive(Debug, Default)]
pub(super) struct Demand {
    /// When the present interval began.
    since: Moment,
    /// Units asked for since then.
    used: u32,
    /// Sixteenths of units in one of the last intervals: some have less than one unit.
    before: u32,
}

/// Parts of a unit.
const PARTS: u64 = 16;

/// How long, in nanoseconds, a request may have read the clock before it is counted, or
/// before units were leased that it takes. One from longer ago has another clock.
pub(super) const DELAYED: u64 = 1_000_000_000;

/// How much later than a time, in nanoseconds, an interval may begin that was not begun by
/// a clock which was set back since.
const HOUR: i64 = 3_600_000_000_000;

/// The most intervals that demand decays by at once: it is zero then.
const MOST_DECAYED: u64 = 192;

/// The most units that are needed at once.
const MOST: u64 = 1 << 28;

impl Demand {
    /// A request of so many units arrives.
    #[inline]
    pub(super) fn count(&mut self, units: u64) {
        self.used = self.used.saturating_add(u32::try_from(units).unwrap_or(u32::MAX));
    }

    /// The whole units that the next interval needs.
    pub(super) fn per_interval(&mut self, now: u64, interval: u64) -> u64 {
        self.of_span(now, interval, interval)
    }

    /// The whole units that the next `span` nanoseconds need.
    pub(super) fn of_span(&mut self, now: u64, interval: u64, span: u64) -> u64 {
        let parts = u128::from(self.parts(now, interval));
        let units = parts * u128::from(span) / u128::from(interval.max(1) * PARTS);
        u64::try_from(units).unwrap_or(u64::MAX).min(MOST)
    }

    /// The parts of units that the next interval needs.
    pub(super) fn parts(&mut self, now: u64, interval: u64) -> u64 {
        let elapsed = self.elapsed(now);
        if elapsed >= interval {
            let used = u128::from(self.used) * u128::from(PARTS);
            let observed = used * u128::from(interval) / u128::from(elapsed.max(interval));
            let decayed =
                (0..(elapsed / interval.max(1)).min(MOST_DECAYED)).fold(self.before, |all, _| all - all.div_ceil(8));
            self.before = u32::try_from(observed).unwrap_or(u32::MAX).max(decayed);
            (self.used, self.since) = (0, Moment::of(now));
        }
        u64::from(self.before).max(u64::from(self.used) * PARTS)
    }

    /// For how long it was not asked for, at most. Rounded up: checks come at the same
    /// intervals, and what just misses one stays until the next.
    pub(super) fn idle_for(&self, now: u64) -> u64 {
        if self.used == 0 { self.elapsed(now).saturating_add(Moment::STEP) } else { 0 }
    }

    /// Whether the present interval began before a time. It did not if it began within the
    /// hour after it; what seems later is of a clock that was set back.
    pub(super) fn is_before(&self, time: u64) -> bool {
        !(-HOUR..=0).contains(&self.since.age(time))
    }

    /// How long ago the present interval began: not at all for a request that was delayed
    /// since it read the clock, and long ago if the clock was set back, or none began.
    fn elapsed(&self, now: u64) -> u64 {
        match self.since.age(now) {
            age @ 0.. => age.unsigned_abs(),
            age if age.unsigned_abs() <= DELAYED => 0,
            _ => u64::MAX,
        }
    }
}

/// What an interval needs in which `demand` units are expected: a quarter more, and three
/// and a half standard deviations of independent requests.
pub(super) fn with_spare(demand: u64) -> u64 {
    let spare = demand.saturating_mul(49).isqrt() / 2;
    demand.saturating_add(demand / 4).saturating_add(spare)
}

/// A time in half a word: in steps of 2^16 nanoseconds, rounded down. It wraps, and can be
/// told from times that are less than 39 hours away.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moment(u32);

const STEP_BITS: u32 = 16;

impl Moment {
    /// Nanoseconds between one moment and the next.
    pub(super) const STEP: u64 = 1 << STEP_BITS;

    #[allow(clippy::cast_possible_truncation, reason = "wraps")]
    pub(super) fn of(time: u64) -> Self {
        Self((time >> STEP_BITS) as u32)
    }

    /// How long ago it was at a time; negative if it is later.
    pub(super) fn age(self, now: u64) -> i64 {
        #[allow(clippy::cast_possible_wrap, reason = "the sign of the difference")]
        let steps = Self::of(now).0.wrapping_sub(self.0) as i32;
        i64::from(steps) << STEP_BITS
    }
}
