//! [`WindowLimit`]: how many units each of a sequence of windows may hold.
//!
//! It counts nothing. The invariant: what all instances admit in one window stays
//! within the limit, whenever their shares change.

use super::{share::Share, share_history::ShareHistory};

/// What windows may hold. A window is known by its start or its end.
///
/// A window that was open when the share changed has the smaller of the shares
/// at its start and now. So all instances together admit no more than the
/// shares at its start, which sum to the limit, whatever follows.
#[derive(Clone, Debug)]
pub(super) struct WindowLimit {
    pub(super) limit: u64,
    pub(super) window: u64,
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
    pub(super) fn same(limit: u64, window: u64) -> Self {
        let (share, before) = (Share::whole(), Box::default());
        Self { limit, window, share, least: limit, most: limit, changed: 0, before }
    }

    /// The limits of windows that are aligned to the wall clock.
    pub(super) fn aligned(limit: u64, window: u64, history: &ShareHistory) -> Self {
        let (current, past) = (history.current(), history.past());
        let start = current.since - current.since % window;
        let at_start = past.iter().rposition(|period| period.since < start);
        let before = at_start.map_or(past, |index| &past[index..=index]);
        let (least, most) = current.share.range(limit);
        Self {
            limit,
            window,
            share: current.share.clone(),
            least,
            most,
            changed: if past.is_empty() { 0 } else { start.saturating_add(window) },
            before: before.iter().map(|period| period.share.clone()).collect(),
        }
    }

    /// What the window that ends at `end` may hold.
    pub(super) fn until(&self, end: u64) -> u64 {
        if self.least == self.most && end > self.changed {
            return self.least;
        }
        let number = end.saturating_sub(self.window) / self.window;
        let before = self.before.iter().filter(|_| end <= self.changed);
        before.chain([&self.share]).map(|share| share.in_window(self.limit, number)).min().unwrap_or(0)
    }

    /// The first time from which a window is open that may hold `cost`: the one
    /// that is open at `from`, or a later one.
    pub(super) fn first_with(&self, from: u64, cost: u64) -> Option<u64> {
        let mut from = from;
        if from < self.changed {
            let start = from - from % self.window;
            if self.until(start.saturating_add(self.window)) >= cost {
                return Some(from);
            }
            from = self.changed;
        }
        if cost <= self.least {
            return Some(from);
        }
        let number = from / self.window;
        let first = self.share.first_with(self.limit, number, cost)?;
        if first == number { Some(from) } else { first.checked_mul(self.window) }
    }

    /// How many windows after the one at `start` a debt fills that finds `free`
    /// units there, and how many units the last of them takes; `None` if it fits.
    ///
    /// Units that not all windows have are left out, so the debt is paid back a
    /// little later than it could be. They count only if windows have no others.
    pub(super) fn carry(&self, start: u64, units: u64, free: u64) -> Option<(u64, u64)> {
        let excess = units.checked_sub(free).filter(|excess| *excess > 0)?;
        if self.least == 0 && self.most > 0 {
            let number = start / self.window;
            let last = self.share.last_of(self.limit, number, excess);
            // At the end of time, there is no last one.
            return Some(last.map_or((u64::MAX, 1), |(last, units)| (last - number, units)));
        }
        let least = self.least.max(1);
        let windows = excess.div_ceil(least);
        Some((windows, excess - (windows - 1) * least))
    }
}
