//! The steps of an adaptive rate: its limits, from floor to ceiling. Knows
//! nothing of a key's current rate.
//!
//! Invariant: all steps have the same window, so that one counter serves them.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "validation bounds limits to 32 bits, and windows to a year"
)]

use std::{iter, time::Duration};

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

/// Windows that operators recognize, in seconds. The ladder takes the shortest
/// in which the floor has [`FEWEST`] units. Each is at most ten times the one
/// before, so that the largest limit fits into 32 bits.
const WINDOWS: [f64; 11] = [1.0, 10.0, 60.0, 600.0, 3_600.0, 21_600.0, 86_400.0, 604_800.0, 2.592e6, 8.64e6, YEAR];

/// In seconds.
const YEAR: f64 = 31_536_000.0;

/// Absorbs rounding errors: a rate that is a whole number of units in a window
/// stays one.
const ROUNDING: f64 = 1e-6;

/// The burst, in seconds of the rate.
const BURST: f64 = 0.005;

impl Ladder {
    pub(super) fn new(adapt: &Adapt) -> Self {
        let (floor, ceiling) = (per_second(&adapt.floor), per_second(&adapt.ceiling));
        let window = WINDOWS.into_iter().find(|window| floor * window >= FEWEST - ROUNDING).unwrap_or(YEAR);
        let highest = ((ceiling * window + ROUNDING) as u64).max(1);
        let lowest = ((floor * window - ROUNDING).ceil() as u64).clamp(1, highest);
        let above = |limit: u64| ((limit as f64 * STEP) as u64).max(limit + 1).min(highest);
        let limits = iter::successors(Some(lowest), |&limit| (limit < highest).then(|| above(limit)));
        let Adapt { increase, decrease, .. } = *adapt;
        let bounds = RateBounds { floor, ceiling, start: per_second(&adapt.first()), increase, decrease };
        Self { limits: limits.collect(), window, bounds }
    }

    /// The number of steps between the floor and the ceiling of `adapt`.
    pub(super) fn steps_of(adapt: &Adapt) -> usize {
        Self::new(adapt).limits.len()
    }

    /// The quotas, from the floor to the ceiling, for requests that cost `cost`
    /// units each. The burst fits one of them, unless it exceeds the limit.
    pub(super) fn quotas(&self, cost: u64) -> impl Iterator<Item = Quota> + '_ {
        self.limits.iter().map(move |&limit| {
            let burst = (limit as f64 / self.window * BURST).floor() as u64;
            Quota::new(limit, Duration::from_secs(self.window as u64)).burst(burst.max(cost.clamp(1, limit)))
        })
    }

    /// The index of the highest step that is at most `rate`, or 0, the floor.
    pub(crate) fn step(&self, rate: f64) -> usize {
        let units = rate * self.window + ROUNDING;
        self.limits.partition_point(|&limit| limit as f64 <= units).saturating_sub(1)
    }

    /// The rate of a step, in units per second.
    #[cfg(test)]
    pub(crate) fn rate(&self, step: usize) -> f64 {
        self.limits.get(step).map_or(self.bounds.ceiling, |&limit| limit as f64 / self.window)
    }
}

#[cfg(test)]
mod tests;
