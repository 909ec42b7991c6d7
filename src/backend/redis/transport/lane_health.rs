//! What is known of the connection of each lane: how many calls have failed in a
//! row, and when it was last used. It only counts; `link` reconnects.
//!
//! Invariant: one server has no counters of failures, since the circuit breaker
//! covers it.

use std::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    time::Duration,
};

use tokio::{sync::MutexGuard, time::Instant};

/// The shortest time after which a Redis server can be set to close an idle
/// connection.
pub(super) const IDLE: Duration = Duration::from_secs(1);

const COUNTERS: usize = 256;

/// One for each lane; several lanes may share one.
#[derive(Debug)]
pub(crate) struct LaneHealth {
    lanes: Box<[Health]>,
    counts_failures: bool,
    origin: Instant,
}

#[derive(Debug, Default)]
struct Health {
    failures: AtomicU32,
    /// Milliseconds since the origin.
    used: AtomicU64,
    /// Locked while the connection is checked.
    check: tokio::sync::Mutex<()>,
}

impl LaneHealth {
    pub(crate) fn new(is_cluster: bool) -> Self {
        let lanes = (0..COUNTERS).map(|_| Health { used: AtomicU64::new(1), ..Health::default() }).collect();
        Self { lanes, counts_failures: is_cluster, origin: Instant::now() }
    }

    #[inline]
    pub(crate) fn succeeded(&self, lane: usize) {
        let failures = &self.lane(lane).failures;
        if failures.load(Ordering::Relaxed) != 0 {
            failures.store(0, Ordering::Relaxed);
        }
    }

    /// Whether this is the `limit`-th consecutive failure; the count restarts
    /// then.
    pub(crate) fn failed(&self, lane: usize, limit: u32) -> bool {
        let failures = &self.lane(lane).failures;
        let is_reached = self.counts_failures && failures.fetch_add(1, Ordering::Relaxed) + 1 >= limit;
        if is_reached {
            failures.store(0, Ordering::Relaxed);
        }
        is_reached
    }

    /// A lane is about to be used. If it was idle, the caller checks its
    /// connection while it holds the guard, and all other callers wait. Afterwards
    /// the lane counts as used, whatever the check has found.
    pub(crate) async fn idle(&self, lane: usize) -> Option<IdleGuard<'_>> {
        if self.touch(lane) {
            return None;
        }
        let guard = self.lane(lane).check.lock().await;
        (!self.touch(lane)).then_some(IdleGuard { health: self, lane, _guard: guard })
    }

    /// Whether the lane is not idle; then this is its last use.
    #[inline]
    pub(crate) fn touch(&self, lane: usize) -> bool {
        let lane = self.lane(lane);
        let now = self.now();
        let used = lane.used.load(Ordering::Relaxed);
        let is_used = now.saturating_sub(used) < IDLE.as_millis() as u64;
        if is_used {
            lane.used.store(now, Ordering::Relaxed);
        }
        is_used
    }

    fn now(&self) -> u64 {
        1 + self.origin.elapsed().as_millis() as u64
    }

    fn lane(&self, lane: usize) -> &Health {
        &self.lanes[lane % COUNTERS]
    }
}

/// An idle lane that is checked.
pub(crate) struct IdleGuard<'a> {
    health: &'a LaneHealth,
    lane: usize,
    _guard: MutexGuard<'a, ()>,
}

impl Drop for IdleGuard<'_> {
    fn drop(&mut self) {
        self.health.lane(self.lane).used.store(self.health.now(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
