//! What fixed and sliding windows have in common: even departures, and debts
//! that fill several windows.
//!
//! It is not an algorithm and holds no state. The invariant: a debt fills every
//! window between its first and its last.

use super::{state_machine::Claim, window_limit::WindowLimit};

/// The window that is open at a time, or opens then.
pub(super) struct OpenWindow {
    pub(super) start: u64,
    pub(super) end: u64,
    /// The units that it counts.
    pub(super) count: u64,
}

impl OpenWindow {
    /// The departure time, not before `at`, of the next `cost` units. In a
    /// window of `limit` units the unit that follows k others departs no
    /// earlier than k·W/L after the start.
    ///
    /// This moves departures, not counts: every window admits as many requests
    /// as without. Requests that come late in the window catch up.
    pub(super) fn smooth_departure(&self, limit: u64, at: u64, cost: u64) -> u64 {
        if cost == 0 || self.count == 0 {
            return at;
        }
        let length = u128::from(self.end - self.start);
        let passed = (u128::from(self.count) * length).div_ceil(u128::from(limit.max(1)));
        let due = u64::try_from(passed).ok().and_then(|passed| self.start.checked_add(passed));
        due.unwrap_or(u64::MAX).max(at)
    }
}

/// The length of the whole windows that contain `length`.
pub(super) fn whole_windows(length: u64, window: u64) -> u64 {
    length.div_ceil(window).saturating_mul(window)
}

impl Claim {
    /// Adds a debt of `units` in the window that ends at `end` and counts
    /// `count`, and perhaps in later ones; returns how many units the claim had
    /// in that window. Earlier units are forfeited, unless the claim fills all
    /// windows in between.
    pub(super) fn extend_in_window(&mut self, end: u64, count: u64, units: u64, goes_beyond: bool) -> u64 {
        let own = if end == self.until { self.detail } else { 0 };
        if end == self.until && goes_beyond && count != own {
            self.units = own;
        }
        self.extend(end == self.until, units);
        own
    }
}

/// Where a refunded debt ends, once its last window is empty.
pub(super) struct Reopened {
    /// How many windows earlier.
    pub(super) windows: u64,
    /// How many units that window refunds.
    in_last: u64,
    /// How many of the units left there belong to the claim.
    pub(super) own: u64,
    /// Whether the claim has no units in earlier windows.
    pub(super) is_first: bool,
    /// How many units are refunded in all.
    pub(super) units: u64,
}

impl Reopened {
    /// Refunds `units` of the `claimed` that fill the windows before, of which
    /// at most `open` are not over yet.
    ///
    /// It ends in a window that counts something, if there is one; `keeps_last`
    /// if that may be units of others. `None` if there is no such window, or if
    /// it cannot be known.
    pub(super) fn find(limits: &WindowLimit, units: u64, claimed: u64, open: u64, keeps_last: bool) -> Option<Self> {
        if limits.least == 0 && limits.most > 0 {
            return None;
        }
        let limit = limits.least.max(1);
        let all = !keeps_last && units >= claimed;
        let windows = if all { units.div_ceil(limit) } else { (units / limit).saturating_add(1) };
        let windows = windows.min(open);
        let before = windows.checked_sub(1)? * limit;
        let in_last = (units - before).min(limit);
        let own = (claimed - before).min(limit) - in_last;
        Some(Self { windows, in_last, own, is_first: claimed - before <= limit, units: before + in_last })
    }

    /// The count of that window, which was full.
    pub(super) fn count(&self, limit: u64) -> u64 {
        limit.max(1) - self.in_last.min(limit.max(1))
    }
}
