//! How much of a key an instance uses in an interval, by what it has used: rises at
//! once, and decays slowly. It reserves nothing.

/// The demand for one key.
#[derive(Debug, Default)]
pub(super) struct Demand {
    /// When the present interval began, in nanoseconds.
    since: u64,
    /// Units asked for since then.
    used: u32,
    /// Units in one of the last intervals.
    before: u32,
}

/// The most intervals that demand decays by at once: it is zero then.
const MOST_DECAYED: u64 = 192;

impl Demand {
    #[inline]
    pub(super) fn count(&mut self, units: u64) {
        self.used = self.used.saturating_add(u32::try_from(units).unwrap_or(u32::MAX));
    }

    /// The units that the next interval needs.
    pub(super) fn per_interval(&mut self, now: u64, interval: u64) -> u64 {
        let elapsed = now.saturating_sub(self.since);
        if now < self.since || elapsed >= interval {
            let observed = u128::from(self.used) * u128::from(interval) / u128::from(elapsed.max(interval));
            let decayed =
                (0..(elapsed / interval.max(1)).min(MOST_DECAYED)).fold(self.before, |all, _| all - all.div_ceil(8));
            self.before = u32::try_from(observed).unwrap_or(u32::MAX).max(decayed);
            (self.used, self.since) = (0, now);
        }
        u64::from(self.before.max(self.used))
    }

    /// For how long it was not asked for, at most.
    pub(super) fn idle_for(&self, now: u64) -> u64 {
        if self.used == 0 { now.saturating_sub(self.since) } else { 0 }
    }

    /// When the present interval began.
    pub(super) fn since(&self) -> u64 {
        self.since
    }
}

/// What an interval needs in which `demand` units are expected: a quarter more, and three
/// and a half standard deviations of independent requests.
pub(super) fn with_spare(demand: u64) -> u64 {
    let spare = demand.saturating_mul(49).isqrt() / 2;
    demand.saturating_add(demand / 4).saturating_add(spare)
}
