//! By how much the last timers were late: [`Ticks`].
//!
//! It starts no timer and reads no clock, so that simulations can drive it. Invariant: a
//! single timer that was late, among others that were not, is no delay.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// How often a timer fires.
pub(super) const TICK: Duration = Duration::from_millis(20);

/// For how long a timer counts.
pub(super) const MEMORY: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Ticks {
    /// When the timers fired, and how late.
    pub(super) fired: VecDeque<(Instant, Duration)>,
    /// When the next one is due.
    pub(super) due: Instant,
}

impl Ticks {
    pub(super) fn new(now: Instant) -> Self {
        Self { fired: VecDeque::new(), due: now + TICK }
    }

    pub(super) fn fire(&mut self, now: Instant) {
        self.fired.retain(|(fired, _)| now.saturating_duration_since(*fired) <= MEMORY);
        self.fired.push_back((now, now.saturating_duration_since(self.due)));
        self.due = now + TICK;
    }

    /// The least delay of the last 100 ms: what a queue that never empties shows, and a
    /// burst does not. Where no timer has fired for so long, how late the next one is.
    pub(super) fn delay(&self, now: Instant) -> Duration {
        let recent = self.fired.iter().filter(|(fired, _)| now.saturating_duration_since(*fired) <= MEMORY);
        let least = recent.map(|(_, late)| *late).min();
        least.unwrap_or_else(|| now.saturating_duration_since(self.due))
    }
}
