//! Weights as integers, in the same proportions.
//!
//! It does not share anything out. The invariant: every instance derives the
//! same integers from the same weights.

use crate::{algorithm::gcd, error::ConfigError};

/// Sums stay below two to the power of this. Then no product with a limit needs
/// more than 128 bits, and no sum more than 64.
const MAX_BITS: i32 = 48;

/// Weights as integers in lowest terms. A positive weight never becomes 0.
pub(super) fn to_integers(weights: &[f64], max_count: u64) -> Result<Vec<u64>, ConfigError> {
    let rejected = |reason: &str| ConfigError::new("share.weights", reason);
    if weights.is_empty() {
        return Err(rejected("must have at least one"));
    }
    if weights.len() as u64 > max_count {
        return Err(rejected(&format!("must be at most {max_count}")).with_value(weights.len()));
    }
    if let Some(index) = weights.iter().position(|weight| !weight.is_finite() || *weight < 0.0) {
        let key = format!("share.weights[{index}]");
        return Err(ConfigError::new(key, "must be finite, and not negative").with_value(weights[index]));
    }
    let largest = weights.iter().copied().fold(0.0, f64::max);
    if largest == 0.0 {
        return Err(rejected("must not all be 0"));
    }
    // So that the sum of numbers up to one fits.
    let count_bits = (usize::BITS - weights.len().leading_zeros()).cast_signed();
    let factor = 2f64.powi(MAX_BITS - 1 - count_bits);
    let power = power_above(largest);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive, and below 2^48")]
    let to_integer = |weight: &f64| match weight / power {
        relative if relative > 0.0 => ((relative * factor).round() as u64).max(1),
        _ => 0,
    };
    let integers: Vec<u64> = weights.iter().map(to_integer).collect();
    // In lowest terms all combinations of extra units recur soonest.
    let divisor = integers.iter().copied().filter(|integer| *integer > 0).fold(0, gcd);
    Ok(integers.into_iter().map(|integer| integer / divisor).collect())
}

/// The power of two at or above a positive number, or next to it where that
/// would be infinite; dividing by it is exact.
fn power_above(value: f64) -> f64 {
    let (mut power, mut scaled) = (1.0, value);
    while scaled > 1.0 && power < f64::MAX / 2.0 {
        (power, scaled) = (power * 2.0, scaled / 2.0);
    }
    while scaled <= 0.5 && power > f64::MIN_POSITIVE {
        (power, scaled) = (power / 2.0, scaled * 2.0);
    }
    power
}

#[cfg(test)]
mod tests;
