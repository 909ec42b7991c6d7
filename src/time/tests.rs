use super::*;

const SECOND: u64 = CHECK_INTERVAL;

fn steady(time: u64) -> Anchor {
    Anchor { elapsed: 0, time, slow: false, next_check: SECOND }
}

#[test]
fn a_wall_clock_ahead_is_followed_at_once() {
    let anchor = steady(100 * SECOND).follow(SECOND, 200 * SECOND);
    assert_eq!(anchor.time_at(SECOND), 200 * SECOND);
    assert_eq!(anchor.next_check, 2 * SECOND);
}

#[test]
fn a_wall_clock_behind_is_reached_without_running_backwards() {
    let mut anchor = steady(100 * SECOND);
    let (mut elapsed, mut last) = (SECOND, 0);
    let mut wall = anchor.time_at(elapsed) - SECOND / 10;
    for _ in 0..20 {
        let followed = anchor.follow(elapsed, wall);
        assert!(followed.time_at(elapsed) >= last, "ran backwards");
        last = followed.time_at(elapsed);
        wall += followed.next_check - elapsed;
        (anchor, elapsed) = (followed, followed.next_check);
    }
    assert!(!anchor.slow);
    assert!(anchor.time_at(elapsed).abs_diff(wall) <= TOLERANCE);
}

#[test]
fn a_step_back_of_a_day_slows_time_and_never_reverses_it() {
    let day = 86_400 * SECOND;
    let anchor = steady(10 * day).follow(SECOND, 9 * day);
    assert_eq!(anchor.time_at(SECOND), 10 * day + SECOND);
    assert_eq!(anchor.time_at(9 * SECOND), 10 * day + SECOND + 7 * SECOND);
}

#[test]
fn a_line_equals_its_anchor_while_it_holds() {
    let far = u64::MAX - SECOND / 2;
    for (time, slow) in [(100 * SECOND, false), (100 * SECOND, true), (5, false), (far, false), (u64::MAX, true)] {
        let anchor = Anchor { elapsed: 7 * SECOND, time, slow, next_check: 8 * SECOND };
        let line = anchor.line();
        for elapsed in [7 * SECOND, 7 * SECOND + 1, 8 * SECOND - 1].into_iter().filter(|&at| at < line.until) {
            assert_eq!(line.offset.wrapping_add(elapsed), anchor.time_at(elapsed));
        }
        assert_eq!(line.until == 0, slow || time >= far);
    }
}

#[test]
fn raw_readings_are_scaled_as_the_monotonic_clock_does() {
    let clock = SystemClock::new();
    for raw in [1, 1_000, 1 << 30, 1 << 40, 1 << 52] {
        let (ours, theirs) = (clock.nanos(raw), clock.monotonic.delta_as_nanos(0, raw));
        assert!(ours.abs_diff(theirs) <= 1 + theirs / 1_000_000_000, "{ours} {theirs}");
    }
}

#[test]
fn readings_of_one_thread_never_run_backwards() {
    let clock = SystemClock::new();
    let mut last = clock.now();
    for _ in 0..100_000 {
        let now = clock.now();
        assert!(now >= last);
        last = now;
    }
}
