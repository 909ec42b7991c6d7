//! How [`SystemClock`](super::SystemClock) follows the system's clocks:
//! [`Anchor`]. It is arithmetic, and reads no clock.
//!
//! Invariant: the time never runs backwards, and it is slowed only while it is
//! ahead of the wall clock.

use std::sync::{
    Mutex,
    atomic::{AtomicU64, Ordering, fence},
};

/// How often the clocks are compared, in nanoseconds.
pub(super) const CHECK_INTERVAL: u64 = 1_000_000_000;

/// The difference from the wall clock, in nanoseconds, that is ignored.
pub(super) const TOLERANCE: u64 = 50_000;

/// A time that is ahead of the wall clock is slowed by one part in this many.
const SLEW: u64 = 8;

/// The system's clocks at one instant, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reading {
    /// The counter that is read for every request. It drifts a little.
    pub(super) elapsed: u64,
    /// The monotonic clock, which the counter approximates.
    pub(super) monotonic: u64,
    pub(super) wall: u64,
}

/// A point (elapsed, monotonic, time), and how fast time passes from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Anchor {
    pub(super) elapsed: u64,
    pub(super) monotonic: u64,
    pub(super) time: u64,
    /// For how long time is slowed, from the anchor on.
    pub(super) slow_for: u64,
    /// The elapsed time of the next comparison. No reading from then on may use
    /// this anchor.
    pub(super) next_check: u64,
}

impl Anchor {
    pub(super) fn new(Reading { elapsed, monotonic, wall }: Reading) -> Self {
        Self { elapsed, monotonic, time: wall, slow_for: 0, next_check: elapsed.saturating_add(CHECK_INTERVAL) }
    }

    #[inline]
    pub(super) fn time_at(self, elapsed: u64) -> u64 {
        self.time_after(elapsed.saturating_sub(self.elapsed))
    }

    #[inline]
    fn time_after(self, passed: u64) -> u64 {
        self.time.saturating_add(passed - passed.min(self.slow_for) / SLEW)
    }

    /// The anchor from a reading on, which is not before the next check.
    ///
    /// Since the last comparison the time is that of the monotonic clock,
    /// however long it was, but not before what a reading by the counter may
    /// have returned.
    pub(super) fn follow(self, Reading { elapsed, monotonic, wall }: Reading) -> Self {
        let latest = self.time_at(self.next_check.min(elapsed));
        let time = self.time_after(monotonic.saturating_sub(self.monotonic)).max(latest);
        let next_check = elapsed.saturating_add(CHECK_INTERVAL);
        let (time, slow_for) = match time.checked_sub(wall) {
            Some(ahead) if ahead > TOLERANCE => (time, ahead.saturating_mul(SLEW)),
            None if wall - time > TOLERANCE => (wall, 0),
            _ => (time, 0),
        };
        let absorbed = if slow_for > 0 { elapsed.saturating_add(slow_for) } else { u64::MAX };
        Self { elapsed, monotonic, time, slow_for, next_check: next_check.min(absorbed) }
    }
}

/// A sequence lock around an [`Anchor`]. Readers write nothing, and the cache line that they
/// share is written once a second.
#[derive(Debug, Default)]
pub(super) struct AnchorCell {
    /// Odd during a write.
    sequence: AtomicU64,
    /// The fields of the anchor, in their order.
    fields: [AtomicU64; 5],
    writing: Mutex<()>,
}

impl AnchorCell {
    /// `None` during a write. What was replaced since says no later time than its successor:
    /// see [`Anchor::next_check`].
    #[inline]
    pub(super) fn read(&self) -> Option<Anchor> {
        let before = self.sequence.load(Ordering::Acquire);
        let anchor = self.load();
        fence(Ordering::Acquire);
        (before & 1 == 0 && self.sequence.load(Ordering::Relaxed) == before).then_some(anchor)
    }

    #[inline]
    fn load(&self) -> Anchor {
        let [elapsed, monotonic, time, slow_for, next_check] =
            self.fields.each_ref().map(|field| field.load(Ordering::Relaxed));
        Anchor { elapsed, monotonic, time, slow_for, next_check }
    }

    /// Replaces the anchor, unless `replace` keeps it: a reader that only met a write writes
    /// nothing. While another thread does so, it only yields.
    pub(super) fn update(&self, replace: impl FnOnce(Anchor) -> Option<Anchor>) {
        let Ok(_writing) = self.writing.try_lock() else { return std::thread::yield_now() };
        let Some(anchor) = replace(self.load()) else { return };
        let Anchor { elapsed, monotonic, time, slow_for, next_check } = anchor;
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        let values = [elapsed, monotonic, time, slow_for, next_check];
        self.fields.iter().zip(values).for_each(|(field, value)| field.store(value, Ordering::Relaxed));
        self.sequence.store(sequence.wrapping_add(2), Ordering::Release);
    }
}

#[cfg(test)]
mod tests;
