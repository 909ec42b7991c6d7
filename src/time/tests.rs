use super::*;

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
