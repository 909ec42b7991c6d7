use super::{
    Claim, QuotaStatus, StateMachine, WideState,
    fixed_window::{Back, carry},
    limits::Whole,
    paced::Window,
};

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

    fn start(&self, state: &WideState) -> u64 {
        state[0].saturating_sub(2 * self.window)
    }

    fn store(&self, state: &mut WideState, start: u64, current: u64, previous: u64) {
        [state[0], state[1], state[2]] = [start.saturating_add(2 * self.window), current, previous];
    }

    /// The state as it stands at `at`, not before the state's own window.
    fn advanced(&self, state: &WideState, at: u64) -> (u64, u64, u64) {
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
    type State = WideState;

    fn earliest(&self, state: &WideState, now: u64, cost: u64) -> Option<u64> {
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

    fn commit(&self, state: &mut WideState, _now: u64, at: u64, cost: u64) {
        let (start, current, previous) = self.advanced(state, at);
        self.store(state, start, current.saturating_add(cost), previous);
    }

    fn latest_departure(&self, state: &WideState, at: u64) -> u64 {
        self.window(state, at).1 - 1
    }

    fn charge_debt(&self, state: &mut WideState, now: u64, units: u64, claim: &mut Claim) {
        let (start, current, previous) = self.advanced(state, now);
        let end = start.saturating_add(self.window);
        let room = self.limit.saturating_sub(current);
        let carried = carry(&Whole(self.limit), start, self.window, units, room);
        let goes_on = end == claim.until && current == claim.detail && claim.units > claim.detail;
        let detail = claim.hold_on(end, current, units, carried.is_some());
        let Some((windows, last)) = carried else {
            self.store(state, start, current.saturating_add(units), previous);
            (claim.until, claim.detail) = (end, detail.saturating_add(units));
            return;
        };
        let full = current.max(self.limit);
        if !goes_on {
            // What weighs upon the first window that holds any of it.
            claim.at = if room > 0 || detail > 0 { previous } else { full };
        }
        let later = windows.checked_mul(self.window).and_then(|length| start.checked_add(length));
        match later.filter(|start| *start < u64::MAX - 4 * self.window) {
            Some(start) => self.store(state, start, last, if windows == 1 { full } else { self.limit }),
            // At the end of time nothing passes any more.
            None => self.store(state, u64::MAX, self.limit, self.limit),
        }
        (claim.until, claim.detail) = (self.start(state).saturating_add(self.window), last);
    }

    /// Units leave the window that they are in, where it still counts. And
    /// where nobody else is in the last one, those before that are full of the
    /// same claim's units are opened again.
    fn refund(&self, state: &mut WideState, now: u64, units: u64, claim: &mut Claim) {
        let (start, mut rest, mut left) = (self.start(state), units, claim.units);
        let end = start.saturating_add(self.window);
        if state[0] == u64::MAX {
            return;
        }
        if claim.until == end {
            let own = rest.min(claim.detail).min(state[1]);
            state[1] -= own;
            claim.detail -= own;
            (rest, left) = (rest - own, left - own);
            if state[1] == 0 {
                let open = (end - 1).saturating_sub(now) / self.window;
                if let Some(back) = Back::find(&Whole(self.limit), rest, left, open, false) {
                    let previous = if back.is_first { claim.at } else { self.limit };
                    let start = start - back.windows * self.window;
                    self.store(state, start, back.count(self.limit), previous);
                    (claim.until, claim.detail) = (end - back.windows * self.window, back.own);
                    (rest, left) = (rest - back.units, left - back.units);
                }
                if rest > 0 && left > 0 && claim.detail == 0 {
                    claim.until -= self.window;
                    claim.detail = left.min(self.limit);
                }
            }
        }
        // What is in the window that is over weighs yet.
        if rest > 0 && claim.until == self.start(state) {
            let own = rest.min(claim.detail).min(state[2]);
            state[2] -= own;
            claim.detail -= own;
        }
    }

    fn status_of(&self, state: &WideState, now: u64) -> QuotaStatus {
        let (start, current, previous) = self.advanced(state, now);
        let end = start.saturating_add(self.window);
        let covered = end.saturating_sub(now.max(start));
        let weighted = (u128::from(previous) * u128::from(covered)).div_ceil(u128::from(self.window));
        let used = u64::try_from(weighted).unwrap_or(u64::MAX).saturating_add(current);
        // Before a later window that is reserved there is nothing left.
        let remaining = if now < start { 0 } else { self.limit.saturating_sub(used) };
        QuotaStatus { remaining, reset: end.saturating_sub(now) }
    }
}

impl Window for SlidingWindow {
    fn window(&self, state: &WideState, at: u64) -> (u64, u64, u64) {
        let (start, current, _) = self.advanced(state, at);
        (start, start.saturating_add(self.window), current)
    }

    fn limit(&self, _: u64) -> u64 {
        self.limit
    }
}
