//! When requests resume for a key whose upstream has nothing left, or rejects
//! without a time: one by one, as from an empty bucket. Pure arithmetic, without
//! locks or clocks.
//!
//! A schedule is a token bucket (GCRA) beside the rule's own counters. It delays a
//! request that those admit, and delays the requests after it by as much. So a
//! pause moves the schedule of all that wait, and nothing is lost of it.
//!
//! Invariant: it never admits a request earlier than the counters do.

use std::{mem, time::Duration};

use crate::{backend::Charge, time::nanos};

/// The pause after a rejection without a time doubles up to this.
const LONGEST_PAUSE: u64 = 10_000_000_000;

/// The interval of a rule with a lower rate: an upstream that has something left
/// is not to be asked once an hour.
const LONGEST_INTERVAL: u64 = 1_000_000_000;

/// How many probes are sent in a row before the upstream's time is obeyed: the
/// first may come a little too early, as requests are late now and then.
const PROBES: u32 = 2;

/// How long a schedule is remembered that delays nothing any more.
const REMEMBERED: u64 = 60_000_000_000;

/// A second rejection within this time stretches the interval. An upstream that
/// rejected a probe is obeyed as it asks for as long.
const RECENT: u64 = 15_000_000_000;

/// For so long after a rejection, slots that were missed are not made up for.
const STRICT_AFTER_REJECTION: u64 = 2_000_000_000;

/// A timer that is late by less is on time: timers fire in whole milliseconds.
const SHORTEST_DELAY: u64 = 5_000_000;

/// By how much it does, and at most, in units of 1/1,024 of the interval.
const STRETCH: [u64; 2] = [20, 82];

/// The same for rejections without a time: such an upstream has no burst, and
/// admits only what comes late enough.
const BARE_STRETCH: [u64; 2] = [40, 154];

/// The most of the time that an upstream with nothing left takes, in the same
/// units. What the stretch takes counts.
const MOST_PUT_OFF: u64 = 68;

/// After so many admissions the interval shrinks by one of these units.
const SHRINKS_AFTER: u32 = 50;

/// A key's schedule. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ResumeSchedule {
    /// The earliest time of the next request.
    pub(super) next: u64,
    /// Until when nothing is sent, however the schedule changes.
    paused_until: u64,
    /// When the schedule was last put off.
    put_off: u64,
    /// When the upstream last rejected, and how often in a row without an exact
    /// time.
    pub(super) rejected: u64,
    repeats: u32,
    /// When the schedule last started again because a request was late.
    pub(super) restarted: u64,
    /// Until when the upstream's times are obeyed as they are.
    obeys_until: u64,
    /// The least time between the next request and the one after it.
    gap: u64,
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

impl ResumeSchedule {
    pub(super) fn set_rate(&mut self, (interval, tolerance): (u64, u64)) {
        (self.interval, self.tolerance) = (interval, tolerance);
    }

    /// Whether the schedule can be forgotten: its bucket has been full for a while.
    pub(super) fn is_over(&self, now: u64) -> bool {
        self.next.saturating_add(self.tolerance).saturating_add(REMEMBERED) <= now
    }

    /// A request of `cost` units is sent at `at`, which is not before `next`.
    pub(super) fn sends(&mut self, at: u64, cost: u64) {
        let interval = self.interval.saturating_add(self.interval / 1_024 * self.stretch).saturating_mul(cost);
        self.next = self.next.max(at.saturating_sub(self.tolerance)).saturating_add(interval);
        if self.gap > 0 {
            self.next = self.next.max(at.saturating_add(mem::take(&mut self.gap)));
        }
    }

    /// Nothing is sent before `at`, and then one request after the other.
    pub(super) fn pause_until(&mut self, at: u64) {
        self.paused_until = self.paused_until.max(at);
        self.next = self.next.max(at);
    }

    /// Puts all requests off, also those with a time already: they claim their
    /// times again. The first is sent at `at`.
    fn resume_at(&mut self, at: u64) {
        self.next = self.paused_until.max(at);
    }

    /// A request that was put off to `at` is sent only now, because its timer was
    /// late. If it missed most of an interval, the requests behind it would follow
    /// at once, and an upstream that has just rejected would reject them too. The
    /// schedule starts again from now then: all requests claim their times again.
    /// Returns whether it does.
    pub(super) fn restarts_if_late(&mut self, at: u64, now: u64) -> bool {
        let has_rejected = self.rejected > 0 && now.saturating_sub(self.rejected) < STRICT_AFTER_REJECTION;
        let is_late = has_rejected && now.saturating_sub(at) > (self.interval / 2).max(SHORTEST_DELAY);
        if is_late {
            self.restarted = now;
            self.resume_at(now);
        }
        is_late
    }

    /// The upstream has nothing left, for less than it can tell, and at most for
    /// `most`. Empties the bucket. Also puts the schedule off by up to half an
    /// interval, so that no request reaches the upstream just before a window
    /// ends. All this is at most a fifteenth of the time: an upstream whose burst
    /// is 1 never has anything left.
    pub(super) fn exhausted(&mut self, now: u64, most: u64) {
        let put_off = match self.is_new() {
            true => self.catch_up().min(most),
            false => {
                let passed = now.saturating_sub(self.put_off) / 1_024 * MOST_PUT_OFF.saturating_sub(self.stretch);
                passed.min(self.interval / 2)
            }
        };
        self.next = self.next.max(now).saturating_add(put_off);
        self.put_off = now;
    }

    /// Whether this is the first that is known of the upstream: it may have seen
    /// a whole burst before.
    fn is_new(&self) -> bool {
        self.put_off == 0 && self.rejected == 0
    }

    /// The time after which the upstream has the next unit: one interval, and
    /// what a burst runs ahead of the rate.
    fn catch_up(&self) -> u64 {
        if self.is_new() { self.interval.saturating_add(self.tolerance) } else { self.interval }
    }

    /// The upstream rejected a request that was sent at `sent`. Returns whether
    /// this is new: a request that was sent before the last rejection is
    /// rejected for the same reason. If rejections are frequent, requests
    /// arrive a little too early, since the time on the network varies. Their
    /// interval is stretched then.
    fn rejected(&mut self, sent: u64, now: u64, [stretch, most]: [u64; 2]) -> bool {
        let is_new = sent > self.rejected || self.rejected == 0;
        if is_new {
            if self.rejected > 0 && now.saturating_sub(self.rejected) < RECENT {
                self.stretch = (self.stretch + stretch).min(most.max(self.stretch));
            }
            self.rejected = now;
        }
        is_new
    }

    /// The upstream rejected a request that was sent at `sent`, and asks for a
    /// pause that is known to be between `least` and `most`. Returns whether to
    /// pause for `most`. If not, the next request is a probe: it is sent at the
    /// earliest time that the upstream can mean. A second one comes twice as long
    /// after the first. If that is rejected too, the upstream means `most`, and
    /// is believed for a while.
    pub(super) fn rejected_for(&mut self, sent: u64, now: u64, (least, most): (u64, u64)) -> bool {
        let pause = least.max(self.catch_up().saturating_mul(u64::from(self.repeats) + 1));
        let is_exact = least >= most;
        if !self.rejected(sent, now, STRETCH) {
            return is_exact;
        }
        let has_failed = self.repeats >= PROBES;
        if !is_exact {
            self.repeats = self.repeats.saturating_add(1);
        }
        if is_exact || has_failed || pause >= most || now < self.obeys_until {
            if !is_exact && has_failed {
                self.obeys_until = now.saturating_add(most).saturating_add(RECENT);
            }
            return true;
        }
        self.resume_at(now.saturating_add(pause));
        // One request, until it is answered.
        self.gap = now.saturating_sub(sent).min(most);
        false
    }

    /// The same, for a rejection without a time. Returns the pause if it is new:
    /// one interval, and twice as long for each rejection in a row.
    pub(super) fn rejected_without_time(&mut self, sent: u64, now: u64) -> Option<Duration> {
        let pause = self.pause();
        self.rejected(sent, now, BARE_STRETCH).then(|| {
            self.resume_at(now.saturating_add(pause));
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
