//! What a tier allows: a [`Quota`], counted by an [`Algorithm`].
//!
//! It counts nothing and checks nothing: `algorithm` counts, and `policy`
//! rejects what cannot be counted. Policy files use the names that are given here.
//! The invariant: a quota takes half a cache
//! line, since every decision copies some.

use std::{ops::RangeInclusive, time::Duration};

use crate::names::names;

/// How a quota is counted.
///
/// With limit L, window W and burst B (L unless set):
///
/// | algorithm | admits |
/// |---|---|
/// | `TokenBucket` | at most B + L·t/W in any time t |
/// | `LeakyBucket` | departures at least W/L apart; at most B queued |
/// | `FixedWindow` | at most L in each window aligned to the wall clock, or each calendar month; so up to 2L in some W |
/// | `AnchoredWindow` | at most L in a window that the first request opens |
/// | `SlidingWindow` | at most L, with the previous window weighted by how much of it is still covered |
/// | `SlidingLog` | at most L in any W, exactly |
/// | `Concurrency` | at most L at once; it has no window |
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{Algorithm, Quota};
///
/// // Five tries, then nothing until 15 minutes after the first one.
/// let login = Quota::new(5, Duration::from_secs(15 * 60)).algorithm(Algorithm::AnchoredWindow);
/// # let _ = login;
/// assert_eq!("sliding-log".parse::<Algorithm>()?, Algorithm::SlidingLog);
/// # Ok::<_, tower_ratelimit::UnknownName>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum Algorithm {
    /// Tokens are added at a steady rate; a burst may be spent at once. The
    /// generic cell rate algorithm of ITU-T I.371.
    #[default]
    TokenBucket,
    /// Departures are spaced evenly. A request that comes early waits for its
    /// departure time, or is rejected if it may not wait.
    LeakyBucket,
    /// One count per window. Windows are multiples of W since the Unix epoch,
    /// so all instances open and close them together. Those of whole weeks begin on a
    /// Monday, [`Quota::offset`] moves the start, and [`Quota::per_month`] counts by
    /// calendar months. All in UTC.
    FixedWindow,
    /// One count per window. A window starts with the first request after the
    /// previous one has ended.
    AnchoredWindow,
    /// The count of this window, and that of the previous one weighted by time.
    SlidingWindow,
    /// The time of every request is stored. L is at most
    /// [`Quota::MAX_SLIDING_LOG`].
    SlidingLog,
    /// A concurrency limit: units are in use until the work ends. See
    /// [`Quota::concurrent`].
    #[cfg_attr(feature = "serde", schemars(skip))]
    Concurrency,
}

impl Algorithm {
    /// All algorithms with a window: all except `Concurrency`, the last one.
    #[cfg(any(test, feature = "test-util"))]
    pub(crate) const WINDOWED: [Self; Self::ALL.len() - 1] = match Self::ALL.first_chunk() {
        Some(windowed) => *windowed,
        None => unreachable!(),
    };

    /// Whether time is divided into windows, each with its own count.
    pub(crate) fn has_windows(self) -> bool {
        matches!(self, Self::FixedWindow | Self::AnchoredWindow | Self::SlidingWindow)
    }

    /// Whether the burst may differ from the limit.
    pub(crate) fn has_burst(self) -> bool {
        matches!(self, Self::TokenBucket | Self::LeakyBucket)
    }
}

names!(Algorithm, "algorithm", {
    TokenBucket => "token-bucket",
    LeakyBucket => "leaky-bucket",
    FixedWindow => "fixed-window",
    AnchoredWindow => "anchored-window",
    SlidingWindow => "sliding-window",
    SlidingLog => "sliding-log",
    Concurrency => "concurrency",
});

/// A limit per window, and a burst.
///
/// `per_second(100)` means one hundred a second. A limit of 0 is legal and
/// rejects every request. What cannot be counted (a window of zero, a burst of
/// zero) is an error when the policy is built.
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{Algorithm, Quota};
///
/// const STEADY: Quota = Quota::per_minute(600).burst(20);
/// assert_eq!(STEADY.limit(), 600);
/// assert_eq!(STEADY.window(), Duration::from_secs(60));
/// assert_eq!(STEADY.burst_size(), 20);
///
/// let exact = Quota::new(30, Duration::from_secs(10)).algorithm(Algorithm::SlidingLog);
/// assert_eq!(exact.burst_size(), 30);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub struct Quota {
    limit: u64,
    /// The burst if `has_burst`, the offset in nanoseconds if `has_offset`. No algorithm
    /// has both. Separate fields in this order keep a quota in half a cache line. Of an
    /// adaptive concurrency limit the minimum; its limit is the maximum.
    extra: u64,
    /// Of an adaptive concurrency limit, where it starts.
    window_secs: u64,
    window_nanos: u32,
    has_burst: bool,
    has_offset: bool,
    kind: QuotaKind,
    algorithm: Algorithm,
}

/// What a quota's numbers mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum QuotaKind {
    Fixed,
    /// The window is the calendar month. Its length is then that of the longest one.
    Month,
    /// A concurrency limit that is found.
    Adaptive,
}

/// 31 days.
pub(crate) const LONGEST_MONTH: Duration = Duration::from_secs(31 * 24 * 60 * 60);

impl Quota {
    /// The largest limit of a [`Algorithm::SlidingLog`]. Its memory is 16 bytes
    /// for each request in the window (requests of the same nanosecond share
    /// them), and for each reservation. In this process all logs together have a
    /// bound in bytes: see [`Local`](crate::backend::Local).
    pub const MAX_SLIDING_LOG: u64 = 65_536;

    /// `limit` units per `window`, as a token bucket.
    pub const fn new(limit: u64, window: Duration) -> Self {
        Self {
            limit,
            extra: 0,
            window_secs: window.as_secs(),
            window_nanos: window.subsec_nanos(),
            has_burst: false,
            has_offset: false,
            kind: QuotaKind::Fixed,
            algorithm: Algorithm::TokenBucket,
        }
    }

    /// `limit` units a second.
    pub const fn per_second(limit: u64) -> Self {
        Self::new(limit, Duration::from_secs(1))
    }

    /// `limit` units a minute.
    pub const fn per_minute(limit: u64) -> Self {
        Self::new(limit, Duration::from_secs(60))
    }

    /// `limit` units an hour.
    pub const fn per_hour(limit: u64) -> Self {
        Self::new(limit, Duration::from_secs(60 * 60))
    }

    /// `limit` units a day of 24 hours.
    pub const fn per_day(limit: u64) -> Self {
        Self::new(limit, Duration::from_secs(24 * 60 * 60))
    }

    /// `limit` units in each calendar month of UTC, as a fixed window: it begins on the
    /// first day of a month at 00:00, and `Retry-After` and the reset are at its real end.
    ///
    /// Setting another algorithm, a burst or an offset is an error when the policy is
    /// built. [`window`](Self::window) is that of the longest month.
    ///
    /// ```
    /// use tower_ratelimit::{Algorithm, Quota};
    ///
    /// let plan = Quota::per_month(100_000);
    /// assert!(plan.is_month());
    /// assert_eq!(plan.counted_by(), Algorithm::FixedWindow);
    /// ```
    pub const fn per_month(limit: u64) -> Self {
        let longest = Self::new(limit, LONGEST_MONTH).algorithm(Algorithm::FixedWindow);
        Self { kind: QuotaKind::Month, ..longest }
    }

    /// A concurrency limit: at most `limit` units in flight at once, without a
    /// window.
    ///
    /// A request uses as many units as it costs, from its admission until its
    /// permit is dropped or its response has ended. Over HTTP, on a server, that
    /// is when the body has ended or is dropped; elsewhere, when the response is
    /// there.
    ///
    /// At most `limit` units are in flight for a key, across all threads and
    /// together with the other tiers of a rule, all of which must pass. After
    /// the limit is lowered, units in flight stay, and no request is admitted
    /// until enough of them are released. A cost of 0 uses none.
    ///
    /// A request is in flight until its response's body has ended. An upgraded
    /// connection, such as a WebSocket, outlives that. **To count it until it ends,
    /// its handler must keep the**
    /// [`ConnectionPermit`](crate::middleware::ConnectionPermit) of the request's
    /// extensions.
    ///
    /// Setting a burst or another algorithm is an error when the policy is
    /// built.
    ///
    /// ```
    /// use tower_ratelimit::{Algorithm, Quota, Rule};
    ///
    /// const UPLOADS: Quota = Quota::concurrent(3);
    /// assert_eq!(UPLOADS.counted_by(), Algorithm::Concurrency);
    /// assert!(UPLOADS.window().is_zero());
    ///
    /// // At most three at a time, and at most a hundred an hour.
    /// let rule = Rule::new("uploads").tier(UPLOADS).tier(Quota::per_hour(100));
    /// # tower_ratelimit::RateLimiter::new(tower_ratelimit::Policy::new().rule(rule)).unwrap();
    /// ```
    pub const fn concurrent(limit: u64) -> Self {
        Self::new(limit, Duration::ZERO).algorithm(Algorithm::Concurrency)
    }

    /// A concurrency limit that the limiter finds between these bounds, from the latency of
    /// what it admits: as many units in flight as the handler serves without a queue. It
    /// starts at the minimum, or at [`start`](Self::start).
    ///
    /// Each key of the rule has its own limit; usually the rule counts
    /// [per](crate::Rule::per) nothing, or per endpoint. It is the rule's only tier. A
    /// rejection is an [`Overloaded`](crate::RateLimitedKind::Overloaded). On every backend
    /// each instance finds its own limit and counts its own requests.
    ///
    /// Latency is measured from when a request is sent to the head of its response. Errors
    /// and responses of 429 and 503 are not measured, nor is what was cancelled. Of a
    /// [`Permit`](crate::Permit) it is measured until that is dropped, unless by
    /// [`refund`](crate::Permit::refund).
    ///
    /// Each window of a second, and of a fifth of that until the limit first shrinks, gives a
    /// mean. It has at least 50 answers, and two for each request in flight, or goes on for up
    /// to 30 s. `recent` is an average of about 4 of these; `baseline` follows it down at once,
    /// and up slowly, while throughput follows the requests in flight or the limit is at its
    /// minimum. About `in_flight * (1 - baseline / recent)` requests queue in the handler.
    ///
    /// | queue | the limit |
    /// |---|---|
    /// | at most sqrt(limit), and it was nearly used up | grows by sqrt(limit) / 2; by a half until it first shrinks |
    /// | more than 2 * sqrt(limit) | shrinks by log10(limit) |
    /// | more than sqrt(limit), and throughput falls as more are in flight | shrinks, too |
    ///
    /// It is at most five times what was in flight.
    ///
    /// ```
    /// use tower_ratelimit::{Policy, Quota, RateLimiter, Rule};
    ///
    /// let rule = Rule::new("server").per([]).tier(Quota::adaptive_concurrency(10..=500).start(50));
    /// let limiter = RateLimiter::new(Policy::new().rule(rule))?;
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    pub const fn adaptive_concurrency(bounds: RangeInclusive<u64>) -> Self {
        Self::adaptive(*bounds.start(), *bounds.end(), *bounds.start())
    }

    /// Where an [adaptive concurrency limit](Self::adaptive_concurrency) starts. It has no
    /// meaning for other quotas.
    pub const fn start(self, start: u64) -> Self {
        match self.kind {
            QuotaKind::Adaptive => Self { window_secs: start, ..self },
            QuotaKind::Fixed | QuotaKind::Month => self,
        }
    }

    pub(crate) const fn adaptive(min: u64, max: u64, start: u64) -> Self {
        Self { extra: min, window_secs: start, kind: QuotaKind::Adaptive, ..Self::concurrent(max) }
    }

    /// The minimum, the maximum and the start of an
    /// [adaptive concurrency limit](Self::adaptive_concurrency).
    #[must_use]
    pub const fn adaptive_bounds(&self) -> Option<(u64, u64, u64)> {
        if self.is_adaptive() { Some((self.extra, self.limit, self.window_secs)) } else { None }
    }

    pub(crate) const fn is_adaptive(&self) -> bool {
        matches!(self.kind, QuotaKind::Adaptive)
    }

    /// How many units are admitted at once (token bucket), or can queue (leaky
    /// bucket). Default: the limit. Setting it for another algorithm is an error
    /// when the policy is built.
    pub const fn burst(mut self, burst: u64) -> Self {
        self.extra = burst;
        self.has_burst = true;
        self
    }

    /// How much later fixed windows begin than without an offset, for the midnight of a
    /// time zone: days of `offset(9h)` begin at 09:00 UTC, and weeks at 09:00 UTC on
    /// Monday. It must be shorter than the window. East of UTC, midnight comes earlier:
    /// for UTC+9 the offset of a day is 15 hours. Daylight saving time does not move it.
    ///
    /// Setting it for another algorithm or for a calendar month is an error when the
    /// policy is built. A reload with another offset starts a new counter.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{Algorithm, Quota};
    ///
    /// // Days of New York in winter, UTC-5.
    /// let daily = Quota::per_day(1_000).algorithm(Algorithm::FixedWindow).offset(Duration::from_secs(5 * 3_600));
    /// assert_eq!(daily.explicit_offset(), Some(Duration::from_secs(5 * 3_600)));
    /// ```
    pub const fn offset(mut self, offset: Duration) -> Self {
        self.extra = offset.as_secs().saturating_mul(1_000_000_000).saturating_add(offset.subsec_nanos() as u64);
        self.has_offset = true;
        self
    }

    /// How the quota is counted. Default: token bucket.
    pub const fn algorithm(mut self, algorithm: Algorithm) -> Self {
        self.algorithm = algorithm;
        self
    }

    /// Units per window, or in flight at once.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// The window's length; zero if there is none. Of a [calendar month](Self::is_month),
    /// the length of the longest, 31 days.
    #[must_use]
    pub const fn window(&self) -> Duration {
        if self.is_adaptive() { Duration::ZERO } else { Duration::new(self.window_secs, self.window_nanos) }
    }

    /// The burst: the limit unless one was set.
    #[must_use]
    pub const fn burst_size(&self) -> u64 {
        if self.has_burst { self.extra } else { self.limit }
    }

    /// The burst, if one was set.
    #[must_use]
    pub const fn explicit_burst(&self) -> Option<u64> {
        if self.has_burst { Some(self.extra) } else { None }
    }

    /// The offset of fixed windows, if one was set.
    #[must_use]
    pub const fn explicit_offset(&self) -> Option<Duration> {
        if self.has_offset { Some(Duration::from_nanos(self.extra)) } else { None }
    }

    /// Whether its window is the calendar month.
    #[must_use]
    pub const fn is_month(&self) -> bool {
        matches!(self.kind, QuotaKind::Month)
    }

    /// How long after the Unix epoch, in nanoseconds, a fixed window begins: less than
    /// its length.
    pub(crate) fn phase(&self) -> u64 {
        const DAY: u128 = 24 * 60 * 60 * 1_000_000_000;
        let window = self.window().as_nanos().max(1);
        // The epoch was a Thursday, and weeks begin on a Monday.
        let monday = if window.is_multiple_of(7 * DAY) { 4 * DAY } else { 0 };
        let offset = self.explicit_offset().unwrap_or_default().as_nanos();
        u64::try_from((monday + offset) % window).unwrap_or(u64::MAX)
    }

    /// What tells its counter from those of a rule's other quotas. Quotas that are equal in
    /// it are told apart by their order.
    pub(crate) fn counter(&self) -> CounterKind {
        (self.algorithm, self.window(), self.is_month(), self.explicit_offset().unwrap_or_default())
    }

    /// How the quota is counted.
    #[must_use]
    pub const fn counted_by(&self) -> Algorithm {
        self.algorithm
    }

    /// Without a part of what it holds, in billionths, rounded up: for those to whom the part
    /// is not reserved. The rate of a bucket stays.
    pub(crate) fn without(mut self, reserved: u32) -> Self {
        let capacity = self.capacity();
        let reserved = (u128::from(capacity) * u128::from(reserved)).div_ceil(1_000_000_000);
        let kept = u64::try_from(reserved).map_or(0, |reserved| capacity.saturating_sub(reserved));
        if kept == capacity {
            return self;
        }
        match self.algorithm.has_burst() && kept > 0 {
            true => self.burst(kept),
            false => {
                self.limit = kept;
                self
            }
        }
    }

    /// A part of the quota, for a fallback limiter: the limit and the burst are
    /// rounded down, but to at least 1 unless they were 0.
    pub(crate) fn scaled(mut self, share: f64) -> Self {
        self.limit = part(self.limit, share);
        if self.has_burst {
            self.extra = part(self.extra, share);
        }
        self
    }

    /// The largest cost that can ever be admitted.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        match self.algorithm {
            Algorithm::TokenBucket | Algorithm::LeakyBucket if self.limit > 0 => self.burst_size(),
            _ => self.limit,
        }
    }
}

/// See [`Quota::counter`].
pub(crate) type CounterKind = (Algorithm, Duration, bool, Duration);

/// The part of `units`, rounded down. 0.29 of 100 is 29, although the product of
/// the binary fractions is slightly less.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "exact up to a trillion, and within a trillionth beyond"
)]
fn part(units: u64, share: f64) -> u64 {
    if units == 0 || share >= 1.0 {
        return units;
    }
    let exact = units as f64 * share;
    let nearest = exact.round();
    let whole = if (exact - nearest).abs() <= exact * 1e-12 { nearest } else { exact.floor() };
    (whole as u64).clamp(1, units)
}

#[cfg(test)]
mod tests;
