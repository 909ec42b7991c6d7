//! Time as the limiter sees it: nanoseconds since the Unix epoch.
//!
//! The limiter reads an injected [`Clock`] once per request and passes the time
//! on as an argument. The invariant: nothing else in this crate reads a clock to
//! decide, and a [`SystemClock`] never runs backwards.

use std::{
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering, fence},
    },
    time::{Duration, Instant, SystemTime},
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
#[must_use]
pub struct Timestamp(u64);

impl Timestamp {
    /// 1970-01-01T00:00:00Z.
    pub const UNIX_EPOCH: Self = Self(0);

    /// The point `nanos` nanoseconds after the Unix epoch.
    #[inline]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// The point `secs` seconds after the Unix epoch.
    #[inline]
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

/// The units that durations are written in, in nanoseconds; the largest first.
const UNITS: [(u64, &str); 7] = [
    (86_400_000_000_000, "d"),
    (3_600_000_000_000, "h"),
    (60_000_000_000, "m"),
    (1_000_000_000, "s"),
    (1_000_000, "ms"),
    (1_000, "us"),
    (1, "ns"),
];

/// A time in its largest whole unit: `250ms`, `10s`, `1d`. `None` if it is zero.
pub(crate) fn in_one_unit(nanos: u64) -> Option<String> {
    let unit = UNITS.iter().find(|(length, _)| nanos > 0 && nanos.is_multiple_of(*length));
    unit.map(|(length, name)| (nanos / length).to_string() + name)
}

/// A duration in nanoseconds; saturates.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The limiter's source of time.
///
/// Readings should not run backwards. If they do, by less than ten seconds, no
/// decision panics or admits more than the limit. A used key may then be rejected
/// until the clock passes the latest reading that the key has seen. If readings
/// step back by more, a used key is rejected for at most the time in which its
/// quota comes back, and the longest wait: see
/// [`Local`](crate::backend::Local).
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

/// The fractional bits of [`SystemClock::scale`]. They are exact to a hundred
/// nanoseconds a day, and suffice for counters that tick once a microsecond.
const SCALE_SHIFT: u32 = 40;

/// How often all clocks are read, to find the readings nearest to one instant.
const ATTEMPTS: usize = 8;

/// The default clock: a monotonic clock, anchored to the wall clock.
///
/// Once a second the anchor follows the wall clock, so windows that are aligned
/// to it stay aligned under NTP. If the wall clock is ahead, this clock steps
/// forward at once. If the wall clock is behind, this clock runs slower by one
/// eighth until the two agree, and not for longer. So readings never run
/// backwards, and no limit is exceeded.
///
/// Between two comparisons the time comes from a hardware counter. However long
/// the clock was not read, the next reading is within a millisecond of the
/// monotonic clock, unless the wall clock was changed meanwhile.
///
/// Reading it takes no system call on most platforms.
///
/// ```
/// use tower_ratelimit::time::{Clock, SystemClock};
///
/// let clock = SystemClock::new();
/// let earlier = clock.now();
/// assert!(clock.now() >= earlier);
/// ```
pub struct SystemClock {
    counter: quanta::Clock,
    /// The raw reading at creation, from which elapsed time is counted.
    origin: u64,
    /// The instant of creation, for the monotonic clock's own count.
    started: Instant,
    /// Nanoseconds per unit of a raw reading, times 2^[`SCALE_SHIFT`].
    scale: u64,
    anchor: AnchorCell,
}

impl SystemClock {
    /// A clock anchored to the current wall clock.
    #[inline]
    #[must_use]
    #[allow(clippy::disallowed_methods, reason = "the one place that reads the monotonic clock")]
    pub fn new() -> Self {
        let counter = quanta::Clock::new();
        let clock = Self {
            // Once: the clock's own conversion takes several branches.
            scale: counter.delta_as_nanos(0, 1 << SCALE_SHIFT),
            origin: counter.raw(),
            started: Instant::now(),
            counter,
            anchor: AnchorCell::default(),
        };
        clock.anchor.update(|_| Some(Anchor::new(clock.read())));
        clock
    }

    #[inline]
    fn elapsed(&self) -> u64 {
        self.nanos(self.counter.raw().saturating_sub(self.origin))
    }

    #[inline]
    #[allow(clippy::cast_possible_truncation, reason = "some centuries")]
    fn nanos(&self, raw: u64) -> u64 {
        ((u128::from(raw) * u128::from(self.scale)) >> SCALE_SHIFT) as u64
    }

    /// All clocks, as near to one instant as a few attempts get.
    fn read(&self) -> Reading {
        let attempts = (0..ATTEMPTS).map(|_| {
            let elapsed = self.elapsed();
            let reading = Reading { elapsed, monotonic: nanos(self.started.elapsed()), wall: wall_clock() };
            (self.elapsed().saturating_sub(elapsed), reading)
        });
        let (_, nearest) = attempts.min_by_key(|(took, _)| *took).unwrap_or_default();
        nearest
    }

    /// `None` if the anchor has to be compared first, or is being replaced.
    #[inline]
    fn anchored(&self) -> Option<Timestamp> {
        let (anchor, elapsed) = (self.anchor.read()?, self.elapsed());
        (elapsed < anchor.next_check).then(|| Timestamp(anchor.time_at(elapsed)))
    }

    #[cold]
    fn compare(&self) {
        self.anchor.update(|anchor| {
            let reading = self.read();
            (reading.elapsed >= anchor.next_check).then(|| anchor.follow(reading))
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
        loop {
            match self.anchored() {
                Some(time) => return time,
                None => self.compare(),
            }
        }
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

/// How often the clocks are compared, in nanoseconds.
const CHECK_INTERVAL: u64 = 1_000_000_000;

/// The difference from the wall clock, in nanoseconds, that is ignored.
const TOLERANCE: u64 = 50_000;

/// A time that is ahead of the wall clock is slowed by one part in this many.
const SLEW: u64 = 8;

/// The system's clocks at one instant, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Reading {
    /// The counter that is read for every request. It drifts a little.
    elapsed: u64,
    /// The monotonic clock, which the counter approximates.
    monotonic: u64,
    wall: u64,
}

/// How a [`SystemClock`] follows the system's clocks: a point (elapsed, monotonic, time),
/// and how fast time passes from there. Time is slowed only while it is ahead of the wall
/// clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Anchor {
    elapsed: u64,
    monotonic: u64,
    time: u64,
    /// For how long time is slowed, from the anchor on.
    slow_for: u64,
    /// The elapsed time of the next comparison. No reading from then on may use
    /// this anchor.
    next_check: u64,
}

impl Anchor {
    fn new(Reading { elapsed, monotonic, wall }: Reading) -> Self {
        Self { elapsed, monotonic, time: wall, slow_for: 0, next_check: elapsed.saturating_add(CHECK_INTERVAL) }
    }

    #[inline]
    fn time_at(self, elapsed: u64) -> u64 {
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
    fn follow(self, Reading { elapsed, monotonic, wall }: Reading) -> Self {
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
struct AnchorCell {
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
    fn read(&self) -> Option<Anchor> {
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
    fn update(&self, replace: impl FnOnce(Anchor) -> Option<Anchor>) {
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
mod tests {
    mod anchor;
    mod system_clock;
}
