use super::*;

#[test]
fn a_formatted_duration_parses_to_the_same() {
    for (duration, text) in [
        (Duration::ZERO, "0s"),
        (Duration::from_nanos(1), "1ns"),
        (Duration::from_millis(250), "250ms"),
        (Duration::from_millis(1_500), "1500ms"),
        (Duration::from_secs(90), "90s"),
        (Duration::from_secs(600), "10m"),
        (Duration::from_secs(86_400), "1d"),
        (Duration::from_secs(u64::MAX), "18446744073709551615s"),
        (Duration::MAX, "18446744073709551615s 999999999ns"),
    ] {
        assert_eq!(format(duration), text);
        assert_eq!(parse(text), Ok(duration), "{text}");
    }
}

#[test]
fn several_spans_add_up() {
    assert_eq!(parse("1h 30m"), Ok(Duration::from_secs(5_400)));
    assert_eq!(parse("1h30m"), Ok(Duration::from_secs(5_400)));
    assert_eq!(parse("1w"), Ok(Duration::from_secs(604_800)));
    assert_eq!(parse("1w 2d"), Ok(Duration::from_secs(777_600)));
    assert_eq!(parse("5min"), Ok(Duration::from_secs(300)));
    assert_eq!(parse("7us"), Ok(Duration::from_micros(7)));
    assert_eq!(parse(" 1.5s "), Ok(Duration::from_millis(1_500)));
    assert!(parse("18446744073709551615s 1000000000ns").is_err());
    assert!(parse("18446744073709551615s 1s").is_err());
}

#[test]
fn an_ambiguous_duration_is_rejected() {
    for text in ["", " ", "0", "10", "1.5", "s", "-1s", "1 fortnight", "1M", "2 years", "1s,", "0.1ns", "1e3s", "١s"] {
        assert!(parse(text).is_err(), "{text}");
    }
}
