use super::super::*;

#[test]
fn raw_readings_are_scaled_as_the_monotonic_clock_does() {
    let clock = SystemClock::new();
    for raw in [1, 1_000, 1 << 30, 1 << 40, 1 << 52] {
        let (ours, theirs) = (clock.nanos(raw), clock.counter.delta_as_nanos(0, raw));
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
