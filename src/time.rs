//! Time as the limiter sees it: nanoseconds since the Unix epoch, read once
//! per request from an injected [`Clock`] and passed down from there.

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
/// Arithmetic saturates: nothing before the epoch, nothing after the year
/// 2554.
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::time::Timestamp;
///
/// let start = Timestamp::from_nanos(5);
/// assert_eq!(start.saturating_add(Duration::from_nanos(7)).as_nanos(), 12);
/// assert_eq!(start.saturating_since(Timestamp::from_nanos(9)), Duration::ZERO);
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

    /// The time from `earlier` until `self`; zero if `earlier` is later.
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

/// A duration in nanoseconds, cut to what a [`Timestamp`] can hold.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Where the limiter reads the time.
///
/// Readings should not run backwards. Where they do, no decision panics and
/// none admits more: a key that was used may be rejected until the clock has
/// passed the latest reading that the key has seen.
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

/// How often the monotonic reading is compared with the wall clock.
const CHECK_EVERY: u64 = 1_000_000_000;

/// A difference from the wall clock that is not worth a new anchor.
const TOLERANCE: u64 = 50_000;

/// So many bits behind the point are exact to a hundred nanoseconds a day, and
/// leave room for counters that tick once a microsecond.
const SCALE_SHIFT: u32 = 40;

/// While it is ahead of the wall clock, time passes slower by one part in
/// this many.
const SLEW: u64 = 8;

/// The default clock: a monotonic reading, anchored to the wall clock.
///
/// Once a second the anchor follows the wall clock, so that windows aligned
/// to it stay aligned under NTP. A wall clock that is ahead is followed at
/// once. One that is behind is met by letting time pass slower by one eighth
/// until it has caught up, so that readings never run backwards and no limit
/// is exceeded.
///
/// Reading it takes no system call on most platforms.
pub struct SystemClock {
    monotonic: quanta::Clock,
    /// The raw reading from which time is counted.
    origin: u64,
    /// Nanoseconds for each unit of a raw reading, in 2^-[`SCALE_SHIFT`]ths.
    scale: u64,
    anchor: AnchorCell,
}

impl SystemClock {
    /// A clock anchored to the wall clock of this moment.
    #[inline]
    #[must_use]
    pub fn new() -> Self {
        let monotonic = quanta::Clock::new();
        let origin = monotonic.raw();
        Self {
            // Asked once: the clock's own answer takes several branches.
            scale: monotonic.delta_as_nanos(0, 1 << SCALE_SHIFT),
            monotonic,
            origin,
            anchor: AnchorCell::new(Anchor { elapsed: 0, time: wall_clock(), slow: false, next_check: CHECK_EVERY }),
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

    /// The way of few readings: one a second, and those while time is slow.
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

/// A line through (elapsed, time): what the time was, and how fast it passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Anchor {
    elapsed: u64,
    time: u64,
    slow: bool,
    /// The elapsed time at which the wall clock is next looked at.
    next_check: u64,
}

/// What is left of an [`Anchor`] where time passes as fast as it should: the
/// time is `offset` more than what has elapsed, modulo 2^64.
struct Line {
    offset: u64,
    /// The elapsed time from which on this does not hold.
    until: u64,
}

impl Anchor {
    fn line(self) -> Line {
        // Not where adding could wrap, at the end of time.
        let steady = !self.slow && self.time_at(self.next_check) < u64::MAX;
        Line { offset: self.time.wrapping_sub(self.elapsed), until: if steady { self.next_check } else { 0 } }
    }

    #[inline]
    fn time_at(self, elapsed: u64) -> u64 {
        let passed = elapsed.saturating_sub(self.elapsed);
        let passed = if self.slow { passed - passed / SLEW } else { passed };
        self.time.saturating_add(passed)
    }

    /// The anchor from `elapsed` on, given what the wall clock shows.
    fn follow(self, elapsed: u64, wall: u64) -> Self {
        let time = self.time_at(elapsed);
        let next_check = elapsed.saturating_add(CHECK_EVERY);
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

/// A sequence lock around an [`Anchor`] and its [`Line`]: readers share no
/// written cache line but once a second.
#[derive(Debug)]
struct AnchorCell {
    /// Odd while a writer is at work.
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
        let cell = Self {
            sequence: AtomicU64::default(),
            offset: AtomicU64::default(),
            until: AtomicU64::default(),
            elapsed: AtomicU64::default(),
            time: AtomicU64::default(),
            slow: AtomicBool::default(),
            next_check: AtomicU64::default(),
            writing: Mutex::default(),
        };
        cell.store(anchor);
        cell
    }

    /// What `load` finds, with a reading taken while it was in force: a
    /// reading taken after it was replaced could lie ahead of the new line.
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

    /// Replaces the anchor, unless another thread is doing so already.
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
mod tests {
    use super::*;

    const SECOND: u64 = CHECK_EVERY;

    fn steady(time: u64) -> Anchor {
        Anchor { elapsed: 0, time, slow: false, next_check: SECOND }
    }

    #[test]
    fn a_wall_clock_ahead_is_followed_at_once() {
        let anchor = steady(100 * SECOND).follow(SECOND, 200 * SECOND);
        assert_eq!(anchor.time_at(SECOND), 200 * SECOND);
        assert_eq!(anchor.next_check, 2 * SECOND);
    }

    #[test]
    fn a_wall_clock_behind_is_met_without_running_backwards() {
        let mut anchor = steady(100 * SECOND);
        let (mut elapsed, mut last) = (SECOND, 0);
        let mut wall = anchor.time_at(elapsed) - SECOND / 10;
        for _ in 0..20 {
            let followed = anchor.follow(elapsed, wall);
            assert!(followed.time_at(elapsed) >= last, "ran backwards");
            last = followed.time_at(elapsed);
            wall += followed.next_check - elapsed;
            (anchor, elapsed) = (followed, followed.next_check);
        }
        assert!(!anchor.slow);
        assert!(anchor.time_at(elapsed).abs_diff(wall) <= TOLERANCE);
    }

    #[test]
    fn a_day_back_slows_time_and_never_turns_it() {
        let day = 86_400 * SECOND;
        let anchor = steady(10 * day).follow(SECOND, 9 * day);
        assert_eq!(anchor.time_at(SECOND), 10 * day + SECOND);
        assert_eq!(anchor.time_at(9 * SECOND), 10 * day + SECOND + 7 * SECOND);
    }

    #[test]
    fn a_line_says_what_its_anchor_says_or_nothing() {
        let far = u64::MAX - SECOND / 2;
        for (time, slow) in [(100 * SECOND, false), (100 * SECOND, true), (5, false), (far, false), (u64::MAX, true)] {
            let anchor = Anchor { elapsed: 7 * SECOND, time, slow, next_check: 8 * SECOND };
            let line = anchor.line();
            for elapsed in [7 * SECOND, 7 * SECOND + 1, 8 * SECOND - 1].into_iter().filter(|&at| at < line.until) {
                assert_eq!(line.offset.wrapping_add(elapsed), anchor.time_at(elapsed));
            }
            assert_eq!(line.until == 0, slow || time >= far);
        }
    }

    #[test]
    fn raw_readings_are_scaled_as_the_monotonic_clock_does() {
        let clock = SystemClock::new();
        for raw in [1, 1_000, 1 << 30, 1 << 40, 1 << 52] {
            let (ours, theirs) = (clock.nanos(raw), clock.monotonic.delta_as_nanos(0, raw));
            assert!(ours.abs_diff(theirs) <= 1 + theirs / 1_000_000_000, "{ours} {theirs}");
        }
    }

    #[test]
    fn readings_of_one_thread_never_run_backwards() {
        let clock = SystemClock::new();
        let mut last = clock.now();
        for _ in 0..100_000 {
            let now = clock.now();
            assert!(now >= last);
            last = now;
        }
    }
}
