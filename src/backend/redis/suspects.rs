//! Which lanes of a cluster fail while others do not.

use std::sync::atomic::{AtomicU32, Ordering};

/// Failures in a row, by lane. Lanes share counters; empty where one server is
/// all there is, and the breaker knows as much.
#[derive(Debug)]
pub(super) struct Suspects(Box<[AtomicU32]>);

const COUNTERS: usize = 256;

impl Suspects {
    pub(super) fn new(cluster: bool) -> Self {
        Self((0..if cluster { COUNTERS } else { 0 }).map(|_| AtomicU32::new(0)).collect())
    }

    #[inline]
    pub(super) fn answered(&self, lane: usize) {
        if let Some(failures) = self.0.get(lane % COUNTERS)
            && failures.load(Ordering::Relaxed) != 0
        {
            failures.store(0, Ordering::Relaxed);
        }
    }

    /// Whether this is the `most`-th in a row; it begins anew then.
    pub(super) fn failed(&self, lane: usize, most: u32) -> bool {
        let Some(failures) = self.0.get(lane % COUNTERS) else { return false };
        let reached = failures.fetch_add(1, Ordering::Relaxed) + 1 >= most;
        if reached {
            failures.store(0, Ordering::Relaxed);
        }
        reached
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_is_suspected_for_its_own_failures_in_a_row() {
        let suspects = Suspects::new(true);
        assert!(!suspects.failed(1, 3) && !suspects.failed(1, 3));
        suspects.answered(1);
        suspects.answered(2);
        assert!(!suspects.failed(1, 3) && !suspects.failed(2, 3) && !suspects.failed(1, 3));
        suspects.answered(2);
        assert!(suspects.failed(1, 3));
        assert!(!suspects.failed(1, 3), "anew");
    }

    #[test]
    fn one_server_is_left_to_the_breaker() {
        let suspects = Suspects::new(false);
        assert!(!(0..100).any(|lane| suspects.failed(lane, 1)));
    }
}
