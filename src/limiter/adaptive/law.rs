//! How an adaptive rate is found: additive increase, multiplicative decrease.
//! Pure arithmetic, without locks or clocks.

use crate::{policy::Ladder, time::Timestamp};

/// When a request was decided, and when it was sent.
#[derive(Clone, Copy, Debug)]
pub(in crate::limiter) struct Times {
    pub(in crate::limiter) decided: Timestamp,
    pub(in crate::limiter) sent: Timestamp,
}

/// Between what, and how fast. Rates are units per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Bounds {
    pub(crate) floor: f64,
    pub(crate) ceiling: f64,
    pub(crate) start: f64,
    /// What it grows by in a second near the rate at which it was rejected, as
    /// a share of that rate.
    pub(crate) increase: f64,
    /// What is left of the rate after a rejection.
    pub(crate) decrease: f64,
}

impl From<&Ladder> for Bounds {
    fn from(ladder: &Ladder) -> Self {
        let Ladder { floor, ceiling, start, increase, decrease, .. } = *ladder;
        Self { floor, ceiling, start, increase, decrease }
    }
}

/// Additive increase, multiplicative decrease, and a memory of where it was
/// rejected.
///
/// | while | it grows by, for each second's worth of units that succeed |
/// |---|---|
/// | it was never rejected | as many units: 2.7-fold |
/// | it is below 0.97 of where it was rejected | 10 % |
/// | it is near there | `increase` of that |
/// | it is above 1.03 of it | a fifth of what it is above it as well: the limit is another |
///
/// | rejected | it goes down to | and remembers |
/// |---|---|---|
/// | for the first time | 0.7, or `decrease` if that is less | 0.95 of it: it has overshot |
/// | near where it was rejected, or above | `decrease` | it |
/// | on its way there | `decrease`, the third time in a row twice, then three times that | 0.95 of it |
///
/// Growth goes by what succeeds and not by time: a client that sends less than
/// its rate learns nothing about it. What takes more than a second to send
/// counts as a second's worth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Law {
    rate: f64,
    /// The rate at which it was rejected last.
    rejected_at: Option<f64>,
    /// When it was decreased last, in nanoseconds.
    decreased: Option<u64>,
    /// Decreases in a row, none of which has held yet.
    row: u32,
    rejections: u64,
    /// When the latest of those went that succeeded, and how many units are
    /// then out, if they go at no more than [`USED`] of the rate.
    latest: u64,
    out: f64,
}

/// The share of its rate that a client has to use, so that it grows.
const USED: f64 = 0.8;

/// How much of a request's units have to be out when it goes.
const PRESSED: f64 = 0.1;

/// Between these, as shares of where it was rejected, it goes slowly.
const NEAR: f64 = 0.97;
const BEYOND: f64 = 1.03;

/// The share that it grows by in a second on its way to where it was rejected.
const RECOVERY: f64 = 0.1;

/// The share of its way beyond that by which it grows.
const BEYOND_GROWTH: f64 = 0.2;

/// What is left, at the most, of a rate that was found by doubling.
const FIRST_DECREASE: f64 = 0.7;

/// What is remembered of a rate that was rejected while it grew fast.
const OVERSHOT: f64 = 0.95;

/// A rate that was rejected is near where it was rejected from here on; with
/// some room, as it comes back to `NEAR` at the most.
const ARRIVED: f64 = 0.975;

/// Decreases in a row go this many times as far, at the most.
const FARTHEST: u32 = 4;

/// How long, in nanoseconds, a decrease is given to be felt: what is decided
/// within it, or before, is rejected for the same reason.
const SETTLES: u64 = 200_000_000;

impl Law {
    pub(crate) fn new(bounds: &Bounds) -> Self {
        Self { rate: bounds.start, rejected_at: None, decreased: None, row: 0, rejections: 0, latest: 0, out: 0.0 }
    }

    /// Units per second.
    pub(crate) fn rate(&self) -> f64 {
        self.rate
    }

    /// How often it was rejected, whether that has changed anything or not.
    pub(crate) fn rejections(&self) -> u64 {
        self.rejections
    }

    /// Other bounds are in force.
    pub(crate) fn bind(&mut self, bounds: &Bounds) {
        self.rate = self.rate.clamp(bounds.floor, bounds.ceiling);
    }

    /// `units`, admitted at `decided` and sent at `sent`, were answered and not
    /// rejected.
    pub(crate) fn succeeded(&mut self, bounds: &Bounds, (decided, sent): (u64, u64), units: f64) {
        let pressed = self.count(sent, units);
        if self.is_before(decided) || !pressed {
            return;
        }
        let seconds = (units / self.rate).min(1.0);
        let rate = match self.rejected_at {
            None => self.rate * seconds.exp(),
            Some(rejected_at) if self.rate < rejected_at * NEAR => {
                (self.rate * (1.0 + RECOVERY * seconds)).min(rejected_at * NEAR)
            }
            Some(rejected_at) => {
                self.row = 0;
                let beyond = (self.rate - rejected_at * BEYOND).max(0.0);
                self.rate + (bounds.increase * rejected_at + BEYOND_GROWTH * beyond) * seconds
            }
        };
        self.rate = rate.clamp(bounds.floor, bounds.ceiling);
    }

    /// Something that was admitted at `decided` was rejected at `now`. Whether
    /// the rate is another for it: one that was admitted before the last
    /// decrease tells nothing new.
    pub(crate) fn rejected(&mut self, bounds: &Bounds, decided: u64, now: u64) -> bool {
        self.rejections = self.rejections.saturating_add(1);
        if self.is_before(decided) {
            return false;
        }
        self.row = self.row.saturating_add(1);
        let times = self.row.saturating_sub(1).clamp(1, FARTHEST);
        let factor = (0..times).fold(1.0, |factor, _| factor * bounds.decrease);
        let (factor, remembered) = match self.rejected_at {
            None => (factor.min(FIRST_DECREASE), OVERSHOT),
            Some(rejected_at) if self.rate < rejected_at * ARRIVED => (factor, OVERSHOT),
            Some(_) => (factor, 1.0),
        };
        self.rejected_at = Some(self.rate * remembered);
        self.decreased = Some(now);
        self.rate = (self.rate * factor).clamp(bounds.floor, bounds.ceiling);
        true
    }

    fn is_before(&self, decided: u64) -> bool {
        self.decreased.is_some_and(|decreased| decided <= decreased.saturating_add(SETTLES))
    }

    /// Whether what is sent uses the rate up.
    #[allow(clippy::cast_precision_loss, reason = "an interval")]
    fn count(&mut self, sent: u64, units: f64) -> bool {
        let passed = sent.saturating_sub(self.latest) as f64 / 1e9;
        self.latest = self.latest.max(sent);
        let out = (self.out - passed * self.rate * USED).max(0.0);
        self.out = (out + units).min(2.0 * units);
        out >= PRESSED * units
    }
}
