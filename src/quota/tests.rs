use super::*;

#[test]
fn a_part_is_rounded_down_but_never_to_zero() {
    for (units, share, scaled) in [
        (0, 0.5, 0),
        (1, 0.001, 1),
        (10, 0.25, 2),
        (100, 0.29, 29),
        (6, 1.0 / 3.0, 2),
        (7, 0.999, 6),
        (u64::MAX, 1.0, u64::MAX),
        (u64::MAX, 0.5, 1 << 63),
        (u64::MAX, f64::from_bits(1.0_f64.to_bits() - 1), u64::MAX - 2_047),
        (u64::MAX, f64::MIN_POSITIVE, 1),
    ] {
        assert_eq!(part(units, share), scaled, "{share} of {units}");
    }
}

#[test]
fn a_burst_is_scaled_as_the_limit_is() {
    let quota = Quota::per_minute(100).burst(10).scaled(0.25);
    assert_eq!((quota.limit(), quota.explicit_burst()), (25, Some(2)));
    assert_eq!(Quota::per_minute(100).scaled(0.25).explicit_burst(), None);
    assert_eq!(Quota::concurrent(8).scaled(0.25), Quota::concurrent(2));
}
