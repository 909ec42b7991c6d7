//! [`ShareHistory`]: the shares that an instance has had, and the one in force.
//!
//! It does not decide what a change means for a window or a bucket: see
//! `window_limit.rs` and `gcra.rs`. The invariant: periods are in the
//! order of time, and only the latest are remembered.

use super::share::Share;

/// How many changes are remembered. States and windows that are older count as
/// if they were from the first remembered period.
const MAX_REMEMBERED: usize = 32;

/// The shares that an instance has had, and the one in force.
#[derive(Clone, Debug)]
pub(crate) struct ShareHistory {
    past: Vec<SharePeriod>,
    current: SharePeriod,
}

/// A share, and the time from which it was in force.
#[derive(Clone, Debug)]
pub(crate) struct SharePeriod {
    pub(crate) since: u64,
    /// Counts the changes.
    pub(crate) epoch: u64,
    pub(crate) share: Share,
}

impl ShareHistory {
    /// A share that was in force at all times.
    pub(crate) fn new(share: Share) -> Self {
        Self { past: Vec::new(), current: SharePeriod { since: 0, epoch: 0, share } }
    }

    /// Puts `share` in force from `now` on; returns whether it is another.
    pub(crate) fn change(&mut self, share: Share, now: u64) -> bool {
        if share == self.current.share {
            return false;
        }
        let (since, epoch) = (self.current.since.max(now), self.current.epoch + 1);
        self.past.push(std::mem::replace(&mut self.current, SharePeriod { since, epoch, share }));
        if self.past.len() >= MAX_REMEMBERED {
            self.past.remove(0);
        }
        true
    }

    /// The clock is at `now` again: a later change counts as if it happened
    /// now.
    pub(crate) fn step_back(&mut self, now: u64) {
        for period in self.past.iter_mut().chain([&mut self.current]) {
            period.since = period.since.min(now);
        }
    }

    pub(crate) fn current(&self) -> &SharePeriod {
        &self.current
    }

    /// The periods before the current one, in order.
    pub(crate) fn past(&self) -> &[SharePeriod] {
        &self.past
    }

    /// The smallest constant share of `limit` among those in force within
    /// `length` before `now`, and the time until which it may hold.
    pub(crate) fn least(&self, limit: u64, now: u64, length: u64) -> (u64, u64) {
        let periods = || self.past.iter().chain([&self.current]);
        let units = periods().map(|period| period.share.units(limit));
        let ends = periods().skip(1).map(|period| period.since.saturating_add(length)).chain([u64::MAX]);
        let recent = units.zip(ends).filter(|(_, end)| *end > now);
        recent.fold((u64::MAX, u64::MAX), |least, (units, end)| if units <= least.0 { (units, end) } else { least })
    }
}

#[cfg(test)]
mod tests;
