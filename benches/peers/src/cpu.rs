//! The CPU time of this process.

use std::time::Duration;

/// User and system time of all threads so far, including threads that ended.
/// Unlike `/proc`, it includes the time since the last tick.
pub fn time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writes.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    assert_eq!(result, 0, "every kernel has this clock");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
