use super::*;

#[test]
fn a_window_is_named_in_its_largest_whole_unit() {
    for (window, name) in [
        (Duration::from_millis(250), "250ms"),
        (Duration::from_secs(10), "10s"),
        (Duration::from_secs(60), "1m"),
        (Duration::from_secs(90), "90s"),
        (Duration::from_secs(86_400), "1d"),
        (Duration::from_nanos(1_500), "1500ns"),
    ] {
        let status = TierStatus {
            rule: &"r",
            quota: Quota::new(1, window),
            remaining: 0,
            reset: 0,
            naming: TierNameStyle::ByWindow,
            violated: false,
            unit: Unit::default(),
        };
        assert_eq!(status.name(), format!("r-{name}"));
    }
}

#[test]
fn the_next_unit_of_a_bucket_comes_before_it_is_full() {
    let tier = |remaining, reset: Duration| TierStatus {
        rule: &"r",
        quota: Quota::per_second(10),
        remaining,
        reset: nanos(reset),
        naming: TierNameStyle::Alone,
        violated: false,
        unit: Unit::default(),
    };
    let empty = tier(0, Duration::from_millis(950));
    assert_eq!(empty.next_unit(), Duration::from_millis(50));
    let half = tier(5, Duration::from_millis(450));
    assert_eq!(half.next_unit(), Duration::from_millis(50));
}
