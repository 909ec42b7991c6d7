//! Rates and spans, exact and in range.

use std::time::Duration;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn three_units_per_second_take_one_second() {
    let rate = Rate::new(3, SECOND);
    assert_eq!(rate.time_for(3), Some(Span { micros: 1_000_000, parts: 0 }));
    assert_eq!(rate.time_for(1), Some(Span { micros: 333_333, parts: 1 }));
    assert_eq!(rate.units_in(Span { micros: 333_333, parts: 1 }), 1);
    assert_eq!(rate.units_in(Span { micros: 333_333, parts: 2 }), 2);
    assert_eq!(rate.nanos(Span { micros: 333_333, parts: 1 }), 333_333_334);
    assert_eq!(rate.minus(Span { micros: 666_666, parts: 2 }, 1), Span { micros: 333_333, parts: 1 });
}

#[test]
fn a_window_shorter_than_a_microsecond_has_an_exact_rate() {
    let rate = Rate::new(3, Duration::from_nanos(1_500));
    assert_eq!((rate.units, rate.period), (2, 1));
}

#[test]
fn every_rate_stays_within_the_exact_range() {
    for limit in [1, 3, 4_294_967_311, u64::MAX] {
        for window in [Duration::from_nanos(1), SECOND, Duration::from_secs(31_536_000), Duration::MAX] {
            let rate = Rate::new(limit, window);
            assert!(rate.units >= 1 && rate.units < 1 << 32, "{limit} in {window:?}: {rate:?}");
            assert!(rate.period >= 1 && rate.period <= MAX_MICROS, "{limit} in {window:?}: {rate:?}");
            assert!(rate.limit <= MAX_LIMIT && rate.window <= MAX_MICROS, "{limit} in {window:?}: {rate:?}");
            assert!(rate.time_for(rate.max_units()).is_some(), "{limit} in {window:?}: {rate:?}");
        }
    }
}
