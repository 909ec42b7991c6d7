//! The states behind one lock, in one table per kind of state, and those that made
//! way for others. The lock and the cap are the store's.
//!
//! Invariants: the lock and the table of small states fit into one cache line; no table is
//! allocated by a search; a key has one state, in whichever form it is counted.

use std::sync::Arc;

use smallvec::SmallVec;

use super::table::Table;
use crate::{
    algorithm::{CompactState, LogMemory, RequestLog, State, WideState, narrowed, widened},
    fingerprint::Fingerprint,
};

/// How many entries of each table are checked for idle states at the cap.
pub(super) const SEARCH_WHEN_FULL: usize = 128;

/// How many displaced states of each kind are checked for idle ones whenever a
/// state is added: more than are displaced meanwhile.
const SEARCH_DISPLACED: usize = 4;

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
    displaced: Option<Box<Displaced>>,
}

/// A kind of state, of which a shard has a table.
pub(crate) trait Stored: State {
    /// `None` while the table is not allocated.
    fn table(shard: &Shard) -> Option<&Table<Self>>;

    fn table_mut(shard: &mut Shard) -> &mut Table<Self>;

    /// Removes the state of a key that was counted in another form, and returns it in
    /// this one. Buckets have two, and a reload may change to the other.
    fn take_other_form(_shard: &mut Shard, _key: Fingerprint) -> Option<Self> {
        None
    }
}

impl Shard {
    /// Checks the next `entries` entries of each table, and removes the states
    /// that are idle at `horizon`. Returns how many it removed.
    pub(super) fn evict_idle(&mut self, horizon: u64, entries: usize) -> usize {
        let mut evicted = self.small.evict(entries, |state| state.is_idle(horizon));
        if let Some(other) = &mut self.other {
            evicted += other.wide.evict(entries, |state| state.is_idle(horizon));
            evicted += other.logs.evict(entries, |log| log.is_idle(horizon));
            if let Some(displaced) = &mut other.displaced {
                for generation in displaced.generations() {
                    generation.evict_idle(horizon, SEARCH_DISPLACED);
                }
            }
        }
        evicted
    }

    /// Displaces one of the states that were just searched in vain for an idle one:
    /// the one that is idle soonest, of the rule with the most states. It is
    /// another rule than the key's, and one with more states.
    pub(crate) fn displace_other(&mut self, key: Fingerprint, capacity: usize) -> bool {
        let mut rules: SmallVec<[RuleSample; 8]> = SmallVec::new();
        sample(&self.small, Self::displace_at::<CompactState>, &mut rules);
        if let Some(other) = &self.other {
            sample(&other.wide, Self::displace_at::<WideState>, &mut rules);
            sample(&other.logs, Self::displace_at::<RequestLog>, &mut rules);
        }
        let own = rules.iter().find(|rule| rule.rule == key.rule()).map_or(0, |rule| rule.states);
        let most = rules.iter().filter(|rule| rule.rule != key.rule()).max_by_key(|rule| rule.states);
        let soonest = most.filter(|most| most.states > own).and_then(|most| most.soonest);
        soonest.into_iter().for_each(|soonest| (soonest.displace_at)(self, soonest.index, capacity));
        soonest.is_some()
    }

    /// Displaces one of the states that were just searched in vain for an idle one:
    /// of those of the same rule and tier as `key`, the one with the most left.
    /// `left` is `None` for states that must stay.
    pub(crate) fn displace<S: Stored>(
        &mut self,
        key: Fingerprint,
        left: impl Fn(&S) -> Option<u64>,
        capacity: usize,
    ) -> bool {
        let of_tier = |other: Fingerprint| other.rule_and_tier() == key.rule_and_tier();
        let sample = S::table(self).into_iter().flat_map(|table| table.checked(SEARCH_WHEN_FULL));
        let found = sample.filter(|(_, other, _)| of_tier(*other));
        let found = found.filter_map(|(index, _, state)| Some((left(state)?, index)));
        // The first of equals, so that each is as likely as any other.
        let Some((_, index)) = found.reduce(|most, next| if next.0 > most.0 { next } else { most }) else {
            return false;
        };
        self.displace_at::<S>(index, capacity);
        true
    }

    fn displace_at<S: Stored>(&mut self, index: usize, capacity: usize) {
        let (key, state) = S::table_mut(self).take(index);
        self.keep_displaced(key, state, capacity);
    }

    /// Keeps a state without an entry until `capacity` others were displaced.
    pub(crate) fn keep_displaced<S: Stored>(&mut self, key: Fingerprint, state: S, capacity: usize) {
        self.other.get_or_insert_default().displaced.get_or_insert_default().put(key, state, capacity);
    }

    /// Takes back the state of a key that was displaced.
    pub(crate) fn take_displaced<S: Stored>(&mut self, key: Fingerprint) -> Option<S> {
        self.other.as_deref_mut()?.displaced.as_mut()?.take(key)
    }

    /// The state of a key without an entry, if it was displaced.
    pub(crate) fn displaced_mut<S: Stored>(&mut self, key: Fingerprint) -> Option<&mut S> {
        self.other.as_deref_mut()?.displaced.as_mut()?.find_mut(key)
    }

    /// The state of a key that has an entry.
    fn find<S: Stored>(&self, key: Fingerprint) -> Option<&S> {
        let table = S::table(self)?;
        table.find(key).map(|index| table.state(index))
    }

    /// The index of the state of a key, whichever form it was counted in.
    #[inline]
    pub(crate) fn locate<S: Stored>(&mut self, key: Fingerprint) -> Option<usize> {
        match S::table(self).and_then(|table| table.find(key)) {
            Some(index) => Some(index),
            None => self.change_form::<S>(key),
        }
    }

    /// Out of line: few keys are new, and fewer change their form.
    #[inline(never)]
    fn change_form<S: Stored>(&mut self, key: Fingerprint) -> Option<usize> {
        let state = S::take_other_form(self, key)?;
        S::table_mut(self).insert(key, state, |_| false);
        S::table_mut(self).find(key)
    }

    #[inline]
    pub(crate) fn state_mut<S: Stored>(&mut self, key: Fingerprint) -> Option<&mut S> {
        let index = self.locate::<S>(key)?;
        Some(S::table_mut(self).state_mut(index))
    }

    /// Changes the state of a key, which is created if it does not exist.
    /// Returns how many states that were idle at `horizon` were dropped
    /// meanwhile.
    pub(crate) fn change<S: Stored>(
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
        S::table_mut(self).insert(key, state, |state| state.is_idle(horizon))
    }

    /// The state of a key, whether it has an entry or was displaced.
    pub(crate) fn state<S: Stored>(&self, key: Fingerprint) -> Option<&S> {
        self.find(key).or_else(|| self.other.as_deref()?.displaced.as_ref()?.find(key))
    }

    /// Reads the state of a key, or a new one.
    pub(crate) fn read<S: Stored, R>(&self, key: Fingerprint, read: impl FnOnce(&S) -> R) -> R {
        match self.state(key) {
            Some(state) => read(state),
            None => read(&S::default()),
        }
    }
}

/// The states of one rule in a sample of a shard.
struct RuleSample {
    rule: u64,
    /// How many there are in the whole shard, by the sample.
    states: usize,
    /// The state that is idle soonest. None that is idle only at the end of time:
    /// it counts units in flight.
    soonest: Option<Sampled>,
}

#[derive(Clone, Copy)]
struct Sampled {
    idle_at: u64,
    index: usize,
    /// Displaces it from its table.
    displace_at: fn(&mut Shard, usize, usize),
}

fn sample<S: Stored>(
    table: &Table<S>,
    displace_at: fn(&mut Shard, usize, usize),
    rules: &mut SmallVec<[RuleSample; 8]>,
) {
    let sampled = table.checked(SEARCH_WHEN_FULL).count().max(1);
    for (index, key, state) in table.checked(SEARCH_WHEN_FULL) {
        let position = rules.iter().position(|rule| rule.rule == key.rule()).unwrap_or_else(|| {
            rules.push(RuleSample { rule: key.rule(), states: 0, soonest: None });
            rules.len() - 1
        });
        let rule = &mut rules[position];
        rule.states += table.len().div_ceil(sampled);
        let idle_at = state.idle_at();
        if idle_at < u64::MAX && rule.soonest.is_none_or(|soonest| idle_at < soonest.idle_at) {
            rule.soonest = Some(Sampled { idle_at, index, displace_at });
        }
    }
}

impl Stored for CompactState {
    fn table(shard: &Shard) -> Option<&Table<Self>> {
        Some(&shard.small)
    }

    fn table_mut(shard: &mut Shard) -> &mut Table<Self> {
        &mut shard.small
    }

    fn take_other_form(shard: &mut Shard, key: Fingerprint) -> Option<Self> {
        shard.other.as_deref_mut()?.wide.remove(key).map(narrowed)
    }
}

impl Stored for WideState {
    fn table(shard: &Shard) -> Option<&Table<Self>> {
        shard.other.as_deref().map(|other| &other.wide)
    }

    fn table_mut(shard: &mut Shard) -> &mut Table<Self> {
        &mut shard.other.get_or_insert_default().wide
    }

    fn take_other_form(shard: &mut Shard, key: Fingerprint) -> Option<Self> {
        shard.small.remove(key).map(widened)
    }
}

impl Stored for RequestLog {
    fn table(shard: &Shard) -> Option<&Table<Self>> {
        shard.other.as_deref().map(|other| &other.logs)
    }

    fn table_mut(shard: &mut Shard) -> &mut Table<Self> {
        &mut shard.other.get_or_insert_default().logs
    }
}

/// The states that new ones displaced latest. A state is kept, as it was, until `capacity`
/// others were displaced after it. At most twice as many are kept.
///
/// Two generations: when the current one is full, it replaces the previous one.
#[derive(Debug, Default)]
struct Displaced {
    current: Shard,
    previous: Shard,
    /// The states that were put into the current generation.
    put: usize,
}

impl Displaced {
    fn put<S: Stored>(&mut self, key: Fingerprint, state: S, capacity: usize) {
        if self.put >= capacity {
            self.previous = std::mem::take(&mut self.current);
            self.put = 0;
        }
        self.put += 1;
        S::table_mut(&mut self.current).insert(key, state, |_| false);
    }

    fn find<S: Stored>(&self, key: Fingerprint) -> Option<&S> {
        [&self.current, &self.previous].into_iter().find_map(|generation| generation.find(key))
    }

    fn find_mut<S: Stored>(&mut self, key: Fingerprint) -> Option<&mut S> {
        self.generations().into_iter().find_map(|generation| generation.state_mut(key))
    }

    /// Removes the state of a key that gets an entry again.
    fn take<S: Stored>(&mut self, key: Fingerprint) -> Option<S> {
        self.generations().into_iter().find_map(|generation| {
            let index = generation.locate::<S>(key)?;
            Some(S::table_mut(generation).take(index).1)
        })
    }

    fn generations(&mut self) -> [&mut Shard; 2] {
        [&mut self.current, &mut self.previous]
    }
}

#[cfg(all(test, not(tower_ratelimit_loom)))]
mod tests;
