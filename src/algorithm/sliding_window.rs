use super::{Committed, Standing, StateMachine, Wide};

/// At most L units, where the last window's count is weighted by how much of
/// it the sliding window still covers: 84 x (60 - 15)/60 + 36.
///
/// Windows are aligned to the wall clock. The words are: idle at (two windows
/// after the current one's start), this window's count, the last one's.
#[derive(Clone, Debug)]
pub(crate) struct SlidingWindow {
    limit: u64,
    window: u64,
}

impl SlidingWindow {
    pub(super) fn new(limit: u64, window: u64) -> Self {
        // Two windows must fit before the end of time.
        Self { limit, window: window.min(u64::MAX / 4) }
    }

    fn start(&self, state: &Wide) -> u64 {
        state[0].saturating_sub(2 * self.window)
    }

    /// The state as it stands at `at`, not before the state's own window.
    fn advanced(&self, state: &Wide, at: u64) -> (u64, u64, u64) {
        let (start, current, previous) = (self.start(state), state[1], state[2]);
        if at < start.saturating_add(self.window) && state[0] > 0 {
            return (start, current, previous);
        }
        let opened = at - at % self.window;
        let follows = state[0] > 0 && opened - start == self.window;
        (opened, 0, if follows { current } else { 0 })
    }

    /// The earliest time in the window from `start` on at which `room` units
    /// are all that the last window's `previous` still take.
    fn when_at_most(&self, start: u64, previous: u64, room: u64) -> u64 {
        if previous <= room {
            return start;
        }
        let covered = u128::from(room) * u128::from(self.window) / u128::from(previous);
        let covered = u64::try_from(covered).unwrap_or(u64::MAX);
        start.saturating_add(self.window - covered.min(self.window))
    }
}

impl StateMachine for SlidingWindow {
    type State = Wide;

    fn earliest(&self, state: &Wide, now: u64, cost: u64) -> Option<u64> {
        if cost > self.limit || self.limit == 0 {
            return None;
        }
        let (start, current, previous) = self.advanced(state, now);
        let now = now.max(start);
        let next = start.saturating_add(self.window);
        let at = match self.limit.checked_sub(current).and_then(|room| room.checked_sub(cost)) {
            Some(room) => self.when_at_most(start, previous, room).max(now),
            None => self.when_at_most(next, current, self.limit - cost).max(now),
        };
        (at < u64::MAX - 2 * self.window).then_some(at)
    }

    fn commit(&self, state: &mut Wide, _now: u64, at: u64, cost: u64) {
        let (start, current, previous) = self.advanced(state, at);
        let idle_at = start.saturating_add(2 * self.window);
        *state = [idle_at, current.saturating_add(cost), previous, 0];
    }

    fn refund(&self, state: &mut Wide, _now: u64, Committed { at, cost, .. }: Committed) {
        let start = self.start(state);
        if at >= start {
            state[1] = state[1].saturating_sub(cost);
        } else if at >= start.saturating_sub(self.window) {
            state[2] = state[2].saturating_sub(cost);
        }
    }

    fn standing(&self, state: &Wide, now: u64) -> Standing {
        let (start, current, previous) = self.advanced(state, now);
        let end = start.saturating_add(self.window);
        let covered = end.saturating_sub(now.max(start));
        let weighted = (u128::from(previous) * u128::from(covered)).div_ceil(u128::from(self.window));
        let used = u64::try_from(weighted).unwrap_or(u64::MAX).saturating_add(current);
        Standing { remaining: self.limit.saturating_sub(used), reset: end.saturating_sub(now) }
    }
}
