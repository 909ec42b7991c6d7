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
/// none admits more: a key that was used may be refused until the clock has
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
    anchor: AnchorCell,
    /// The elapsed time at which the wall clock is next looked at.
    next_check: AtomicU64,
}

impl SystemClock {
    /// A clock anchored to the wall clock of this moment.
    #[inline]
    #[must_use]
    pub fn new() -> Self {
        let monotonic = quanta::Clock::new();
        let origin = monotonic.raw();
        Self {
            monotonic,
            origin,
            anchor: AnchorCell::new(Anchor { elapsed: 0, time: wall_clock(), slow: false }),
            next_check: AtomicU64::new(CHECK_EVERY),
        }
    }

    #[inline]
    fn elapsed(&self) -> u64 {
        self.monotonic.delta_as_nanos(self.origin, self.monotonic.raw())
    }

    #[cold]
    fn check(&self) {
        self.anchor.update(|anchor| {
            let elapsed = self.elapsed();
            if elapsed < self.next_check.load(Ordering::Relaxed) {
                return anchor;
            }
            let (anchor, next) = anchor.follow(elapsed, wall_clock());
            self.next_check.store(next, Ordering::Relaxed);
            anchor
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
        let (anchor, elapsed) = self.anchor.read(|| self.elapsed());
        if elapsed >= self.next_check.load(Ordering::Relaxed) {
            self.check();
        }
        Timestamp(anchor.time_at(elapsed))
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
}

impl Anchor {
    #[inline]
    fn time_at(self, elapsed: u64) -> u64 {
        let passed = elapsed.saturating_sub(self.elapsed);
        let passed = if self.slow { passed - passed / SLEW } else { passed };
        self.time.saturating_add(passed)
    }

    /// The anchor from `elapsed` on, given what the wall clock shows, and the
    /// elapsed time at which to look again.
    fn follow(self, elapsed: u64, wall: u64) -> (Self, u64) {
        let time = self.time_at(elapsed);
        let next = elapsed.saturating_add(CHECK_EVERY);
        if time.abs_diff(wall) <= TOLERANCE {
            let steady = if self.slow { Self { elapsed, time, slow: false } } else { self };
            return (steady, next);
        }
        if wall > time {
            return (Self { elapsed, time: wall, slow: false }, next);
        }
        let absorbed = elapsed.saturating_add((time - wall).saturating_mul(SLEW));
        (Self { elapsed, time, slow: true }, next.min(absorbed))
    }
}

/// A sequence lock around an [`Anchor`]: readers share no written cache line
/// but once a second.
#[derive(Debug)]
struct AnchorCell {
    /// Odd while a writer is at work.
    sequence: AtomicU64,
    elapsed: AtomicU64,
    time: AtomicU64,
    slow: AtomicBool,
    writing: Mutex<()>,
}

impl AnchorCell {
    fn new(anchor: Anchor) -> Self {
        Self {
            sequence: AtomicU64::new(0),
            elapsed: AtomicU64::new(anchor.elapsed),
            time: AtomicU64::new(anchor.time),
            slow: AtomicBool::new(anchor.slow),
            writing: Mutex::new(()),
        }
    }

    /// The anchor, with a reading taken while it was in force: a reading
    /// taken after it was replaced could lie ahead of the new line.
    #[inline]
    fn read(&self, reading: impl Fn() -> u64) -> (Anchor, u64) {
        loop {
            let before = self.sequence.load(Ordering::Acquire);
            let anchor = self.load();
            let value = reading();
            fence(Ordering::Acquire);
            if before & 1 == 0 && self.sequence.load(Ordering::Relaxed) == before {
                return (anchor, value);
            }
            std::thread::yield_now();
        }
    }

    #[inline]
    fn load(&self) -> Anchor {
        Anchor {
            elapsed: self.elapsed.load(Ordering::Relaxed),
            time: self.time.load(Ordering::Relaxed),
            slow: self.slow.load(Ordering::Relaxed),
        }
    }

    /// Replaces the anchor, unless another thread is doing so already.
    fn update(&self, replace: impl FnOnce(Anchor) -> Anchor) {
        let Ok(_writing) = self.writing.try_lock() else { return };
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        let anchor = replace(self.load());
        self.elapsed.store(anchor.elapsed, Ordering::Relaxed);
        self.time.store(anchor.time, Ordering::Relaxed);
        self.slow.store(anchor.slow, Ordering::Relaxed);
        self.sequence.store(sequence.wrapping_add(2), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = CHECK_EVERY;

    fn steady(time: u64) -> Anchor {
        Anchor { elapsed: 0, time, slow: false }
    }

    #[test]
    fn a_wall_clock_ahead_is_followed_at_once() {
        let (anchor, next) = steady(100 * SECOND).follow(SECOND, 200 * SECOND);
        assert_eq!(anchor.time_at(SECOND), 200 * SECOND);
        assert_eq!(next, 2 * SECOND);
    }

    #[test]
    fn a_wall_clock_behind_is_met_without_running_backwards() {
        let mut anchor = steady(100 * SECOND);
        let (mut elapsed, mut last) = (SECOND, 0);
        let mut wall = anchor.time_at(elapsed) - SECOND / 10;
        for _ in 0..20 {
            let (followed, next) = anchor.follow(elapsed, wall);
            assert!(followed.time_at(elapsed) >= last, "ran backwards");
            last = followed.time_at(elapsed);
            wall += next - elapsed;
            (anchor, elapsed) = (followed, next);
        }
        assert!(!anchor.slow);
        assert!(anchor.time_at(elapsed).abs_diff(wall) <= TOLERANCE);
    }

    #[test]
    fn a_day_back_slows_time_and_never_turns_it() {
        let day = 86_400 * SECOND;
        let (anchor, _) = steady(10 * day).follow(SECOND, 9 * day);
        assert_eq!(anchor.time_at(SECOND), 10 * day + SECOND);
        assert_eq!(anchor.time_at(9 * SECOND), 10 * day + SECOND + 7 * SECOND);
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
