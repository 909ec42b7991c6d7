use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

/// Delays that double, each cut at random to between half of it and all of it,
/// so that a fleet does not come back as one.
#[derive(Clone, Debug)]
pub(super) struct Retry {
    shortest: Duration,
    longest: Duration,
    failures: u32,
}

impl Retry {
    pub(super) fn new(shortest: Duration, longest: Duration) -> Self {
        let shortest = shortest.clamp(Duration::from_millis(1), LONGEST);
        Self { shortest, longest: longest.clamp(shortest, LONGEST), failures: 0 }
    }

    pub(super) fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// How long to wait after one more failure.
    pub(super) fn failed(&mut self) -> Duration {
        let doubled = self.shortest.saturating_mul(1 << self.failures.min(30));
        self.failures = self.failures.saturating_add(1);
        let delay = doubled.min(self.longest);
        // Seeded anew by the process, and different each time.
        let random = RandomState::new().hash_one(self.failures) % 1024;
        delay - delay.mul_f64(random as f64 / 2048.0)
    }
}

/// Timers do not reach so far as some durations do.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

impl Default for Retry {
    fn default() -> Self {
        Self::new(Duration::from_millis(100), Duration::from_millis(500))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_longest_and_start_anew_after_a_success() {
        let mut retry = Retry::new(Duration::from_millis(100), Duration::from_millis(500));
        for most in [100, 200, 400, 500, 500] {
            let (most, delay) = (Duration::from_millis(most), retry.failed());
            assert!(delay <= most && delay >= most / 2, "{delay:?} of {most:?}");
        }
        retry.succeeded();
        assert!(retry.failed() <= Duration::from_millis(100));
        retry.failures = u32::MAX;
        assert!(retry.failed() >= Duration::from_millis(250), "however often it failed");
    }

    #[test]
    fn no_setting_overflows_a_timer_or_makes_it_spin() {
        assert!(Retry::new(Duration::ZERO, Duration::ZERO).failed() > Duration::ZERO);
        assert!(Retry::new(Duration::MAX, Duration::ZERO).failed() <= LONGEST);
    }

    #[test]
    fn no_two_instances_come_at_the_same_time() {
        let mut retry = Retry::new(Duration::from_secs(100), Duration::from_secs(100));
        let delays: Vec<_> = (0..20).map(|_| retry.failed()).collect();
        assert!(delays.iter().any(|delay| delay.abs_diff(delays[0]) > Duration::from_secs(1)), "{delays:?}");
    }
}
