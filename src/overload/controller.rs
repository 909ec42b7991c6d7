//! Which part of all requests is shed: [`Controller`], a proportional-integral controller.
//!
//! It reads no signal and no clock. Invariant: the part is from 0 to [`MOST`], and back at
//! 0 within ten seconds in which no signal is above its threshold.

/// The largest part that is shed.
pub(super) const MOST: f64 = 0.95;

/// What an error, the part by which a signal is above its threshold, adds at once.
const PROPORTIONAL: f64 = 0.2;

/// What it adds in a second.
const INTEGRAL: f64 = 0.5;

/// What an integral falls in a second at least, while no signal is above its threshold.
const SLOWEST_FALL: f64 = MOST / 10.0;

/// A signal many times above its threshold counts as one that is twice as high: the part
/// then grows from 0 to its most within two seconds.
const HIGHEST_ERROR: f64 = 1.0;

#[derive(Debug, Default)]
pub(super) struct Controller {
    integral: f64,
    fraction: f64,
}

impl Controller {
    /// `seconds` have passed since the last step; `error` is of the worst signal, 0 at its
    /// threshold.
    pub(super) fn step(&mut self, error: f64, seconds: f64) {
        let error = error.clamp(-1.0, HIGHEST_ERROR);
        let change = if error > 0.0 { INTEGRAL * error } else { (INTEGRAL * error).min(-SLOWEST_FALL) };
        self.integral = (self.integral + change * seconds).clamp(0.0, MOST);
        self.fraction = (self.integral + PROPORTIONAL * error).clamp(0.0, MOST);
    }

    /// The part of all requests that is shed.
    pub(super) fn fraction(&self) -> f64 {
        self.fraction
    }
}

#[cfg(test)]
mod tests;
