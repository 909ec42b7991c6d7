//! [`WeightedShares`]: what one of several instances has of each window, by
//! weight.
//!
//! It is not a rounding of each instance's exact part: such parts do not sum to
//! the limit, or shrink when it rises. The invariant: an instance that has an
//! extra unit of one limit has one of every higher limit. Otherwise, while a
//! limit changes, two instances that apply different limits could use the same
//! unit.
//!
//! So a limit is divided in an order that does not depend on it: in two, each
//! half in two, down to single instances. Each division is rounded by a phase
//! that is the same for every limit. One more unit then adds one to either side
//! and takes nothing from the other.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// The divisions on the way from the whole limit to one instance.
///
/// The two sides of a division weigh about the same: instances are assigned by
/// falling weight, each to the lighter side. So a side is a single instance or
/// has at most two thirds of the weight. Rounding is off by less than a unit,
/// of which the next division passes on at most two thirds. In all a share is
/// off by less than 1 + 2/3 + 4/9 + … + 1 = 4 units, and rarely by two; a
/// stable share by half of that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SplitPath(Arc<[Division]>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Division {
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
    /// The path to the instance at `index`, which has a weight.
    pub(super) fn to(index: usize, weights: &[u64]) -> Self {
        let mut side: Vec<(u64, usize)> = weights.iter().copied().zip(0..).filter(|(weight, _)| *weight > 0).collect();
        side.sort_unstable_by(|one, other| other.0.cmp(&one.0).then(one.1.cmp(&other.1)));
        let mut steps = steps();
        let mut path = Vec::new();
        while side.len() > 1 {
            let (mut first, mut second) = (Side::default(), Side::default());
            for instance in side {
                if first.weight <= second.weight { first.add(instance) } else { second.add(instance) }
            }
            let is_second = second.instances.iter().any(|(_, instance)| *instance == index);
            let step = steps.next().unwrap_or(HALF);
            path.push(Division { first: first.weight, whole: first.weight + second.weight, is_second, step });
            side = if is_second { second.instances } else { first.instances };
        }
        Self(path.into())
    }

    /// The share of a limit that is the same in all windows.
    pub(super) fn stable(&self, limit: u64) -> u64 {
        self.0.iter().fold(limit, |units, division| division.share(units, HALF))
    }

    /// The share that a window has of a limit.
    fn at(&self, limit: u64, window: u64) -> u64 {
        let mut units = limit;
        for division in &*self.0 {
            if units == 0 {
                break;
            }
            units = division.share(units, window.wrapping_mul(division.step));
        }
        units
    }

    /// What every window has of a limit, and what no window exceeds.
    fn range(&self, limit: u64) -> (u64, u64) {
        self.0.iter().fold((limit, limit), |(least, most), division| (division.range(least).0, division.range(most).1))
    }
}

#[derive(Default)]
struct Side {
    weight: u64,
    instances: Vec<(u64, usize)>,
}

impl Side {
    fn add(&mut self, instance: (u64, usize)) {
        self.weight += instance.0;
        self.instances.push(instance);
    }
}

impl Division {
    /// What the instance's side has of so many units.
    fn share(&self, units: u64, phase: u64) -> u64 {
        let (part, rest) = divide(units, self.first, self.whole);
        let missing = (1 << 64) - u128::from(phase);
        let first = part + u64::from(u128::from(rest) << 64 >= u128::from(self.whole) * missing);
        if self.is_second { units - first } else { first }
    }

    /// The exact share, rounded down and up.
    fn range(&self, units: u64) -> (u64, u64) {
        let own = if self.is_second { self.whole - self.first } else { self.first };
        let (part, rest) = divide(units, own, self.whole);
        (part, part + u64::from(rest > 0))
    }
}

/// `part / whole` of the units, rounded down, and the remainder of that.
#[allow(clippy::cast_possible_truncation, reason = "at most the units, and less than the whole")]
fn divide(units: u64, part: u64, whole: u64) -> (u64, u64) {
    match units.checked_mul(part) {
        Some(product) => (product / whole, product % whole),
        None => {
            let (product, whole) = (u128::from(units) * u128::from(part), u128::from(whole));
            ((product / whole) as u64, (product % whole) as u64)
        }
    }
}

/// A different step for each division on a path: the fractional parts of the
/// roots of primes. They are linearly independent over the rationals, so in the
/// long run all combinations of phases occur equally often, and shares follow
/// the weights. The first is the root of five, whose multiples are spread most
/// evenly.
fn steps() -> impl Iterator<Item = u64> {
    let is_prime = |number: &u64| (2..).take_while(|by| by * by <= *number).all(|by| !number.is_multiple_of(by));
    [5, 3, 2].into_iter().chain((7..).filter(is_prime)).map(fraction_of_root)
}

/// The fractional part of a square root in units of 2^-64, made odd so that
/// every phase occurs.
fn fraction_of_root(number: u64) -> u64 {
    let whole = number.isqrt();
    let square = u128::from(number - whole * whole) << 64;
    let is_within = |fraction: u128| ((fraction * fraction) >> 64) + 2 * u128::from(whole) * fraction <= square;
    let with =
        |fraction, bit: u32| if is_within(u128::from(fraction | 1 << bit)) { fraction | 1 << bit } else { fraction };
    (0..u64::BITS).rev().fold(0, with) | 1
}

/// How many units an instance has in each of a sequence of windows, by weight.
#[derive(Debug)]
pub(super) struct WeightedShares {
    path: SplitPath,
    limit: u64,
    weight: u64,
    total: u64,
    least: u64,
    most: u64,
    /// The last search that [`Self::first_with`] made for one unit more than
    /// the least: the window and the distance to the one that was found. It
    /// spares rejected requests the search.
    last_search: AtomicU64,
}

/// How many windows a search looks at. A search through all takes less than a
/// millisecond.
const HORIZON: u64 = (1 << HORIZON_BITS) - 1;
const HORIZON_BITS: u32 = 13;

impl WeightedShares {
    /// The shares of the instance that weighs `weight` of `total`.
    pub(super) fn new(path: SplitPath, limit: u64, weight: u64, total: u64) -> Self {
        let (least, most) = path.range(limit);
        Self { path, limit, weight, total, least, most, last_search: AtomicU64::new(u64::MAX) }
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
        self.path.at(self.limit, window)
    }

    /// The first window, this or a later one, that has at least `units`;
    /// `None` beyond the horizon.
    pub(super) fn first_with(&self, window: u64, units: u64) -> Option<u64> {
        if units != self.least + 1 || window >= u64::MAX >> HORIZON_BITS {
            return self.search(window, units);
        }
        let last = self.last_search.load(Ordering::Relaxed);
        let (from, distance) = (last >> HORIZON_BITS, last & HORIZON);
        if (from..=from + distance).contains(&window) {
            return (distance < HORIZON).then_some(from + distance);
        }
        let found = self.search(window, units);
        let distance = found.map_or(HORIZON, |found| found - window);
        self.last_search.store(window << HORIZON_BITS | distance, Ordering::Relaxed);
        found
    }

    fn search(&self, window: u64, units: u64) -> Option<u64> {
        (window..window.saturating_add(HORIZON)).find(|window| self.at(*window) >= units)
    }

    /// The window that takes the last of `units`, if the windows after
    /// `window` take as many as they have, and how many of them it takes.
    /// Beyond the horizon each takes a little less than the average.
    pub(super) fn last_of(&self, window: u64, units: u64) -> Option<(u64, u64)> {
        let mut left = units.max(1);
        let first = window.checked_add(1)?;
        let horizon = first.checked_add(HORIZON)?;
        for window in first..horizon {
            let share = self.at(window);
            if share >= left {
                return Some((window, left));
            }
            left -= share;
        }
        let per_window = u128::from(self.limit) * u128::from(self.weight);
        let windows = (u128::from(left) * u128::from(self.total)).div_ceil(per_window.max(1));
        let windows = u64::try_from(windows + windows / 64).ok()?;
        let last = horizon.checked_add(windows)?;
        Some((self.first_with(last, 1).unwrap_or(last), 1))
    }
}

impl Clone for WeightedShares {
    fn clone(&self) -> Self {
        Self::new(self.path.clone(), self.limit, self.weight, self.total)
    }
}
