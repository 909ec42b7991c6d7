//! Which part of all requests is shed: [`Controller`], a proportional-integral controller.
//!
//! It controls the logarithm of the part that is admitted: a step admits so many times less.
//! One gain then holds at every load. A step of the part that is shed does not: from 90%,
//! two hundredths more take a fifth of what is admitted.
//!
//! The integral stops where the sum reaches its most. A backlog needs that much for a moment,
//! and would leave behind an integral that the load does not need.
//!
//! The gains are those that kept goodput, latency and critical requests best in the
//! simulations of `tests/sim/overload.rs`. The integral's is that of the first design.
//!
//! It reads no signal and no clock. Invariant: the part is from 0 to [`MOST`], and back at
//! 0 within ten seconds in which no signal is above its threshold.

/// The largest part that is shed.
pub(super) const MOST: f64 = 0.95;

/// What an error, the part by which a signal is above its threshold, adds at once.
const PROPORTIONAL: f64 = 0.3;

/// What it adds in a second.
const INTEGRAL: f64 = 0.5;

/// What an error below 0 takes away in a second: more, or recovery would take twice as long.
const FALL: f64 = 1.0;

/// Within so many seconds any integral falls to 0, while no signal is above its threshold.
const LONGEST_FALL: f64 = 10.0;

#[derive(Debug, Default)]
pub(super) struct Controller {
    integral: f64,
    fraction: f64,
}

impl Controller {
    /// `seconds` have passed since the last step; `error` is of the worst signal, 0 at its
    /// threshold.
    pub(super) fn step(&mut self, error: f64, seconds: f64) {
        let most = -(1.0 - MOST).ln();
        let error = error.max(-1.0);
        let proportional = PROPORTIONAL * error;
        let change = if error > 0.0 { INTEGRAL * error } else { (FALL * error).min(-most / LONGEST_FALL) };
        // At the most, the integral stays.
        let highest = if error > 0.0 { most - proportional } else { most };
        if highest > self.integral || error <= 0.0 {
            self.integral = (self.integral + change * seconds).clamp(0.0, highest);
        }
        self.fraction = (1.0 - (-self.integral - proportional).exp()).clamp(0.0, MOST);
    }

    /// The part of all requests that is shed.
    pub(super) fn fraction(&self) -> f64 {
        self.fraction
    }
}

#[cfg(test)]
mod tests;
