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

/// An [`Anchor`] from which time passes at normal speed: the time is the elapsed
/// time plus `offset`, modulo 2^64.
pub(super) struct Line {
    pub(super) offset: u64,
    /// The elapsed time from which on this no longer holds.
    pub(super) until: u64,
}

impl Anchor {
    pub(super) fn new(Reading { elapsed, monotonic, wall }: Reading) -> Self {
        Self { elapsed, monotonic, time: wall, slow_for: 0, next_check: elapsed.saturating_add(CHECK_INTERVAL) }
    }

    pub(super) fn line(self) -> Line {
        // At the end of time the addition could wrap.
        let is_steady = self.slow_for == 0 && self.time_at(self.next_check) < u64::MAX;
        Line { offset: self.time.wrapping_sub(self.elapsed), until: if is_steady { self.next_check } else { 0 } }
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

/// A sequence lock around an [`Anchor`] and its [`Line`]. Readers write nothing,
/// and the cache line that they share is written once a second.
#[derive(Debug, Default)]
pub(super) struct AnchorCell {
    /// Odd during a write.
    sequence: AtomicU64,
    offset: AtomicU64,
    until: AtomicU64,
    elapsed: AtomicU64,
    monotonic: AtomicU64,
    time: AtomicU64,
    slow_for: AtomicU64,
    next_check: AtomicU64,
    writing: Mutex<()>,
}

impl AnchorCell {
    /// What `load` returns, and a reading taken while that was in force. A
    /// reading taken after it was replaced could be ahead of the new line.
    pub(super) fn read<T>(&self, load: impl Fn(&Self) -> T, reading: impl Fn() -> u64) -> (T, u64) {
        loop {
            if let Some(read) = self.try_read(&load, &reading) {
                return read;
            }
            std::thread::yield_now();
        }
    }

    /// As [`read`](Self::read); `None` if the anchor was replaced meanwhile.
    #[inline]
    pub(super) fn try_read<T>(&self, load: impl Fn(&Self) -> T, reading: impl Fn() -> u64) -> Option<(T, u64)> {
        let before = self.sequence.load(Ordering::Acquire);
        let loaded = load(self);
        let value = reading();
        fence(Ordering::Acquire);
        (before & 1 == 0 && self.sequence.load(Ordering::Relaxed) == before).then_some((loaded, value))
    }

    #[inline]
    pub(super) fn line(&self) -> Line {
        Line { offset: self.offset.load(Ordering::Relaxed), until: self.until.load(Ordering::Relaxed) }
    }

    pub(super) fn load(&self) -> Anchor {
        Anchor {
            elapsed: self.elapsed.load(Ordering::Relaxed),
            monotonic: self.monotonic.load(Ordering::Relaxed),
            time: self.time.load(Ordering::Relaxed),
            slow_for: self.slow_for.load(Ordering::Relaxed),
            next_check: self.next_check.load(Ordering::Relaxed),
        }
    }

    fn store(&self, anchor: Anchor) {
        let line = anchor.line();
        self.offset.store(line.offset, Ordering::Relaxed);
        self.until.store(line.until, Ordering::Relaxed);
        self.elapsed.store(anchor.elapsed, Ordering::Relaxed);
        self.monotonic.store(anchor.monotonic, Ordering::Relaxed);
        self.time.store(anchor.time, Ordering::Relaxed);
        self.slow_for.store(anchor.slow_for, Ordering::Relaxed);
        self.next_check.store(anchor.next_check, Ordering::Relaxed);
    }

    /// Replaces the anchor, unless another thread is doing so.
    pub(super) fn update(&self, replace: impl FnOnce(Anchor) -> Anchor) {
        let Ok(_writing) = self.writing.try_lock() else { return };
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        self.store(replace(self.load()));
        self.sequence.store(sequence.wrapping_add(2), Ordering::Release);
    }
}

#[cfg(test)]
mod tests;
