//! [`EqualShares`]: what one of several equal instances has of each window.
//!
//! Every window has `base` units, and in some windows the instance has one of
//! the units that are left over. The invariant: which instance has an extra
//! unit depends only on the number of the window and the index, so instances
//! agree without communicating.

use super::rate::gcd;

/// Window k has an extra unit if `start + k·step`, modulo `cycle`, is below
/// `extra`. So an instance that has an extra unit of a limit has one of every
/// limit that leaves more over.
///
/// The step and the cycle are coprime: in as many windows as there are
/// instances, each instance has equally many extra units. The step is as near
/// as possible to the golden ratio of the cycle, which spreads them as evenly
/// as possible, whatever the limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EqualShares {
    base: u64,
    extra: u64,
    start: u64,
    step: u64,
    cycle: u64,
}

impl EqualShares {
    /// No unit in any window.
    pub(super) const NONE: Self = Self { base: 0, extra: 0, start: 0, step: 0, cycle: 1 };

    /// The shares of the instance at `index` of `count`.
    pub(super) fn new(limit: u64, index: u64, count: u64) -> Self {
        Self { base: limit / count, extra: limit % count, start: index, step: step(count), cycle: count }
    }

    /// What every window has.
    pub(super) fn least(&self) -> u64 {
        self.base
    }

    /// What no window exceeds.
    pub(super) fn most(&self) -> u64 {
        self.base + u64::from(self.extra > 0)
    }

    pub(super) fn at(&self, window: u64) -> u64 {
        self.base + u64::from(self.phase(window) < self.extra)
    }

    #[allow(clippy::cast_possible_truncation, reason = "less than the cycle")]
    fn phase(&self, window: u64) -> u64 {
        let moved = u128::from(window % self.cycle) * u128::from(self.step) + u128::from(self.start);
        (moved % u128::from(self.cycle)) as u64
    }

    /// The first window, this or a later one, that has an extra unit.
    pub(super) fn next_extra(&self, window: u64) -> Option<u64> {
        if self.extra == 0 {
            return None;
        }
        let phase = self.phase(window);
        if phase < self.extra {
            return Some(window);
        }
        let from = self.cycle - phase;
        window.checked_add(first_within(self.step, self.cycle, from, from + self.extra - 1)?)
    }

    /// The window that has the last of `units` extra units, counted from the
    /// window after this one.
    pub(super) fn nth_extra(&self, window: u64, units: u64) -> Option<u64> {
        let cycles = (units.max(1) - 1) / self.extra.max(1);
        let mut window = window.checked_add(cycles.checked_mul(self.cycle)?)?;
        for _ in 0..(units.max(1) - cycles * self.extra).min(MAX_STEPS) {
            window = self.next_extra(window.checked_add(1)?)?;
        }
        Some(window)
    }
}

/// Bounds the search of [`EqualShares::nth_extra`], which takes fewer steps
/// than there are instances. A longer debt counts as one of this length.
const MAX_STEPS: u64 = 1 << 16;

/// A step through `cycle` numbers that visits each of them.
fn step(cycle: u64) -> u64 {
    const GOLDEN: u128 = 0x9E37_79B9_7F4A_7C15;
    let nearest = u64::try_from((u128::from(cycle) * GOLDEN) >> 64).unwrap_or(1).max(1);
    (nearest..).find(|&step| gcd(step, cycle) == 1).unwrap_or(1) % cycle
}

/// The smallest x for which `step·x`, modulo `cycle`, is from `from` to `to`, of
/// which neither is less than the other or reaches the cycle. The step is coprime to
/// the cycle, so it is zero only where `from` is too.
fn first_within(step: u64, cycle: u64, from: u64, to: u64) -> Option<u64> {
    if from == 0 {
        return Some(0);
    }
    let least = from.div_ceil(step);
    if u128::from(least) * u128::from(step) <= u128::from(to) {
        return Some(least);
    }
    // After how many rounds a multiple of the step falls in between: the same
    // question, modulo the step.
    let rest = |value: u64| (step - value % step) % step;
    let rounds = first_within(cycle % step, step, rest(to), rest(from))?;
    let reached = u128::from(from) + u128::from(rounds) * u128::from(cycle);
    u64::try_from(reached.div_ceil(u128::from(step))).ok()
}
