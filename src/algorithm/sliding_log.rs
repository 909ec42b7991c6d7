use std::collections::VecDeque;

use super::{Committed, Standing, State, StateMachine};

/// At most L units in any W, exactly: what passed at a time stops counting W
/// later.
#[derive(Clone, Debug)]
pub(crate) struct SlidingLog {
    limit: u64,
    window: u64,
}

/// Times and units, in order; equal times are one entry, so that there are
/// never more than L.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    entries: VecDeque<(u64, u64)>,
    units: u64,
    idle_at: u64,
}

impl State for Log {
    fn idle_at(&self) -> u64 {
        self.idle_at
    }
}

impl SlidingLog {
    pub(super) fn new(limit: u64, window: u64) -> Self {
        Self { limit, window }
    }
}

impl StateMachine for SlidingLog {
    type State = Log;

    fn earliest(&self, log: &Log, now: u64, cost: u64) -> Option<u64> {
        if cost > self.limit || self.limit == 0 {
            return None;
        }
        let Some((last, _)) = log.entries.back() else { return Some(now) };
        // What is too much must have left the window; in order, so from the front.
        let mut excess = log.units.saturating_add(cost).saturating_sub(self.limit);
        let mut at = now.max(*last);
        for (time, units) in &log.entries {
            if excess == 0 {
                break;
            }
            at = at.max(time.saturating_add(self.window));
            excess = excess.saturating_sub(*units);
        }
        (at < u64::MAX).then_some(at)
    }

    fn commit(&self, log: &mut Log, now: u64, at: u64, cost: u64) {
        if cost == 0 {
            return;
        }
        while let Some(&(time, units)) = log.entries.front() {
            // Not by `at`: were that given back, what is still in the window would be gone.
            if time.saturating_add(self.window) > now {
                break;
            }
            log.entries.pop_front();
            log.units -= units;
        }
        match log.entries.back_mut() {
            Some((time, units)) if *time >= at => *units = units.saturating_add(cost),
            _ => log.entries.push_back((at, cost)),
        }
        log.units = log.units.saturating_add(cost);
        log.idle_at = at.saturating_add(self.window);
    }

    fn refund(&self, log: &mut Log, _now: u64, Committed { at, cost, .. }: Committed) {
        let Ok(index) = log.entries.binary_search_by_key(&at, |(time, _)| *time) else { return };
        let units = &mut log.entries[index].1;
        let given = cost.min(*units);
        *units -= given;
        log.units -= given;
        if *units == 0 {
            log.entries.remove(index);
        }
    }

    fn standing(&self, log: &Log, now: u64) -> Standing {
        let expired = log.entries.iter().take_while(|(time, _)| time.saturating_add(self.window) <= now);
        let used = log.units - expired.map(|(_, units)| units).sum::<u64>();
        Standing { remaining: self.limit.saturating_sub(used), reset: log.idle_at.saturating_sub(now) }
    }
}
