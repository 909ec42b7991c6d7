//! Which lanes of a cluster fail while others do not. It only counts; `link`
//! reconnects.
//!
//! Invariant: one server has no counters, since the circuit breaker covers it.

use std::sync::atomic::{AtomicU32, Ordering};

/// Consecutive failures by lane; lanes may share a counter.
#[derive(Debug)]
pub(crate) struct LaneFailures(Box<[AtomicU32]>);

const COUNTERS: usize = 256;

impl LaneFailures {
    pub(crate) fn new(is_cluster: bool) -> Self {
        Self((0..if is_cluster { COUNTERS } else { 0 }).map(|_| AtomicU32::new(0)).collect())
    }

    #[inline]
    pub(crate) fn succeeded(&self, lane: usize) {
        if let Some(failures) = self.0.get(lane % COUNTERS)
            && failures.load(Ordering::Relaxed) != 0
        {
            failures.store(0, Ordering::Relaxed);
        }
    }

    /// Whether this is the `limit`-th consecutive failure; the count restarts
    /// then.
    pub(crate) fn failed(&self, lane: usize, limit: u32) -> bool {
        let Some(failures) = self.0.get(lane % COUNTERS) else { return false };
        let is_reached = failures.fetch_add(1, Ordering::Relaxed) + 1 >= limit;
        if is_reached {
            failures.store(0, Ordering::Relaxed);
        }
        is_reached
    }
}

#[cfg(test)]
mod tests;
