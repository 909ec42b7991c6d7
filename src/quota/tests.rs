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
    assert_eq!(Quota::per_month(8).scaled(0.25), Quota::per_month(2));
    let days = |limit| Quota::per_day(limit).algorithm(Algorithm::FixedWindow).offset(Duration::from_secs(9 * 3_600));
    assert_eq!(days(8).scaled(0.25), days(2));
}

#[test]
fn windows_begin_after_their_phase() {
    const DAY: u64 = 86_400;
    let of = |quota: Quota| Duration::from_nanos(quota.phase()).as_secs();
    let days = |days| Quota::new(1, Duration::from_secs(days * DAY)).algorithm(Algorithm::FixedWindow);
    let hours = |hours: u64| Duration::from_secs(hours * 3_600);
    for (quota, phase) in [
        (days(1), 0),
        (days(6), 0),
        (days(7), 4 * DAY),
        (days(14), 4 * DAY),
        (days(1).offset(hours(9)), 9 * 3_600),
        (days(7).offset(hours(9)), 4 * DAY + 9 * 3_600),
        // Beyond the week's end it is the same window.
        (days(7).offset(hours(4 * 24)), DAY),
        (Quota::per_month(1), 0),
    ] {
        assert_eq!(of(quota), phase, "{quota:?}");
    }
    for window in [Duration::ZERO, Duration::MAX] {
        Quota::new(1, window).offset(Duration::MAX).phase();
    }
}

#[test]
fn a_quota_takes_half_a_cache_line() {
    assert_eq!(size_of::<Quota>(), 32);
}
