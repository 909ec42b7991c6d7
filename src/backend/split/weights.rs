use std::sync::Arc;

use crate::error::ConfigError;

/// Sums stay below two to the power of this: then no product with a limit
/// leaves 128 bits, and no place in a cycle 64.
const MOST_BITS: i32 = 48;

/// Weights as whole numbers, in the same proportions. Every instance comes to
/// the same ones.
pub(super) fn whole(weights: &[f64], most: u64) -> Result<Arc<[u64]>, ConfigError> {
    let rejected = |reason: &str| ConfigError::new("share.weights", reason);
    if weights.is_empty() {
        return Err(rejected("must have at least one"));
    }
    if weights.len() as u64 > most {
        return Err(rejected(&format!("must be at most {most}")).with_value(weights.len()));
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
    let bits = MOST_BITS - 1 - count_bits(weights.len());
    let relative: Vec<f64> = weights.iter().map(|weight| weight / power_above(largest)).collect();
    let factor = 2f64.powi(bits);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive, and below 2^48")]
    let numbers =
        || relative.iter().map(|weight| if *weight > 0.0 { ((weight * factor).round() as u64).max(1) } else { 0 });
    // Lowest terms: turns then come round as soon as can be.
    let divisor = numbers().fold(0, gcd).max(1);
    Ok(numbers().map(|number| number / divisor).collect())
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

fn count_bits(count: usize) -> i32 {
    (usize::BITS - count.leading_zeros()).cast_signed()
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(weights: &[f64]) -> Vec<u64> {
        whole(weights, 1 << 20).unwrap().to_vec()
    }

    #[test]
    fn what_can_be_whole_is() {
        assert_eq!(of(&[1.0]), [1]);
        assert_eq!(of(&[1.0, 2.5, 0.125]), [8, 20, 1]);
        assert_eq!(of(&[300.0, 0.0, 200.0]), [3, 0, 2]);
        assert_eq!(of(&[1e300, 3e300]).len(), 2);
        assert_eq!(of(&[f64::MIN_POSITIVE, f64::MIN_POSITIVE]), [1, 1]);
        assert_eq!(of(&[5e-324, 5e-324]), [1, 1]);
    }

    #[test]
    fn what_cannot_is_near_and_never_nothing() {
        let parts = of(&[0.1, 0.2, 0.7]);
        let total: u64 = parts.iter().sum();
        assert!(total < 1 << MOST_BITS);
        for (part, weight) in parts.iter().zip([0.1, 0.2, 0.7]) {
            assert!((*part as f64 / total as f64 - weight).abs() < 1e-13, "{parts:?}");
        }
        assert_eq!(of(&[1.0, 1e-300])[1], 1);
        assert!(of(&[f64::MAX, f64::MAX, f64::MAX]).iter().all(|part| *part == 1));
    }

    #[test]
    fn what_is_no_weight_is_rejected() {
        let rejected = |weights: &[f64]| whole(weights, 3).unwrap_err().to_string();
        assert_eq!(rejected(&[]), "share.weights: must have at least one");
        assert_eq!(rejected(&[0.0, -0.0]), "share.weights: must not all be 0");
        assert_eq!(rejected(&[1.0, f64::NAN]), "share.weights[1]: `NaN`: must be finite, and not negative");
        assert_eq!(rejected(&[f64::INFINITY]), "share.weights[0]: `inf`: must be finite, and not negative");
        assert_eq!(rejected(&[1.0, -2.0]), "share.weights[1]: `-2`: must be finite, and not negative");
        assert_eq!(rejected(&[1.0; 4]), "share.weights: `4`: must be at most 3");
    }
}
