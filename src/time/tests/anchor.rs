use proptest::prelude::*;

use super::super::*;

const SECOND: u64 = CHECK_INTERVAL;
const MILLISECOND: u64 = 1_000_000;

fn at(elapsed: u64, wall: u64) -> Reading {
    Reading { elapsed, monotonic: elapsed, wall }
}

fn steady(time: u64) -> Anchor {
    Anchor::new(at(0, time))
}

#[test]
fn a_wall_clock_ahead_is_followed_at_once() {
    let anchor = steady(100 * SECOND).follow(at(SECOND, 200 * SECOND));
    assert_eq!(anchor.time_at(SECOND), 200 * SECOND);
    assert_eq!(anchor.next_check, 2 * SECOND);
}

#[test]
fn a_wall_clock_behind_is_reached_without_running_backwards() {
    let mut anchor = steady(100 * SECOND);
    let (mut elapsed, mut last) = (SECOND, 0);
    let mut wall = anchor.time_at(elapsed) - SECOND / 10;
    for _ in 0..20 {
        let followed = anchor.follow(at(elapsed, wall));
        assert!(followed.time_at(elapsed) >= last, "ran backwards");
        last = followed.time_at(elapsed);
        wall += followed.next_check - elapsed;
        (anchor, elapsed) = (followed, followed.next_check);
    }
    assert_eq!(anchor.slow_for, 0);
    assert!(anchor.time_at(elapsed).abs_diff(wall) <= TOLERANCE);
}

#[test]
fn a_step_back_of_a_day_slows_time_and_never_reverses_it() {
    let day = 86_400 * SECOND;
    let anchor = steady(10 * day).follow(at(SECOND, 9 * day));
    assert_eq!(anchor.time_at(SECOND), 10 * day + SECOND);
    assert_eq!(anchor.time_at(9 * SECOND), 10 * day + SECOND + 7 * SECOND);
}

/// The wall clock is a little behind at one comparison, and then nothing reads
/// the clock for a minute.
#[test]
fn an_idle_minute_after_a_correction_is_a_minute() {
    for behind in [TOLERANCE + 1, 100_000, MILLISECOND, 3 * MILLISECOND] {
        let start = 100 * SECOND;
        let corrected = steady(start).follow(at(SECOND, start + SECOND - behind));
        let before = corrected.time_at(SECOND);
        let after = corrected.follow(at(61 * SECOND, start + 61 * SECOND - behind)).time_at(61 * SECOND);
        let (passed, minute) = (after - before, 60 * SECOND);
        assert!(passed.abs_diff(minute) <= behind, "{behind} behind: a minute took {passed}");
    }
}

/// The counter is off by up to a part in a thousand, as after a calibration
/// under load.
#[test]
fn an_idle_minute_is_that_of_the_monotonic_clock_and_not_of_the_counter() {
    for drift in [-1_000_000_i64, -50_000, 50_000, 1_000_000] {
        let start = 100 * SECOND;
        let reading = |monotonic: u64| Reading {
            elapsed: monotonic.saturating_add_signed(monotonic as i64 / 1_000_000_000 * drift),
            monotonic,
            wall: start + monotonic,
        };
        let mut anchor = Anchor::new(reading(0));
        for second in [1, 2, 3, 63, 64, 124] {
            let reading = reading(second * SECOND + SECOND / 1_000);
            let elapsed = reading.elapsed;
            anchor = anchor.follow(reading);
            let off = anchor.time_at(elapsed).abs_diff(reading.wall);
            assert!(off <= MILLISECOND, "{drift} in a billion: off by {off} after {second} s");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// The wall clock steps, the counter drifts, and pauses have any length.
    #[test]
    fn readings_never_run_backwards(
        steps in prop::collection::vec((0..5 * SECOND, -1_000_000..1_000_000_i64, 0..10 * SECOND, any::<bool>()), 1..60),
    ) {
        let wall = 1_000 * SECOND;
        let (mut reading, mut last) = (at(0, wall), 0);
        let mut anchor = Anchor::new(reading);
        for (pause, drift, step, back) in steps {
            reading.elapsed += pause.saturating_add_signed(drift.min(pause as i64));
            reading.monotonic += pause;
            reading.wall = if back { reading.wall.saturating_sub(step) } else { reading.wall + step } + pause;
            if reading.elapsed >= anchor.next_check {
                anchor = anchor.follow(reading);
            }
            let time = anchor.time_at(reading.elapsed);
            prop_assert!(time >= last, "{} after {}", time, last);
            last = time;
        }
    }
}
