//! Turns of those who have equal parts.

use super::gcra::gcd;

/// How many units each of a row of windows has: `base`, and one more where it
/// is this instance's turn.
///
/// Window k has it where `start + k·step`, modulo `cycle`, is below `extra`: so
/// whoever has an extra unit of a limit has one of every limit that leaves more
/// over. The step has no divisor in common with the cycle, so that in as many
/// windows as that has, each number comes up once; and it is as near as can be
/// to the golden ratio of the cycle, so that the turns are spread as evenly as
/// can be, whatever the limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cycle {
    base: u64,
    extra: u64,
    start: u64,
    step: u64,
    cycle: u64,
}

impl Cycle {
    /// Of the part at `index` of so many.
    pub(super) fn new(limit: u64, index: u64, count: u64) -> Self {
        Self { base: limit / count, extra: limit % count, start: index, step: step(count), cycle: count }
    }

    /// Of no part.
    pub(super) const NONE: Self = Self { base: 0, extra: 0, start: 0, step: 0, cycle: 1 };

    /// What every window has.
    pub(super) fn base(&self) -> u64 {
        self.base
    }

    /// What no window has more than.
    pub(super) fn most(&self) -> u64 {
        self.base + u64::from(self.extra > 0)
    }

    pub(super) fn at(&self, window: u64) -> u64 {
        self.base + u64::from(self.extra > 0 && self.is_turn(self.place(window)))
    }

    #[allow(clippy::cast_possible_truncation, reason = "less than the cycle")]
    fn place(&self, window: u64) -> u64 {
        let moved = u128::from(window % self.cycle) * u128::from(self.step) + u128::from(self.start);
        (moved % u128::from(self.cycle)) as u64
    }

    fn is_turn(&self, place: u64) -> bool {
        place < self.extra
    }

    /// The first window, this or a later one, that has an extra unit.
    pub(super) fn next_turn(&self, window: u64) -> Option<u64> {
        if self.extra == 0 {
            return None;
        }
        let place = self.place(window);
        if self.is_turn(place) {
            return Some(window);
        }
        let from = self.cycle - place;
        window.checked_add(first_within(self.step, self.cycle, from, from + self.extra - 1)?)
    }

    /// The window in which the last of `units` extra ones is, from the one
    /// after `window` on.
    pub(super) fn nth_turn(&self, window: u64, units: u64) -> Option<u64> {
        let rounds = (units.max(1) - 1) / self.extra.max(1);
        let mut window = window.checked_add(rounds.checked_mul(self.cycle)?)?;
        for _ in 0..(units.max(1) - rounds * self.extra).min(MOST_STEPS) {
            window = self.next_turn(window.checked_add(1)?)?;
        }
        Some(window)
    }
}

/// So many steps are enough where all weigh the same, as far as anybody has
/// such a fleet; a longer debt is taken for one of that length.
const MOST_STEPS: u64 = 1 << 16;

/// A step through `cycle` numbers that visits each.
fn step(cycle: u64) -> u64 {
    const GOLDEN: u128 = 0x9E37_79B9_7F4A_7C15;
    let nearest = u64::try_from((u128::from(cycle) * GOLDEN) >> 64).unwrap_or(1).max(1);
    (nearest..).find(|&step| gcd(step, cycle) == 1).unwrap_or(1) % cycle
}

/// The smallest x for which `step·x`, modulo `cycle`, is from `from` to `to`.
fn first_within(step: u64, cycle: u64, from: u64, to: u64) -> Option<u64> {
    if from == 0 {
        return Some(0);
    }
    if step == 0 || from > to || from >= cycle {
        return None;
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
