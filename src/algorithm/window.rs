//! What fixed and sliding windows have in common: when they begin and end
//! ([`Calendar`]), how many units each of a sequence of windows may hold
//! ([`WindowLimit`]), even departures, and debts that fill several windows.
//!
//! It is not an algorithm and holds no state. The invariants: what all instances
//! admit in one window stays within the limit, whenever their shares change; and a
//! debt fills every window between its first and its last.

use super::{
    Claim,
    share::{Share, ShareHistory},
};
use crate::{
    quota::{LONGEST_MONTH, Quota},
    time::nanos,
};

/// What windows may hold. A window is known by its start or its end.
///
/// A window that was open when the share changed has the smaller of the shares
/// at its start and now. So all instances together admit no more than the
/// shares at its start, which sum to the limit, whatever follows.
#[derive(Clone, Debug)]
pub(super) struct WindowLimit {
    pub(super) limit: u64,
    pub(super) calendar: Calendar,
    share: Share,
    /// What every window has of the share, and what none exceeds.
    pub(super) least: u64,
    pub(super) most: u64,
    /// When the window ended that was open when the share changed.
    changed: u64,
    /// The share at its start, or all earlier ones if that is forgotten.
    before: Box<[Share]>,
}

impl WindowLimit {
    /// The same limit in all windows.
    pub(super) fn same(limit: u64, calendar: Calendar) -> Self {
        Self::aligned(limit, calendar, &ShareHistory::new(Share::whole()))
    }

    /// The limits of windows that instances have in common: those of the wall clock.
    pub(super) fn aligned(limit: u64, calendar: Calendar, history: &ShareHistory) -> Self {
        let current = history.current();
        let start = calendar.start(calendar.number(current.since));
        let at_start = history.past().iter().rfind(|period| period.since < start);
        let forgotten = history.past().iter().filter(|_| at_start.is_none());
        let (least, most) = current.share.range(limit);
        Self {
            limit,
            calendar,
            share: current.share.clone(),
            least,
            most,
            changed: if history.past().is_empty() { 0 } else { calendar.end(current.since) },
            before: at_start.into_iter().chain(forgotten).map(|period| period.share.clone()).collect(),
        }
    }

    /// What the window that ends at `end` may hold.
    pub(super) fn until(&self, end: u64) -> u64 {
        if self.least == self.most && end > self.changed {
            return self.least;
        }
        let number = self.calendar.number(end.saturating_sub(1));
        let before = self.before.iter().filter(|_| end <= self.changed);
        before.chain([&self.share]).map(|share| share.in_window(self.limit, number)).min().unwrap_or(0)
    }

    /// The first time from which a window is open that may hold `cost`: the one
    /// that is open at `from`, or a later one.
    pub(super) fn first_with(&self, from: u64, cost: u64) -> Option<u64> {
        let mut from = from;
        if from < self.changed {
            if self.until(self.calendar.end(from)) >= cost {
                return Some(from);
            }
            from = self.changed;
        }
        if cost <= self.least {
            return Some(from);
        }
        let number = self.calendar.number(from);
        let first = self.share.first_with(self.limit, number, cost)?;
        Some(self.calendar.start(first).max(from))
    }

    /// How many windows after the one at `start` a debt fills that finds `free`
    /// units there, and how many units the last of them takes; `None` if it fits.
    ///
    /// Units that not all windows have are left out, so the debt is paid back a
    /// little later than it could be. They count only if windows have no others.
    pub(super) fn carry(&self, start: u64, units: u64, free: u64) -> Option<(u64, u64)> {
        let excess = units.checked_sub(free).filter(|excess| *excess > 0)?;
        if self.least == 0 && self.most > 0 {
            let number = self.calendar.number(start);
            let last = self.share.last_of(self.limit, number, excess);
            // At the end of time, there is no last one.
            return Some(last.map_or((u64::MAX, 1), |(last, units)| (last - number, units)));
        }
        let least = self.least.max(1);
        let windows = excess.div_ceil(least);
        Some((windows, excess - (windows - 1) * least))
    }
}

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
        limit.max(1).saturating_sub(self.in_last)
    }
}

/// Into which windows the wall clock is divided, by number: windows of one length, or
/// calendar months of UTC. Each window ends where the next one begins.
///
/// Unix time has no leap seconds, and UTC no daylight saving time, so all of it is
/// arithmetic.
#[derive(Clone, Copy, Debug)]
pub(super) enum Calendar {
    /// Windows of one length. Number 0 begins so long before the Unix epoch.
    Even { length: u64, ahead: u64 },
    /// Months since January 1970.
    Months,
}

impl Calendar {
    /// Windows of one length, of which one begins at the Unix epoch.
    pub(super) fn even(length: u64) -> Self {
        Self::Even { length, ahead: 0 }
    }

    /// The windows of a quota that counts by fixed windows.
    pub(super) fn of(quota: &Quota) -> Self {
        let length = nanos(quota.window()).max(1);
        match quota.phase() {
            _ if quota.is_month() => Self::Months,
            0 => Self::even(length),
            phase => Self::Even { length, ahead: length.saturating_sub(phase) },
        }
    }

    /// The length of the longest window.
    pub(super) fn longest(self) -> u64 {
        match self {
            Self::Even { length, .. } => length,
            Self::Months => nanos(LONGEST_MONTH),
        }
    }

    /// The number of the window that is open at a time.
    pub(super) fn number(self, at: u64) -> u64 {
        match self {
            Self::Even { length, ahead } => at.saturating_add(ahead) / length,
            Self::Months => month_of(at),
        }
    }

    /// When a window begins: the end of time for one that begins later.
    pub(super) fn start(self, number: u64) -> u64 {
        match self {
            Self::Even { length, ahead } => {
                number.checked_mul(length).map_or(u64::MAX, |start| start.saturating_sub(ahead))
            }
            Self::Months => start_of_month(number),
        }
    }

    /// When the window ends that is open at a time.
    pub(super) fn end(self, at: u64) -> u64 {
        self.start(self.number(at).saturating_add(1))
    }

    /// The end of the window so many windows after the one that ends at `end`.
    pub(super) fn later(self, end: u64, windows: u64) -> u64 {
        match self {
            // Also where windows do not begin at its multiples.
            Self::Even { length, .. } => end.saturating_add(windows.saturating_mul(length)),
            Self::Months => start_of_month(month_of(end).saturating_add(windows)),
        }
    }

    /// The end of the window so many windows before the one that ends at `end`.
    pub(super) fn earlier(self, end: u64, windows: u64) -> u64 {
        match self {
            Self::Even { length, .. } => end.saturating_sub(windows.saturating_mul(length)),
            Self::Months => start_of_month(month_of(end).saturating_sub(windows)),
        }
    }

    /// How many windows begin after `now`, up to the one that ends at `end`.
    pub(super) fn begin_after(self, now: u64, end: u64) -> u64 {
        match self {
            Self::Even { length, .. } => end.saturating_sub(1).saturating_sub(now) / length,
            Self::Months => month_of(end.saturating_sub(1)).saturating_sub(month_of(now)),
        }
    }
}

/// In nanoseconds.
const DAY: u64 = 86_400_000_000_000;

/// A twelfth of the mean year: 400 years have 146,097 days.
const MEAN_MONTH: u64 = DAY / 4_800 * 146_097;

/// From March 1 of year 0 to January 1, 1970: in days, and in months.
const EPOCH_DAYS: u64 = 719_468;
const EPOCH_MONTHS: u64 = 1969 * 12 + 10;

/// All months that begin within 64 bits of nanoseconds have lower numbers.
const END_OF_TIME: u64 = 10_000;

/// Years begin in March here, so that the leap day is the last one of a year.
fn start_of_month(number: u64) -> u64 {
    let months = number.min(END_OF_TIME) + EPOCH_MONTHS;
    let (year, month) = (months / 12, months % 12);
    // Five months from March on have 153 days, and so have the next five.
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5;
    (days - EPOCH_DAYS).saturating_mul(DAY)
}

fn month_of(at: u64) -> u64 {
    // Months begin within a few days of the mean ones.
    let near = at / MEAN_MONTH;
    let number = near + u64::from(start_of_month(near + 1) <= at);
    number - u64::from(start_of_month(number) > at)
}

#[cfg(test)]
mod tests {
    mod calendar;
}
