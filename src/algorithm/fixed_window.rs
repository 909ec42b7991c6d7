//! Fixed windows on the wall clock, calendar months among them, and anchored ones.
//!
//! At most L units in each window; across a border, up to 2L in some W. The
//! invariant: while a later window has a reservation or a debt, all windows
//! before it count as full, so that no request overtakes it.

use super::{
    Claim, CompactState, QuotaStatus, StateMachine,
    window::{OpenWindow, Reopened, WindowLimit},
};

/// Windows are those of the calendar, or (anchored) start with the first request after
/// the last one has ended. The words are: the window's end, the units counted in it.
#[derive(Clone, Debug)]
pub(crate) struct FixedWindow {
    pub(super) limits: WindowLimit,
    pub(super) is_aligned: bool,
    /// Departures are spread evenly.
    pub(super) is_smooth: bool,
}

impl FixedWindow {
    /// The end of the window that is open at `at`, or opens then.
    fn end(&self, at: u64) -> u64 {
        let calendar = self.limits.calendar;
        if self.is_aligned { calendar.end(at) } else { at.saturating_add(calendar.longest()) }
    }

    /// The start of the window that ends at `end`.
    fn start(&self, end: u64) -> u64 {
        self.limits.calendar.earlier(end, 1)
    }

    fn open_window(&self, state: &CompactState, at: u64) -> OpenWindow {
        let [end, count] = if at >= state[0] { [self.end(at), 0] } else { *state };
        OpenWindow { start: self.start(end), end, count }
    }
}

impl StateMachine for FixedWindow {
    type State = CompactState;

    fn earliest(&self, state: &CompactState, now: u64, cost: u64) -> Option<u64> {
        let [end, count] = *state;
        if cost > self.limits.most || self.limits.most == 0 {
            return None;
        }
        let at = if now >= end {
            self.limits.first_with(now, cost)?
        } else if count.checked_add(cost).is_some_and(|sum| sum <= self.limits.until(end)) {
            self.start(end).max(now)
        } else {
            self.limits.first_with(end, cost)?
        };
        // A window that opens at the end of time would never end.
        (at < u64::MAX).then_some(at)
    }

    fn smooth_departure(&self, state: &CompactState, at: u64, cost: u64) -> u64 {
        if !self.is_smooth {
            return at;
        }
        let window = self.open_window(state, at);
        window.smooth_departure(self.limits.until(window.end), at, cost)
    }

    /// Until the window's end; but an anchored one opens when it is charged.
    fn latest_departure(&self, state: &CompactState, at: u64) -> u64 {
        if at >= state[0] && !self.is_aligned { at } else { self.open_window(state, at).end - 1 }
    }

    fn commit(&self, state: &mut CompactState, _now: u64, at: u64, cost: u64) {
        let [end, count] = *state;
        // A cost of 0 opens no window, so that a new key stays new.
        *state = if at >= end && cost > 0 { [self.end(at), cost] } else { [end, count.saturating_add(cost)] };
    }

    fn charge_debt(&self, state: &mut CompactState, now: u64, units: u64, claim: &mut Claim) {
        let OpenWindow { start, end, count } = self.open_window(state, now);
        let free = self.limits.until(end).saturating_sub(count);
        let carried = self.limits.carry(start, units, free);
        let own = claim.extend_in_window(end, count, units, carried.is_some());
        match carried {
            None => {
                *state = [end, count.saturating_add(units)];
                claim.detail = own.saturating_add(units);
            }
            Some((windows, last)) => {
                let end = self.limits.calendar.later(end, windows);
                // At the end of time the window is full, and no other follows.
                *state = [end, if end == u64::MAX { self.limits.most } else { last }];
                claim.detail = last;
            }
        }
        claim.until = state[0];
    }

    fn is_last(&self, state: &CompactState, _: u64, claim: &Claim) -> bool {
        state[0] == claim.until && claim.detail == claim.units
    }

    /// Units leave the window that counts them; earlier windows count as full.
    /// If the last window then counts none, the claim's earlier windows are
    /// reopened.
    fn refund(&self, state: &mut CompactState, now: u64, units: u64, claim: &mut Claim) {
        let [end, count] = *state;
        if end != claim.until || end == u64::MAX {
            return;
        }
        let own = units.min(claim.detail).min(count);
        *state = [end, count - own];
        claim.detail -= own;
        let open = self.limits.calendar.begin_after(now, end);
        if count == own
            && let Some(reopened) = Reopened::find(&self.limits, units - own, claim.units - own, open, true)
        {
            let end = self.limits.calendar.earlier(end, reopened.windows);
            *state = [end, reopened.count(self.limits.until(end))];
            claim.detail = reopened.own;
        }
        // The first request that stays opens an anchored window.
        if !self.is_aligned && state[1] == 0 && self.start(state[0]) <= now {
            state[0] = state[0].min(now);
        }
        claim.until = state[0];
    }

    fn move_back(&self, state: &mut CompactState, latest: u64) {
        let calendar = self.limits.calendar;
        let latest = if self.is_aligned { calendar.start(calendar.number(latest)) } else { latest };
        state[0] = state[0].min(latest);
    }

    fn span(&self) -> u64 {
        self.limits.calendar.longest()
    }

    fn status_of(&self, state: &CompactState, now: u64) -> QuotaStatus {
        let [end, count] = *state;
        if now >= end {
            let reset = if self.is_aligned { self.end(now) - now } else { 0 };
            return QuotaStatus { remaining: self.limits.until(self.end(now)), reset };
        }
        // Nothing is left before a later window that is reserved.
        let is_open = now >= self.start(end);
        QuotaStatus {
            remaining: if is_open { self.limits.until(end).saturating_sub(count) } else { 0 },
            reset: end - now,
        }
    }
}
