//! What one of several instances has of a limit.

use std::sync::Arc;

use super::{
    branch::{Branch, Rounds},
    cycle::Cycle,
};

/// A part of every limit: `weight` of `total`. Whole numbers, so that the parts
/// of all instances sum to the limit exactly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Portion {
    index: u64,
    weight: u64,
    total: u64,
    /// `None` where all are one.
    weighted: Option<Weighted>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Weighted {
    weights: Arc<[u64]>,
    branch: Branch,
}

impl Portion {
    /// One of `count` equal parts, the one at `index`.
    pub(crate) fn equal(index: u64, count: u64) -> Self {
        Self { index, weight: 1, total: count.max(1), weighted: None }
    }

    /// No part of anything.
    pub(crate) const NONE: Self = Self { index: 0, weight: 0, total: 1, weighted: None };

    /// The part at `index`. The weights' sum has to be positive and to fit
    /// into 48 bits. Where all are the same, so are the parts.
    pub(crate) fn weighted(index: usize, weights: Arc<[u64]>) -> Self {
        let weight = weights.get(index).copied().unwrap_or(0);
        if weight > 0 && weights.iter().all(|other| *other == weight) {
            return Self::equal(index as u64, weights.len() as u64);
        }
        let total = weights.iter().sum::<u64>().max(1);
        let branch = Branch::to(index, &weights);
        Self { index: index as u64, weight, total, weighted: Some(Weighted { weights, branch }) }
    }

    pub(crate) fn index(&self) -> u64 {
        self.index
    }

    /// How many parts there are.
    pub(crate) fn count(&self) -> u64 {
        match &self.weighted {
            Some(weighted) => weighted.weights.len() as u64,
            None if self.is_none() => 0,
            None => self.total,
        }
    }

    #[allow(clippy::cast_precision_loss, reason = "rounded")]
    pub(crate) fn fraction(&self) -> f64 {
        self.weight as f64 / self.total as f64
    }

    pub(crate) fn is_none(&self) -> bool {
        self.weight == 0
    }

    /// The rate: so many units in so many nanoseconds, in lowest terms. Exact,
    /// unless that needs more than 64 bits, when it is rounded down.
    pub(super) fn rate(&self, limit: u64, window: u64) -> (u64, u64) {
        let units = u128::from(limit) * u128::from(self.weight);
        let period = u128::from(window.max(1)) * u128::from(self.total);
        let divisor = gcd_wide(units, period);
        let (mut units, mut period) = (units / divisor, period / divisor);
        loop {
            match (u64::try_from(units), u64::try_from(period)) {
                (Ok(0), _) if limit > 0 && !self.is_none() => return (1, u64::MAX),
                (Ok(units), Ok(period)) => return (units, period),
                _ => (units, period) = (units / 2, period.div_ceil(2)),
            }
        }
    }

    /// The part as a fraction, so many units of so many parts.
    pub(super) fn of(&self, limit: u64) -> (u128, u128) {
        (u128::from(limit) * u128::from(self.weight), u128::from(self.total))
    }

    /// A part that stays the same. Of a higher limit nobody has less. What is
    /// left over of equal parts goes to the first.
    pub(crate) fn fixed(&self, limit: u64) -> u64 {
        match &self.weighted {
            _ if self.is_none() => 0,
            Some(weighted) => weighted.branch.fixed(limit),
            None => limit / self.total + u64::from(self.index < limit % self.total),
        }
    }

    /// The part of each of a row of windows. In no window has anybody less of a
    /// higher limit.
    pub(super) fn turns(&self, limit: u64) -> Turns {
        match &self.weighted {
            _ if self.is_none() => Turns::Equal(Cycle::NONE),
            Some(weighted) => Turns::Weighted(Rounds::new(weighted.branch.clone(), limit, self.weight, self.total)),
            None => Turns::Equal(Cycle::new(limit, self.index, self.total)),
        }
    }
}

/// How many units each of a row of windows has.
#[derive(Clone, Debug)]
pub(super) enum Turns {
    Equal(Cycle),
    Weighted(Rounds),
}

impl Turns {
    /// What every window has.
    #[inline]
    pub(super) fn least(&self) -> u64 {
        match self {
            Self::Equal(cycle) => cycle.base(),
            Self::Weighted(rounds) => rounds.least(),
        }
    }

    /// What no window has more than.
    #[inline]
    pub(super) fn most(&self) -> u64 {
        match self {
            Self::Equal(cycle) => cycle.most(),
            Self::Weighted(rounds) => rounds.most(),
        }
    }

    pub(super) fn at(&self, window: u64) -> u64 {
        match self {
            Self::Equal(cycle) => cycle.at(window),
            Self::Weighted(rounds) => rounds.at(window),
        }
    }

    /// The first window, this or a later one, that has so many; `None` where
    /// there is none, or none that is near.
    pub(super) fn first_with(&self, window: u64, units: u64) -> Option<u64> {
        match self {
            _ if units <= self.least() => Some(window),
            _ if units > self.most() => None,
            Self::Equal(cycle) => cycle.next_turn(window),
            Self::Weighted(rounds) => rounds.first_with(window, units),
        }
    }

    /// The window in which the last of `units` is, where those after `window`
    /// take as many as they have, and how many it has of them.
    pub(super) fn last_of(&self, window: u64, units: u64) -> Option<(u64, u64)> {
        match self {
            Self::Equal(cycle) => Some((cycle.nth_turn(window, units)?, 1)),
            Self::Weighted(rounds) => rounds.last_of(window, units),
        }
    }
}

fn gcd_wide(mut a: u128, mut b: u128) -> u128 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a.max(1)
}

#[cfg(test)]
mod tests;
