//! [`Share`]: the part of every limit that one of several instances has; and
//! [`ShareHistory`]: those that it has had.
//!
//! It is pure arithmetic: how an instance learns its share is in `backend/split/`,
//! what a change means for a window or a bucket in their files. The invariant: the
//! shares of all instances sum to the limit exactly, in every window, and no
//! instance's share falls when the limit rises. So while a limit changes, no two
//! instances can use the same unit.

use std::{fmt, ops::Rem, sync::Arc};

/// The part of every limit that one instance has: the one at `index` of `count`
/// equal shares, or of shares by weight.
///
/// Indexes start at 0. Each instance needs an index of its own, and all need
/// the same count (or weights). Two instances with the same index admit twice
/// their share; a missing index leaves its share unused.
///
/// ```
/// use tower_ratelimit::backend::Share;
///
/// let share = Share::new(3, 96)?;
/// assert_eq!((share.index(), share.count()), (3, 96));
///
/// // A quarter, and three quarters.
/// let small = Share::weighted(0, [1.0, 3.0])?;
/// assert_eq!(small.fraction(), 0.25);
///
/// let error = Share::new(96, 96).unwrap_err();
/// assert_eq!(error.to_string(), "share.index: `96`: must be below the count, 96");
/// # Ok::<_, tower_ratelimit::ConfigError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Share {
    index: u64,
    /// The share is `weight` of `total`: whole numbers, so that all shares sum
    /// to the limit exactly.
    pub(crate) weight: u64,
    pub(crate) total: u64,
    division: Division,
}

/// How limits are divided.
#[derive(Clone, PartialEq, Eq)]
enum Division {
    /// What is left over goes to the lowest indexes. Of a limit below the number
    /// of instances, some have nothing. So its units rotate: window k has one if
    /// `index + k·step`, modulo the count, is below the limit.
    Equal { step: u64 },
    /// By weight, along a path.
    Weighted { count: u64, path: SplitPath },
}

/// How many windows are searched for a share of a rotating limit. By weights, more
/// than these may pass without one.
const HORIZON: u64 = (1 << 13) - 1;

impl Share {
    /// The most instances that can share a limit.
    pub const MAX_COUNT: u64 = 1 << 20;

    /// No part of any limit: an instance with this share admits nothing. An
    /// instance that has yet to learn its share starts with it.
    #[must_use]
    pub const fn none() -> Self {
        Self { index: 0, weight: 0, total: 1, division: Division::Equal { step: 0 } }
    }

    /// All of every limit.
    pub(super) fn whole() -> Self {
        Self::equal(0, 1)
    }

    /// The one at `index` of `count` equal shares.
    pub(crate) fn equal(index: u64, count: u64) -> Self {
        let count = count.max(1);
        Self { index, weight: 1, total: count, division: Division::Equal { step: step(count) } }
    }

    /// The share at `index`. The sum of the weights has to be positive and to
    /// fit into 48 bits. Equal weights give equal shares.
    pub(crate) fn by_weight(index: usize, weights: &[u64]) -> Self {
        let (weight, count) = (weights.get(index).copied().unwrap_or(0), weights.len() as u64);
        if weight > 0 && weights.iter().all(|other| *other == weight) {
            return Self::equal(index as u64, count);
        }
        let division = Division::Weighted { count, path: SplitPath::to(index, weights) };
        Self { index: index as u64, weight, total: weights.iter().sum::<u64>().max(1), division }
    }

    /// This instance's index among all, from 0.
    #[must_use]
    pub fn index(&self) -> u64 {
        self.index
    }

    /// How many instances there are; 0 for [`none`](Self::none).
    #[must_use]
    pub fn count(&self) -> u64 {
        match &self.division {
            Division::Weighted { count, .. } => *count,
            Division::Equal { .. } if self.is_none() => 0,
            Division::Equal { .. } => self.total,
        }
    }

    /// Whether it is no part of any limit: [`none`](Self::none), or a weight
    /// of 0.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.weight == 0
    }

    /// The part of the limit, from 0 to 1, rounded to a `f64`.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "rounded")]
    pub fn fraction(&self) -> f64 {
        self.weight as f64 / self.total as f64
    }

    pub(crate) fn is_smaller_than(&self, other: &Self) -> bool {
        u128::from(self.weight) * u128::from(other.total) < u128::from(other.weight) * u128::from(self.total)
    }

    /// The share of a rate: so many units in so many nanoseconds, in lowest
    /// terms. Exact, unless that needs more than 64 bits, when it is rounded
    /// down.
    pub(super) fn rate(&self, limit: u64, window: u64) -> (u64, u64) {
        let units = u128::from(limit) * u128::from(self.weight);
        let period = u128::from(window.max(1)) * u128::from(self.total);
        let divisor = gcd(units, period);
        let (mut units, mut period) = (units / divisor, period / divisor);
        loop {
            match (u64::try_from(units), u64::try_from(period)) {
                (Ok(0), _) if limit > 0 && !self.is_none() => return (1, u64::MAX),
                (Ok(units), Ok(period)) => return (units, period),
                _ => (units, period) = (units / 2, period.div_ceil(2)),
            }
        }
    }

    /// The share of a limit that is the same at all times.
    pub(super) fn units(&self, limit: u64) -> u64 {
        match &self.division {
            _ if self.is_none() => 0,
            Division::Weighted { path, .. } => path.units(limit),
            Division::Equal { .. } => limit / self.total + u64::from(self.index < limit % self.total),
        }
    }

    /// The share of a limit in the window of this number. Instances agree on it
    /// without communicating.
    pub(super) fn in_window(&self, limit: u64, number: u64) -> u64 {
        match &self.division {
            _ if self.is_none() => 0,
            Division::Weighted { path, .. } => path.in_window(limit, number),
            Division::Equal { step } if limit < self.total => {
                let moved = number % self.total * step + self.index;
                u64::from(moved % self.total < limit)
            }
            Division::Equal { .. } => self.units(limit),
        }
    }

    /// The share that every window has of a limit, and that no window exceeds.
    pub(super) fn range(&self, limit: u64) -> (u64, u64) {
        match &self.division {
            _ if self.is_none() => (0, 0),
            Division::Weighted { path, .. } => path.range(limit),
            Division::Equal { .. } if limit < self.total => (0, limit.min(1)),
            Division::Equal { .. } => (self.units(limit), self.units(limit)),
        }
    }

    /// The first window, this or a later one, in which the share of a limit is at
    /// least `units`, of those that are searched.
    pub(super) fn first_with(&self, limit: u64, number: u64, units: u64) -> Option<u64> {
        let searched = match self.division {
            Division::Equal { .. } => self.total,
            Division::Weighted { .. } => HORIZON,
        };
        (number..number.saturating_add(searched)).find(|number| self.in_window(limit, *number) >= units)
    }

    /// The window that takes the last of `units`, if the windows after this one
    /// take the share that they have of a limit, and how many of them it takes.
    /// Beyond the horizon each takes a little less than the average.
    pub(super) fn last_of(&self, limit: u64, number: u64, units: u64) -> Option<(u64, u64)> {
        let mut left = units.max(1);
        let first = number.checked_add(1)?;
        let horizon = first.checked_add(HORIZON)?;
        for number in first..horizon {
            let share = self.in_window(limit, number);
            if share >= left {
                return Some((number, left));
            }
            left -= share;
        }
        let per_window = u128::from(limit) * u128::from(self.weight);
        let windows = (u128::from(left) * u128::from(self.total)).div_ceil(per_window.max(1));
        let windows = u64::try_from(windows + windows / 64).ok()?;
        let last = horizon.checked_add(windows)?;
        Some((self.first_with(limit, last, 1).unwrap_or(last), 1))
    }
}

impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (index, count, fraction) = (self.index(), self.count(), self.fraction());
        f.debug_struct("Share").field("index", &index).field("count", &count).field("fraction", &fraction).finish()
    }
}

/// A step through `count` numbers that visits each of them, and spreads the visits
/// as evenly as possible: near the golden ratio of the count.
fn step(count: u64) -> u64 {
    const GOLDEN: u128 = 0x9E37_79B9_7F4A_7C15;
    let nearest = u64::try_from((u128::from(count) * GOLDEN) >> 64).unwrap_or(1).max(1);
    (nearest..).find(|&step| gcd(step, count) == 1).unwrap_or(1) % count
}

/// The greatest common divisor of two numbers. Never zero, so it can divide: 1
/// if both are zero.
pub(crate) fn gcd<T>(mut a: T, mut b: T) -> T
where
    T: Copy + PartialEq + From<u8> + Rem<Output = T>,
{
    let zero = T::from(0);
    while b != zero {
        (a, b) = (b, a % b);
    }
    if a == zero { T::from(1) } else { a }
}

/// How a limit is divided by weights: the divisions on the way from the whole limit to
/// one instance.
///
/// It is not the largest remainder of each instance's exact part: a share by that
/// may shrink when the limit rises. So a limit is divided in an order that does not
/// depend on it: in two, each half in two, down to single instances. Each division is
/// rounded by a phase that is the same for every limit. One more unit then adds one
/// to either side and takes nothing from the other.
///
/// The two sides of a division weigh about the same: instances are assigned by
/// falling weight, each to the lighter side. So a side is a single instance or
/// has at most two thirds of the weight. Rounding is off by less than a unit,
/// of which the next division passes on at most two thirds. In all a share is
/// off by less than 1 + 2/3 + 4/9 + … + 1 = 4 units, and rarely by two; one that
/// is the same at all times by half of that.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SplitPath(Arc<[Bisection]>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Bisection {
    /// The weight of the first side, and of both.
    first: u64,
    whole: u64,
    /// Whether the instance is on the second side.
    is_second: bool,
    /// How far the phase moves with each window.
    step: u64,
}

/// Half a unit; phases are in units of 2^-64.
const HALF: u64 = 1 << 63;

impl SplitPath {
    /// The path to the instance at `index`.
    fn to(index: usize, weights: &[u64]) -> Self {
        let weight = |instances: &[usize]| instances.iter().map(|instance| weights[*instance]).sum::<u64>();
        let mut side: Vec<usize> = (0..weights.len()).filter(|instance| weights[*instance] > 0).collect();
        side.sort_by_key(|instance| std::cmp::Reverse(weights[*instance]));
        let mut path = Vec::new();
        for step in steps() {
            if side.len() < 2 {
                break;
            }
            let (mut first, mut second) = (Vec::new(), Vec::new());
            let mut lead = 0_i64;
            for instance in side {
                let own = weights[instance].cast_signed();
                if lead <= 0 {
                    first.push(instance)
                } else {
                    second.push(instance)
                }
                lead += if lead <= 0 { own } else { -own };
            }
            let is_second = second.contains(&index);
            path.push(Bisection { first: weight(&first), whole: weight(&first) + weight(&second), is_second, step });
            side = if is_second { second } else { first };
        }
        Self(path.into())
    }

    /// The share of a limit that is the same at all times.
    fn units(&self, limit: u64) -> u64 {
        self.0.iter().fold(limit, |units, bisection| bisection.share(units, HALF))
    }

    /// The share that the window of this number has of a limit.
    fn in_window(&self, limit: u64, number: u64) -> u64 {
        self.0.iter().fold(limit, |units, bisection| bisection.share(units, number.wrapping_mul(bisection.step)))
    }

    /// What every window has of a limit, and what no window exceeds.
    fn range(&self, limit: u64) -> (u64, u64) {
        self.0
            .iter()
            .fold((limit, limit), |(least, most), bisection| (bisection.range(least).0, bisection.range(most).1))
    }
}

impl Bisection {
    /// What the instance's side has of so many units.
    #[allow(clippy::cast_possible_truncation, reason = "at most the units")]
    fn share(&self, units: u64, phase: u64) -> u64 {
        if units == 0 {
            return 0;
        }
        let (product, whole) = (u128::from(units) * u128::from(self.first), u128::from(self.whole));
        let (part, rest) = ((product / whole) as u64, product % whole);
        let missing = (1 << 64) - u128::from(phase);
        let first = part + u64::from(rest << 64 >= whole * missing);
        if self.is_second { units - first } else { first }
    }

    /// The exact share, rounded down and up.
    fn range(&self, units: u64) -> (u64, u64) {
        let (one, other) = (self.share(units, 0), self.share(units, u64::MAX));
        (one.min(other), one.max(other))
    }
}

/// A different step for each division on a path: the fractional parts of the
/// roots of primes, in units of 2^-64. They are linearly independent over the
/// rationals, so in the long run all combinations of phases occur equally often,
/// and shares follow the weights. The first is the root of five, whose multiples
/// are spread most evenly. Odd, so that every phase occurs.
fn steps() -> impl Iterator<Item = u64> {
    let is_prime = |number: &u64| (2..).take_while(|by| by * by <= *number).all(|by| !number.is_multiple_of(by));
    let primes = [5, 3, 2].into_iter().chain((7..).filter(is_prime));
    #[allow(clippy::cast_possible_truncation, reason = "the fractional part")]
    primes.map(|prime| (((u128::from(prime) << 112).isqrt() << 8) as u64) | 1)
}

/// How many periods are remembered as they were, and how many older ones, for windows alone.
const MAX_REMEMBERED: usize = 31;

/// The shares that an instance has had, and the one in force.
#[derive(Clone, Debug)]
pub(crate) struct ShareHistory {
    /// In order. Where there are too many, neighbours among the older ones become one, of
    /// the smaller share: so each holds longer the older it is.
    past: Vec<SharePeriod>,
    current: SharePeriod,
}

/// A share, and the time from which it was in force.
#[derive(Clone, Debug)]
pub(crate) struct SharePeriod {
    pub(crate) since: u64,
    /// Counts the changes.
    pub(crate) epoch: u64,
    pub(crate) share: Share,
}

impl ShareHistory {
    /// A share that was in force at all times.
    pub(crate) fn new(share: Share) -> Self {
        Self { past: Vec::new(), current: SharePeriod { since: 0, epoch: 0, share } }
    }

    /// Puts `share` in force from `now` on; returns whether it is another.
    pub(crate) fn change(&mut self, share: Share, now: u64) -> bool {
        if share == self.current.share {
            return false;
        }
        let (since, epoch) = (self.current.since.max(now), self.current.epoch + 1);
        self.past.push(std::mem::replace(&mut self.current, SharePeriod { since, epoch, share }));
        if self.past.len() > 2 * MAX_REMEMBERED {
            self.merge_older();
        }
        true
    }

    /// Makes two neighbours of the older periods one, of the smaller share. These are the two
    /// that are shortest for their age: a window loses the least of what it had at its start.
    fn merge_older(&mut self) {
        let now = self.current.since;
        let ends = self.past.iter().skip(2).map(|period| period.since);
        let age = |(first, end): (usize, u64)| {
            let length = end.saturating_sub(self.past[first].since).max(1);
            (u128::from(now.saturating_sub(end)) << 32) / u128::from(length)
        };
        // The recent ones stay.
        let pairs = ends.take(MAX_REMEMBERED).enumerate();
        let Some((first, _)) = pairs.max_by_key(|pair| age(*pair)) else { return };
        let second = self.past.remove(first + 1);
        if second.share.is_smaller_than(&self.past[first].share) {
            self.past[first].share = second.share;
        }
    }

    /// The clock is at `now` again: a later change counts as if it happened
    /// now.
    pub(crate) fn step_back(&mut self, now: u64) {
        for period in self.past.iter_mut().chain([&mut self.current]) {
            period.since = period.since.min(now);
        }
    }

    pub(crate) fn current(&self) -> &SharePeriod {
        &self.current
    }

    /// The last periods before the current one, in order.
    pub(crate) fn recent(&self) -> &[SharePeriod] {
        &self.past[self.past.len().saturating_sub(MAX_REMEMBERED)..]
    }

    /// All periods before the current one, in order: no share is larger than it was.
    pub(crate) fn past(&self) -> &[SharePeriod] {
        &self.past
    }

    /// The smallest constant share of `limit` among those in force within
    /// `length` before `now`, and the time until which it may hold.
    pub(crate) fn least(&self, limit: u64, now: u64, length: u64) -> (u64, u64) {
        let periods = || self.past.iter().chain([&self.current]);
        let units = periods().map(|period| period.share.units(limit));
        let ends = periods().skip(1).map(|period| period.since.saturating_add(length)).chain([u64::MAX]);
        let recent = units.zip(ends).filter(|(_, end)| *end > now);
        recent.fold((u64::MAX, u64::MAX), |least, (units, end)| if units <= least.0 { (units, end) } else { least })
    }
}

#[cfg(test)]
mod tests;
