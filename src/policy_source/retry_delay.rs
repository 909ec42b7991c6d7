//! The delay before a failed source is asked again: [`RetryDelay`].
//!
//! Every delay is at least half a millisecond and at most a day, so no setting
//! spins or overflows a timer.

use std::time::Duration;

use crate::jitter::shorten;

/// Exponential delays with jitter: a fleet does not return all at once.
#[derive(Clone, Debug)]
pub(super) struct RetryDelay {
    min: Duration,
    max: Duration,
    failures: u32,
}

/// Timers do not reach as far as some durations do.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

impl RetryDelay {
    pub(super) fn new(min: Duration, max: Duration) -> Self {
        let min = min.clamp(Duration::from_millis(1), LONGEST);
        Self { min, max: max.clamp(min, LONGEST), failures: 0 }
    }

    /// After a success: the next delay is the shortest again.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }

    /// The delay after one more failure.
    pub(super) fn next_delay(&mut self) -> Duration {
        let doubled = self.min.saturating_mul(1 << self.failures.min(30));
        self.failures = self.failures.saturating_add(1);
        shorten(doubled.min(self.max))
    }
}

impl Default for RetryDelay {
    fn default() -> Self {
        Self::new(Duration::from_millis(100), Duration::from_millis(500))
    }
}

#[cfg(test)]
mod tests;
