//! [`Share`]: the part of every limit that one of several instances has.
//!
//! It is pure arithmetic: how an instance learns its share is in
//! `backend/split/`. The invariant: the shares of all instances sum to the
//! limit exactly, in every window, and no instance's share falls when the limit
//! rises.

use std::fmt;

use super::{
    equal_shares::EqualShares,
    rate::gcd,
    weighted_shares::{SplitPath, WeightedShares},
};

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
    weight: u64,
    total: u64,
    /// `None` if all weights are equal.
    weighted: Option<Weighted>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Weighted {
    count: u64,
    path: SplitPath,
}

impl Share {
    /// The most instances that can share a limit.
    pub const MAX_COUNT: u64 = 1 << 20;

    /// No part of any limit: an instance with this share admits nothing. An
    /// instance that has yet to learn its share starts with it.
    #[must_use]
    pub const fn none() -> Self {
        Self { index: 0, weight: 0, total: 1, weighted: None }
    }

    /// The one at `index` of `count` equal shares.
    pub(crate) fn equal(index: u64, count: u64) -> Self {
        Self { index, weight: 1, total: count.max(1), weighted: None }
    }

    /// The share at `index`. The sum of the weights has to be positive and to
    /// fit into 48 bits. Equal weights give equal shares.
    pub(crate) fn by_weight(index: usize, weights: &[u64]) -> Self {
        let (weight, count) = (weights.get(index).copied().unwrap_or(0), weights.len() as u64);
        if weight > 0 && weights.iter().all(|other| *other == weight) {
            return Self::equal(index as u64, count);
        }
        let total = weights.iter().sum::<u64>().max(1);
        let path = SplitPath::to(index, weights);
        Self { index: index as u64, weight, total, weighted: Some(Weighted { count, path }) }
    }

    /// This instance's index among all, from 0.
    #[must_use]
    pub fn index(&self) -> u64 {
        self.index
    }

    /// How many instances there are; 0 for [`none`](Self::none).
    #[must_use]
    pub fn count(&self) -> u64 {
        match &self.weighted {
            Some(weighted) => weighted.count,
            None if self.is_none() => 0,
            None => self.total,
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

    /// The share of a limit as an exact fraction: numerator and denominator.
    pub(super) fn fraction_of(&self, limit: u64) -> (u128, u128) {
        (u128::from(limit) * u128::from(self.weight), u128::from(self.total))
    }

    /// The share of a rate: so many units in so many nanoseconds, in lowest
    /// terms. Exact, unless that needs more than 64 bits, when it is rounded
    /// down.
    pub(super) fn rate(&self, limit: u64, window: u64) -> (u64, u64) {
        let (units, total) = self.fraction_of(limit);
        let period = u128::from(window.max(1)) * total;
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

    /// The share of a limit that is the same in all windows. What is left over
    /// of equal shares goes to the lowest indexes.
    pub(super) fn stable(&self, limit: u64) -> u64 {
        match &self.weighted {
            _ if self.is_none() => 0,
            Some(weighted) => weighted.path.stable(limit),
            None => limit / self.total + u64::from(self.index < limit % self.total),
        }
    }

    /// The share of a limit in each of a sequence of windows.
    pub(super) fn in_windows(&self, limit: u64) -> WindowShares {
        match &self.weighted {
            _ if self.is_none() => WindowShares::Equal(EqualShares::NONE),
            Some(weighted) => {
                WindowShares::Weighted(WeightedShares::new(weighted.path.clone(), limit, self.weight, self.total))
            }
            None => WindowShares::Equal(EqualShares::new(limit, self.index, self.total)),
        }
    }
}

impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (index, count, fraction) = (self.index(), self.count(), self.fraction());
        f.debug_struct("Share").field("index", &index).field("count", &count).field("fraction", &fraction).finish()
    }
}

/// How many units an instance has in each of a sequence of numbered windows.
/// The units that are left over rotate among the instances.
#[derive(Clone, Debug)]
pub(super) enum WindowShares {
    Equal(EqualShares),
    Weighted(WeightedShares),
}

impl WindowShares {
    /// What every window has.
    #[inline]
    pub(super) fn least(&self) -> u64 {
        match self {
            Self::Equal(shares) => shares.least(),
            Self::Weighted(shares) => shares.least(),
        }
    }

    /// What no window exceeds.
    #[inline]
    pub(super) fn most(&self) -> u64 {
        match self {
            Self::Equal(shares) => shares.most(),
            Self::Weighted(shares) => shares.most(),
        }
    }

    pub(super) fn at(&self, window: u64) -> u64 {
        match self {
            Self::Equal(shares) => shares.at(window),
            Self::Weighted(shares) => shares.at(window),
        }
    }

    /// The first window, this or a later one, that has at least `units`;
    /// `None` if there is none, or none within the search horizon.
    pub(super) fn first_with(&self, window: u64, units: u64) -> Option<u64> {
        match self {
            _ if units <= self.least() => Some(window),
            _ if units > self.most() => None,
            Self::Equal(shares) => shares.next_extra(window),
            Self::Weighted(shares) => shares.first_with(window, units),
        }
    }

    /// The window that takes the last of `units`, if the windows after
    /// `window` take as many as they have, and how many of them it takes.
    pub(super) fn last_of(&self, window: u64, units: u64) -> Option<(u64, u64)> {
        match self {
            Self::Equal(shares) => Some((shares.nth_extra(window, units)?, 1)),
            Self::Weighted(shares) => shares.last_of(window, units),
        }
    }
}

#[cfg(test)]
mod tests;
