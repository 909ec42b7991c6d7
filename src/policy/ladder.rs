//! The steps of an adaptive rate: its limits, from floor to ceiling. Knows
//! nothing of a key's current rate.
//!
//! Invariant: all steps have the same window, so that one counter serves them.

use std::time::Duration;

use super::adapt::{Adapt, per_second};
use crate::quota::Quota;

/// The limits that a rule's adaptive tier can have.
#[derive(Debug)]
pub(crate) struct Ladder {
    /// Units per window, ascending.
    limits: Box<[u64]>,
    /// In seconds.
    window: f64,
    pub(crate) bounds: RateBounds,
}

/// The bounds and speed of an adaptive rate. Rates are in units per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RateBounds {
    pub(crate) floor: f64,
    pub(crate) ceiling: f64,
    pub(crate) start: f64,
    /// Growth per second near the rate at which it was rejected, as a share of
    /// that rate.
    pub(crate) increase: f64,
    /// The factor after a rejection.
    pub(crate) decrease: f64,
}

/// The fewest units in a window, so that even a step of one unit raises the
/// limit by at most 2 %.
const FEWEST: f64 = 50.0;

/// The largest ratio of a step to the one below, unless they differ by one unit.
const STEP: f64 = 1.015;

/// Windows that operators recognize, in seconds. Each is at most ten times the
/// one before, so that the largest limit fits into 32 bits.
const WINDOWS: [u64; 11] = [1, 10, 60, 600, 3_600, 21_600, 86_400, 604_800, 2_592_000, 8_640_000, 31_536_000];

/// The burst, in seconds of the rate.
const BURST: f64 = 0.005;

impl Ladder {
    pub(super) fn new(adapt: &Adapt) -> Self {
        let (floor, ceiling) = (per_second(&adapt.floor), per_second(&adapt.ceiling));
        let window = window(floor);
        let highest = units(ceiling, window);
        let lowest = units_up(floor, window).min(highest);
        let mut limits = vec![lowest];
        let mut last = lowest;
        while last < highest {
            last = up(last).min(highest);
            limits.push(last);
        }
        let Adapt { increase, decrease, .. } = *adapt;
        let bounds = RateBounds { floor, ceiling, start: per_second(&adapt.first()), increase, decrease };
        #[allow(clippy::cast_precision_loss, reason = "at most a year")]
        Self { limits: limits.into(), window: window as f64, bounds }
    }

    /// The number of steps between the floor and the ceiling of `adapt`.
    pub(super) fn steps_of(adapt: &Adapt) -> usize {
        Self::new(adapt).limits.len()
    }

    /// The quotas, from the floor to the ceiling, for requests that cost `cost`
    /// units each. The burst fits one of them, unless it exceeds the limit.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "validated: some millions at once"
    )]
    pub(super) fn quotas(&self, cost: u64) -> impl Iterator<Item = Quota> + '_ {
        self.limits.iter().map(move |&limit| {
            let burst = (limit as f64 / self.window * BURST).floor() as u64;
            Quota::new(limit, Duration::from_secs(self.window as u64)).burst(burst.max(cost.clamp(1, limit)))
        })
    }

    /// The index of the highest step that is at most `rate`, or 0, the floor.
    #[allow(clippy::cast_precision_loss, reason = "32 bits")]
    pub(crate) fn step(&self, rate: f64) -> usize {
        let units = rate * self.window + 1e-6;
        self.limits.partition_point(|&limit| limit as f64 <= units).saturating_sub(1)
    }

    /// The rate of a step, in units per second.
    #[cfg(test)]
    pub(crate) fn rate(&self, step: usize) -> f64 {
        self.limits.get(step).map_or(self.bounds.ceiling, |&limit| limit as f64 / self.window)
    }
}

/// The shortest window in which the floor has at least [`FEWEST`] units.
#[allow(clippy::cast_precision_loss, reason = "at most a year")]
fn window(floor: f64) -> u64 {
    WINDOWS.into_iter().find(|&window| floor * window as f64 >= FEWEST - 1e-6).unwrap_or(31_536_000)
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "validated: 32 bits hold it"
)]
fn units(rate: f64, window: u64) -> u64 {
    ((rate * window as f64 + 1e-6).floor() as u64).max(1)
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "validated: 32 bits hold it"
)]
fn units_up(rate: f64, window: u64) -> u64 {
    ((rate * window as f64 - 1e-6).ceil() as u64).max(1)
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "validated: 32 bits hold it"
)]
fn up(limit: u64) -> u64 {
    ((limit as f64 * STEP) as u64).max(limit + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ladder(floor: Quota, ceiling: Quota) -> Ladder {
        let adapt = Adapt::between(floor, ceiling);
        adapt.check().unwrap();
        Ladder::new(&adapt)
    }

    #[test]
    fn its_steps_are_even_and_end_at_the_ceiling() {
        let days = |limit, days: u64| Quota::new(limit, Duration::from_secs(86_400 * days));
        for (floor, ceiling) in [
            (Quota::per_second(1), Quota::per_second(1_000)),
            (Quota::per_second(1_000), Quota::per_second(1_000_000_000)),
            (Quota::per_minute(1), Quota::per_second(1_000)),
            (Quota::per_hour(1), Quota::per_second(100)),
            (days(1, 2), Quota::per_second(5)),
            (days(3, 2), days(3, 2)),
            (Quota::new(7, Duration::from_millis(300)), Quota::new(7, Duration::from_millis(3))),
        ] {
            let ladder = ladder(floor, ceiling);
            let quotas: Vec<Quota> = ladder.quotas(1).collect();
            assert!(quotas.len() <= 1_200, "{}", quotas.len());
            assert!(quotas[0].limit() >= 50 && u32::try_from(quotas[quotas.len() - 1].limit()).is_ok(), "{floor:?}");
            assert!(quotas.windows(2).all(|two| {
                let rise = two[1].limit() as f64 / two[0].limit() as f64;
                two[0].window() == two[1].window() && rise > 1.0 && rise <= 1.0201
            }));
            for (step, quota) in quotas.iter().enumerate() {
                let rate = per_second(quota);
                assert!(
                    (ladder.bounds.floor * 0.999_999..=ladder.bounds.ceiling * 1.000_001).contains(&rate),
                    "{rate}"
                );
                assert_eq!(ladder.step(rate), step);
                assert_eq!(ladder.step(rate * 0.999_99), step.saturating_sub(1));
                assert!((ladder.rate(step) - rate).abs() <= rate * 1e-9);
                let burst = quota.burst_size();
                assert!(burst == 1 || burst as f64 <= rate * 0.005, "{burst} at {rate}");
            }
            assert_eq!(ladder.step(f64::MAX), quotas.len() - 1);
            assert_eq!(ladder.step(0.0), 0);
        }
    }
}
