//! The sliding window counter: the previous window's count is weighted by how
//! much of it the sliding window still covers, as in 84 x (60 - 15)/60 + 36.
//!
//! It approximates a log of requests in constant memory. The invariant: at most
//! L units, so weighted, at any time.

use super::{
    Claim, QuotaStatus, StateMachine, WideState,
    window::{Calendar, OpenWindow, Reopened, WindowLimit},
};

/// Windows are aligned to the wall clock. The words are: idle at (two windows
/// after the current one's start), this window's count, the previous one's, and that
/// of the one before it or [`UNKNOWN`].
#[derive(Clone, Debug)]
pub(crate) struct SlidingWindow {
    limits: WindowLimit,
    window: u64,
    /// Departures are spread evenly.
    pub(super) is_smooth: bool,
}

/// Stands for a count that is unknown. Higher counts do not fit into the half word that
/// a claim has for one, and are unknown to it.
const UNKNOWN: u64 = u32::MAX as u64;

/// The counts of the two windows before that of a claim, as
/// [`SlidingWindow::version`] packs them.
fn counts_before(claim: &Claim) -> Option<(u64, u64)> {
    let previous = (claim.before >> 32).checked_sub(1)?;
    Some((previous, claim.before & UNKNOWN))
}

impl SlidingWindow {
    pub(super) fn new(limit: u64, window: u64, is_smooth: bool) -> Self {
        // Two windows must fit before the end of time.
        let window = window.min(u64::MAX / 4);
        Self { limits: WindowLimit::same(limit, Calendar::even(window)), window, is_smooth }
    }

    fn start(&self, state: &WideState) -> u64 {
        state[0].saturating_sub(2 * self.window)
    }

    fn store(&self, state: &mut WideState, start: u64, current: u64, previous: u64) {
        [state[0], state[1], state[2], state[3]] = [start.saturating_add(2 * self.window), current, previous, UNKNOWN];
    }

    /// The count of the window two before the one that starts at `opened`.
    fn count_before_previous(&self, state: &WideState, opened: u64) -> u64 {
        match (opened - self.start(state)) / self.window {
            0 => state[3],
            1 => state[2],
            2 => state[1],
            _ => 0,
        }
    }

    /// The last units of a window that is yet to come have left it, and no later one
    /// counts any: the windows before it are as they were when the units were charged.
    /// Otherwise nothing would be admitted before that window.
    fn reopen_before(&self, state: &mut WideState, now: u64, claim: &Claim) {
        let (end, start) = (self.start(state).saturating_add(self.window), self.start(state));
        let is_empty = state[1] == 0 && (claim.until == end || claim.until == start && state[2] == 0);
        if let Some((previous, earlier)) = counts_before(claim)
            && is_empty
            && start > now
        {
            // Units that have left since then do not come back.
            let current = if claim.until == end { previous.min(state[2]) } else { previous };
            self.store(state, claim.until.saturating_sub(2 * self.window), current, earlier);
        }
    }

    /// The window at `at`, not before the state's own window, and the count of
    /// the one before it.
    fn open_window(&self, state: &WideState, at: u64) -> (OpenWindow, u64) {
        let (start, current, previous) = (self.start(state), state[1], state[2]);
        let window = |start: u64, count| OpenWindow { start, end: start.saturating_add(self.window), count };
        if at < start.saturating_add(self.window) {
            return (window(start, current), previous);
        }
        let opened = at - at % self.window;
        let follows = opened - start == self.window;
        (window(opened, 0), if follows { current } else { 0 })
    }

    /// The earliest time in the window at `start` at which the previous
    /// window's `count` weighs at most `free` units.
    fn when_weight_is(&self, start: u64, count: u64, free: u64) -> u64 {
        if count <= free {
            return start;
        }
        let covered = u128::from(free) * u128::from(self.window) / u128::from(count);
        let covered = u64::try_from(covered).unwrap_or(u64::MAX);
        start.saturating_add(self.window - covered.min(self.window))
    }
}

impl StateMachine for SlidingWindow {
    type State = WideState;

    fn earliest(&self, state: &WideState, now: u64, cost: u64) -> Option<u64> {
        if cost > self.limits.limit || self.limits.limit == 0 {
            return None;
        }
        let (window, previous) = self.open_window(state, now);
        let at = match self.limits.limit.checked_sub(window.count).and_then(|free| free.checked_sub(cost)) {
            Some(free) => self.when_weight_is(window.start, previous, free),
            None => self.when_weight_is(window.end, window.count, self.limits.limit - cost),
        };
        let at = at.max(now.max(window.start));
        (at < u64::MAX - 2 * self.window).then_some(at)
    }

    fn smooth_departure(&self, state: &WideState, at: u64, cost: u64) -> u64 {
        if self.is_smooth { self.open_window(state, at).0.smooth_departure(self.limits.limit, at, cost) } else { at }
    }

    fn latest_departure(&self, state: &WideState, at: u64) -> u64 {
        self.open_window(state, at).0.end - 1
    }

    fn commit(&self, state: &mut WideState, _now: u64, at: u64, cost: u64) {
        let (window, previous) = self.open_window(state, at);
        let earlier = self.count_before_previous(state, window.start);
        self.store(state, window.start, window.count.saturating_add(cost), previous);
        state[3] = earlier;
    }

    /// The counts of the two windows before, each in half a word; zero where one is
    /// unknown.
    fn version(&self, state: &WideState) -> u64 {
        let (previous, earlier) = (state[2], state[3]);
        if previous.max(earlier) < UNKNOWN { (previous + 1) << 32 | earlier } else { 0 }
    }

    fn charge_debt(&self, state: &mut WideState, now: u64, units: u64, claim: &mut Claim) {
        let (OpenWindow { start, end, count }, previous) = self.open_window(state, now);
        claim.before = 0;
        let free = self.limits.limit.saturating_sub(count);
        let carried = self.limits.carry(start, units, free);
        let continues = end == claim.until && count == claim.detail && claim.units > claim.detail;
        let own = claim.extend_in_window(end, count, units, carried.is_some());
        let Some((windows, last)) = carried else {
            self.store(state, start, count.saturating_add(units), previous);
            (claim.until, claim.detail) = (end, own.saturating_add(units));
            return;
        };
        let full = count.max(self.limits.limit);
        if !continues {
            // The count before the first window that has any of these units.
            claim.at = if free > 0 || own > 0 { previous } else { full };
        }
        let later = windows.checked_mul(self.window).and_then(|length| start.checked_add(length));
        match later.filter(|start| *start < u64::MAX - 4 * self.window) {
            Some(start) => self.store(state, start, last, if windows == 1 { full } else { self.limits.limit }),
            // At the end of time nothing passes any more.
            None => self.store(state, u64::MAX, self.limits.limit, self.limits.limit),
        }
        (claim.until, claim.detail) = (self.start(state).saturating_add(self.window), last);
    }

    /// Later charges may depend on what is left of the window before. So this tries.
    fn is_last(&self, state: &WideState, now: u64, claim: &Claim) -> bool {
        let (mut refunded, mut rest) = (*state, *claim);
        self.refund(&mut refunded, now, claim.units, &mut rest);
        self.earliest(&refunded, now, claim.units).is_some_and(|at| at <= claim.at)
    }

    /// Units leave the window that counts them, as long as it has weight. If
    /// the last window then counts none, the claim's earlier windows are
    /// reopened.
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
                if let Some(reopened) = Reopened::find(&self.limits, rest, left, open, false) {
                    let previous = if reopened.is_first { claim.at } else { self.limits.limit };
                    let earlier = reopened.windows * self.window;
                    self.store(state, start - earlier, reopened.count(self.limits.limit), previous);
                    (claim.until, claim.detail) = (end - earlier, reopened.own);
                    (rest, left) = (rest - reopened.units, left - reopened.units);
                }
                if rest > 0 && left > 0 && claim.detail == 0 {
                    claim.until -= self.window;
                    claim.detail = left.min(self.limits.limit);
                }
            }
        }
        // The window that has ended still has weight.
        if rest > 0 && claim.until == self.start(state) {
            let own = rest.min(claim.detail).min(state[2]);
            state[2] -= own;
            claim.detail -= own;
        }
        self.reopen_before(state, now, claim);
    }

    fn move_back(&self, state: &mut WideState, latest: u64) {
        state[0] = state[0].min(latest - latest % self.window);
    }

    fn span(&self) -> u64 {
        2 * self.window
    }

    fn status_of(&self, state: &WideState, now: u64) -> QuotaStatus {
        let (OpenWindow { start, end, count }, previous) = self.open_window(state, now);
        let covered = end.saturating_sub(now.max(start));
        let weighted = (u128::from(previous) * u128::from(covered)).div_ceil(u128::from(self.window));
        let used = u64::try_from(weighted).unwrap_or(u64::MAX).saturating_add(count);
        // Nothing is left before a later window that is reserved.
        let remaining = if now < start { 0 } else { self.limits.limit.saturating_sub(used) };
        QuotaStatus { remaining, reset: end.saturating_sub(now) }
    }
}
