use proptest::prelude::*;

use super::super::*;

/// When each month from 1970 to 2100 begins, counted day by day: in days.
fn naive() -> Vec<u64> {
    let (mut starts, mut days) = (vec![0], 0);
    for year in 1970..=2100 {
        let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        for days_of_month in [31, if is_leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
            days += days_of_month;
            starts.push(days);
        }
    }
    starts
}

#[test]
fn months_begin_where_a_naive_calendar_says() {
    for (month, days) in naive().into_iter().enumerate() {
        let (month, start) = (month as u64, days * DAY);
        assert_eq!(start_of_month(month), start, "{month}");
        assert_eq!(month_of(start), month);
        assert_eq!(month_of(start + DAY - 1), month);
        assert_eq!(start.checked_sub(1).map(month_of), month.checked_sub(1));
    }
}

#[test]
fn known_months_begin_at_known_times() {
    // By `date -u -d 2024-03-01 +%s` and so on.
    for (month, seconds) in
        [(0, 0), (649, 1_706_745_600), (650, 1_709_251_200), (362, 951_868_800), (1_562, 4_107_542_400)]
    {
        assert_eq!(start_of_month(month), seconds * 1_000_000_000, "{month}");
    }
}

/// Windows of any length and phase, or months.
fn calendars() -> impl Strategy<Value = Calendar> {
    let even =
        (1..u64::MAX / 4, any::<u64>()).prop_map(|(length, ahead)| Calendar::Even { length, ahead: ahead % length });
    prop_oneof![even, (1..1_000_u64).prop_map(Calendar::even), Just(Calendar::Months)]
}

proptest! {
    #[test]
    fn a_time_is_in_its_window(calendar in calendars(), at: u64) {
        let number = calendar.number(at);
        prop_assert!(calendar.start(number) <= at);
        prop_assert_eq!(calendar.end(at), calendar.start(number.saturating_add(1)));
        let end = calendar.end(at);
        prop_assert!(end == u64::MAX || at < end && end - calendar.start(number) <= calendar.longest());
    }

    #[test]
    fn windows_are_counted_forth_and_back(calendar in calendars(), at in 0..u64::MAX / 4, windows in 0..20_u64) {
        let end = calendar.end(at);
        let later = calendar.later(end, windows);
        if later < u64::MAX / 2 {
            prop_assert_eq!(later, calendar.start(calendar.number(at) + 1 + windows));
            prop_assert_eq!(calendar.earlier(later, windows), end);
            prop_assert_eq!(calendar.begin_after(at, later), windows);
        }
    }

    #[test]
    fn nothing_overflows(calendar in calendars(), at: u64, windows: u64) {
        prop_assert!(calendar.later(at, windows) >= calendar.earlier(at, windows));
        prop_assert!(calendar.start(windows) >= calendar.start(windows / 2));
        calendar.begin_after(windows, at);
    }
}
