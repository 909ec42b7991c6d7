//! [`SplitPath`]: how a limit is divided by weights, down to one instance.
//!
//! It is not the largest remainder of each instance's exact part: a share by that
//! may shrink when the limit rises. The invariant: an instance that has a unit of
//! one limit has it of every higher limit. Otherwise, while a limit changes, two
//! instances that apply different limits could use the same unit.
//!
//! So a limit is divided in an order that does not depend on it: in two, each
//! half in two, down to single instances. Each division is rounded by a phase
//! that is the same for every limit. One more unit then adds one to either side
//! and takes nothing from the other.

use std::sync::Arc;

/// The divisions on the way from the whole limit to one instance.
///
/// The two sides of a division weigh about the same: instances are assigned by
/// falling weight, each to the lighter side. So a side is a single instance or
/// has at most two thirds of the weight. Rounding is off by less than a unit,
/// of which the next division passes on at most two thirds. In all a share is
/// off by less than 1 + 2/3 + 4/9 + … + 1 = 4 units, and rarely by two; one that
/// is the same at all times by half of that.
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
    /// The path to the instance at `index`.
    pub(super) fn to(index: usize, weights: &[u64]) -> Self {
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
            path.push(Division { first: weight(&first), whole: weight(&first) + weight(&second), is_second, step });
            side = if is_second { second } else { first };
        }
        Self(path.into())
    }

    /// The share of a limit that is the same at all times.
    pub(super) fn units(&self, limit: u64) -> u64 {
        self.0.iter().fold(limit, |units, division| division.share(units, HALF))
    }

    /// The share that the window of this number has of a limit.
    pub(super) fn in_window(&self, limit: u64, number: u64) -> u64 {
        self.0.iter().fold(limit, |units, division| division.share(units, number.wrapping_mul(division.step)))
    }

    /// What every window has of a limit, and what no window exceeds.
    pub(super) fn range(&self, limit: u64) -> (u64, u64) {
        self.0.iter().fold((limit, limit), |(least, most), division| (division.range(least).0, division.range(most).1))
    }
}

impl Division {
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
