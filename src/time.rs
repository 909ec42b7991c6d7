//! Time as the limiter sees it: nanoseconds since the Unix epoch.
//!
//! The limiter reads an injected [`Clock`] once per request and passes the time
//! on as an argument. The invariant: nothing else in this crate reads a clock to
//! decide, and a [`SystemClock`] never runs backwards.

use std::{
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering, fence},
    },
    time::{Duration, SystemTime},
};

/// A point in time, in nanoseconds since the Unix epoch.
///
/// Arithmetic saturates at the epoch and in the year 2554. `Display` writes
/// RFC 3339, in UTC.
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::time::Timestamp;
///
/// let start = Timestamp::from_nanos(5);
/// assert_eq!(start.saturating_add(Duration::from_nanos(7)).as_nanos(), 12);
/// assert_eq!(start.saturating_since(Timestamp::from_nanos(9)), Duration::ZERO);
/// assert_eq!(Timestamp::from_secs(1_704_067_200).to_string(), "2024-01-01T00:00:00Z");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// 1970-01-01T00:00:00Z.
    pub const UNIX_EPOCH: Self = Self(0);

    /// The point `nanos` nanoseconds after the Unix epoch.
    #[inline]
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// The point `secs` seconds after the Unix epoch.
    #[inline]
    #[must_use]
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1_000_000_000))
    }

    /// Nanoseconds since the Unix epoch.
    #[inline]
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Whole seconds since the Unix epoch, rounded down.
    #[inline]
    #[must_use]
    pub const fn as_secs(self) -> u64 {
        self.0 / 1_000_000_000
    }

    /// The point `duration` later.
    #[inline]
    #[must_use]
    pub fn saturating_add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(nanos(duration)))
    }

    /// The time from `earlier` to `self`; zero if `earlier` is later.
    #[inline]
    #[must_use]
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        let since_epoch = time.duration_since(SystemTime::UNIX_EPOCH);
        Self(since_epoch.map_or(0, nanos))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_rfc3339(SystemTime::UNIX_EPOCH + Duration::from_nanos(self.0)).fmt(f)
    }
}

/// A duration in nanoseconds; saturates.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The limiter's source of time.
///
/// Readings should not run backwards. If they do, no decision panics or admits
/// more than the limit. A used key may then be rejected until the clock passes
/// the latest reading that the key has seen.
///
/// ```
/// use tower_ratelimit::time::{Clock, Timestamp};
///
/// #[derive(Debug)]
/// struct Frozen;
///
/// impl Clock for Frozen {
///     fn now(&self) -> Timestamp {
///         Timestamp::from_secs(1_700_000_000)
///     }
/// }
/// ```
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// The current time.
    fn now(&self) -> Timestamp;
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> Timestamp {
        (**self).now()
    }
}

/// How often the monotonic reading is compared with the wall clock, in
/// nanoseconds.
const CHECK_INTERVAL: u64 = 1_000_000_000;

/// The difference from the wall clock, in nanoseconds, that is ignored.
const TOLERANCE: u64 = 50_000;

/// The fractional bits of [`SystemClock::scale`]. They are exact to a hundred
/// nanoseconds a day, and suffice for counters that tick once a microsecond.
const SCALE_SHIFT: u32 = 40;

/// A clock that is ahead of the wall clock is slowed by one part in this many.
const SLEW: u64 = 8;

/// The default clock: a monotonic reading, anchored to the wall clock.
///
/// Once a second the anchor follows the wall clock, so windows that are aligned
/// to it stay aligned under NTP. If the wall clock is ahead, this clock steps
/// forward at once. If the wall clock is behind, this clock runs slower by one
/// eighth until the two agree. So readings never run backwards, and no limit is
/// exceeded.
///
/// Reading it takes no system call on most platforms.
pub struct SystemClock {
    monotonic: quanta::Clock,
    /// The raw reading at creation, from which elapsed time is counted.
    origin: u64,
    /// Nanoseconds per unit of a raw reading, times 2^[`SCALE_SHIFT`].
    scale: u64,
    anchor: AnchorCell,
}

impl SystemClock {
    /// A clock anchored to the current wall clock.
    #[inline]
    #[must_use]
    pub fn new() -> Self {
        let monotonic = quanta::Clock::new();
        let origin = monotonic.raw();
        Self {
            // Once: the clock's own conversion takes several branches.
            scale: monotonic.delta_as_nanos(0, 1 << SCALE_SHIFT),
            monotonic,
            origin,
            anchor: AnchorCell::new(Anchor { elapsed: 0, time: wall_clock(), slow: false, next_check: CHECK_INTERVAL }),
        }
    }

    #[inline]
    fn elapsed(&self) -> u64 {
        self.nanos(self.monotonic.raw().saturating_sub(self.origin))
    }

    #[inline]
    #[allow(clippy::cast_possible_truncation, reason = "some centuries")]
    fn nanos(&self, raw: u64) -> u64 {
        ((u128::from(raw) * u128::from(self.scale)) >> SCALE_SHIFT) as u64
    }

    /// The path of few readings: one a second, and those while time is slowed.
    #[cold]
    fn now_slowly(&self) -> Timestamp {
        let (anchor, elapsed) = self.anchor.read(AnchorCell::load, || self.elapsed());
        if elapsed >= anchor.next_check {
            self.check();
        }
        Timestamp(anchor.time_at(elapsed))
    }

    #[cold]
    fn check(&self) {
        self.anchor.update(|anchor| {
            let elapsed = self.elapsed();
            if elapsed < anchor.next_check { anchor } else { anchor.follow(elapsed, wall_clock()) }
        });
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Timestamp {
        let (line, elapsed) = self.anchor.read(AnchorCell::line, || self.elapsed());
        if elapsed >= line.until {
            return self.now_slowly();
        }
        Timestamp(line.offset.wrapping_add(elapsed))
    }
}

impl fmt::Debug for SystemClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SystemClock").field("now", &self.now()).finish_non_exhaustive()
    }
}

#[allow(clippy::disallowed_methods, reason = "the one place that reads the wall clock")]
fn wall_clock() -> u64 {
    Timestamp::from(SystemTime::now()).as_nanos()
}

/// A point (elapsed, time), and how fast time passes from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Anchor {
    elapsed: u64,
    time: u64,
    slow: bool,
    /// The elapsed time of the next comparison with the wall clock.
    next_check: u64,
}

/// An [`Anchor`] from which time passes at normal speed: the time is the elapsed
/// time plus `offset`, modulo 2^64.
struct Line {
    offset: u64,
    /// The elapsed time from which on this no longer holds.
    until: u64,
}

impl Anchor {
    fn line(self) -> Line {
        // At the end of time the addition could wrap.
        let steady = !self.slow && self.time_at(self.next_check) < u64::MAX;
        Line { offset: self.time.wrapping_sub(self.elapsed), until: if steady { self.next_check } else { 0 } }
    }

    #[inline]
    fn time_at(self, elapsed: u64) -> u64 {
        let passed = elapsed.saturating_sub(self.elapsed);
        let passed = if self.slow { passed - passed / SLEW } else { passed };
        self.time.saturating_add(passed)
    }

    /// The anchor from `elapsed` on, given the wall clock's time.
    fn follow(self, elapsed: u64, wall: u64) -> Self {
        let time = self.time_at(elapsed);
        let next_check = elapsed.saturating_add(CHECK_INTERVAL);
        if time.abs_diff(wall) <= TOLERANCE {
            let steady = if self.slow { Self { elapsed, time, slow: false, next_check } } else { self };
            return Self { next_check, ..steady };
        }
        if wall > time {
            return Self { elapsed, time: wall, slow: false, next_check };
        }
        let absorbed = elapsed.saturating_add((time - wall).saturating_mul(SLEW));
        Self { elapsed, time, slow: true, next_check: next_check.min(absorbed) }
    }
}

/// A sequence lock around an [`Anchor`] and its [`Line`]. Readers write nothing,
/// and the cache line that they share is written once a second.
#[derive(Debug, Default)]
struct AnchorCell {
    /// Odd during a write.
    sequence: AtomicU64,
    offset: AtomicU64,
    until: AtomicU64,
    elapsed: AtomicU64,
    time: AtomicU64,
    slow: AtomicBool,
    next_check: AtomicU64,
    writing: Mutex<()>,
}

impl AnchorCell {
    fn new(anchor: Anchor) -> Self {
        let cell = Self::default();
        cell.store(anchor);
        cell
    }

    /// What `load` returns, and a reading taken while that was in force. A
    /// reading taken after it was replaced could be ahead of the new line.
    #[inline]
    fn read<T>(&self, load: impl Fn(&Self) -> T, reading: impl Fn() -> u64) -> (T, u64) {
        loop {
            let before = self.sequence.load(Ordering::Acquire);
            let loaded = load(self);
            let value = reading();
            fence(Ordering::Acquire);
            if before & 1 == 0 && self.sequence.load(Ordering::Relaxed) == before {
                return (loaded, value);
            }
            std::thread::yield_now();
        }
    }

    #[inline]
    fn line(&self) -> Line {
        Line { offset: self.offset.load(Ordering::Relaxed), until: self.until.load(Ordering::Relaxed) }
    }

    fn load(&self) -> Anchor {
        Anchor {
            elapsed: self.elapsed.load(Ordering::Relaxed),
            time: self.time.load(Ordering::Relaxed),
            slow: self.slow.load(Ordering::Relaxed),
            next_check: self.next_check.load(Ordering::Relaxed),
        }
    }

    fn store(&self, anchor: Anchor) {
        let line = anchor.line();
        self.offset.store(line.offset, Ordering::Relaxed);
        self.until.store(line.until, Ordering::Relaxed);
        self.elapsed.store(anchor.elapsed, Ordering::Relaxed);
        self.time.store(anchor.time, Ordering::Relaxed);
        self.slow.store(anchor.slow, Ordering::Relaxed);
        self.next_check.store(anchor.next_check, Ordering::Relaxed);
    }

    /// Replaces the anchor, unless another thread is doing so.
    fn update(&self, replace: impl FnOnce(Anchor) -> Anchor) {
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
