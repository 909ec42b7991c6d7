use std::collections::VecDeque;

use super::{Claim, QuotaStatus, State, StateMachine};

/// At most L units in any W, exactly: what passed at a time stops counting W
/// later.
#[derive(Clone, Debug)]
pub(crate) struct SlidingLog {
    limit: u64,
    window: u64,
}

/// Times and units, in order; equal times are one entry, so that there are
/// never more than L, and one for each reservation.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestLog {
    entries: VecDeque<(u64, u64)>,
    units: u64,
    idle_at: u64,
    /// Another one whenever somebody has come, or has left from the middle.
    /// Later than the clock then: a log that is dropped and made anew goes on
    /// with versions that no claim on the old one knows.
    version: u64,
}

impl State for RequestLog {
    /// Not dropped before the clock has passed its version.
    fn idle_at(&self) -> u64 {
        self.idle_at.max(self.version)
    }
}

impl RequestLog {
    fn last(&self) -> u64 {
        self.entries.back().map_or(0, |(time, _)| *time)
    }

    fn renew(&mut self, now: u64) {
        self.version = self.version.max(now).saturating_add(1);
    }

    /// Whether nobody has come since. The last version may be anybody's.
    fn is_latest(&self, claim: &Claim) -> bool {
        self.version == claim.detail && self.version < u64::MAX
    }

    /// At the end: with the last, where that is later.
    fn push(&mut self, at: u64, units: u64) {
        match self.entries.back_mut() {
            Some((time, counted)) if *time >= at => *counted = counted.saturating_add(units),
            _ => self.entries.push_back((at, units)),
        }
    }

    /// In its place.
    fn insert(&mut self, at: u64, units: u64) {
        match self.entries.binary_search_by_key(&at, |(time, _)| *time) {
            Ok(index) => self.entries[index].1 = self.entries[index].1.saturating_add(units),
            Err(index) => self.entries.insert(index, (at, units)),
        }
    }

    /// Takes up to `most` units of the first entry.
    fn take_first(&mut self, most: u64) -> Option<(u64, u64)> {
        let (time, units) = self.entries.front_mut()?;
        let taken = (*time, most.min(*units));
        *units -= taken.1;
        if *units == 0 {
            self.entries.pop_front();
        }
        Some(taken)
    }

    /// Takes up to `most` units of the last entry.
    fn take_last(&mut self, most: u64) -> Option<(u64, u64)> {
        let (time, units) = self.entries.back_mut()?;
        let taken = (*time, most.min(*units));
        *units -= taken.1;
        if *units == 0 {
            self.entries.pop_back();
        }
        Some(taken)
    }
}

impl SlidingLog {
    pub(super) fn new(limit: u64, window: u64) -> Self {
        Self { limit, window }
    }

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

    /// What is full lets another unit in when its oldest leaves: `units` of a
    /// debt each take the place of the oldest of the last L, W later. More than
    /// L of them have taken every place, and go on as they lie.
    fn turn(&self, log: &mut RequestLog, units: u64) {
        let left_behind = self.set_aside(log);
        let turns = units / self.limit;
        let length = self.window.saturating_mul(turns.saturating_sub(1));
        self.turn_some(log, if turns > 0 { self.limit } else { 0 });
        if length > 0 {
            log.entries.iter_mut().for_each(|(time, _)| *time = time.saturating_add(length));
        }
        self.turn_some(log, units % self.limit);
        left_behind.into_iter().for_each(|(time, units)| log.insert(time, units));
    }

    fn turn_some(&self, log: &mut RequestLog, units: u64) {
        let mut rest = units;
        while rest > 0
            && let Some((time, taken)) = log.take_first(rest)
        {
            log.push(time.saturating_add(self.window), taken);
            rest -= taken;
        }
    }

    /// The other way round. Who made place before may have done so earlier
    /// than is said here, never later.
    fn turn_back(&self, log: &mut RequestLog, units: u64) {
        let left_behind = self.set_aside(log);
        let length = self.window.saturating_mul(units / self.limit);
        if length > 0 {
            log.entries.iter_mut().for_each(|(time, _)| *time = time.saturating_sub(length));
        }
        let mut rest = units % self.limit;
        while rest > 0
            && let Some((time, taken)) = log.take_last(rest)
        {
            log.insert(time.saturating_sub(self.window), taken);
            rest -= taken;
        }
        left_behind.into_iter().for_each(|(time, units)| log.insert(time, units));
    }

    /// Takes out all but the last L units: those are gone by the time that
    /// the first of these makes place. There are such while others hold
    /// reservations, or since the limit was lowered.
    fn set_aside(&self, log: &mut RequestLog) -> Vec<(u64, u64)> {
        let mut aside = Vec::new();
        let mut rest = log.units.saturating_sub(self.limit);
        while rest > 0
            && let Some((time, taken)) = log.take_first(rest)
        {
            aside.push((time, taken));
            rest -= taken;
        }
        aside
    }
}

impl StateMachine for SlidingLog {
    type State = RequestLog;

    fn earliest(&self, log: &RequestLog, now: u64, cost: u64) -> Option<u64> {
        if cost > self.limit || self.limit == 0 {
            return None;
        }
        // What is too much must have left the window; in order, so from the front.
        let mut excess = log.units.saturating_add(cost).saturating_sub(self.limit);
        let mut at = now.max(log.last());
        for (time, units) in &log.entries {
            if excess == 0 {
                break;
            }
            at = at.max(time.saturating_add(self.window));
            excess = excess.saturating_sub(*units);
        }
        (at < u64::MAX).then_some(at)
    }

    fn commit(&self, log: &mut RequestLog, now: u64, at: u64, cost: u64) {
        if cost == 0 {
            return;
        }
        // Not by `at`: were that given back, what is still in the window would be gone.
        self.prune(log, now);
        log.push(at, cost);
        log.units = log.units.saturating_add(cost);
        log.idle_at = at.saturating_add(self.window);
        log.renew(now);
    }

    /// Whoever comes next goes no sooner.
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
        let together = log.is_latest(claim) && claim.units > 0;
        self.prune(log, now);
        let at = now.max(log.last());
        let fitting = self.limit.saturating_sub(log.units).min(units);
        if fitting > 0 {
            log.push(at, fitting);
            log.units += fitting;
        }
        let turned = units - fitting;
        if turned > 0 {
            self.turn(log, turned);
        }
        log.idle_at = log.last().saturating_add(self.window);
        log.renew(now);
        claim.extend(together, units);
        // Found again by its time only where it has one alone.
        claim.at = match (together, fitting) {
            (true, 0) => claim.at,
            (true, _) if claim.at != at => u64::MAX,
            _ => at,
        };
        claim.until = if together { claim.until.saturating_add(turned) } else { turned };
        claim.detail = log.version;
    }

    /// As long as nobody has come since, the way back is that by which they
    /// came. Else units leave the time that they were charged for; but not
    /// those that have taken the places of others.
    fn refund(&self, log: &mut RequestLog, now: u64, units: u64, claim: &mut Claim) {
        if log.is_latest(claim) && log.last() < u64::MAX {
            let turned = units.min(claim.until);
            if turned > 0 {
                if log.units < self.limit {
                    return;
                }
                self.turn_back(log, turned);
                claim.until -= turned;
            }
            let mut rest = units - turned;
            while rest > 0
                && let Some((_, taken)) = log.take_last(rest)
            {
                log.units -= taken;
                rest -= taken;
            }
        } else if claim.until == 0
            && let Ok(index) = log.entries.binary_search_by_key(&claim.at, |(time, _)| *time)
        {
            let counted = &mut log.entries[index].1;
            let given = units.min(*counted);
            *counted -= given;
            log.units -= given;
            if *counted == 0 {
                log.entries.remove(index);
            }
            // No debt finds its way back any more past the gap.
            log.renew(now);
        }
        log.idle_at = if log.entries.is_empty() { now } else { log.last().saturating_add(self.window) };
    }

    fn status_of(&self, log: &RequestLog, now: u64) -> QuotaStatus {
        let expired = log.entries.iter().take_while(|(time, _)| time.saturating_add(self.window) <= now);
        let used = log.units - expired.map(|(_, units)| units).sum::<u64>();
        let reset = if log.entries.is_empty() { 0 } else { log.idle_at.saturating_sub(now) };
        QuotaStatus { remaining: self.limit.saturating_sub(used), reset }
    }
}
