use super::super::*;

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
