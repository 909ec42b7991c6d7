//! How many units each of a row of windows may hold.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
};

use super::{portion::Turns, timeline::Timeline};

/// What windows may hold. A window is known by its start; its length is an
/// argument.
pub(crate) trait Limits: Clone + fmt::Debug {
    /// Whether it is not the same for all.
    const VARIES: bool;

    /// What the window that starts then may hold.
    fn at(&self, start: u64, window: u64) -> u64;

    /// What none may hold more than.
    fn most(&self) -> u64;

    /// What each takes of a debt that fills it.
    fn each(&self) -> u64;

    /// The start of the first window, that one or a later, that may hold
    /// `cost`.
    fn first_with(&self, start: u64, window: u64, cost: u64) -> Option<u64>;

    /// How many windows after the one that starts then a debt goes on for of
    /// which `excess` finds no room there, and how much of it is in the last.
    fn carry(&self, start: u64, window: u64, excess: u64) -> (u64, u64);
}

/// The same for all.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Whole(pub(super) u64);

impl Limits for Whole {
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
        by_equal_parts(excess, self.0)
    }
}

/// Windows that take so many each: how many, and how much is in the last.
fn by_equal_parts(excess: u64, limit: u64) -> (u64, u64) {
    let limit = limit.max(1);
    let windows = excess.div_ceil(limit);
    (windows, excess - (windows - 1) * limit)
}

/// A share nearly always has no more than three units beyond its least, and
/// windows start before the year 2116.
const EXTRA_BITS: u32 = 2;
const MOST_EXTRA: u64 = (1 << EXTRA_BITS) - 1;

/// An instance's share of each window: what is left over goes round.
///
/// In a window that was open when the share changed, it has the smaller of the
/// shares at its start and now: so what all instances admit in it is no more
/// than the shares at its start, which sum to the limit, whatever came after.
#[derive(Debug)]
pub(crate) struct Rotation {
    turns: Turns,
    /// Windows that start later are in these terms alone.
    since: u64,
    /// Those before, each with the time from which it held; the first is for
    /// all time before, unless older ones are forgotten.
    past: Box<[(u64, Turns)]>,
    /// The window that was last asked about, and how many more than the least it
    /// has, from 0 to 3: spares hot windows the arithmetic.
    known: AtomicU64,
}

impl Rotation {
    pub(super) fn new(limit: u64, timeline: &Timeline) -> Box<Self> {
        let past = timeline.past().iter().map(|entry| (entry.since, entry.portion.turns(limit))).collect();
        let current = timeline.current();
        Box::new(Self {
            turns: current.portion.turns(limit),
            since: current.since,
            past,
            known: AtomicU64::new(u64::MAX),
        })
    }

    /// Of a window that was open when the share changed.
    #[cold]
    fn while_it_changed(&self, start: u64, window: u64) -> u64 {
        let number = start / window;
        let at_start = self.past.iter().rev().find(|(since, _)| *since < start);
        let then = match at_start {
            Some((_, turns)) => turns.at(number),
            // Nobody knows any more which: none had more than the least.
            None => self.past.iter().map(|(_, turns)| turns.at(number)).min().unwrap_or(u64::MAX),
        };
        then.min(self.turns.at(number))
    }
}

impl Clone for Rotation {
    fn clone(&self) -> Self {
        Self { turns: self.turns.clone(), since: self.since, past: self.past.clone(), known: AtomicU64::new(u64::MAX) }
    }
}

impl Limits for Box<Rotation> {
    const VARIES: bool = true;

    #[inline]
    fn at(&self, start: u64, window: u64) -> u64 {
        let known = self.known.load(Ordering::Relaxed);
        if known >> EXTRA_BITS == start {
            return self.turns.least() + (known & MOST_EXTRA);
        }
        if start <= self.since {
            return self.while_it_changed(start, window);
        }
        let limit = self.turns.at(start / window);
        let extra = limit.saturating_sub(self.turns.least());
        if start < u64::MAX >> EXTRA_BITS && extra <= MOST_EXTRA {
            self.known.store(start << EXTRA_BITS | extra, Ordering::Relaxed);
        }
        limit
    }

    #[inline]
    fn most(&self) -> u64 {
        self.turns.most()
    }

    fn each(&self) -> u64 {
        self.turns.least()
    }

    fn first_with(&self, start: u64, window: u64, cost: u64) -> Option<u64> {
        let mut start = start;
        if start <= self.since {
            if self.at(start, window) >= cost {
                return Some(start);
            }
            // The windows in between are over, as far as anybody knows.
            let changed = self.since - self.since % window;
            start = changed.max(start).checked_add(window)?;
        }
        let number = start / window;
        let first = self.turns.first_with(number, cost)?;
        // Those at the end of time do not start at a multiple.
        if first == number { Some(start) } else { first.checked_mul(window) }
    }

    /// Where a window has less than one for all, it is paid back in turns.
    /// Else extra units are left out: it is paid back a little later than it
    /// could be.
    fn carry(&self, start: u64, window: u64, excess: u64) -> (u64, u64) {
        if self.turns.least() > 0 {
            return by_equal_parts(excess, self.turns.least());
        }
        let number = start / window;
        match self.turns.last_of(number, excess) {
            Some((last, units)) => (last - number, units),
            // At the end of time.
            None => (u64::MAX, 1),
        }
    }
}
