//! The pace of a key whose upstream has nothing left, or rejects without a
//! time: requests resume one by one, as from an empty bucket. Pure arithmetic,
//! without locks or clocks.
//!
//! A pace is a token bucket (GCRA) beside the rule's own counters. It delays a
//! request that those admit, and delays the requests after it by as much. So a
//! pause moves the schedule of all that wait, and nothing is lost of it.
//!
//! Invariant: it never admits a request earlier than the counters do.

use std::time::Duration;

use crate::{backend::Charge, time::nanos};

/// The pause after a rejection without a time doubles up to this.
const LONGEST_PAUSE: u64 = 10_000_000_000;

/// The interval of a rule with a lower rate: an upstream that has something left
/// is not to be asked once an hour.
const LONGEST_INTERVAL: u64 = 1_000_000_000;

/// How long a pace is remembered that delays nothing any more.
const REMEMBERED: u64 = 60_000_000_000;

/// A second rejection within this time stretches the interval.
const STRETCHES_WITHIN: u64 = 15_000_000_000;

/// By how much it does, and at most, in units of 1/1,024 of the interval.
const STRETCH: u64 = 20;
const MOST_STRETCH: u64 = 102;

/// After so many admissions the interval shrinks by one of these units.
const SHRINKS_AFTER: u32 = 50;

/// A key's pace. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    /// The earliest time of the next request.
    pub(super) next: u64,
    /// When the schedule was last put off.
    put_off: u64,
    /// When the upstream last rejected, and how often in a row without a time.
    pub(super) rejected: u64,
    repeats: u32,
    interval: u64,
    tolerance: u64,
    stretch: u64,
    admitted: u32,
}

/// The rate of a rule, by its fastest tier: the time between two units, and how
/// far a full bucket may run ahead of it. `None` without a tier that has a rate.
pub(super) fn rate(charge: &Charge<'_>) -> Option<(u64, u64)> {
    let rates = charge.tiers().iter().filter(|tier| !tier.is_in_flight() && tier.quota().limit() > 0).map(|tier| {
        let interval = (nanos(tier.quota().window()) / tier.quota().limit()).min(LONGEST_INTERVAL);
        (interval, interval.saturating_mul(tier.quota().burst_size().saturating_sub(1)))
    });
    rates.min()
}

impl Pace {
    pub(super) fn set_rate(&mut self, (interval, tolerance): (u64, u64)) {
        (self.interval, self.tolerance) = (interval, tolerance);
    }

    /// Whether the pace can be forgotten: its bucket has been full for a while.
    pub(super) fn is_over(&self, now: u64) -> bool {
        self.next.saturating_add(self.tolerance).saturating_add(REMEMBERED) <= now
    }

    /// A request of `cost` units is sent at `at`, which is not before `next`.
    pub(super) fn sends(&mut self, at: u64, cost: u64) {
        let interval = self.interval.saturating_add(self.interval / 1_024 * self.stretch);
        self.next = self.next.max(at.saturating_sub(self.tolerance)).saturating_add(interval.saturating_mul(cost));
    }

    /// Nothing is sent before `at`, and then one request after the other.
    pub(super) fn resume_at(&mut self, at: u64) {
        self.next = self.next.max(at);
    }

    /// The upstream has nothing left, for less than it can tell. Empties the
    /// bucket. Also puts the schedule off by up to half an interval, so that no
    /// request reaches the upstream just before a window ends. All this is at
    /// most a fifteenth of the time: an upstream whose burst is 1 never has
    /// anything left.
    pub(super) fn exhausted(&mut self, now: u64) {
        let is_new = self.put_off == 0;
        let most = if is_new { self.interval } else { self.interval / 2 };
        self.resume_at(now);
        self.next = self.next.saturating_add((now.saturating_sub(self.put_off) / 15).min(most));
        self.put_off = now;
    }

    /// The upstream rejected a request that was sent at `sent`. Returns whether
    /// this is new: a request that was sent before the last rejection is
    /// rejected for the same reason. If rejections are frequent, requests
    /// arrive a little too early, since the time on the network varies. Their
    /// interval is stretched then.
    pub(super) fn rejected(&mut self, sent: u64, now: u64) -> bool {
        let is_new = sent > self.rejected || self.rejected == 0;
        if is_new {
            if self.rejected > 0 && now.saturating_sub(self.rejected) < STRETCHES_WITHIN {
                self.stretch = (self.stretch + STRETCH).min(MOST_STRETCH);
            }
            self.rejected = now;
        }
        is_new
    }

    /// The same, for a rejection without a time. Returns the pause if it is new:
    /// one interval, and twice as long for each rejection in a row.
    pub(super) fn rejected_without_time(&mut self, sent: u64, now: u64) -> Option<Duration> {
        let pause = self.pause();
        self.rejected(sent, now).then(|| {
            // Requests that were put off until an earlier time are put off again.
            self.next = now.saturating_add(pause);
            self.repeats = self.repeats.saturating_add(1);
            Duration::from_nanos(pause)
        })
    }

    /// The upstream admitted a request that was sent at `sent`.
    pub(super) fn admitted(&mut self, sent: u64) {
        if sent > self.rejected {
            self.repeats = 0;
        }
        self.admitted += 1;
        if self.admitted >= SHRINKS_AFTER {
            (self.admitted, self.stretch) = (0, self.stretch.saturating_sub(1));
        }
    }

    /// The next pause after a rejection without a time.
    fn pause(&self) -> u64 {
        let factor = 1_u64.checked_shl(self.repeats).unwrap_or(u64::MAX);
        self.interval.saturating_mul(factor).min(LONGEST_PAUSE)
    }
}

#[cfg(test)]
mod tests;
