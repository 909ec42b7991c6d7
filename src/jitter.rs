//! Delays that grow, and their random parts, so that the callers and instances
//! that were put off together do not return together.
//!
//! It knows neither what is delayed nor why. Invariant: no delay and no draw
//! exceeds its bound, so that a delay keeps both of its ends.

#[cfg(feature = "test-util")]
pub(crate) mod seeded;

use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

use crate::time::nanos;

/// A number in `0..=most`, uniform within rounding.
pub(crate) fn draw(most: u64) -> u64 {
    let scaled = (u128::from(random()) * (u128::from(most) + 1)) >> 64;
    u64::try_from(scaled).unwrap_or(most)
}

/// Between half of `delay` and all of it.
pub(crate) fn shorten(delay: Duration) -> Duration {
    let nanos = nanos(delay);
    Duration::from_nanos(nanos - draw(nanos / 2))
}

/// An exponential delay: `base`, doubled so many times, and at most `max`.
pub(crate) fn doubled(base: Duration, times: u32, max: Duration) -> Duration {
    let factor = 1_u64.checked_shl(times).unwrap_or(u64::MAX);
    Duration::from_nanos(nanos(base).saturating_mul(factor).min(nanos(max)))
}

/// The standard library seeds each `RandomState` differently, so that no
/// generator has to be kept.
fn random() -> u64 {
    #[cfg(feature = "test-util")]
    if let Some(seeded) = seeded::next() {
        return seeded;
    }
    RandomState::new().hash_one(())
}

#[cfg(test)]
mod tests;
