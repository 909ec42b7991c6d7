use super::*;

#[test]
fn one_event_a_second_is_allowed_and_counts_the_suppressed_ones() {
    let limiter = LogLimiter::default();
    assert_eq!(limiter.allow(Timestamp::from_secs(10)), Some(0));
    assert_eq!(limiter.allow(Timestamp::from_secs(10)), None);
    assert_eq!(limiter.allow(Timestamp::from_nanos(10_900_000_000)), None);
    assert_eq!(limiter.allow(Timestamp::from_secs(11)), Some(2));
    assert_eq!(limiter.allow(Timestamp::from_secs(5)), Some(0), "a clock that stepped back");
}
