//! The states behind one lock, in one table per kind of state. The lock and the
//! cap are the store's.
//!
//! Invariant: the lock and the table of small states fit into one cache line.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{sketch::UsageSketch, table::Table};
use crate::{
    algorithm::{CompactState, LogMemory, RequestLog, State, WideState},
    fingerprint::Fingerprint,
};

/// How many entries of each table are checked for idle states at the cap.
pub(super) const SEARCH_WHEN_FULL: usize = 128;

/// The states behind one lock. Most quotas need two words of state; the other
/// tables are allocated when they are first needed.
#[derive(Debug, Default)]
pub(crate) struct Shard {
    small: Table<CompactState>,
    other: Option<Box<Other>>,
}

#[derive(Debug, Default)]
struct Other {
    wide: Table<WideState>,
    logs: Table<RequestLog>,
    displaced: Option<UsageSketch>,
}

impl Shard {
    /// Checks the next `entries` entries of each table, and removes the states
    /// that are idle at `horizon`. Returns how many it removed.
    pub(super) fn evict_idle(&mut self, horizon: u64, entries: usize) -> usize {
        let mut evicted = self.small.evict(entries, |state| state.is_idle(horizon));
        if let Some(other) = &mut self.other {
            evicted += other.wide.evict(entries, |state| state.is_idle(horizon));
            evicted += other.logs.evict(entries, |log| log.is_idle(horizon));
        }
        evicted
    }

    /// Removes one of the states that were just searched in vain for an idle one:
    /// the one that is idle soonest, of the rule with the most states. It is
    /// another rule than the key's, and one with more states.
    pub(crate) fn displace_other(&mut self, key: Fingerprint) -> bool {
        let mut rules: SmallVec<[RuleSample; 8]> = SmallVec::new();
        let (wide, logs) = self.other.as_deref().map(|other| (&other.wide, &other.logs)).unzip();
        sample(&self.small, TableName::Small, &mut rules);
        wide.into_iter().for_each(|wide| sample(wide, TableName::Wide, &mut rules));
        logs.into_iter().for_each(|logs| sample(logs, TableName::Logs, &mut rules));
        let own = rules.iter().find(|rule| rule.rule == key.rule()).map_or(0, |rule| rule.states);
        let most = rules.iter().filter(|rule| rule.rule != key.rule()).max_by_key(|rule| rule.states);
        let Some((table, index, _)) = most.filter(|most| most.states > own).and_then(|most| most.soonest) else {
            return false;
        };
        match (table, &mut self.other) {
            (TableName::Small, _) => drop(self.small.take(index)),
            (TableName::Wide, Some(other)) => drop(other.wide.take(index)),
            (TableName::Logs, Some(other)) => drop(other.logs.take(index)),
            (_, None) => return false,
        }
        true
    }

    /// Remembers how many units a displaced key had used.
    pub(crate) fn remember(&mut self, hash: u64, used: u64, cells: usize) {
        let sketch = &mut self.other.get_or_insert_default().displaced;
        sketch.get_or_insert_with(|| UsageSketch::new(cells)).store(hash, used);
    }

    /// The units that are remembered of a displaced key.
    pub(crate) fn recall(&self, hash: u64) -> u64 {
        let sketch = self.other.as_deref().and_then(|other| other.displaced.as_ref());
        sketch.map_or(0, |sketch| sketch.load(hash))
    }
}

#[derive(Clone, Copy)]
enum TableName {
    Small,
    Wide,
    Logs,
}

/// The states of one rule in a sample of a shard.
struct RuleSample {
    rule: u64,
    /// How many there are in the whole shard, by the sample.
    states: usize,
    /// The state that is idle soonest, and when. None that is idle only at the
    /// end of time: it counts units in flight.
    soonest: Option<(TableName, usize, u64)>,
}

fn sample<S: State>(table: &Table<S>, name: TableName, rules: &mut SmallVec<[RuleSample; 8]>) {
    let sampled = table.checked(SEARCH_WHEN_FULL).count().max(1);
    for (index, key, state) in table.checked(SEARCH_WHEN_FULL) {
        let position = rules.iter().position(|rule| rule.rule == key.rule()).unwrap_or_else(|| {
            rules.push(RuleSample { rule: key.rule(), states: 0, soonest: None });
            rules.len() - 1
        });
        let rule = &mut rules[position];
        rule.states += table.len().div_ceil(sampled);
        let idle_at = state.idle_at();
        if idle_at < u64::MAX && rule.soonest.is_none_or(|(.., soonest)| idle_at < soonest) {
            rule.soonest = Some((name, index, idle_at));
        }
    }
}

/// The table that holds a kind of state.
pub(crate) trait Shelf<S: State> {
    /// `None` while the table is not allocated.
    fn table(&self) -> Option<&Table<S>>;

    fn table_mut(&mut self) -> &mut Table<S>;

    /// The state of a key, and its index.
    #[inline]
    fn find<'s>(&'s self, key: Fingerprint) -> Option<(usize, &'s S)>
    where
        S: 's,
    {
        let table = self.table()?;
        table.find(key).map(|index| (index, table.state(index)))
    }

    /// Reads the state of a key, or a new one.
    #[inline]
    fn read<R>(&self, key: Fingerprint, read: impl FnOnce(&S) -> R) -> R {
        match self.find(key) {
            Some((_, state)) => read(state),
            None => read(&S::default()),
        }
    }

    #[inline]
    fn state_mut<'s>(&'s mut self, key: Fingerprint) -> Option<&'s mut S>
    where
        S: 's,
    {
        let index = self.table()?.find(key)?;
        Some(self.table_mut().state_mut(index))
    }

    /// Changes the state of a key, which is created if it does not exist.
    /// Returns how many states that were idle at `horizon` were dropped
    /// meanwhile.
    fn change(
        &mut self,
        memory: &Arc<LogMemory>,
        key: Fingerprint,
        horizon: u64,
        change: impl FnOnce(&mut S),
    ) -> usize {
        if let Some(state) = self.state_mut(key) {
            change(state);
            state.account(memory);
            return 0;
        }
        let mut state = S::default();
        change(&mut state);
        state.account(memory);
        self.table_mut().insert(key, state, |state| state.is_idle(horizon))
    }

    /// Removes one of the states that were just searched in vain for an idle one:
    /// of those of the same rule and tier as `key`, the one with the most left.
    /// `left` is `None` for states that must stay.
    fn displace(&mut self, key: Fingerprint, left: impl Fn(&S) -> Option<u64>) -> Option<(Fingerprint, S)> {
        let of_tier = |other: Fingerprint| other.rule_and_tier() == key.rule_and_tier();
        let found = self.table()?.checked(SEARCH_WHEN_FULL).filter(|(_, other, _)| of_tier(*other));
        let found = found.filter_map(|(index, _, state)| Some((left(state)?, index)));
        // The first of equals, so that each is as likely as any other.
        let (_, index) = found.reduce(|most, next| if next.0 > most.0 { next } else { most })?;
        Some(self.table_mut().take(index))
    }
}

impl Shelf<CompactState> for Shard {
    #[inline]
    fn table(&self) -> Option<&Table<CompactState>> {
        Some(&self.small)
    }

    #[inline]
    fn table_mut(&mut self) -> &mut Table<CompactState> {
        &mut self.small
    }
}

impl Shelf<WideState> for Shard {
    fn table(&self) -> Option<&Table<WideState>> {
        self.other.as_deref().map(|other| &other.wide)
    }

    fn table_mut(&mut self) -> &mut Table<WideState> {
        &mut self.other.get_or_insert_default().wide
    }
}

impl Shelf<RequestLog> for Shard {
    fn table(&self) -> Option<&Table<RequestLog>> {
        self.other.as_deref().map(|other| &other.logs)
    }

    fn table_mut(&mut self) -> &mut Table<RequestLog> {
        &mut self.other.get_or_insert_default().logs
    }
}

#[cfg(all(test, not(tower_ratelimit_loom)))]
mod tests {
    use super::Shard;
    use crate::store::sync::{Lock, Padded};

    #[test]
    fn lock_and_hot_table_share_a_cache_line() {
        assert!(size_of::<Padded<Lock<Shard>>>() <= 64);
    }
}
