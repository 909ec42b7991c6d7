//! What this instance is asked for, and has to refuse, by rule and key: as its threads count
//! it ([`AskedUnits`], [`RefusedUnits`]), and as it says it to the others ([`OwnDemand`]).
//!
//! It computes no share. The invariants: a thread that is admitted at once writes no memory
//! that another thread writes; and the number of keys is bounded, whatever is refused.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap, btree_map::Entry},
    sync::{Arc, atomic::Ordering},
};

use super::{
    by_demand::MAX_DEMAND,
    rule_shares::{Asked, Subject},
};

/// The most keys that are refused in a round and noticed.
const MAX_REFUSED: usize = 1_024;

/// What all threads have counted since it was last read.
#[derive(Debug, Default)]
pub(super) struct AskedUnits(HashMap<Subject, Vec<AskedByThread>>);

#[derive(Debug)]
struct AskedByThread {
    units: Asked,
    read: u64,
}

impl AskedUnits {
    /// A count for one more thread.
    pub(super) fn add(&mut self, subject: Subject) -> Asked {
        let units = Asked::default();
        self.0.entry(subject).or_default().push(AskedByThread { units: Arc::clone(&units), read: 0 });
        units
    }

    /// How many units were asked for since the last call; those of a rule without those of
    /// its keys that are counted apart.
    pub(super) fn take(&mut self) -> BTreeMap<Subject, u64> {
        let of_subject = |(subject, threads): (&Subject, &mut Vec<AskedByThread>)| {
            let mut sum = 0_u64;
            threads.retain_mut(|thread| {
                // Before the count is read: its thread may add to it and then end.
                let is_used = Arc::strong_count(&thread.units) > 1;
                let units = thread.units.load(Ordering::Acquire);
                sum = sum.saturating_add(units.wrapping_sub(thread.read));
                thread.read = units;
                is_used
            });
            (subject.clone(), sum)
        };
        let asked = self.0.iter_mut().map(of_subject).collect();
        self.0.retain(|subject, threads| subject.key.is_none() || !threads.is_empty());
        asked
    }
}

/// Units of keys that were not admitted at once.
#[derive(Debug, Default)]
pub(super) struct RefusedUnits(HashMap<(&'static str, u64), u64>);

impl RefusedUnits {
    pub(super) fn count(&mut self, rule: &'static str, key: u64, units: u64) {
        let has_room = self.0.len() < MAX_REFUSED;
        match self.0.get_mut(&(rule, key)) {
            Some(refused) => *refused = refused.saturating_add(units),
            None if has_room => drop(self.0.insert((rule, key), units)),
            None => {}
        }
    }

    /// Those since the last call.
    pub(super) fn take(&mut self) -> BTreeMap<Subject, u64> {
        let refused = std::mem::take(&mut self.0).into_iter();
        refused.map(|((rule, key), units)| (Subject { rule: rule.to_owned(), key: Some(key) }, units)).collect()
    }
}

/// The demand that this instance says it has, and the keys for which it wants shares.
#[derive(Default)]
pub(super) struct OwnDemand {
    /// Of rules, and of keys that are wanted.
    averages: BTreeMap<Subject, Demand>,
    busy: BusyKeys,
}

impl OwnDemand {
    /// The demand of each rule and key, as it is published.
    pub(super) fn published(&self) -> BTreeMap<Subject, u64> {
        self.averages.iter().map(|(subject, demand)| (subject.clone(), demand.published)).collect()
    }

    /// The keys for which this instance wants shares of their own.
    pub(super) fn busy(&self) -> &BTreeMap<Subject, u64> {
        &self.busy.wanted
    }

    /// Some rounds are over, in which so many units were asked for, and refused, in a fleet
    /// of so many members. `wanted` are the keys that all members measure, each with what
    /// they are asked for as far as it is known.
    pub(super) fn measure<'k>(
        &mut self,
        [asked, refused]: [BTreeMap<Subject, u64>; 2],
        wanted: impl Iterator<Item = (&'k Subject, u64)>,
        rounds: u64,
        members: usize,
    ) {
        let wanted: BTreeMap<&Subject, u64> = wanted.collect();
        self.averages.retain(|subject, _| subject.key.is_none() || wanted.contains_key(subject));
        for (key, all) in wanted {
            let units = asked.get(key).copied().unwrap_or(0);
            match self.averages.entry(key.clone()) {
                Entry::Occupied(mut demand) => demand.get_mut().count_key(units, rounds, all),
                // It was measured for a part of the round.
                Entry::Vacant(demand) => drop(demand.insert(Demand::default())),
            }
        }
        let mut of_rules = BTreeMap::<Subject, u64>::new();
        for (subject, units) in asked {
            // A key that has a share of its own needs none of the rule's.
            let has_own = subject.key.is_some() && self.averages.get(&subject).is_some_and(|own| own.published > 0);
            let of_rule = of_rules.entry(subject.of_rule()).or_default();
            *of_rule = of_rule.saturating_add(if has_own { 0 } else { units });
        }
        for (rule, units) in of_rules {
            self.averages.entry(rule).or_default().count(units, rounds);
        }
        let demand = |key: &Subject| self.averages.get(key).map_or(0, |demand| demand.published);
        self.busy.follow(&refused, demand, members);
    }
}

/// What an instance is asked for in a round under a rule, averaged over as many rounds as it
/// takes to tell a change from chance: each change of a demand moves shares, and a window
/// that is open keeps the smallest.
#[derive(Debug, Default)]
struct Demand {
    /// 0 before the first round.
    published: u64,
    /// What was counted since it was last compared, and in how many rounds.
    units: u64,
    rounds: u64,
}

/// So many units differ by chance by a 32nd, and so many rounds are the most.
const ENOUGH: u64 = 1_024;
const MOST_ROUNDS: u64 = 60;

impl Demand {
    /// Counts what a key was asked for in some rounds, and all instances in each, as far as
    /// it is known. The first demand is published once chance makes an eighth of a difference
    /// to the key's shares.
    fn count_key(&mut self, units: u64, rounds: u64, all: u64) {
        if self.published > 0 {
            return self.count(units, rounds);
        }
        (self.units, self.rounds) = (self.units.saturating_add(units), self.rounds.saturating_add(rounds));
        let counted = self.units.max(all.saturating_mul(self.rounds));
        if self.units.isqrt() < counted / 8 || self.rounds >= MOST_ROUNDS {
            self.published = rounded(0, self.units / self.rounds.max(1));
            (self.units, self.rounds) = (0, 0);
        }
    }

    /// Counts what was asked for in some rounds.
    fn count(&mut self, units: u64, rounds: u64) {
        let all = (self.units.saturating_add(units), self.rounds.saturating_add(rounds));
        // A jump shows at once, and without what was before it.
        (self.units, self.rounds) = if self.is_other(units, rounds) { (units, rounds) } else { all };
        let is_due = self.published == 0 || self.units >= ENOUGH || self.rounds >= MOST_ROUNDS;
        if is_due || self.is_other(self.units, self.rounds) {
            self.published = rounded(self.published, self.units / self.rounds.max(1));
            (self.units, self.rounds) = (0, 0);
        }
    }

    /// Whether so many units are of another demand than the published one. By chance, they
    /// differ by more than three times their root once in 400 rounds.
    fn is_other(&self, units: u64, rounds: u64) -> bool {
        let expected = self.published.saturating_mul(rounds);
        units.abs_diff(expected) > expected / 8 + 3 * units.max(expected).isqrt()
    }
}

/// The last demand while it is close, so that noise changes nothing; else the new one, to
/// four bits.
fn rounded(last: u64, demand: u64) -> u64 {
    let demand = demand.clamp(1, MAX_DEMAND);
    if last.abs_diff(demand) <= last / 8 {
        return last;
    }
    let unit = 1_u64 << demand.ilog2().saturating_sub(3);
    (demand + unit / 2) / unit * unit
}

/// How many keys of a rule all instances want together, and the most that one does.
const MAX_OF_FLEET: usize = 64;
const MAX_OF_INSTANCE: usize = 16;

/// Of all rules together.
const MAX_WANTED: usize = 64;

/// Fewer units may be refused by chance in a round.
const FEWEST_REFUSED: u64 = 8;

/// Keys whose requests are refused here, though other instances may have units of theirs to
/// spare.
#[derive(Debug, Default)]
struct BusyKeys {
    /// With the demand that was refused; 0 before it is measured.
    wanted: BTreeMap<Subject, u64>,
}

impl BusyKeys {
    /// A round is over, in which so many units were refused, in a fleet of so many members.
    /// `demand` is that of a wanted key, 0 before it is measured.
    fn follow(&mut self, refused: &BTreeMap<Subject, u64>, demand: impl Fn(&Subject) -> u64, members: usize) {
        self.wanted.retain(|key, first| {
            let (demand, is_refused) = (demand(key), refused.contains_key(key));
            if *first == 0 || is_refused {
                *first = demand;
            }
            // With less it may do by the rule's share. If not, it is refused.
            is_refused || *first == 0 || demand >= (*first / 2).max(FEWEST_REFUSED)
        });
        let mut all: Vec<(u64, Subject)> = self
            .wanted
            .keys()
            .map(|key| (demand(key).max(refused.get(key).copied().unwrap_or(0)), key.clone()))
            .collect();
        // A key displaces another one if it has twice as much.
        let is_new = |key: &Subject, units| units >= FEWEST_REFUSED && !self.wanted.contains_key(key);
        let new = refused.iter().filter(|(key, units)| is_new(key, **units));
        all.extend(new.map(|(key, units)| (units / 2, key.clone())));
        all.sort_by_key(|(units, _)| Reverse(*units));
        let most = (MAX_OF_FLEET / members.max(1)).clamp(1, MAX_OF_INSTANCE);
        let mut of_rules = BTreeMap::<String, usize>::new();
        all.retain(|(_, key)| {
            let count = of_rules.entry(key.rule.clone()).or_default();
            *count += 1;
            *count <= most
        });
        all.truncate(MAX_WANTED);
        let first = std::mem::take(&mut self.wanted);
        let with_first = |(_, key): (u64, Subject)| (key.clone(), first.get(&key).copied().unwrap_or(0));
        self.wanted = all.into_iter().map(with_first).collect();
    }
}

#[cfg(test)]
mod tests {
    mod average;
    mod busy_keys;
}
