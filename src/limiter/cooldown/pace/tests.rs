use proptest::prelude::*;

use super::*;

const MILLI: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLI;

/// 50 a second, with this burst.
fn pace(burst: u64) -> Pace {
    let mut pace = Pace::default();
    pace.set_rate((20 * MILLI, (burst - 1) * 20 * MILLI));
    pace
}

/// Sends as early as possible. Returns the times after `from`.
fn sends(pace: &mut Pace, from: u64, count: usize) -> Vec<u64> {
    let send = |_| {
        let at = pace.next.max(from);
        pace.sends(at, 1);
        (at - from) / MILLI
    };
    (0..count).map(send).collect()
}

#[test]
fn requests_resume_one_by_one_and_a_burst_comes_back_with_time() {
    let mut pace = pace(3);
    pace.resume_at(10 * SECOND);
    assert_eq!(sends(&mut pace, 10 * SECOND, 3), [0, 20, 40]);
    // Two units come in the 40 ms after the last request.
    assert_eq!(sends(&mut pace, 10 * SECOND + 80 * MILLI, 3), [0, 0, 20]);
    assert_eq!(sends(&mut pace, 20 * SECOND, 4), [0, 0, 0, 20]);
    assert!(!pace.is_over(20 * SECOND + 1) && pace.is_over(100 * SECOND));
}

#[test]
fn an_exhausted_upstream_takes_at_most_a_fifteenth_of_the_time() {
    let mut pace = pace(1);
    let (mut at, mut sent) = (SECOND, 0);
    while at < 11 * SECOND {
        pace.sends(at, 1);
        sent += 1;
        // The response comes after a millisecond.
        pace.exhausted(at + MILLI);
        at = pace.next.max(at);
    }
    assert!((465..=472).contains(&sent), "{sent}");
}

#[test]
fn rejections_in_a_row_double_the_pause_and_a_success_ends_the_row() {
    let mut pace = pace(1);
    let mut now = SECOND;
    for (number, millis) in [20, 40, 80, 160, 320, 640, 1_280, 2_560, 5_120, 10_000, 10_000].into_iter().enumerate() {
        let pause = pace.rejected_without_time(now, now + number as u64).unwrap();
        assert_eq!(pause.as_millis(), millis);
        // One that was on its way is rejected for the same reason.
        assert_eq!(pace.rejected_without_time(now, now + 1), None);
        now = pace.next;
    }
    pace.admitted(now - SECOND * 20);
    assert_eq!(pace.rejected_without_time(now, now).unwrap().as_millis(), 10_000, "it was sent before");
    pace.admitted(now + SECOND);
    assert_eq!(pace.rejected_without_time(now + 2 * SECOND, now + 2 * SECOND).unwrap().as_millis(), 20);
}

#[test]
fn frequent_rejections_stretch_the_interval_and_admissions_shrink_it() {
    let mut pace = pace(1);
    pace.rejected(SECOND, SECOND);
    pace.resume_at(2 * SECOND);
    assert_eq!(sends(&mut pace, 2 * SECOND, 2), [0, 20], "the first rejection does not");
    for second in 2..20 {
        pace.rejected(second * SECOND, second * SECOND);
    }
    pace.resume_at(30 * SECOND);
    assert_eq!(sends(&mut pace, 30 * SECOND, 3), [0, 21, 43], "by at most a tenth");
    for _ in 0..50 * 102 {
        pace.admitted(40 * SECOND);
    }
    pace.resume_at(50 * SECOND);
    assert_eq!(sends(&mut pace, 50 * SECOND, 3), [0, 20, 40]);
}

proptest! {
    #[test]
    fn nothing_overflows(
        rate: (u64, u64), times in prop::collection::vec((any::<u64>(), any::<u64>(), 0..6_u8), 1..50),
    ) {
        let mut pace = Pace::default();
        pace.set_rate(rate);
        for (sent, now, event) in times {
            match event {
                0 => pace.sends(now, sent),
                1 => pace.exhausted(now),
                2 => { pace.rejected(sent, now); }
                3 => { pace.rejected_without_time(sent, now); }
                4 => pace.admitted(sent),
                _ => { pace.is_over(now); }
            }
        }
    }
}
