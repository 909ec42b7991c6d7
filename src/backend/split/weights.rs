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
mod tests {
    use super::*;

    fn of(weights: &[f64]) -> Vec<u64> {
        to_integers(weights, 1 << 20).unwrap()
    }

    #[test]
    fn weights_with_a_common_power_of_two_are_exact() {
        assert_eq!(of(&[1.0]), [1]);
        assert_eq!(of(&[1.0, 2.5, 0.125]), [8, 20, 1]);
        assert_eq!(of(&[300.0, 0.0, 200.0]), [3, 0, 2]);
        assert_eq!(of(&[1e300, 3e300]).len(), 2);
        assert_eq!(of(&[f64::MIN_POSITIVE, f64::MIN_POSITIVE]), [1, 1]);
        assert_eq!(of(&[5e-324, 5e-324]), [1, 1]);
    }

    #[test]
    fn other_weights_are_close_and_never_zero() {
        let parts = of(&[0.1, 0.2, 0.7]);
        let total: u64 = parts.iter().sum();
        assert!(total < 1 << MAX_BITS);
        for (part, weight) in parts.iter().zip([0.1, 0.2, 0.7]) {
            assert!((*part as f64 / total as f64 - weight).abs() < 1e-13, "{parts:?}");
        }
        assert_eq!(of(&[1.0, 1e-300])[1], 1);
        assert!(of(&[f64::MAX, f64::MAX, f64::MAX]).iter().all(|part| *part == 1));
    }

    #[test]
    fn invalid_weights_are_rejected() {
        let rejected = |weights: &[f64]| to_integers(weights, 3).unwrap_err().to_string();
        assert_eq!(rejected(&[]), "share.weights: must have at least one");
        assert_eq!(rejected(&[0.0, -0.0]), "share.weights: must not all be 0");
        assert_eq!(rejected(&[1.0, f64::NAN]), "share.weights[1]: `NaN`: must be finite, and not negative");
        assert_eq!(rejected(&[f64::INFINITY]), "share.weights[0]: `inf`: must be finite, and not negative");
        assert_eq!(rejected(&[1.0, -2.0]), "share.weights[1]: `-2`: must be finite, and not negative");
        assert_eq!(rejected(&[1.0; 4]), "share.weights: `4`: must be at most 3");
    }
}
