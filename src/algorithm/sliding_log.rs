//! The sliding log: at most L units in any W, exactly.
//!
//! It stores the time of every charge and approximates nothing. The invariant:
//! a charge stops counting W after its time. The log has at most L entries, and
//! one for each reservation; all logs of a store together keep to a bound.

use std::{collections::VecDeque, sync::Arc};

use super::{Claim, LogMemory, LogShare, QuotaStatus, State, StateMachine};

/// The limit and the window of a log.
#[derive(Clone, Debug)]
pub(crate) struct SlidingLog {
    pub(super) limit: u64,
    pub(super) window: u64,
}

/// Charges in the order of their times; those at the same time share an entry.
#[derive(Debug, Default)]
pub(crate) struct RequestLog {
    /// Times, each with all units that were counted up to it. So the time at which a
    /// number of units have left is found by a binary search.
    entries: VecDeque<(u64, u64)>,
    /// The units that have left.
    gone: u64,
    idle_at: u64,
    /// Changes with every charge, and when units leave from the middle. It is
    /// later than the clock then, so a log that was dropped and created again
    /// continues with versions that no claim on the old one has.
    version: u64,
    memory: LogShare,
}

/// The bytes of one entry.
const ENTRY: usize = size_of::<(u64, u64)>();

impl State for RequestLog {
    fn account(&mut self, memory: &Arc<LogMemory>) {
        // Few are left of a burst.
        if self.entries.len() * 8 < self.entries.capacity() {
            self.entries.shrink_to(self.entries.len() * 2);
        }
        self.memory.set(memory, self.entries.capacity() * ENTRY);
    }

    /// The store does not drop the log before the clock has passed its version.
    fn idle_at(&self) -> u64 {
        self.idle_at.max(self.version)
    }
}

impl RequestLog {
    /// Whether a charge at `at` needs memory for another entry.
    fn grows(&self, at: u64) -> bool {
        self.entries.len() == self.entries.capacity() && self.last() < at
    }

    fn last(&self) -> u64 {
        self.entries.back().map_or(0, |(time, _)| *time)
    }

    fn change_version(&mut self, now: u64) {
        self.version = self.version.max(now).saturating_add(1);
    }

    /// Whether nothing was charged after the claim. Several claims may have the
    /// last version of all.
    fn is_latest(&self, claim: &Claim) -> bool {
        self.version == claim.detail && self.version < u64::MAX
    }

    /// The units that count, or are reserved.
    fn units(&self) -> u64 {
        self.units_before(self.entries.len()) - self.gone
    }

    /// All units that were counted before the entry at an index.
    fn units_before(&self, index: usize) -> u64 {
        index.checked_sub(1).map_or(self.gone, |last| self.entries[last].1)
    }

    /// Adds units at the end: to the last entry, if that is later.
    fn push(&mut self, at: u64, units: u64) {
        let total = self.units_before(self.entries.len()).saturating_add(units);
        match self.entries.back_mut() {
            Some((time, counted)) if *time >= at => *counted = total,
            _ => self.entries.push_back((at, total)),
        }
    }

    /// Takes up to `units` from the first entries. Returns them with their times.
    fn take_first(&mut self, units: u64) -> Vec<(u64, u64)> {
        let (mut rest, mut all) = (units, Vec::new());
        while rest > 0
            && let Some(&(time, total)) = self.entries.front()
        {
            let taken = rest.min(total - self.gone);
            self.gone += taken;
            rest -= taken;
            all.push((time, taken));
            if self.gone == total {
                self.entries.pop_front();
            }
        }
        all
    }

    /// Takes up to `units` from the last entries. Returns them with their times.
    fn take_last(&mut self, units: u64) -> Vec<(u64, u64)> {
        self.take_before(self.entries.len(), units)
    }

    /// Takes up to `units` from the entries before an index, from the last of them on.
    /// Returns them with their times.
    fn take_before(&mut self, end: usize, units: u64) -> Vec<(u64, u64)> {
        let (mut first, mut rest, mut all) = (end, units, Vec::new());
        let mut kept = 0;
        while rest > 0
            && let Some(index) = first.checked_sub(1)
        {
            let (time, total) = self.entries[index];
            let counted = total - self.units_before(index);
            let taken = rest.min(counted);
            (first, rest, kept) = (index, rest - taken, counted - taken);
            all.push((time, taken));
        }
        if kept > 0 {
            self.entries[first].1 = self.units_before(first) + kept;
            first += 1;
        }
        self.entries.drain(first..end);
        self.entries.range_mut(first..).for_each(|(_, total)| *total -= units - rest);
        all
    }

    /// Takes all entries, as times and units.
    fn take_all(&mut self) -> Vec<(u64, u64)> {
        self.take_first(u64::MAX)
    }

    /// Adds units at any times.
    fn extend(&mut self, units: impl IntoIterator<Item = (u64, u64)>) {
        let mut all = self.take_all();
        all.extend(units);
        all.sort_by_key(|(time, _)| *time);
        all.into_iter().for_each(|(time, units)| self.push(time, units));
    }
}

/// A time that moves by so many nanoseconds.
type Move = fn(u64, u64) -> u64;

impl SlidingLog {
    /// How many of the first entries count no longer.
    fn expired(&self, log: &RequestLog, now: u64) -> usize {
        log.entries.partition_point(|(time, _)| time.saturating_add(self.window) <= now)
    }

    /// Drops what no longer counts.
    fn prune(&self, log: &mut RequestLog, now: u64) {
        let expired = self.expired(log, now);
        log.gone = log.units_before(expired);
        log.entries.drain(..expired);
    }

    /// Moves the oldest units to the end, W later: a full log has space for
    /// another unit when its oldest leaves, so each unit of a debt reuses the
    /// oldest of the last L. A debt of more than L has reused each of them, and
    /// repeats their order.
    fn rotate(&self, log: &mut RequestLog, units: u64) {
        self.turn(log, units, RequestLog::take_first, u64::saturating_add);
    }

    /// Whether the last L units lie within W, so that those that are rotated become
    /// the last ones. Where others were refunded, a reservation may be later.
    fn is_reversible(&self, log: &RequestLog) -> bool {
        let aside = log.units().saturating_sub(self.limit);
        let first = log.entries.partition_point(|(_, total)| total - log.gone <= aside);
        log.entries.get(first).is_none_or(|(time, _)| log.last() <= time.saturating_add(self.window))
    }

    /// Reverses [`Self::rotate`]. A unit may have left earlier than this says,
    /// never later.
    fn rotate_back(&self, log: &mut RequestLog, units: u64) {
        self.turn(log, units, RequestLog::take_last, u64::saturating_sub);
    }

    /// All but the last L units stay: these have left by the time that the first of
    /// the others does. There are such units while reservations exist, or since the
    /// limit was lowered.
    fn turn(&self, log: &mut RequestLog, units: u64, take: fn(&mut RequestLog, u64) -> Vec<(u64, u64)>, by: Move) {
        let aside = log.take_first(log.units().saturating_sub(self.limit));
        let (rounds, rest) = (units / self.limit, units % self.limit);
        let moved = take(log, rest);
        let whole = |(time, units)| (by(time, self.window.saturating_mul(rounds)), units);
        let kept = log.take_all().into_iter().map(whole);
        let moved = moved.into_iter().map(whole).map(|(time, units)| (by(time, self.window), units));
        log.extend(aside.into_iter().chain(kept).chain(moved));
    }
}

impl StateMachine for SlidingLog {
    type State = RequestLog;

    fn earliest(&self, log: &RequestLog, now: u64, cost: u64) -> Option<u64> {
        if cost > self.limit || self.limit == 0 {
            return None;
        }
        // The excess must have left the window; entries leave in order.
        let excess = log.units().saturating_add(cost).saturating_sub(self.limit);
        let mut at = now.max(log.last());
        if excess > 0 {
            let last = log.entries.partition_point(|(_, total)| total - log.gone < excess);
            at = at.max(log.entries.get(last).map_or(u64::MAX, |(time, _)| time.saturating_add(self.window)));
        }
        // Without memory for another entry, the oldest must have left.
        if log.grows(at)
            && !log.memory.has_room(log.entries.capacity() * ENTRY)
            && let Some((time, _)) = log.entries.front()
        {
            at = at.max(time.saturating_add(self.window));
        }
        (at < u64::MAX).then_some(at)
    }

    fn commit(&self, log: &mut RequestLog, now: u64, at: u64, cost: u64) {
        if cost == 0 {
            return;
        }
        // Not by `at`: a refund would miss what is still in the window.
        self.prune(log, now);
        log.push(at, cost);
        log.idle_at = at.saturating_add(self.window);
        log.change_version(now);
    }

    /// None later: the next request departs no sooner.
    fn latest_departure(&self, _: &RequestLog, at: u64) -> u64 {
        at
    }

    fn version(&self, log: &RequestLog) -> u64 {
        log.version
    }

    fn charge_debt(&self, log: &mut RequestLog, now: u64, units: u64, claim: &mut Claim) {
        if units == 0 || self.limit == 0 {
            return;
        }
        let contiguous = log.is_latest(claim) && claim.units > 0;
        self.prune(log, now);
        let at = now.max(log.last());
        let fitting = self.limit.saturating_sub(log.units()).min(units);
        if fitting > 0 {
            log.push(at, fitting);
        }
        let rotated = units - fitting;
        let is_reversible = rotated == 0 || self.is_reversible(log);
        if rotated > 0 {
            self.rotate(log, rotated);
        }
        log.idle_at = log.last().saturating_add(self.window);
        log.change_version(now);
        claim.extend(contiguous, units);
        if !contiguous {
            claim.at = at;
        }
        claim.until = if contiguous { claim.until.saturating_add(rotated) } else { rotated };
        // The last version of all is never the latest.
        claim.detail = if is_reversible { log.version } else { u64::MAX };
    }

    fn is_last(&self, log: &RequestLog, _: u64, claim: &Claim) -> bool {
        claim.until == 0 && log.last() == claim.at
    }

    /// Undoes the latest charge in reverse order. Otherwise units leave the first time
    /// that any of them was charged for. If that has too few, older ones leave, which
    /// would not have counted for longer. Units that reuse the entries of earlier ones
    /// stay.
    fn refund(&self, log: &mut RequestLog, now: u64, units: u64, claim: &mut Claim) {
        if log.is_latest(claim) && log.last() < u64::MAX {
            let rotated = units.min(claim.until);
            if rotated > 0 {
                if log.units() < self.limit {
                    return;
                }
                self.rotate_back(log, rotated);
                claim.until -= rotated;
            }
            log.take_last(units - rotated);
        } else if claim.until == 0 {
            self.prune(log, now);
            let end = log.entries.partition_point(|(time, _)| *time <= claim.at);
            if !log.take_before(end, units).is_empty() {
                // A debt cannot be rotated back past the gap.
                log.change_version(now);
            }
        }
        log.idle_at = if log.entries.is_empty() { now } else { log.last().saturating_add(self.window) };
    }

    fn move_back(&self, log: &mut RequestLog, latest: u64) {
        let by = log.idle_at.saturating_sub(latest);
        log.entries.iter_mut().for_each(|(time, _)| *time = time.saturating_sub(by));
        log.idle_at -= by;
    }

    fn span(&self) -> u64 {
        self.window
    }

    fn status_of(&self, log: &RequestLog, now: u64) -> QuotaStatus {
        let used = log.units() - (log.units_before(self.expired(log, now)) - log.gone);
        let reset = if log.entries.is_empty() { 0 } else { log.idle_at.saturating_sub(now) };
        QuotaStatus { remaining: self.limit.saturating_sub(used), reset }
    }
}
