//! The sliding log: at most L units in any W, exactly.
//!
//! It stores the time of every charge and approximates nothing. The invariant:
//! a charge stops counting W after its time. The log has at most L entries, and
//! one for each reservation; all logs of a store together keep to a bound.

use std::{collections::VecDeque, sync::Arc};

use super::{
    log_memory::{LogMemory, LogShare},
    state_machine::{Claim, QuotaStatus, State, StateMachine},
};

/// The limit and the window of a log.
#[derive(Clone, Debug)]
pub(crate) struct SlidingLog {
    pub(super) limit: u64,
    pub(super) window: u64,
}

/// Times and units, in order; charges at the same time share an entry.
#[derive(Debug, Default)]
pub(crate) struct RequestLog {
    entries: VecDeque<(u64, u64)>,
    units: u64,
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

    /// Adds units at the end: to the last entry, if that is later.
    fn push(&mut self, at: u64, units: u64) {
        match self.entries.back_mut() {
            Some((time, counted)) if *time >= at => *counted = counted.saturating_add(units),
            _ => self.entries.push_back((at, units)),
        }
    }

    /// Adds units in the order of time.
    fn insert(&mut self, at: u64, units: u64) {
        match self.entries.binary_search_by_key(&at, |(time, _)| *time) {
            Ok(index) => self.entries[index].1 = self.entries[index].1.saturating_add(units),
            Err(index) => self.entries.insert(index, (at, units)),
        }
    }

    /// Takes up to `most` units from the entry at an index.
    fn take_at(&mut self, index: usize, most: u64) -> Option<(u64, u64)> {
        let (time, counted) = self.entries.get_mut(index)?;
        let taken = (*time, most.min(*counted));
        *counted -= taken.1;
        if *counted == 0 {
            self.entries.remove(index);
        }
        Some(taken)
    }

    /// Takes `units` from the first entries.
    fn take_first(&mut self, units: u64) -> Vec<(u64, u64)> {
        self.take(units, |_| 0)
    }

    /// Takes `units` from the last entries.
    fn take_last(&mut self, units: u64) -> Vec<(u64, u64)> {
        self.take(units, |entries| entries.saturating_sub(1))
    }

    fn take(&mut self, units: u64, index: impl Fn(usize) -> usize) -> Vec<(u64, u64)> {
        let (mut rest, mut all) = (units, Vec::new());
        while rest > 0
            && let Some(taken) = self.take_at(index(self.entries.len()), rest)
        {
            rest -= taken.1;
            all.push(taken);
        }
        all
    }
}

impl SlidingLog {
    /// Drops what no longer counts.
    fn prune(&self, log: &mut RequestLog, now: u64) {
        while let Some(&(time, units)) = log.entries.front() {
            if time.saturating_add(self.window) > now {
                break;
            }
            log.entries.pop_front();
            log.units -= units;
        }
    }

    /// Moves the oldest units to the end, W later: a full log has space for
    /// another unit when its oldest leaves, so each unit of a debt reuses the
    /// oldest of the last L. A debt of more than L has reused each of them, and
    /// repeats their order.
    ///
    /// All but the last L units stay: these have left by the time that the first of
    /// the others does. There are such units while reservations exist, or since the
    /// limit was lowered.
    fn rotate(&self, log: &mut RequestLog, units: u64) {
        let aside = log.take_first(log.units.saturating_sub(self.limit));
        let (rounds, rest) = (units / self.limit, units % self.limit);
        log.entries.iter_mut().for_each(|(time, _)| *time = time.saturating_add(self.window.saturating_mul(rounds)));
        let moved = log.take_first(rest);
        moved.into_iter().for_each(|(time, units)| log.push(time.saturating_add(self.window), units));
        aside.into_iter().for_each(|(time, units)| log.insert(time, units));
    }

    /// Reverses [`Self::rotate`]. A unit may have left earlier than this says,
    /// never later.
    fn rotate_back(&self, log: &mut RequestLog, units: u64) {
        let aside = log.take_first(log.units.saturating_sub(self.limit));
        let (rounds, rest) = (units / self.limit, units % self.limit);
        log.entries.iter_mut().for_each(|(time, _)| *time = time.saturating_sub(self.window.saturating_mul(rounds)));
        let moved = log.take_last(rest);
        let moved = moved.into_iter().map(|(time, units)| (time.saturating_sub(self.window), units));
        moved.chain(aside).for_each(|(time, units)| log.insert(time, units));
    }
}

impl StateMachine for SlidingLog {
    type State = RequestLog;

    fn earliest(&self, log: &RequestLog, now: u64, cost: u64) -> Option<u64> {
        if cost > self.limit || self.limit == 0 {
            return None;
        }
        // The excess must have left the window; entries leave in order.
        let mut excess = log.units.saturating_add(cost).saturating_sub(self.limit);
        let mut at = now.max(log.last());
        for (time, units) in &log.entries {
            if excess == 0 {
                break;
            }
            at = at.max(time.saturating_add(self.window));
            excess = excess.saturating_sub(*units);
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
        log.units = log.units.saturating_add(cost);
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
        let fitting = self.limit.saturating_sub(log.units).min(units);
        if fitting > 0 {
            log.push(at, fitting);
            log.units += fitting;
        }
        let rotated = units - fitting;
        if rotated > 0 {
            self.rotate(log, rotated);
        }
        log.idle_at = log.last().saturating_add(self.window);
        log.change_version(now);
        claim.extend(contiguous, units);
        // Found by its time only if all its units have one time.
        claim.at = match (contiguous, fitting) {
            (true, 0) => claim.at,
            (true, _) if claim.at != at => u64::MAX,
            _ => at,
        };
        claim.until = if contiguous { claim.until.saturating_add(rotated) } else { rotated };
        claim.detail = log.version;
    }

    fn is_last(&self, log: &RequestLog, _: u64, claim: &Claim) -> bool {
        claim.until == 0 && log.last() == claim.at
    }

    /// Undoes the latest charge in reverse order. Otherwise units leave the
    /// time that they were charged for, but not those that reuse the entries of
    /// earlier units.
    fn refund(&self, log: &mut RequestLog, now: u64, units: u64, claim: &mut Claim) {
        if log.is_latest(claim) && log.last() < u64::MAX {
            let rotated = units.min(claim.until);
            if rotated > 0 {
                if log.units < self.limit {
                    return;
                }
                self.rotate_back(log, rotated);
                claim.until -= rotated;
            }
            let taken = log.take_last(units - rotated);
            log.units -= taken.iter().map(|(_, units)| units).sum::<u64>();
        } else if claim.until == 0
            && let Ok(index) = log.entries.binary_search_by_key(&claim.at, |(time, _)| *time)
        {
            log.units -= log.take_at(index, units).map_or(0, |(_, refunded)| refunded);
            // A debt cannot be rotated back past the gap.
            log.change_version(now);
        }
        log.idle_at = if log.entries.is_empty() { now } else { log.last().saturating_add(self.window) };
    }

    fn move_back(&self, log: &mut RequestLog, _now: u64, latest: u64) {
        let by = log.idle_at.saturating_sub(latest);
        log.entries.iter_mut().for_each(|(time, _)| *time = time.saturating_sub(by));
        log.idle_at -= by;
    }

    fn span(&self) -> u64 {
        self.window
    }

    fn status_of(&self, log: &RequestLog, now: u64) -> QuotaStatus {
        let expired = log.entries.iter().take_while(|(time, _)| time.saturating_add(self.window) <= now);
        let used = log.units - expired.map(|(_, units)| units).sum::<u64>();
        let reset = if log.entries.is_empty() { 0 } else { log.idle_at.saturating_sub(now) };
        QuotaStatus { remaining: self.limit.saturating_sub(used), reset }
    }
}
