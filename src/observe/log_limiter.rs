//! [`LogLimiter`]: a rate limiter for log events, so that an attack cannot fill
//! the disk.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::time::Timestamp;

/// Allows one event a second, and counts the suppressed ones.
#[derive(Debug, Default)]
pub(crate) struct LogLimiter {
    next: AtomicU64,
    suppressed: AtomicU64,
}

const INTERVAL: u64 = 1_000_000_000;

impl LogLimiter {
    /// The number of events suppressed since the last one; `None` if this one
    /// is to be suppressed too, or if none is logged.
    pub(crate) fn allow(&self, now: Timestamp) -> Option<u64> {
        if cfg!(not(any(test, feature = "tracing"))) {
            return None;
        }
        let (now, next) = (now.as_nanos(), self.next.load(Ordering::Relaxed));
        // A clock that stepped back far must not silence the log.
        let is_due = now >= next || next - now > INTERVAL;
        let swap =
            |next| self.next.compare_exchange(next, now.saturating_add(INTERVAL), Ordering::Relaxed, Ordering::Relaxed);
        if is_due && swap(next).is_ok() {
            return Some(self.suppressed.swap(0, Ordering::Relaxed));
        }
        self.suppressed.fetch_add(1, Ordering::Relaxed);
        None
    }
}

#[cfg(test)]
mod tests;
