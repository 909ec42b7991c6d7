//! The delay before a failed source is asked again: [`RetryDelay`].
//!
//! Every delay is at least half a millisecond and at most a day, so no setting
//! spins or overflows a timer.

use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

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
        let delay = doubled.min(self.max);
        // Different in each process and on each call.
        let random = RandomState::new().hash_one(self.failures) % 1024;
        delay - delay.mul_f64(random as f64 / 2048.0)
    }
}

impl Default for RetryDelay {
    fn default() -> Self {
        Self::new(Duration::from_millis(100), Duration::from_millis(500))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_maximum_and_reset_after_a_success() {
        let mut retry = RetryDelay::new(Duration::from_millis(100), Duration::from_millis(500));
        for max in [100, 200, 400, 500, 500] {
            let (max, delay) = (Duration::from_millis(max), retry.next_delay());
            assert!(delay <= max && delay >= max / 2, "{delay:?} of {max:?}");
        }
        retry.reset();
        assert!(retry.next_delay() <= Duration::from_millis(100));
        retry.failures = u32::MAX;
        assert!(retry.next_delay() >= Duration::from_millis(250), "however often it failed");
    }

    #[test]
    fn no_setting_overflows_a_timer_or_makes_it_spin() {
        assert!(RetryDelay::new(Duration::ZERO, Duration::ZERO).next_delay() > Duration::ZERO);
        assert!(RetryDelay::new(Duration::MAX, Duration::ZERO).next_delay() <= LONGEST);
    }

    #[test]
    fn delays_differ_between_instances() {
        let mut retry = RetryDelay::new(Duration::from_secs(100), Duration::from_secs(100));
        let delays: Vec<_> = (0..20).map(|_| retry.next_delay()).collect();
        assert!(delays.iter().any(|delay| delay.abs_diff(delays[0]) > Duration::from_secs(1)), "{delays:?}");
    }
}
