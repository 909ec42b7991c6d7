//! [`WindowLimit`]: how many units each of a sequence of windows may hold.
//!
//! It counts nothing. The invariant of a [`SharedLimit`]: what all instances
//! admit in one window stays within the limit, whenever their shares change.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
};

use super::{share::WindowShares, share_history::ShareHistory};

/// What windows may hold. A window is identified by its start; its length is an
/// argument.
pub(crate) trait WindowLimit: Clone + fmt::Debug {
    /// Whether windows differ.
    const VARIES: bool;

    /// What the window that starts at `start` may hold.
    fn at(&self, start: u64, window: u64) -> u64;

    /// What no window exceeds.
    fn most(&self) -> u64;

    /// What each window takes of a debt that fills it.
    fn each(&self) -> u64;

    /// The start of the first window, this or a later one, that may hold
    /// `cost`.
    fn first_with(&self, start: u64, window: u64, cost: u64) -> Option<u64>;

    /// How many windows after the one at `start` a debt fills whose `excess`
    /// does not fit there, and how many units the last of them takes.
    fn carry(&self, start: u64, window: u64, excess: u64) -> (u64, u64);
}

/// The same limit in all windows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FixedLimit(pub(super) u64);

impl WindowLimit for FixedLimit {
    const VARIES: bool = false;

    #[inline]
    fn at(&self, _: u64, _: u64) -> u64 {
        self.0
    }

    #[inline]
    fn most(&self) -> u64 {
        self.0
    }

    fn each(&self) -> u64 {
        self.0
    }

    #[inline]
    fn first_with(&self, start: u64, _: u64, _: u64) -> Option<u64> {
        Some(start)
    }

    fn carry(&self, _: u64, _: u64, excess: u64) -> (u64, u64) {
        in_equal_windows(excess, self.0)
    }
}

/// How many windows of `limit` units `excess` fills, and how many units the
/// last of them takes.
fn in_equal_windows(excess: u64, limit: u64) -> (u64, u64) {
    let limit = limit.max(1);
    let windows = excess.div_ceil(limit);
    (windows, excess - (windows - 1) * limit)
}

/// A share rarely exceeds its least by more than three units, and windows start
/// before the year 2116.
const EXTRA_BITS: u32 = 2;
const MAX_EXTRA: u64 = (1 << EXTRA_BITS) - 1;

/// An instance's share of each window.
///
/// A window that was open when the share changed has the smaller of the shares
/// at its start and now. So all instances together admit no more than the
/// shares at its start, which sum to the limit, whatever follows.
#[derive(Debug)]
pub(crate) struct SharedLimit {
    shares: WindowShares,
    /// Only the current share counts for windows that start later.
    since: u64,
    /// The earlier shares, each with the time from which it was in force. The
    /// first counts for all time before, unless older ones are forgotten.
    past: Box<[(u64, WindowShares)]>,
    /// The start of the last window that was computed, and how many units it
    /// has above the least, from 0 to 3.
    last_window: AtomicU64,
}

impl SharedLimit {
    pub(super) fn new(limit: u64, history: &ShareHistory) -> Box<Self> {
        let past = history.past().iter().map(|period| (period.since, period.share.in_windows(limit))).collect();
        let current = history.current();
        Box::new(Self::with(current.share.in_windows(limit), current.since, past))
    }

    fn with(shares: WindowShares, since: u64, past: Box<[(u64, WindowShares)]>) -> Self {
        Self { shares, since, past, last_window: AtomicU64::new(u64::MAX) }
    }

    /// The limit of a window that was open when the share changed.
    #[cold]
    fn during_change(&self, start: u64, window: u64) -> u64 {
        let number = start / window;
        let at_start = self.past.iter().rev().find(|(since, _)| *since < start);
        let then = match at_start {
            Some((_, shares)) => shares.at(number),
            // The share at its start is forgotten: take the least of all.
            None => self.past.iter().map(|(_, shares)| shares.at(number)).min().unwrap_or(u64::MAX),
        };
        then.min(self.shares.at(number))
    }
}

impl Clone for SharedLimit {
    fn clone(&self) -> Self {
        Self::with(self.shares.clone(), self.since, self.past.clone())
    }
}

impl WindowLimit for Box<SharedLimit> {
    const VARIES: bool = true;

    #[inline]
    fn at(&self, start: u64, window: u64) -> u64 {
        let last = self.last_window.load(Ordering::Relaxed);
        if last >> EXTRA_BITS == start {
            return self.shares.least() + (last & MAX_EXTRA);
        }
        if start <= self.since {
            return self.during_change(start, window);
        }
        let limit = self.shares.at(start / window);
        let extra = limit.saturating_sub(self.shares.least());
        if start < u64::MAX >> EXTRA_BITS && extra <= MAX_EXTRA {
            self.last_window.store(start << EXTRA_BITS | extra, Ordering::Relaxed);
        }
        limit
    }

    #[inline]
    fn most(&self) -> u64 {
        self.shares.most()
    }

    fn each(&self) -> u64 {
        self.shares.least()
    }

    fn first_with(&self, start: u64, window: u64, cost: u64) -> Option<u64> {
        let mut start = start;
        if start <= self.since {
            if self.at(start, window) >= cost {
                return Some(start);
            }
            // All other windows before the change are over.
            let changed = self.since - self.since % window;
            start = changed.max(start).checked_add(window)?;
        }
        let number = start / window;
        let first = self.shares.first_with(number, cost)?;
        // A window at the end of time does not start at a multiple.
        if first == number { Some(start) } else { first.checked_mul(window) }
    }

    /// Extra units are left out, so the debt is paid back a little later than
    /// it could be. Only if windows have none but extra units do these count.
    fn carry(&self, start: u64, window: u64, excess: u64) -> (u64, u64) {
        if self.shares.least() > 0 {
            return in_equal_windows(excess, self.shares.least());
        }
        let number = start / window;
        match self.shares.last_of(number, excess) {
            Some((last, units)) => (last - number, units),
            // At the end of time.
            None => (u64::MAX, 1),
        }
    }
}
