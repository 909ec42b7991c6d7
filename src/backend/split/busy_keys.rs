//! The keys for which this instance wants shares of their own: [`BusyKeys`].
//!
//! It computes no share. The invariant: their number is bounded, whatever is refused.

use std::{cmp::Reverse, collections::BTreeMap};

use super::rule_shares::Subject;

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
pub(super) struct BusyKeys {
    /// With the demand that was refused; 0 before it is measured.
    wanted: BTreeMap<Subject, u64>,
}

impl BusyKeys {
    pub(super) fn wanted(&self) -> &BTreeMap<Subject, u64> {
        &self.wanted
    }

    /// A round is over, in which so many units were refused, in a fleet of so many members.
    /// `demand` is that of a wanted key, 0 before it is measured.
    pub(super) fn follow(
        &mut self,
        refused: &BTreeMap<Subject, u64>,
        demand: impl Fn(&Subject) -> u64,
        members: usize,
    ) {
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
mod tests;
