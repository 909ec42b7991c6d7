//! Parts by weight.
//!
//! Whoever has an extra unit of one limit must have one of every higher limit:
//! else, where a limit changes, one instance spends by the old and another by
//! the new, and both have the same unit. So a limit is shared out in an order
//! that does not depend on it: in two, each of those in two, down to single
//! instances. A half of so many units is rounded by the same phase whatever
//! there is to share out, so that one more adds one to either side, and takes
//! nothing from the other.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// The forks on the way from the whole to one part.
///
/// The two sides of a fork weigh about the same: the lighter one gets the next
/// of all that are below, heaviest first. So either a side is a single part, or
/// it has no more than two thirds of the weight. Rounding at a fork is off by
/// less than a unit, of which the next fork passes on no more than that; in all
/// a part is off by less than 1 + 2/3 + 4/9 + … + 1 = 4 units, and hardly ever
/// by two. Where it stays the same it is half of that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Branch(Arc<[Fork]>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Fork {
    /// The weight of one side, and of both.
    first: u64,
    whole: u64,
    /// The part is on the other.
    is_second: bool,
    /// By how much the phase moves with each window.
    step: u64,
}

/// Half of a unit; phases are parts of 2^64.
const HALF: u64 = 1 << 63;

impl Branch {
    /// To the part at `index`, which has a weight.
    pub(super) fn to(index: usize, weights: &[u64]) -> Self {
        let mut side: Vec<(u64, usize)> = weights.iter().copied().zip(0..).filter(|(weight, _)| *weight > 0).collect();
        side.sort_unstable_by(|one, other| other.0.cmp(&one.0).then(one.1.cmp(&other.1)));
        let mut steps = steps();
        let mut forks = Vec::new();
        while side.len() > 1 && side.iter().any(|(_, place)| *place == index) {
            let (mut first, mut second) = (Side::default(), Side::default());
            for part in side {
                if first.weight <= second.weight { first.add(part) } else { second.add(part) }
            }
            let is_second = second.parts.iter().any(|(_, place)| *place == index);
            let step = steps.next().unwrap_or(HALF);
            forks.push(Fork { first: first.weight, whole: first.weight + second.weight, is_second, step });
            side = if is_second { second.parts } else { first.parts };
        }
        Self(forks.into())
    }

    /// The part of a limit.
    pub(super) fn fixed(&self, limit: u64) -> u64 {
        self.0.iter().fold(limit, |units, fork| fork.share(units, HALF))
    }

    /// The part that a window has of a limit.
    fn at(&self, limit: u64, window: u64) -> u64 {
        let mut units = limit;
        for fork in &*self.0 {
            if units == 0 {
                break;
            }
            units = fork.share(units, window.wrapping_mul(fork.step));
        }
        units
    }

    /// What every window has of a limit, and what none has more than.
    fn range(&self, limit: u64) -> (u64, u64) {
        self.0.iter().fold((limit, limit), |(least, most), fork| (fork.range(least).0, fork.range(most).1))
    }
}

#[derive(Default)]
struct Side {
    weight: u64,
    parts: Vec<(u64, usize)>,
}

impl Side {
    fn add(&mut self, part: (u64, usize)) {
        self.weight += part.0;
        self.parts.push(part);
    }
}

impl Fork {
    /// What the part's side has of so many units.
    fn share(&self, units: u64, phase: u64) -> u64 {
        let (part, rest) = divide(units, self.first, self.whole);
        let missing = (1 << 64) - u128::from(phase);
        let first = part + u64::from(u128::from(rest) << 64 >= u128::from(self.whole) * missing);
        if self.is_second { units - first } else { first }
    }

    /// Rounded down, and up.
    fn range(&self, units: u64) -> (u64, u64) {
        let own = if self.is_second { self.whole - self.first } else { self.first };
        let (part, rest) = divide(units, own, self.whole);
        (part, part + u64::from(rest > 0))
    }
}

/// `part / whole` of the units, rounded down, and the remainder of that.
#[allow(clippy::cast_possible_truncation, reason = "no more than the units, and than the whole")]
fn divide(units: u64, part: u64, whole: u64) -> (u64, u64) {
    match units.checked_mul(part) {
        Some(product) => (product / whole, product % whole),
        None => {
            let (product, whole) = (u128::from(units) * u128::from(part), u128::from(whole));
            ((product / whole) as u64, (product % whole) as u64)
        }
    }
}

/// For each fork on a way another one: the roots of primes, without their whole
/// parts. No sum of multiples of them is whole, so in the long run all phases
/// meet all others equally often, and shares are as their weights. The first is
/// that of five, whose multiples are spread as evenly as can be.
fn steps() -> impl Iterator<Item = u64> {
    let is_prime = |number: &u64| (2..).take_while(|by| by * by <= *number).all(|by| !number.is_multiple_of(by));
    [5, 3, 2].into_iter().chain((7..).filter(is_prime)).map(fraction_of_root)
}

/// The square root less its whole part, in parts of 2^64, and odd: so each phase
/// comes up.
fn fraction_of_root(number: u64) -> u64 {
    let whole = number.isqrt();
    let square = u128::from(number - whole * whole) << 64;
    let is_within = |fraction: u128| ((fraction * fraction) >> 64) + 2 * u128::from(whole) * fraction <= square;
    let with =
        |fraction, bit: u32| if is_within(u128::from(fraction | 1 << bit)) { fraction | 1 << bit } else { fraction };
    (0..u64::BITS).rev().fold(0, with) | 1
}

/// How many units each of a row of windows has, by weight.
#[derive(Debug)]
pub(super) struct Rounds {
    branch: Branch,
    limit: u64,
    weight: u64,
    total: u64,
    least: u64,
    most: u64,
    /// A window, and in how many from there on the next one comes that has more
    /// than the least: spares those who are rejected the search.
    ahead: AtomicU64,
}

/// In how many windows a turn is looked for. A search through all takes less
/// than a millisecond.
const HORIZON: u64 = (1 << HORIZON_BITS) - 1;
const HORIZON_BITS: u32 = 13;

impl Rounds {
    /// Of the part that weighs so much of the total.
    pub(super) fn new(branch: Branch, limit: u64, weight: u64, total: u64) -> Self {
        let (least, most) = branch.range(limit);
        Self { branch, limit, weight, total, least, most, ahead: AtomicU64::new(u64::MAX) }
    }

    #[inline]
    pub(super) fn least(&self) -> u64 {
        self.least
    }

    #[inline]
    pub(super) fn most(&self) -> u64 {
        self.most
    }

    pub(super) fn at(&self, window: u64) -> u64 {
        self.branch.at(self.limit, window)
    }

    /// The first window, this or a later one, that has so many; `None` beyond
    /// the horizon.
    pub(super) fn first_with(&self, window: u64, units: u64) -> Option<u64> {
        if units != self.least + 1 || window >= u64::MAX >> HORIZON_BITS {
            return self.search(window, units);
        }
        let known = self.ahead.load(Ordering::Relaxed);
        let (from, ahead) = (known >> HORIZON_BITS, known & HORIZON);
        if (from..=from + ahead).contains(&window) {
            return (ahead < HORIZON).then_some(from + ahead);
        }
        let found = self.search(window, units);
        let ahead = found.map_or(HORIZON, |found| found - window);
        self.ahead.store(window << HORIZON_BITS | ahead, Ordering::Relaxed);
        found
    }

    fn search(&self, window: u64, units: u64) -> Option<u64> {
        (window..window.saturating_add(HORIZON)).find(|window| self.at(*window) >= units)
    }

    /// The window in which the last of `units` is, where those after `window`
    /// take as many as they have, and how many it has of them. Beyond the
    /// horizon they take as many as they have on average, and a little less.
    pub(super) fn last_of(&self, window: u64, units: u64) -> Option<(u64, u64)> {
        let mut left = units.max(1);
        let first = window.checked_add(1)?;
        let near = first.checked_add(HORIZON)?;
        for window in first..near {
            let share = self.at(window);
            if share >= left {
                return Some((window, left));
            }
            left -= share;
        }
        let per_window = u128::from(self.limit) * u128::from(self.weight);
        let windows = (u128::from(left) * u128::from(self.total)).div_ceil(per_window.max(1));
        let windows = u64::try_from(windows + windows / 64).ok()?;
        let last = near.checked_add(windows)?;
        Some((self.first_with(last, 1).unwrap_or(last), 1))
    }
}

impl Clone for Rounds {
    fn clone(&self) -> Self {
        Self::new(self.branch.clone(), self.limit, self.weight, self.total)
    }
}
