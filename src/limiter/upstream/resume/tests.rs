use proptest::prelude::*;

use super::*;

const MILLI: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLI;

/// 50 a second, with this burst.
fn pace(burst: u64) -> ResumeSchedule {
    let mut pace = ResumeSchedule::default();
    pace.set_rate((20 * MILLI, (burst - 1) * 20 * MILLI));
    pace
}

/// Sends as early as possible. Returns the times after `from`.
fn sends(pace: &mut ResumeSchedule, from: u64, count: usize) -> Vec<u64> {
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
    pace.pause_until(10 * SECOND);
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
        pace.exhausted(at + MILLI, SECOND);
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
    pace.rejected(SECOND, SECOND, STRETCH);
    pace.pause_until(2 * SECOND);
    assert_eq!(sends(&mut pace, 2 * SECOND, 2), [0, 20], "the first rejection does not");
    for second in 2..20 {
        pace.rejected(second * SECOND, second * SECOND, STRETCH);
    }
    pace.pause_until(30 * SECOND);
    assert_eq!(sends(&mut pace, 30 * SECOND, 3), [0, 21, 43], "by at most a twelfth");
    for _ in 0..50 * 102 {
        pace.admitted(40 * SECOND);
    }
    pace.pause_until(50 * SECOND);
    assert_eq!(sends(&mut pace, 50 * SECOND, 3), [0, 20, 40]);
}

#[test]
fn a_stretched_interval_shrinks_only_after_fifty_admissions() {
    let mut pace = pace(1);
    for second in 1..3 {
        pace.rejected(second * SECOND, second * SECOND, STRETCH);
    }
    let interval = |pace: &ResumeSchedule| {
        let mut pace = *pace;
        pace.sends(9 * SECOND, 1);
        pace.next - 9 * SECOND
    };
    let stretched = interval(&pace);
    assert!(stretched > 20 * MILLI);
    for _ in 0..49 {
        pace.admitted(3 * SECOND);
    }
    assert_eq!(interval(&pace), stretched);
    pace.admitted(3 * SECOND);
    assert!((20 * MILLI..stretched).contains(&interval(&pace)));
}

/// Else slots that were missed are made up for.
#[test]
fn a_late_request_restarts_the_schedule_only_soon_after_a_rejection() {
    let late = 10 * MILLI + 1;
    let mut pace = pace(1);
    assert!(!pace.restarts_if_late(SECOND, SECOND + late), "nothing was rejected");
    pace.rejected(10 * SECOND, 10 * SECOND, STRETCH);
    for (after, is_soon) in [(MILLI, true), (2 * SECOND - 2 * late, true), (2 * SECOND, false), (60 * SECOND, false)] {
        let at = 10 * SECOND + after;
        assert!(!pace.clone().restarts_if_late(at, at + late - 1), "half an interval is on time");
        assert_eq!(pace.clone().restarts_if_late(at, at + late), is_soon, "{after} after the rejection");
    }
}

/// What a rejection with a whole second says.
const WITHIN_A_SECOND: (u64, u64) = (0, SECOND);

#[test]
fn a_whole_second_is_probed_twice_and_obeyed_if_the_probes_are_rejected() {
    let mut pace = pace(1);
    pace.exhausted(1, SECOND);
    // Sent 30 ms ago: nothing follows the probe until it is answered.
    assert!(!pace.rejected_for(970 * MILLI, SECOND, WITHIN_A_SECOND));
    assert!(!pace.rejected_for(980 * MILLI, SECOND + MILLI, WITHIN_A_SECOND), "it was sent before");
    assert_eq!(sends(&mut pace, SECOND, 3), [20, 50, 70]);
    assert!(!pace.rejected_for(1_020 * MILLI, 1_030 * MILLI, WITHIN_A_SECOND), "the first probe");
    assert_eq!(sends(&mut pace, 1_030 * MILLI, 1), [40]);
    assert!(pace.rejected_for(1_070 * MILLI, 1_080 * MILLI, WITHIN_A_SECOND), "the second probe");
    // The upstream means it, for a while.
    pace.admitted(3 * SECOND);
    assert!(pace.rejected_for(4 * SECOND, 4 * SECOND, WITHIN_A_SECOND));
    pace.admitted(5 * SECOND);
    assert!(!pace.rejected_for(30 * SECOND, 30 * SECOND, WITHIN_A_SECOND));
}

#[test]
fn an_exact_time_is_never_undercut() {
    let mut pace = pace(1);
    for second in 1..5 {
        assert!(pace.rejected_for(second * SECOND, second * SECOND, (SECOND, SECOND)));
    }
    // A rule that is slower than a second has no time to probe.
    pace = ResumeSchedule::default();
    pace.set_rate((SECOND, 0));
    assert!(pace.rejected_for(SECOND, SECOND, WITHIN_A_SECOND));
}

#[test]
fn a_finer_time_is_the_time_of_the_probe() {
    let mut pace = pace(1);
    pace.exhausted(1, SECOND);
    assert!(!pace.rejected_for(SECOND, SECOND, (300 * MILLI, SECOND)));
    assert_eq!(sends(&mut pace, SECOND, 2), [300, 320]);
}

#[test]
fn the_first_probe_comes_after_what_a_burst_ran_ahead() {
    let mut pace = pace(10);
    assert!(!pace.rejected_for(SECOND, SECOND, WITHIN_A_SECOND));
    assert_eq!(sends(&mut pace, SECOND, 2), [200, 220]);
    assert!(!pace.rejected_for(SECOND, SECOND, WITHIN_A_SECOND), "the rest of the burst");
    assert!(!pace.rejected_for(2 * SECOND, 2 * SECOND, WITHIN_A_SECOND));
    assert!(pace.rejected_for(3 * SECOND, 3 * SECOND, WITHIN_A_SECOND));
}

#[test]
fn a_rejection_neither_shortens_a_pause_nor_adds_the_waits_of_others_to_it() {
    let mut pace = pace(1);
    pace.exhausted(1, SECOND);
    sends(&mut pace, SECOND, 16);
    assert!(!pace.rejected_for(SECOND, SECOND, WITHIN_A_SECOND));
    assert_eq!(pace.next, SECOND + 20 * MILLI);
    pace.pause_until(9 * SECOND);
    pace.rejected_without_time(2 * SECOND, 2 * SECOND);
    assert_eq!(pace.next, 9 * SECOND);
}

#[test]
fn rejections_without_a_time_stretch_the_interval_further() {
    let mut pace = pace(1);
    for second in 1..20 {
        pace.rejected_without_time(second * SECOND, second * SECOND);
    }
    pace.pause_until(60 * SECOND);
    assert_eq!(sends(&mut pace, 60 * SECOND, 3), [0, 23, 46], "by at most a seventh");
}

proptest! {
    #[test]
    fn nothing_overflows(
        rate: (u64, u64), times in prop::collection::vec((any::<u64>(), any::<u64>(), 0..7_u8), 1..50),
    ) {
        let mut pace = ResumeSchedule::default();
        pace.set_rate(rate);
        for (sent, now, event) in times {
            match event {
                0 => pace.sends(now, sent),
                1 => pace.exhausted(now, sent),
                6 => { pace.rejected_for(sent, now, (sent, now)); }
                2 => { pace.rejected(sent, now, STRETCH); }
                3 => { pace.rejected_without_time(sent, now); }
                4 => pace.admitted(sent),
                _ => { pace.is_over(now); }
            }
        }
    }
}
